//! Shape and type rules: one row per op. A violated rule is an error that shows the shapes.

use crate::graph::{Node, NodeId, WeightId, WeightSpec};
use crate::op::{Attention, ExpertMatMul, GatedMatMul, InputKind, KvShape, Norm, Op, QkvRopeStore, Rope};
use crate::shape::{DType, Dim, Shape};

/// Sources of a node under inference.
struct Sources<'a> {
    src: &'a [NodeId],
    nodes: &'a [Node],
}

impl Sources<'_> {
    fn shape(&self, i: usize) -> Shape {
        self.nodes[self.src[i]].shape
    }

    fn expect(&self, i: usize, what: &str, dtype: DType) -> Result<Shape, String> {
        let node = &self.nodes[self.src[i]];
        if node.dtype == dtype {
            return Ok(node.shape);
        }
        Err(format!("{what} is {} (`{}`), needs {}", node.dtype.name(), node.name, dtype.name()))
    }

    fn expect_input(&self, i: usize, kind: InputKind) -> Result<(), String> {
        let node = &self.nodes[self.src[i]];
        if node.op == Op::Input(kind) {
            return Ok(());
        }
        Err(format!("source {i} is `{}`, needs the input {kind:?}", node.name))
    }

    fn expect_indices(&self, i: usize, what: &str, rows: Dim) -> Result<(), String> {
        let shape = self.expect(i, what, DType::I32)?;
        if shape == Shape::new(rows, 1) {
            return Ok(());
        }
        Err(format!("{what} has shape {shape}, needs [{rows}, 1]"))
    }
}

/// Shape and type of an op's output.
pub fn infer(
    op: &Op,
    src: &[NodeId],
    nodes: &[Node],
    weights: &[WeightSpec],
) -> Result<(Shape, DType), String> {
    if src.len() != op.arity() {
        return Err(format!("{} sources, needs {}", src.len(), op.arity()));
    }
    if let Some(&s) = src.iter().find(|&&s| s >= nodes.len()) {
        return Err(format!("source {s} does not come before its consumer"));
    }
    let s = Sources { src, nodes };
    let kv = |shape| Ok((shape, DType::Kv));
    let f32 = |shape| Ok((shape, DType::F32));
    match op {
        Op::Input(_) => Err("inputs are made by the builder".into()),
        Op::Embed { weight } => {
            let ids = s.expect(0, "ids", DType::I32)?;
            f32(Shape::new(ids.rows, weight_at(weights, *weight)?.cols))
        }
        Op::MatMul { weight, bias, act: _ } => {
            let x = s.expect(0, "x", DType::F32)?;
            f32(Shape::new(x.rows, matmul_cols(weights, *weight, *bias, x)?))
        }
        Op::AddBias { bias } => {
            let x = s.expect(0, "x", DType::F32)?;
            check_vector(weights, *bias, x.cols, "bias")?;
            f32(x)
        }
        Op::RmsNorm { weight, eps, parts } => {
            let x = s.expect(0, "x", DType::F32)?;
            check_norm(weights, &Norm { weight: *weight, eps: *eps, parts: *parts }, x.cols)?;
            f32(x)
        }
        Op::Silu | Op::Gelu => f32(s.expect(0, "x", DType::F32)?),
        Op::Scale { factor } => match factor.is_finite() {
            true => f32(s.expect(0, "x", DType::F32)?),
            false => Err(format!("factor {factor}")),
        },
        Op::SoftCap { cap } => match cap.is_finite() && *cap > 0.0 {
            true => f32(s.expect(0, "x", DType::F32)?),
            false => Err(format!("cap {cap}")),
        },
        Op::PositionScale { gain, interval } => {
            let x = s.expect(0, "x", DType::F32)?;
            s.expect_indices(1, "positions", x.rows)?;
            if *interval == 0 || !gain.is_finite() {
                return Err(format!("interval {interval}, gain {gain}"));
            }
            f32(x)
        }
        Op::Add | Op::Mul | Op::SwiGlu | Op::GeGlu | Op::ClampedGlu { .. } => {
            let (a, b) = (s.expect(0, "a", DType::F32)?, s.expect(1, "b", DType::F32)?);
            if a != b {
                return Err(format!("shapes differ: {a} and {b}"));
            }
            f32(a)
        }
        Op::Rope(rope) => {
            let x = s.expect(0, "x", DType::F32)?;
            s.expect_indices(1, "positions", x.rows)?;
            check_rope(weights, rope, x.cols)?;
            f32(x)
        }
        Op::KvStore(shape) => {
            check_kv(&s, shape)?;
            kv(Shape::new(Dim::Fixed(0), 0))
        }
        Op::KvLoad(shape) => {
            check_kv_source(&s.nodes[s.src[0]], shape)?;
            kv(Shape::new(Dim::Fixed(0), 0))
        }
        Op::Attention(a) => f32(attention_shape(&s, weights, a)?),
        Op::GatherRows => {
            let x = s.expect(0, "x", DType::F32)?;
            let rows = s.expect(1, "rows", DType::I32)?;
            if rows.cols != 1 {
                return Err(format!("rows have shape {rows}, needs one column"));
            }
            f32(Shape::new(rows.rows, x.cols))
        }
        Op::TopExperts { n_used } => {
            let logits = s.expect(0, "router logits", DType::F32)?;
            if *n_used == 0 || *n_used > logits.cols {
                return Err(format!("{n_used} of {} experts", logits.cols));
            }
            Ok((Shape::new(logits.rows, *n_used), DType::I32))
        }
        Op::ExpertShares { over_chosen: _, scale } => {
            let logits = s.expect(0, "router logits", DType::F32)?;
            let experts = s.expect(1, "experts", DType::I32)?;
            if experts.rows != logits.rows || experts.cols > logits.cols || !scale.is_finite() {
                return Err(format!("{experts} experts of {logits} logits, scale {scale}"));
            }
            f32(experts)
        }
        Op::ExpertMatMul(m) => f32(expert_shape(&s, weights, m)?),
        Op::ExpertSum => {
            let (x, shares) = (s.expect(0, "x", DType::F32)?, s.expect(1, "shares", DType::F32)?);
            if x.rows != shares.rows || shares.cols == 0 || !x.cols.is_multiple_of(shares.cols) {
                return Err(format!("x is {x}, shares are {shares}"));
            }
            f32(Shape::new(x.rows, x.cols / shares.cols))
        }
        Op::QkvRopeStore(f) => f32(qkv_shape(&s, weights, f)?),
        Op::GatedMatMul(f) => f32(gated_shape(&s, weights, f)?),
        Op::MatMulAdd { weight, bias, act: _ } => {
            let (x, r) = (s.expect(0, "x", DType::F32)?, s.expect(1, "r", DType::F32)?);
            let product = Shape::new(x.rows, matmul_cols(weights, *weight, *bias, x)?);
            if product != r {
                return Err(format!("the product is {product}, what it is added to {r}"));
            }
            f32(r)
        }
        Op::NormAdd(norm) => {
            let (x, r) = (s.expect(0, "x", DType::F32)?, s.expect(1, "r", DType::F32)?);
            if x != r {
                return Err(format!("shapes differ: {x} and {r}"));
            }
            check_norm(weights, norm, x.cols)?;
            f32(r)
        }
    }
}

fn expert_shape(s: &Sources<'_>, weights: &[WeightSpec], m: &ExpertMatMul) -> Result<Shape, String> {
    let (x, experts) = (s.expect(0, "x", DType::F32)?, s.expect(1, "experts", DType::I32)?);
    let w = weight_at(weights, m.weight)?;
    if m.n_expert == 0 || !w.rows.is_multiple_of(m.n_expert) {
        return Err(format!("weight `{}` is [{}, {}], for {} experts", w.name, w.rows, w.cols, m.n_expert));
    }
    if x.rows != experts.rows || (x.cols != w.cols && x.cols != w.cols * experts.cols) {
        return Err(format!("weight `{}` takes {} values, x is {x}, experts {experts}", w.name, w.cols));
    }
    let n_out = w.rows / m.n_expert;
    if let Some(bias) = m.bias {
        let b = weight_at(weights, bias)?;
        if (b.rows, b.cols) != (m.n_expert, n_out) {
            return Err(format!("bias `{}` is [{}, {}]", b.name, b.rows, b.cols));
        }
    }
    Ok(Shape::new(x.rows, experts.cols * n_out))
}

fn weight_at(weights: &[WeightSpec], id: WeightId) -> Result<&WeightSpec, String> {
    weights.get(id.0).ok_or_else(|| format!("weight {} is not in the table", id.0))
}

fn check_vector(weights: &[WeightSpec], id: WeightId, len: usize, what: &str) -> Result<(), String> {
    let w = weight_at(weights, id)?;
    if w.rows == 1 && w.cols == len {
        return Ok(());
    }
    Err(format!("{what} `{}` is [{}, {}], needs [{len}]", w.name, w.rows, w.cols))
}

fn matmul_cols(
    weights: &[WeightSpec],
    weight: WeightId,
    bias: Option<WeightId>,
    x: Shape,
) -> Result<usize, String> {
    let w = weight_at(weights, weight)?;
    if w.cols != x.cols {
        return Err(format!("weight `{}` is [{}, {}] and x is {x}", w.name, w.rows, w.cols));
    }
    if let Some(b) = bias {
        check_vector(weights, b, w.rows, "bias")?;
    }
    Ok(w.rows)
}

fn check_norm(weights: &[WeightSpec], norm: &Norm, cols: usize) -> Result<(), String> {
    let Norm { weight, eps, parts } = *norm;
    if parts == 0 || !cols.is_multiple_of(parts) {
        return Err(format!("a norm of {parts} parts of {cols} values"));
    }
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(format!("eps is {eps}"));
    }
    weight.map_or(Ok(()), |w| check_vector(weights, w, cols / parts, "weight"))
}

fn check_rope(weights: &[WeightSpec], rope: &Rope, cols: usize) -> Result<(), String> {
    let Rope { head_dim, n_rot, base, freq_scale, factors, yarn, magnitude, style: _ } = *rope;
    if head_dim == 0 || !cols.is_multiple_of(head_dim) {
        return Err(format!("{cols} values are no whole number of heads of {head_dim}"));
    }
    if n_rot == 0 || n_rot % 2 != 0 || n_rot > head_dim {
        return Err(format!("rope rotates {n_rot} of {head_dim} values"));
    }
    if !(base.is_finite() && base > 0.0 && freq_scale.is_finite() && freq_scale > 0.0) {
        return Err(format!("rope base {base}, scale {freq_scale}"));
    }
    if !(magnitude.is_finite() && magnitude > 0.0) {
        return Err(format!("rope magnitude {magnitude}"));
    }
    if let Some(y) = yarn {
        let turns =
            y.beta_slow.is_finite() && y.beta_fast.is_finite() && y.beta_slow > 0.0 && y.beta_fast > 0.0;
        if !(turns && y.n_ctx_orig > 0 && (0.0..=1.0).contains(&y.ext_factor) && base > 1.0) {
            return Err(format!("{y:?}, rope base {base}"));
        }
    }
    factors.map_or(Ok(()), |f| check_vector(weights, f, n_rot / 2, "rope factors"))
}

fn check_kv(s: &Sources<'_>, kv: &KvShape) -> Result<(), String> {
    let (k, v) = (s.expect(0, "k", DType::F32)?, s.expect(1, "v", DType::F32)?);
    if k.cols != kv.n_kv_head * kv.head_dim || v.cols != kv.n_kv_head * kv.v_dim || k.rows != v.rows {
        return Err(format!("k is {k}, v is {v}, the cache holds {kv:?}"));
    }
    s.expect_indices(2, "kv rows", k.rows)
}

fn check_kv_source(node: &Node, kv: &KvShape) -> Result<(), String> {
    let stored = match &node.op {
        Op::KvStore(shape) => Some(shape),
        Op::QkvRopeStore(f) => Some(&f.kv),
        _ => None,
    };
    if stored == Some(kv) {
        return Ok(());
    }
    Err(format!("`{}` does not store {kv:?}", node.name))
}

fn attention_shape(s: &Sources<'_>, weights: &[WeightSpec], a: &Attention) -> Result<Shape, String> {
    let q = s.expect(0, "q", DType::F32)?;
    if a.n_kv_head == 0 || a.n_head == 0 || !a.n_head.is_multiple_of(a.n_kv_head) {
        return Err(format!("{} query heads over {} KV heads", a.n_head, a.n_kv_head));
    }
    if q.cols != a.n_head * a.head_dim {
        return Err(format!("q is {q}, needs {} heads of {}", a.n_head, a.head_dim));
    }
    if a.window == Some(0) || !a.scale.is_finite() {
        return Err(format!("window {:?}, scale {}", a.window, a.scale));
    }
    if let Some(cap) = a.softcap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
        return Err(format!("softcap {cap}"));
    }
    if let Some(sinks) = a.sinks {
        check_vector(weights, sinks, a.n_head, "sinks")?;
    }
    let load = &s.nodes[s.src[1]];
    match &load.op {
        Op::KvLoad(kv) if Some(*kv) == Op::Attention(*a).kv_shape() => {}
        _ => return Err(format!("`{}` does not load {a:?}", load.name)),
    }
    s.expect_input(2, InputKind::Extents)?;
    let table = s.shape(3);
    if !matches!(s.nodes[s.src[3]].op, Op::Input(InputKind::PageTable { .. })) || table.cols == 0 {
        return Err(format!("source 3 is no page table ({table})"));
    }
    Ok(Shape::new(q.rows, a.n_head * a.v_dim))
}

fn qkv_shape(s: &Sources<'_>, weights: &[WeightSpec], f: &QkvRopeStore) -> Result<Shape, String> {
    let x = s.expect(0, "x", DType::F32)?;
    s.expect_indices(1, "positions", x.rows)?;
    s.expect_indices(2, "kv rows", x.rows)?;
    let norm = |norm: &Option<Norm>, cols| norm.map_or(Ok(()), |n| check_norm(weights, &n, cols));
    norm(&f.norm, x.cols)?;
    let q = matmul_cols(weights, f.wq, f.bq, x)?;
    let k = matmul_cols(weights, f.wk, f.bk, x)?;
    let v = matmul_cols(weights, f.wv, f.bv, x)?;
    norm(&f.q_norm, q)?;
    norm(&f.k_norm, k)?;
    check_rope(weights, &f.rope, q)?;
    check_rope(weights, &f.rope, k)?;
    if k != f.kv.n_kv_head * f.kv.head_dim || v != f.kv.n_kv_head * f.kv.v_dim {
        return Err(format!("k has {k} values, v {v}, the cache holds {:?}", f.kv));
    }
    Ok(Shape::new(x.rows, q))
}

fn gated_shape(s: &Sources<'_>, weights: &[WeightSpec], f: &GatedMatMul) -> Result<Shape, String> {
    let x = s.expect(0, "x", DType::F32)?;
    f.norm.map_or(Ok(()), |norm| check_norm(weights, &norm, x.cols))?;
    let gate = matmul_cols(weights, f.gate, f.gate_bias, x)?;
    let up = matmul_cols(weights, f.up, f.up_bias, x)?;
    if gate != up {
        return Err(format!("the gate has {gate} values, up {up}"));
    }
    Ok(Shape::new(x.rows, gate))
}
