//! Fusion: one table of rewrites. Each is decided first, with a typed reason if refused, and only
//! then applied. What a fusion replaces stays in the list as a dead node, so that order is kept.

use crate::backend::Backends;
use crate::error::NodeRef;
use crate::fusion_report::{Fused, FusionRefusal, FusionReport, Unfused};
use crate::graph::{Graph, Node, NodeId};
use crate::op::{GatedMatMul, Gating, Norm, Op, QkvRopeStore, Rope};
use crate::shape::{DType, Shape};
use std::str::FromStr;

/// One switch per fusion; part of what makes two plans equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FusionSwitches {
    /// [`Fusion::MatMulBias`].
    pub matmul_bias: bool,
    /// [`Fusion::SwiGlu`].
    pub swiglu: bool,
    /// [`Fusion::GeGlu`].
    pub geglu: bool,
    /// [`Fusion::QkvRopeStore`].
    pub qkv_rope_store: bool,
    /// [`Fusion::GatedMatMul`].
    pub gated_matmul: bool,
    /// [`Fusion::MatMulAdd`].
    pub matmul_add: bool,
    /// [`Fusion::NormAdd`].
    pub norm_add: bool,
    /// [`Fusion::NormMatMul`].
    pub norm_matmul: bool,
}

impl FusionSwitches {
    /// Nothing is fused.
    pub const NONE: FusionSwitches = FusionSwitches::all(false);

    const fn all(on: bool) -> FusionSwitches {
        FusionSwitches {
            matmul_bias: on,
            swiglu: on,
            geglu: on,
            qkv_rope_store: on,
            gated_matmul: on,
            matmul_add: on,
            norm_add: on,
            norm_matmul: on,
        }
    }

    /// Whether a fusion is switched on.
    pub fn get(self, fusion: Fusion) -> bool {
        match fusion {
            Fusion::MatMulBias => self.matmul_bias,
            Fusion::SwiGlu => self.swiglu,
            Fusion::GeGlu => self.geglu,
            Fusion::QkvRopeStore => self.qkv_rope_store,
            Fusion::GatedMatMul => self.gated_matmul,
            Fusion::MatMulAdd => self.matmul_add,
            Fusion::NormAdd => self.norm_add,
            Fusion::NormMatMul => self.norm_matmul,
        }
    }

    /// The same switches with one of them set.
    pub fn with(mut self, fusion: Fusion, on: bool) -> Self {
        let switch = match fusion {
            Fusion::MatMulBias => &mut self.matmul_bias,
            Fusion::SwiGlu => &mut self.swiglu,
            Fusion::GeGlu => &mut self.geglu,
            Fusion::QkvRopeStore => &mut self.qkv_rope_store,
            Fusion::GatedMatMul => &mut self.gated_matmul,
            Fusion::MatMulAdd => &mut self.matmul_add,
            Fusion::NormAdd => &mut self.norm_add,
            Fusion::NormMatMul => &mut self.norm_matmul,
        };
        *switch = on;
        self
    }
}

impl Default for FusionSwitches {
    fn default() -> Self {
        FusionSwitches::all(true)
    }
}

/// A row of the fusion table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fusion {
    /// `AddBias(MatMul(x))` → `MatMul` with a bias.
    MatMulBias,
    /// `Mul(Silu(gate), up)`, either operand order → `SwiGlu`.
    SwiGlu,
    /// `Mul(Gelu(gate), up)`, either operand order → `GeGlu`.
    GeGlu,
    /// Three projections of one x, norms of q and k if they have any, RoPE on both, and the KV store → `QkvRopeStore`.
    QkvRopeStore,
    /// `SwiGlu` or `GeGlu` of two projections of one x → `GatedMatMul`.
    GatedMatMul,
    /// `Add(MatMul(x), r)`, either operand order → `MatMulAdd`.
    MatMulAdd,
    /// `Add(RmsNorm(x), r)`, either operand order → `NormAdd`.
    NormAdd,
    /// `QkvRopeStore` or `GatedMatMul` of `RmsNorm(x)` → the same of x, with the norm in it.
    NormMatMul,
}

impl Fusion {
    /// All of them, in the order they are applied: the projections take in their biases first, the gate its activation;
    /// products of several weights take in the norm of their input once they are one node.
    pub const ALL: [Fusion; 8] = [
        Fusion::MatMulBias,
        Fusion::SwiGlu,
        Fusion::GeGlu,
        Fusion::QkvRopeStore,
        Fusion::GatedMatMul,
        Fusion::MatMulAdd,
        Fusion::NormAdd,
        Fusion::NormMatMul,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fusion::MatMulBias => "MatMulBias",
            Fusion::SwiGlu => "SwiGlu",
            Fusion::GeGlu => "GeGlu",
            Fusion::QkvRopeStore => "QkvRopeStore",
            Fusion::GatedMatMul => "GatedMatMul",
            Fusion::MatMulAdd => "MatMulAdd",
            Fusion::NormAdd => "NormAdd",
            Fusion::NormMatMul => "NormMatMul",
        }
    }

    /// What it does, in words.
    pub const fn what(self) -> &'static str {
        match self {
            Fusion::MatMulBias => "a product adds its bias itself",
            Fusion::SwiGlu => "SiLU of the gate times the up projection, in one pass",
            Fusion::GeGlu => "GELU of the gate times the up projection, in one pass",
            Fusion::QkvRopeStore => {
                "the projections to q, k and v, norms and RoPE of q and k, and the store into the KV cache, in one node"
            }
            Fusion::GatedMatMul => "the gate and the up projection and their gated product, in one node",
            Fusion::MatMulAdd => "a product adds itself to the residual",
            Fusion::NormAdd => "a norm adds itself to the residual",
            Fusion::NormMatMul => "products with several weights normalise their input themselves",
        }
    }

    /// Whether a node could be the last of this pattern, so that a refusal is worth a line.
    fn is_anchor(self, graph: &Graph, node: &Node) -> bool {
        match self {
            Fusion::MatMulBias => matches!(node.op, Op::AddBias { .. }),
            Fusion::SwiGlu => multiplies(graph, node, Op::Silu),
            Fusion::GeGlu => multiplies(graph, node, Op::Gelu),
            Fusion::QkvRopeStore => matches!(node.op, Op::KvStore(_)),
            Fusion::GatedMatMul => {
                matches!(node.op, Op::SwiGlu | Op::GeGlu)
                    && node.src.iter().any(|&s| is_product(graph.node(s)))
            }
            Fusion::MatMulAdd => node.op == Op::Add && node.src.iter().any(|&s| is_product(graph.node(s))),
            Fusion::NormAdd => {
                node.op == Op::Add && node.src.iter().any(|&s| Norm::of(&graph.node(s).op).is_some())
            }
            Fusion::NormMatMul => {
                matches!(node.op, Op::QkvRopeStore(_) | Op::GatedMatMul(_))
                    && Norm::of(&graph.node(node.src[0]).op).is_some()
            }
        }
    }

    fn decide(self, ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
        match self {
            Fusion::MatMulBias => decide_matmul_bias(ctx, anchor),
            Fusion::SwiGlu => decide_gated(ctx, anchor, Op::Silu, Op::SwiGlu),
            Fusion::GeGlu => decide_gated(ctx, anchor, Op::Gelu, Op::GeGlu),
            Fusion::QkvRopeStore => decide_qkv(ctx, anchor),
            Fusion::GatedMatMul => decide_gated_matmul(ctx, anchor),
            Fusion::MatMulAdd => decide_matmul_add(ctx, anchor),
            Fusion::NormAdd => decide_norm_add(ctx, anchor),
            Fusion::NormMatMul => decide_norm_matmul(ctx, anchor),
        }
    }
}

impl FromStr for Fusion {
    type Err = String;

    /// The fusion of a name, in any case.
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Fusion::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(s));
        let names = || Fusion::ALL.map(Fusion::name).join(", ");
        found.ok_or_else(|| format!("`{s}` is no fusion; there are {}", names()))
    }
}

/// What a decision may look at.
struct Context<'a> {
    graph: &'a Graph,
    backends: &'a Backends,
    live: Vec<bool>,
    /// Live readers of each node.
    readers: Vec<Vec<NodeId>>,
}

/// A decided fusion: the node at `place` becomes the fused op.
struct Rewrite {
    place: NodeId,
    op: Op,
    src: Vec<NodeId>,
    shape: Shape,
    /// The nodes whose work it does, in order.
    replaced: Vec<NodeId>,
    /// A node whose value the fused node now holds: its readers read the fused node instead, and the
    /// two swap names, so that a name keeps meaning one value with and without fusion.
    value_of: Option<NodeId>,
}

/// Applies the table to an assigned graph.
pub fn fuse(graph: &mut Graph, backends: &Backends, switches: FusionSwitches) -> FusionReport {
    let mut report = FusionReport::default();
    for fusion in Fusion::ALL {
        let mut rewrites = Vec::new();
        let ctx = Context::new(graph, backends);
        for node in graph.nodes.iter().filter(|n| ctx.live[n.id] && fusion.is_anchor(graph, n)) {
            let decision = match switches.get(fusion) {
                true => fusion.decide(&ctx, node),
                false => Err(FusionRefusal::SwitchedOff),
            };
            match decision {
                Ok(rewrite) => rewrites.push(rewrite),
                Err(why) => report.refused.push(Unfused { fusion, node: node.reference(), why }),
            }
        }
        // Two decisions of one kind never touch: every node that vanishes has a single reader.
        for rewrite in rewrites {
            let place = rewrite.place;
            let replaced: Vec<NodeRef> =
                rewrite.replaced.iter().map(|&id| graph.node(id).reference()).collect();
            apply(graph, rewrite);
            report.applied.push(Fused { fusion, node: graph.node(place).reference(), replaced });
        }
    }
    report
}

fn apply(graph: &mut Graph, rewrite: Rewrite) {
    let Rewrite { place, op, src, shape, replaced: _, value_of } = rewrite;
    if let Some(old) = value_of {
        for source in graph.nodes.iter_mut().filter(|n| n.id > place).flat_map(|n| &mut n.src) {
            if *source == old {
                *source = place;
            }
        }
        let name = std::mem::take(&mut graph.nodes[old].name);
        graph.nodes[old].name = std::mem::replace(&mut graph.nodes[place].name, name);
    }
    let node = &mut graph.nodes[place];
    node.op = op;
    node.src = src;
    node.shape = shape;
    node.dtype = DType::F32;
}

impl<'a> Context<'a> {
    fn new(graph: &'a Graph, backends: &'a Backends) -> Self {
        let live = graph.live();
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        for node in graph.nodes.iter().filter(|n| live[n.id]) {
            for &s in &node.src {
                readers[s].push(node.id);
            }
        }
        Context { graph, backends, live, readers }
    }

    /// A node that vanishes: on the same backend as the anchor, read once, no output.
    fn inner(&self, anchor: &Node, id: NodeId) -> Result<&'a Node, FusionRefusal> {
        let node = self.same_backend(anchor, id)?;
        if self.readers[id].len() != 1 {
            return Err(FusionRefusal::UsedElsewhere(id));
        }
        Ok(node)
    }

    fn same_backend(&self, anchor: &Node, id: NodeId) -> Result<&'a Node, FusionRefusal> {
        let node = self.graph.node(id);
        if node.backend != anchor.backend {
            return Err(FusionRefusal::BackendsDiffer(id, anchor.id));
        }
        if self.graph.outputs.contains(&id) {
            return Err(FusionRefusal::IsOutput(id));
        }
        Ok(node)
    }

    /// The rewrite, if the anchor's backend has a kernel for it.
    fn accept(&self, anchor: &Node, rewrite: Rewrite) -> Result<Rewrite, FusionRefusal> {
        let refuses = |why: String| FusionRefusal::BackendRefuses(why);
        let tag = anchor.backend.ok_or_else(|| refuses("not assigned".into()))?;
        let backend = self.backends.get(tag).map_err(|e| refuses(e.to_string()))?;
        let mut node = anchor.clone();
        node.op = rewrite.op;
        node.src = rewrite.src.clone();
        node.shape = rewrite.shape;
        node.dtype = DType::F32;
        backend.supports(self.graph, &node).map_err(|e| refuses(e.to_string()))?;
        Ok(rewrite)
    }
}

fn not(node: &Node, wanted: &str) -> FusionRefusal {
    FusionRefusal::Pattern(format!("`{}` is {}, not {wanted}", node.name, node.op.name()))
}

fn decide_matmul_bias(ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
    let Op::AddBias { bias } = anchor.op else { return Err(not(anchor, "AddBias")) };
    let product = ctx.graph.node(anchor.src[0]);
    let Op::MatMul { weight, bias: None, act } = product.op else {
        return Err(not(product, "MatMul without bias"));
    };
    ctx.inner(anchor, product.id)?;
    let op = Op::MatMul { weight, bias: Some(bias), act };
    let (place, src, shape) = (anchor.id, product.src.clone(), anchor.shape);
    let replaced = vec![product.id, place];
    ctx.accept(anchor, Rewrite { place, op, src, shape, replaced, value_of: None })
}

/// Whether a node multiplies the result of an activation.
fn multiplies(graph: &Graph, node: &Node, activation: Op) -> bool {
    node.op == Op::Mul && node.src.iter().any(|&s| graph.node(s).op == activation)
}

/// `Mul(activation(gate), up)` in either order becomes `fused(gate, up)`.
fn decide_gated(
    ctx: &Context<'_>,
    anchor: &Node,
    activation: Op,
    fused: Op,
) -> Result<Rewrite, FusionRefusal> {
    let try_order = |gate: NodeId, up: NodeId| {
        let inner = ctx.graph.node(gate);
        if inner.op != activation {
            return Err(not(inner, activation.name()));
        }
        ctx.inner(anchor, gate)?;
        let (place, src, shape) = (anchor.id, vec![inner.src[0], up], anchor.shape);
        let replaced = vec![gate, place];
        ctx.accept(anchor, Rewrite { place, op: fused, src, shape, replaced, value_of: None })
    };
    let (a, b) = (anchor.src[0], anchor.src[1]);
    match (ctx.graph.node(a).op == activation, ctx.graph.node(b).op == activation) {
        (true, true) => try_order(a, b).or_else(|_| try_order(b, a)),
        (true, false) => try_order(a, b),
        (false, _) => try_order(b, a),
    }
}

fn is_product(node: &Node) -> bool {
    matches!(node.op, Op::MatMul { .. })
}

/// `gating(MatMul(x), MatMul(x))` becomes one product with two weights.
fn decide_gated_matmul(ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
    let gating = match anchor.op {
        Op::SwiGlu => Gating::Silu,
        Op::GeGlu => Gating::Gelu,
        _ => return Err(not(anchor, "SwiGlu or GeGlu")),
    };
    let product = |id: NodeId| {
        let node = ctx.graph.node(id);
        let Op::MatMul { weight, bias, act } = node.op else { return Err(not(node, "MatMul")) };
        ctx.inner(anchor, id)?;
        Ok(Projection { weight, bias, act, x: node.src[0] })
    };
    let (gate, up) = (product(anchor.src[0])?, product(anchor.src[1])?);
    if gate.x != up.x {
        return Err(FusionRefusal::Mismatch("the gate and up project different values".into()));
    }
    if gate.act != up.act {
        return Err(FusionRefusal::Mismatch(
            "the gate and up take activations of different precision".into(),
        ));
    }
    let op = Op::GatedMatMul(GatedMatMul {
        norm: None,
        gate: gate.weight,
        up: up.weight,
        gate_bias: gate.bias,
        up_bias: up.bias,
        gating,
        act: gate.act,
    });
    let (place, src, shape) = (anchor.id, vec![gate.x], anchor.shape);
    let mut replaced = vec![anchor.src[0], anchor.src[1], place];
    replaced.sort_unstable();
    ctx.accept(anchor, Rewrite { place, op, src, shape, replaced, value_of: None })
}

/// `Add(MatMul(x), r)` in either order.
fn decide_matmul_add(ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
    decide_sum(ctx, anchor, "MatMul", |op| match *op {
        Op::MatMul { weight, bias, act } => Some(Op::MatMulAdd { weight, bias, act }),
        _ => None,
    })
}

/// `Add(RmsNorm(x), r)` in either order.
fn decide_norm_add(ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
    decide_sum(ctx, anchor, "RmsNorm", |op| Norm::of(op).map(Op::NormAdd))
}

/// `Add(inner(x), r)` in either order becomes `fused(x, r)`, where `fused` knows the fused op of an inner one.
fn decide_sum(
    ctx: &Context<'_>,
    anchor: &Node,
    wanted: &str,
    fused: impl Fn(&Op) -> Option<Op>,
) -> Result<Rewrite, FusionRefusal> {
    let try_order = |id: NodeId, r: NodeId| {
        let inner = ctx.graph.node(id);
        let op = fused(&inner.op).ok_or_else(|| not(inner, wanted))?;
        ctx.inner(anchor, id)?;
        let (place, src, shape) = (anchor.id, vec![inner.src[0], r], anchor.shape);
        let replaced = vec![id, place];
        ctx.accept(anchor, Rewrite { place, op, src, shape, replaced, value_of: None })
    };
    let (a, b) = (anchor.src[0], anchor.src[1]);
    match [a, b].map(|id| fused(&ctx.graph.node(id).op).is_some()) {
        [true, true] => try_order(a, b).or_else(|_| try_order(b, a)),
        [true, false] => try_order(a, b),
        [false, _] => try_order(b, a),
    }
}

/// A node of several products takes in the norm of its x.
fn decide_norm_matmul(ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
    let x = ctx.graph.node(anchor.src[0]);
    let norm = Norm::of(&x.op).ok_or_else(|| not(x, "RmsNorm"))?;
    ctx.inner(anchor, x.id)?;
    let op = match anchor.op {
        Op::QkvRopeStore(f) if f.norm.is_none() => Op::QkvRopeStore(QkvRopeStore { norm: Some(norm), ..f }),
        Op::GatedMatMul(f) if f.norm.is_none() => Op::GatedMatMul(GatedMatMul { norm: Some(norm), ..f }),
        _ => return Err(not(anchor, "a product of several weights without a norm")),
    };
    let (place, shape) = (anchor.id, anchor.shape);
    let mut src = anchor.src.clone();
    src[0] = x.src[0];
    let replaced = vec![x.id, place];
    ctx.accept(anchor, Rewrite { place, op, src, shape, replaced, value_of: None })
}

/// A projection: `(weight, bias, act)` and its x.
struct Projection {
    weight: crate::graph::WeightId,
    bias: Option<crate::graph::WeightId>,
    act: crate::op::ActPrecision,
    x: NodeId,
}

/// The projection that gives a value, or what stands between the two.
fn projection(
    ctx: &Context<'_>,
    anchor: &Node,
    id: NodeId,
    what: &'static str,
) -> Result<Projection, FusionRefusal> {
    let node = ctx.graph.node(id);
    let Op::MatMul { weight, bias, act } = node.op else {
        let place = if what == "v" { "its projection and the store" } else { "its projection and RoPE" };
        let near = comes_from(ctx.graph, node, |op| matches!(op, Op::MatMul { .. }));
        let node_ref = node.reference();
        return Err(if near {
            FusionRefusal::Between { what, node: node_ref, place }
        } else {
            not(node, "MatMul")
        });
    };
    ctx.inner(anchor, id)?;
    Ok(Projection { weight, bias, act, x: node.src[0] })
}

/// The norm between a projection and its rotation, if there is one, and the node before it.
fn head_norm(ctx: &Context<'_>, anchor: &Node, id: NodeId) -> Result<(Option<Norm>, NodeId), FusionRefusal> {
    let node = ctx.graph.node(id);
    match Norm::of(&node.op) {
        None => Ok((None, id)),
        norm => ctx.inner(anchor, id).map(|_| (norm, node.src[0])),
    }
}

/// How a node rotates q or k, or what the layer does instead.
fn rotation(ctx: &Context<'_>, node: &Node, what: &'static str) -> Result<Rope, FusionRefusal> {
    if let Op::Rope(rope) = node.op {
        return Ok(rope);
    }
    let place = if what == "q" { "RoPE and the attention" } else { "RoPE and the store" };
    if comes_from(ctx.graph, node, |op| matches!(op, Op::Rope(_))) {
        return Err(FusionRefusal::Between { what, node: node.reference(), place });
    }
    let projected = comes_from(ctx.graph, node, |op| matches!(op, Op::MatMul { .. }));
    Err(if projected { FusionRefusal::NotRotated(what) } else { not(node, "Rope") })
}

/// Whether a node, or what it changes element by element or row by row, is an op of a kind.
fn comes_from(graph: &Graph, node: &Node, kind: impl Fn(&Op) -> bool) -> bool {
    let mut at = node;
    while !kind(&at.op) {
        let changes = matches!(
            at.op,
            Op::AddBias { .. }
                | Op::RmsNorm { .. }
                | Op::Scale { .. }
                | Op::SoftCap { .. }
                | Op::PositionScale { .. }
        );
        match at.src.first() {
            Some(&source) if changes => at = graph.node(source),
            _ => return false,
        }
    }
    true
}

/// The rotated q that belongs to a store: source 0 of the one attention behind its one load.
fn query_of<'a>(ctx: &Context<'a>, store: &Node) -> Result<&'a Node, FusionRefusal> {
    let only = |id: NodeId, what: &str| match ctx.readers[id].as_slice() {
        [reader] => Ok(ctx.graph.node(*reader)),
        readers => Err(FusionRefusal::Pattern(format!("{} {what} behind the store", readers.len()))),
    };
    let load = only(store.id, "loads")?;
    let attention = only(load.id, "attentions")?;
    match attention.op {
        Op::Attention(_) => Ok(ctx.graph.node(attention.src[0])),
        _ => Err(not(attention, "Attention")),
    }
}

/// The fused node stands where the store stood: x, positions and rows come before the store anyway,
/// the load behind it, and q's readers must come behind it too.
fn decide_qkv(ctx: &Context<'_>, store: &Node) -> Result<Rewrite, FusionRefusal> {
    let Op::KvStore(kv) = store.op else { return Err(not(store, "KvStore")) };
    let q_rot = query_of(ctx, store)?;
    let k_rot = ctx.graph.node(store.src[0]);
    let (rope, k_rope) = (rotation(ctx, q_rot, "q")?, rotation(ctx, k_rot, "k")?);
    ctx.same_backend(store, q_rot.id)?;
    ctx.inner(store, k_rot.id)?;
    let (q_norm, q_id) = head_norm(ctx, store, q_rot.src[0])?;
    let (k_norm, k_id) = head_norm(ctx, store, k_rot.src[0])?;
    let q = projection(ctx, store, q_id, "q")?;
    let k = projection(ctx, store, k_id, "k")?;
    let v = projection(ctx, store, store.src[1], "v")?;
    let positions = q_rot.src[1];
    if rope != k_rope || positions != k_rot.src[1] {
        return Err(FusionRefusal::Mismatch("q and k rotate differently".into()));
    }
    if q.x != k.x || q.x != v.x {
        return Err(FusionRefusal::Mismatch("q, k and v project different values".into()));
    }
    if q.act != k.act || q.act != v.act {
        return Err(FusionRefusal::Mismatch("q, k and v take activations of different precision".into()));
    }
    if let Some(&early) = ctx.readers[q_rot.id].iter().find(|&&r| r < store.id) {
        return Err(FusionRefusal::Order(early));
    }
    let op = Op::QkvRopeStore(QkvRopeStore {
        norm: None,
        wq: q.weight,
        wk: k.weight,
        wv: v.weight,
        bq: q.bias,
        bk: k.bias,
        bv: v.bias,
        q_norm,
        k_norm,
        rope,
        kv,
        act: q.act,
    });
    let src = vec![q.x, positions, store.src[2]];
    let mut replaced =
        vec![q_id, k_id, store.src[1], q_rot.src[0], k_rot.src[0], q_rot.id, k_rot.id, store.id];
    replaced.sort_unstable();
    // Without a norm, what RoPE reads is the projection.
    replaced.dedup();
    let (place, shape, value_of) = (store.id, q_rot.shape, Some(q_rot.id));
    ctx.accept(store, Rewrite { place, op, src, shape, replaced, value_of })
}
