//! Building blocks of decoders, in plain operations; fusing is a later pass. No block names an architecture.

use crate::spec::{AttentionSpec, FfnSpec, Linear, kv_shape};
use minfer_graph::{ActPrecision, Attention, GraphBuilder, GraphError, NodeId, Rope, WeightSpec};

/// Inputs of a step that attention needs.
pub struct StepInputs {
    /// Positions of the tokens.
    pub positions: NodeId,
    /// Extents of the sequences.
    pub extents: NodeId,
    /// KV rows per KV group.
    pub kv_rows: Vec<NodeId>,
    /// Page table per KV group.
    pub page_tables: Vec<NodeId>,
}

/// Name of a weight's node: the tensor's name without its ending.
fn node_name(weight: &WeightSpec) -> &str {
    weight.name.strip_suffix(".weight").unwrap_or(&weight.name)
}

/// `x W^T + b`.
pub fn linear(
    b: &mut GraphBuilder,
    map: &Linear,
    act: ActPrecision,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    let weight = b.weight(map.weight.clone());
    let name = node_name(&map.weight).to_string();
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
    b.rms_norm(node_name(weight), Some(id), eps, x)
}

/// Self-attention without its output projection: `[Tokens, n_head * v_dim]`.
pub fn attention(
    b: &mut GraphBuilder,
    layer: usize,
    spec: &AttentionSpec,
    x: NodeId,
    inputs: &StepInputs,
) -> Result<NodeId, GraphError> {
    let prefix = format!("blk.{layer}.");
    let factors = spec.rope.factors.as_ref().map(|f| b.weight(f.clone()));
    let rope = Rope {
        style: spec.rope.style,
        head_dim: spec.head_dim,
        n_rot: spec.rope.n_rot,
        base: spec.rope.base,
        freq_scale: spec.rope.freq_scale,
        factors,
    };
    let q = linear(b, &spec.q, ActPrecision::Int8, x)?;
    let k = linear(b, &spec.k, ActPrecision::Int8, x)?;
    let v = linear(b, &spec.v, ActPrecision::Int8, x)?;
    let q = b.rope(&format!("{prefix}q_rope"), rope, q, inputs.positions)?;
    let k = b.rope(&format!("{prefix}k_rope"), rope, k, inputs.positions)?;
    let kv = kv_shape(layer, spec);
    let load = b.kv_store_load(&prefix, kv, k, v, inputs.kv_rows[spec.kv_group])?;
    let params = Attention {
        layer,
        n_head: spec.n_head,
        n_kv_head: spec.n_kv_head,
        head_dim: spec.head_dim,
        v_dim: spec.v_dim,
        scale: spec.scale,
        window: spec.window,
        softcap: None,
        sinks: None,
    };
    let table = inputs.page_tables[spec.kv_group];
    b.attention(&format!("{prefix}attn"), params, q, load, inputs.extents, table)
}

/// `down(silu(gate(x)) * up(x))`.
pub fn gated_ffn(b: &mut GraphBuilder, layer: usize, ffn: &FfnSpec, x: NodeId) -> Result<NodeId, GraphError> {
    let gate = linear(b, &ffn.gate, ActPrecision::Int8, x)?;
    let up = linear(b, &ffn.up, ActPrecision::Int8, x)?;
    let act = b.silu(&format!("blk.{layer}.ffn_silu"), gate)?;
    let gated = b.mul(&format!("blk.{layer}.ffn_gated"), act, up)?;
    linear(b, &ffn.down, ActPrecision::Int8, gated)
}
