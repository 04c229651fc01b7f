//! Fusion: one table of rewrites. Each is decided first, with a typed reason if refused, and only
//! then applied. What a fusion replaces stays in the list as a dead node, so that order is kept.

use crate::backend::Backends;
use crate::graph::{Graph, Node, NodeId};
use crate::op::{Op, QkvRopeStore, Rope};
use crate::shape::{DType, Shape};
use std::fmt;

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
}

impl FusionSwitches {
    /// Nothing is fused.
    pub const NONE: FusionSwitches =
        FusionSwitches { matmul_bias: false, swiglu: false, geglu: false, qkv_rope_store: false };

    /// Whether a fusion is switched on.
    pub fn get(self, fusion: Fusion) -> bool {
        match fusion {
            Fusion::MatMulBias => self.matmul_bias,
            Fusion::SwiGlu => self.swiglu,
            Fusion::GeGlu => self.geglu,
            Fusion::QkvRopeStore => self.qkv_rope_store,
        }
    }
}

impl Default for FusionSwitches {
    fn default() -> Self {
        FusionSwitches { matmul_bias: true, swiglu: true, geglu: true, qkv_rope_store: true }
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
    /// Three projections of one x, RoPE on q and k, and the KV store → `QkvRopeStore`.
    QkvRopeStore,
}

impl Fusion {
    /// All of them, in the order they are applied: the projections take in their biases first.
    pub const ALL: [Fusion; 4] = [Fusion::MatMulBias, Fusion::SwiGlu, Fusion::GeGlu, Fusion::QkvRopeStore];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fusion::MatMulBias => "MatMulBias",
            Fusion::SwiGlu => "SwiGlu",
            Fusion::GeGlu => "GeGlu",
            Fusion::QkvRopeStore => "QkvRopeStore",
        }
    }

    /// Whether a node could be the last of this pattern, so that a refusal is worth a line.
    fn is_anchor(self, graph: &Graph, node: &Node) -> bool {
        match self {
            Fusion::MatMulBias => matches!(node.op, Op::AddBias { .. }),
            Fusion::SwiGlu => multiplies(graph, node, Op::Silu),
            Fusion::GeGlu => multiplies(graph, node, Op::Gelu),
            Fusion::QkvRopeStore => matches!(node.op, Op::KvStore(_)),
        }
    }

    fn decide(self, ctx: &Context<'_>, anchor: &Node) -> Result<Rewrite, FusionRefusal> {
        match self {
            Fusion::MatMulBias => decide_matmul_bias(ctx, anchor),
            Fusion::SwiGlu => decide_gated(ctx, anchor, Op::Silu, Op::SwiGlu),
            Fusion::GeGlu => decide_gated(ctx, anchor, Op::Gelu, Op::GeGlu),
            Fusion::QkvRopeStore => decide_qkv(ctx, anchor),
        }
    }
}

/// Why a pattern was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusionRefusal {
    /// Its switch is off.
    SwitchedOff,
    /// The nodes around the anchor are something else.
    Pattern(String),
    /// A node that would vanish is read by somebody else.
    UsedElsewhere(NodeId),
    /// A node that would vanish is a graph output.
    IsOutput(NodeId),
    /// The nodes run on different backends.
    BackendsDiffer(NodeId, NodeId),
    /// The backend has no kernel for the fused op.
    BackendRefuses(String),
    /// Sources or parameters that must be equal are not.
    Mismatch(String),
    /// A reader of the result comes before the place where the fused node would stand.
    Order(NodeId),
}

impl fmt::Display for FusionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FusionRefusal::SwitchedOff => f.write_str("switched off"),
            FusionRefusal::Pattern(what) => write!(f, "no match: {what}"),
            FusionRefusal::UsedElsewhere(id) => write!(f, "node {id} is used elsewhere"),
            FusionRefusal::IsOutput(id) => write!(f, "node {id} is an output"),
            FusionRefusal::BackendsDiffer(a, b) => write!(f, "nodes {a} and {b} run on different devices"),
            FusionRefusal::BackendRefuses(why) => write!(f, "the device refuses: {why}"),
            FusionRefusal::Mismatch(what) => f.write_str(what),
            FusionRefusal::Order(id) => write!(f, "node {id} reads the result too early"),
        }
    }
}

/// What was fused and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FusionReport {
    /// Fusion and the node that now holds the fused op.
    pub applied: Vec<(Fusion, NodeId)>,
    /// Fusion, anchor node, reason.
    pub refused: Vec<(Fusion, NodeId, FusionRefusal)>,
}

impl FusionReport {
    /// How often a fusion was applied.
    pub fn count(&self, fusion: Fusion) -> usize {
        self.applied.iter().filter(|(f, _)| *f == fusion).count()
    }
}

impl fmt::Display for FusionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fusion in Fusion::ALL {
            writeln!(f, "{}: {} applied", fusion.name(), self.count(fusion))?;
        }
        for (fusion, node, why) in &self.refused {
            writeln!(f, "{} not at node {node}: {why}", fusion.name())?;
        }
        Ok(())
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
                Err(why) => report.refused.push((fusion, node.id, why)),
            }
        }
        // Two decisions of one kind never touch: every node that vanishes has a single reader.
        for rewrite in rewrites {
            report.applied.push((fusion, rewrite.place));
            apply(graph, rewrite);
        }
    }
    report
}

fn apply(graph: &mut Graph, rewrite: Rewrite) {
    let Rewrite { place, op, src, shape, value_of } = rewrite;
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
    let src = product.src.clone();
    ctx.accept(anchor, Rewrite { place: anchor.id, op, src, shape: anchor.shape, value_of: None })
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
        let src = vec![inner.src[0], up];
        ctx.accept(anchor, Rewrite { place: anchor.id, op: fused, src, shape: anchor.shape, value_of: None })
    };
    let (a, b) = (anchor.src[0], anchor.src[1]);
    match (ctx.graph.node(a).op == activation, ctx.graph.node(b).op == activation) {
        (true, true) => try_order(a, b).or_else(|_| try_order(b, a)),
        (true, false) => try_order(a, b),
        (false, _) => try_order(b, a),
    }
}

/// A projection: `(weight, bias, act)` and its x.
struct Projection {
    weight: crate::graph::WeightId,
    bias: Option<crate::graph::WeightId>,
    act: crate::op::ActPrecision,
    x: NodeId,
}

fn projection(ctx: &Context<'_>, anchor: &Node, id: NodeId) -> Result<Projection, FusionRefusal> {
    let node = ctx.graph.node(id);
    let Op::MatMul { weight, bias, act } = node.op else { return Err(not(node, "MatMul")) };
    ctx.inner(anchor, id)?;
    Ok(Projection { weight, bias, act, x: node.src[0] })
}

fn rotation(node: &Node) -> Result<Rope, FusionRefusal> {
    match node.op {
        Op::Rope(rope) => Ok(rope),
        _ => Err(not(node, "Rope")),
    }
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
    let (rope, k_rope) = (rotation(q_rot)?, rotation(k_rot)?);
    ctx.same_backend(store, q_rot.id)?;
    ctx.inner(store, k_rot.id)?;
    let q = projection(ctx, store, q_rot.src[0])?;
    let k = projection(ctx, store, k_rot.src[0])?;
    let v = projection(ctx, store, store.src[1])?;
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
        wq: q.weight,
        wk: k.weight,
        wv: v.weight,
        bq: q.bias,
        bk: k.bias,
        bv: v.bias,
        rope,
        kv,
        act: q.act,
    });
    let src = vec![q.x, positions, store.src[2]];
    let value_of = Some(q_rot.id);
    ctx.accept(store, Rewrite { place: store.id, op, src, shape: q_rot.shape, value_of })
}
