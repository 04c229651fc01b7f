//! Small graphs: blocks that all tests use, and random ones.

use super::rig::{COLS, CPU, GPU, MAX_PAGES, VOCAB};
use crate::rng::Rng;
use minfer_gguf::TensorType;
use minfer_graph::{
    ActPrecision, Attention, Dim, Graph, GraphBuilder, GraphError, InputKind, KvShape, NodeId, Op, Rope,
    RopeStyle, Shape, WeightId, WeightSpec,
};

/// An f32 weight.
pub fn matrix(b: &mut GraphBuilder, name: &str, rows: usize, cols: usize) -> WeightId {
    b.weight(WeightSpec::new(name, TensorType::F32, rows, cols))
}

/// A rotation of heads of four.
pub fn rope() -> Rope {
    Rope {
        style: RopeStyle::Halves,
        head_dim: 4,
        n_rot: 4,
        base: 100.0,
        freq_scale: 1.0,
        factors: None,
        yarn: None,
        magnitude: 1.0,
    }
}

/// One KV head of four.
pub fn kv_shape(layer: usize) -> KvShape {
    KvShape { layer, n_kv_head: 1, head_dim: 4, v_dim: 4 }
}

/// Inputs of attention, shared by all layers.
#[derive(Clone, Copy)]
pub struct AttentionInputs {
    /// Positions.
    pub positions: NodeId,
    /// KV rows.
    pub rows: NodeId,
    /// Extents of sequences.
    pub extents: NodeId,
    /// Page table.
    pub table: NodeId,
}

/// Adds them to a graph.
pub fn attention_inputs(b: &mut GraphBuilder) -> AttentionInputs {
    AttentionInputs {
        positions: b.input("positions", InputKind::Positions, 1),
        rows: b.input("kv_rows", InputKind::KvRows { group: 0 }, 1),
        extents: b.input("extents", InputKind::Extents, 3),
        table: b.input("page_table", InputKind::PageTable { group: 0 }, MAX_PAGES),
    }
}

/// Projections (with biases if asked), rotation, store, load, attention: `[Tokens, COLS]` to the same.
///
/// # Errors
/// What the builder says.
pub fn attention_block(
    b: &mut GraphBuilder,
    i: AttentionInputs,
    layer: usize,
    bias: bool,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    let p = format!("blk.{layer}.");
    let project = |b: &mut GraphBuilder, what: &str, rows: usize| {
        let w = matrix(b, &format!("{p}{what}.weight"), rows, COLS);
        let y = b.matmul(&format!("{p}{what}"), w, ActPrecision::Int8, x)?;
        if !bias {
            return Ok(y);
        }
        let w = matrix(b, &format!("{p}{what}.bias"), 1, rows);
        b.add_bias(&format!("{p}{what}_bias"), w, y)
    };
    let q = project(b, "q", COLS)?;
    let k = project(b, "k", 4)?;
    let v = project(b, "v", 4)?;
    let q = b.rope(&format!("{p}q_rope"), rope(), q, i.positions)?;
    let k = b.rope(&format!("{p}k_rope"), rope(), k, i.positions)?;
    let load = b.kv_store_load(&p, kv_shape(layer), k, v, i.rows)?;
    let attention = Attention {
        layer,
        n_head: 2,
        n_kv_head: 1,
        head_dim: 4,
        v_dim: 4,
        scale: 0.5,
        window: None,
        softcap: None,
        sinks: None,
    };
    b.attention(&format!("{p}attn"), attention, q, load, i.extents, i.table)
}

/// An input of values, `[Tokens, COLS]`.
pub fn value_input(b: &mut GraphBuilder, name: &str) -> NodeId {
    b.input_value(name, Shape::new(Dim::Tokens, COLS))
}

/// `silu(x) + x` with x pinned to the host and the silu to another device, as in the founding chapter.
///
/// # Errors
/// What the builder says.
pub fn seed_graph() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", InputKind::Value, COLS);
    b.pin(x, CPU);
    let s = b.silu("silu", x)?;
    b.pin(s, GPU);
    let y = b.add("sum", s, x)?;
    b.pin(y, CPU);
    b.output(y);
    Ok(b.finish(0))
}

/// A random graph of 20 to 50 nodes: in-place chains, values read far away, inputs in the middle,
/// dead nodes, patterns that fuse, up to two attention layers, and rows gathered at the end. Values
/// stay finite: products are normed.
///
/// # Errors
/// What the builder says; a mistake here.
pub fn random_graph(seed: u64) -> Result<Graph, GraphError> {
    let mut rng = Rng::labelled(seed, "graph");
    let mut b = GraphBuilder::new();
    let inputs = attention_inputs(&mut b);
    let table = matrix(&mut b, "embed", VOCAB, COLS);
    let ids = b.input("ids", InputKind::TokenIds, 1);
    let mut values = vec![b.embed("tok", table, ids)?, b.input("x", InputKind::Value, COLS)];
    let mut layers = 0;
    for i in 0..12 + rng.below(12) {
        let pick = |rng: &mut Rng| values[values.len() - 1 - rng.below(values.len().min(6))];
        let (x, y) = (pick(&mut rng), pick(&mut rng));
        let value = match rng.below(16) {
            0 if layers < 2 => {
                layers += 1;
                let n = b.rms_norm("attn_norm", None, 1e-5, x)?;
                attention_block(&mut b, inputs, layers - 1, rng.below(2) == 0, n)?
            }
            1 => b.input(&format!("in.{i}"), InputKind::Value, COLS),
            n => random_op(&mut b, n, i, inputs, x, y)?,
        };
        values.push(value);
        if rng.below(12) == 0 {
            b.output(value);
        }
    }
    let rows = b.input("output_rows", InputKind::OutputRows, 1);
    let last = b.gather_rows("tail", values[values.len() - 1], rows)?;
    let residual = b.gather_rows("tail_residual", values[values.len() - 2], rows)?;
    let sum = b.add("tail_sum", last, residual)?;
    let w = matrix(&mut b, "head", 5, COLS);
    let logits = b.matmul("logits", w, ActPrecision::Int16, sum)?;
    b.output(logits);
    Ok(b.finish(seed))
}

fn random_op(
    b: &mut GraphBuilder,
    kind: usize,
    i: usize,
    inputs: AttentionInputs,
    x: NodeId,
    y: NodeId,
) -> Result<NodeId, GraphError> {
    let name = format!("op.{i}");
    let product = |b: &mut GraphBuilder, p: NodeId| b.rms_norm(&format!("norm.{i}"), None, 1e-5, p);
    match kind {
        0 => b.add(&name, x, y),
        2 => {
            let w = matrix(b, &format!("w.{i}"), COLS, COLS);
            let m = b.matmul(&format!("mm.{i}"), w, ActPrecision::Int8, x)?;
            b.add(&name, y, m)
        }
        3 => b.silu(&name, x),
        4 => {
            let p = b.mul(&name, x, y)?;
            product(b, p)
        }
        5 => {
            let s = b.silu(&format!("silu.{i}"), x)?;
            let p = b.mul(&name, y, s)?;
            product(b, p)
        }
        6 => {
            let w = matrix(b, &format!("w.{i}"), COLS, COLS);
            let m = b.matmul(&format!("mm.{i}"), w, ActPrecision::Int8, x)?;
            let bias = matrix(b, &format!("b.{i}"), 1, COLS);
            b.add_bias(&name, bias, m)
        }
        7 => {
            let w = matrix(b, &format!("n.{i}"), 1, COLS);
            b.rms_norm(&name, Some(w), 1e-5, x)
        }
        8 => b.rope(&name, rope(), x, inputs.positions),
        9 => {
            let p = b.push(&name, Op::SwiGlu, &[x, y])?;
            product(b, p)
        }
        10 => {
            let bias = matrix(b, &format!("b.{i}"), 1, COLS);
            b.add_bias(&name, bias, x)
        }
        11 => {
            let (w, v) = (matrix(b, &format!("w.{i}"), COLS, COLS), matrix(b, &format!("v.{i}"), COLS, COLS));
            let gate = b.matmul(&format!("gate.{i}"), w, ActPrecision::Int8, x)?;
            let up = b.matmul(&format!("up.{i}"), v, ActPrecision::Int8, x)?;
            let g = b.push(&format!("gelu.{i}"), Op::Gelu, &[gate])?;
            let p = b.mul(&name, g, up)?;
            product(b, p)
        }
        12 => b.push(&name, Op::Scale { factor: 0.5 }, &[x]),
        13 => b.push(&name, Op::SoftCap { cap: 2.0 }, &[x]),
        _ => b.add(&name, y, x),
    }
}
