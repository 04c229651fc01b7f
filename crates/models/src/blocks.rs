//! Building blocks of decoders, in plain operations; fusing is a later pass. No block names an architecture.

use crate::spec::{Activation, AttentionSpec, ExpertsSpec, FfnSpec, GatedSpec, Linear, RopeSpec, kv_shape};
use minfer_graph::{
    ActPrecision, Attention, ExpertMatMul, GraphBuilder, GraphError, NodeId, Op, Rope, WeightSpec,
};

/// Inputs of a step that attention needs, and the session's context.
pub struct StepInputs {
    /// Positions of the tokens.
    pub positions: NodeId,
    /// Extents of the sequences.
    pub extents: NodeId,
    /// KV rows per KV group.
    pub kv_rows: Vec<NodeId>,
    /// Page table per KV group.
    pub page_tables: Vec<NodeId>,
    /// Positions that a sequence can have.
    pub n_ctx: usize,
}

/// Name of a weight's node: the tensor's name without its ending.
fn node_name(weight: &WeightSpec) -> String {
    weight.name.strip_suffix(".weight").unwrap_or(&weight.name).to_string()
}

/// `x W^T + b`.
pub fn linear(
    b: &mut GraphBuilder,
    map: &Linear,
    act: ActPrecision,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    let weight = b.weight(map.weight.clone());
    let name = node_name(&map.weight);
    let y = b.matmul(&name, weight, act, x)?;
    match &map.bias {
        None => Ok(y),
        Some(bias) => {
            let bias = b.weight(bias.clone());
            b.add_bias(&format!("{name}.bias"), bias, y)
        }
    }
}

/// Root-mean-square norm with a weight.
pub fn norm(b: &mut GraphBuilder, weight: &WeightSpec, eps: f32, x: NodeId) -> Result<NodeId, GraphError> {
    let id = b.weight(weight.clone());
    b.rms_norm(&node_name(weight), Some(id), eps, x)
}

/// [`norm`], or `x` itself where a model has none.
pub fn optional_norm(
    b: &mut GraphBuilder,
    weight: Option<&WeightSpec>,
    eps: f32,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    weight.map_or(Ok(x), |w| norm(b, w, eps, x))
}

/// `factor * x`, or `x` itself for a factor of one.
pub fn scaled(b: &mut GraphBuilder, name: &str, factor: f32, x: NodeId) -> Result<NodeId, GraphError> {
    if factor == 1.0 {
        return Ok(x);
    }
    b.push(name, Op::Scale { factor }, &[x])
}

/// Queries or keys `[Tokens, cols]`, normed as the weight's length says.
fn norm_heads(
    b: &mut GraphBuilder,
    weight: Option<&WeightSpec>,
    cols: usize,
    eps: f32,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    let Some(weight) = weight else { return Ok(x) };
    let id = b.weight(weight.clone());
    b.rms_norm_parts(&node_name(weight), id, eps, cols / weight.cols, x)
}

fn rotation(b: &mut GraphBuilder, spec: &RopeSpec, head_dim: usize, n_ctx: usize) -> Rope {
    Rope {
        style: spec.style,
        head_dim,
        n_rot: spec.n_rot,
        base: spec.base,
        freq_scale: spec.freq_scale,
        factors: spec.factors.for_context(n_ctx).map(|f| b.weight(f.clone())),
        yarn: spec.yarn,
        magnitude: spec.magnitude,
    }
}

/// Self-attention without its output projection: `[Tokens, n_head * v_dim]`.
pub fn attention(
    b: &mut GraphBuilder,
    layer: usize,
    spec: &AttentionSpec,
    eps: f32,
    x: NodeId,
    inputs: &StepInputs,
) -> Result<NodeId, GraphError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let q = linear(b, &spec.q, ActPrecision::Int8, x)?;
    let k = linear(b, &spec.k, ActPrecision::Int8, x)?;
    let v = linear(b, &spec.v, ActPrecision::Int8, x)?;
    let mut q = norm_heads(b, spec.q_norm.as_ref(), spec.n_head * spec.head_dim, eps, q)?;
    let mut k = norm_heads(b, spec.k_norm.as_ref(), spec.n_kv_head * spec.head_dim, eps, k)?;
    if let Some(rope) = &spec.rope {
        let rope = rotation(b, rope, spec.head_dim, inputs.n_ctx);
        q = b.rope(&name("q_rope"), rope, q, inputs.positions)?;
        k = b.rope(&name("k_rope"), rope, k, inputs.positions)?;
    }
    if let Some(t) = spec.temperature {
        let op = Op::PositionScale { gain: t.gain, interval: t.interval };
        q = b.push(&name("q_scaled"), op, &[q, inputs.positions])?;
    }
    let kv = kv_shape(layer, spec);
    let load = b.kv_store_load(&name(""), kv, k, v, inputs.kv_rows[spec.kv_group])?;
    let params = Attention {
        layer,
        n_head: spec.n_head,
        n_kv_head: spec.n_kv_head,
        head_dim: spec.head_dim,
        v_dim: spec.v_dim,
        scale: spec.scale,
        window: spec.window,
        softcap: spec.softcap,
        sinks: spec.sinks.as_ref().map(|s| b.weight(s.clone())),
    };
    let table = inputs.page_tables[spec.kv_group];
    b.attention(&name("attn"), params, q, load, inputs.extents, table)
}

/// The feed-forward part of a layer.
pub fn feed_forward(
    b: &mut GraphBuilder,
    layer: usize,
    ffn: &FfnSpec,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    match ffn {
        FfnSpec::Dense(gated) => {
            let gate = linear(b, &gated.gate, ActPrecision::Int8, x)?;
            let up = linear(b, &gated.up, ActPrecision::Int8, x)?;
            let hidden = activated(b, layer, gated, gate, up)?;
            linear(b, &gated.down, ActPrecision::Int8, hidden)
        }
        FfnSpec::Experts(experts) => mixture(b, layer, experts, x),
    }
}

/// Gate and up, met.
fn activated(
    b: &mut GraphBuilder,
    layer: usize,
    gated: &GatedSpec,
    gate: NodeId,
    up: NodeId,
) -> Result<NodeId, GraphError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let gate = match gated.activation {
        Activation::Silu => b.silu(&name("ffn_silu"), gate)?,
        Activation::Gelu => b.push(&name("ffn_gelu"), Op::Gelu, &[gate])?,
        Activation::ClampedSilu { alpha, limit } => {
            return b.push(&name("ffn_gated"), Op::ClampedGlu { alpha, limit }, &[gate, up]);
        }
    };
    b.mul(&name("ffn_gated"), gate, up)
}

/// The chosen experts' feed-forward parts, summed by their shares in rank order.
fn mixture(b: &mut GraphBuilder, layer: usize, spec: &ExpertsSpec, x: NodeId) -> Result<NodeId, GraphError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let logits = linear(b, &spec.router, ActPrecision::Int8, x)?;
    let experts = b.push(&name("ffn_experts"), Op::TopExperts { n_used: spec.n_used }, &[logits])?;
    let shares = Op::ExpertShares { over_chosen: spec.over_chosen, scale: spec.scale };
    let shares = b.push(&name("ffn_shares"), shares, &[logits, experts])?;
    let product = |b: &mut GraphBuilder, map: &Linear, x: NodeId| {
        let weight = b.weight(map.weight.clone());
        let bias = map.bias.as_ref().map(|bias| b.weight(bias.clone()));
        let op = ExpertMatMul { weight, bias, n_expert: spec.n_expert, act: ActPrecision::Int8 };
        b.push(&node_name(&map.weight), Op::ExpertMatMul(op), &[x, experts])
    };
    let gate = product(b, &spec.experts.gate, x)?;
    let up = product(b, &spec.experts.up, x)?;
    let hidden = activated(b, layer, &spec.experts, gate, up)?;
    let down = product(b, &spec.experts.down, hidden)?;
    b.push(&name("ffn_sum"), Op::ExpertSum, &[down, shares])
}
