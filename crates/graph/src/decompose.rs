//! Every fused op as plain ops: the reference it is tested against, and what a build without a
//! kernel for it runs instead.

use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, WeightId};
use crate::infer::infer;
use crate::op::{Norm, Op};
use std::collections::HashSet;

/// Where a plain op's source comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainSource {
    /// The fused op's source of this index.
    Outer(usize),
    /// The result of an earlier op of the decomposition.
    Inner(usize),
}

/// One op of a decomposition.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainOp {
    /// The op.
    pub op: Op,
    /// Its sources.
    pub src: Vec<PlainSource>,
}

/// A fused op, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Decomposition {
    /// Plain ops in order.
    pub ops: Vec<PlainOp>,
    /// The op whose value is the fused op's value.
    pub output: usize,
    /// The op that stores to the KV region, if the fused op does.
    pub store: Option<usize>,
}

/// The plain ops of a fused op; `None` for a plain one.
pub fn decompose(op: &Op) -> Option<Decomposition> {
    use PlainSource::{Inner, Outer};
    let plain = |op, src: &[PlainSource]| PlainOp { op, src: src.to_vec() };
    match *op {
        Op::MatMul { weight, bias: Some(bias), act } => Some(Decomposition {
            ops: vec![
                plain(Op::MatMul { weight, bias: None, act }, &[Outer(0)]),
                plain(Op::AddBias { bias }, &[Inner(0)]),
            ],
            output: 1,
            store: None,
        }),
        Op::SwiGlu | Op::GeGlu => Some(Decomposition {
            ops: vec![
                plain(if *op == Op::GeGlu { Op::Gelu } else { Op::Silu }, &[Outer(0)]),
                plain(Op::Mul, &[Inner(0), Outer(1)]),
            ],
            output: 1,
            store: None,
        }),
        Op::MatMulAdd { weight, bias, act } => {
            let mut ops = vec![plain(Op::MatMul { weight, bias: None, act }, &[Outer(0)])];
            ops.extend(bias.map(|bias| plain(Op::AddBias { bias }, &[Inner(0)])));
            let output = ops.len();
            ops.push(plain(Op::Add, &[Inner(output - 1), Outer(1)]));
            Some(Decomposition { ops, output, store: None })
        }
        Op::NormAdd(norm) => Some(Decomposition {
            ops: vec![plain(norm.op(), &[Outer(0)]), plain(Op::Add, &[Inner(0), Outer(1)])],
            output: 1,
            store: None,
        }),
        Op::GatedMatMul(f) => {
            let mut ops: Vec<PlainOp> =
                f.norm.map(|norm| plain(norm.op(), &[Outer(0)])).into_iter().collect();
            let x = if f.norm.is_some() { Inner(0) } else { Outer(0) };
            let mut project = |weight, bias: Option<WeightId>| {
                ops.push(plain(Op::MatMul { weight, bias: None, act: f.act }, &[x]));
                ops.extend(bias.map(|bias| plain(Op::AddBias { bias }, &[Inner(ops.len() - 1)])));
                ops.len() - 1
            };
            let (gate, up) = (project(f.gate, f.gate_bias), project(f.up, f.up_bias));
            let output = up + 2;
            ops.push(plain(f.gating.activation(), &[Inner(gate)]));
            ops.push(plain(Op::Mul, &[Inner(up + 1), Inner(up)]));
            Some(Decomposition { ops, output, store: None })
        }
        Op::QkvRopeStore(f) => {
            let mut ops: Vec<PlainOp> =
                f.norm.map(|norm| plain(norm.op(), &[Outer(0)])).into_iter().collect();
            let x = if f.norm.is_some() { Inner(0) } else { Outer(0) };
            let mut project = |weight, bias: Option<WeightId>, norm: Option<Norm>| {
                ops.push(plain(Op::MatMul { weight, bias: None, act: f.act }, &[x]));
                ops.extend(bias.map(|bias| plain(Op::AddBias { bias }, &[Inner(ops.len() - 1)])));
                ops.extend(norm.map(|norm| plain(norm.op(), &[Inner(ops.len() - 1)])));
                ops.len() - 1
            };
            let (q, k) = (project(f.wq, f.bq, f.q_norm), project(f.wk, f.bk, f.k_norm));
            let v = project(f.wv, f.bv, None);
            let q_rot = ops.len();
            ops.push(plain(Op::Rope(f.rope), &[Inner(q), Outer(1)]));
            ops.push(plain(Op::Rope(f.rope), &[Inner(k), Outer(1)]));
            ops.push(plain(Op::KvStore(f.kv), &[Inner(q_rot + 1), Inner(v), Outer(2)]));
            Some(Decomposition { ops, output: q_rot, store: Some(q_rot + 2) })
        }
        Op::Input(_)
        | Op::Embed { .. }
        | Op::MatMul { bias: None, .. }
        | Op::AddBias { .. }
        | Op::RmsNorm { .. }
        | Op::Add
        | Op::Mul
        | Op::Silu
        | Op::Gelu
        | Op::Scale { .. }
        | Op::SoftCap { .. }
        | Op::PositionScale { .. }
        | Op::ClampedGlu { .. }
        | Op::Rope(_)
        | Op::KvStore(_)
        | Op::KvLoad(_)
        | Op::Attention(_)
        | Op::GatherRows
        | Op::TopExperts { .. }
        | Op::ExpertShares { .. }
        | Op::ExpertMatMul(_)
        | Op::ExpertSum => None,
    }
}

/// Maps nodes of the fused graph to nodes of the expanded one.
struct Expansion<'a> {
    graph: &'a Graph,
    nodes: Vec<Node>,
    names: HashSet<String>,
    value: Vec<NodeId>,
    store: Vec<NodeId>,
}

/// A graph of plain ops with the same values under the same names. Dead nodes are left out.
///
/// # Errors
/// [`GraphError::Invalid`] if a plain op does not fit its sources.
pub fn expand(graph: &Graph) -> Result<Graph, GraphError> {
    let n = graph.nodes.len();
    let names = graph.nodes.iter().map(|x| x.name.clone()).collect();
    let mut out =
        Expansion { graph, nodes: vec![], names, value: vec![usize::MAX; n], store: vec![usize::MAX; n] };
    let live = graph.live();
    for node in graph.nodes.iter().filter(|x| live[x.id]) {
        out.take(node)?;
    }
    let outputs = graph.outputs.iter().map(|&o| out.value[o]).collect();
    Ok(Graph { uid: graph.uid, nodes: out.nodes, weights: graph.weights.clone(), outputs })
}

impl Expansion<'_> {
    fn take(&mut self, node: &Node) -> Result<(), GraphError> {
        let Some(parts) = decompose(&node.op) else {
            let reads_store = matches!(node.op, Op::KvLoad(_));
            let map = if reads_store { &self.store } else { &self.value };
            let src = node.src.iter().map(|&s| map[s]).collect();
            self.value[node.id] = self.push(Node { src, ..node.clone() })?;
            self.store[node.id] = self.value[node.id];
            return Ok(());
        };
        let mut made: Vec<NodeId> = Vec::new();
        for (i, part) in parts.ops.iter().enumerate() {
            let source = |s: &PlainSource| match *s {
                PlainSource::Outer(j) => self.value[node.src[j]],
                PlainSource::Inner(j) => made[j],
            };
            let src = part.src.iter().map(source).collect();
            let name = if i == parts.output { node.name.clone() } else { self.part_name(node, i) };
            made.push(self.push(Node { name, op: part.op, src, ..node.clone() })?);
        }
        self.value[node.id] = made[parts.output];
        self.store[node.id] = parts.store.map_or(made[parts.output], |s| made[s]);
        Ok(())
    }

    fn part_name(&mut self, node: &Node, i: usize) -> String {
        let mut name = format!("{}.part{i}", node.name);
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    fn push(&mut self, mut node: Node) -> Result<NodeId, GraphError> {
        node.id = self.nodes.len();
        if !node.is_input() {
            (node.shape, node.dtype) = infer(&node.op, &node.src, &self.nodes, &self.graph.weights)
                .map_err(|reason| GraphError::Invalid { node: node.reference(), reason })?;
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }
}
