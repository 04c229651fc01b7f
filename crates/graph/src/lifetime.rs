//! Lifetimes: when a value is first written and last read, in node order and in no other, and which
//! outputs take over the buffer of a source.

use crate::backend::{BackendTag, BufferRules};
use crate::graph::{Graph, Node, NodeId};
use crate::shape::DType;

/// Nodes between which a value must stay intact, both ends included. An `end` equal to the number
/// of nodes means: until after the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The node that writes it; 0 for inputs, which are filled before the first node runs.
    pub start: NodeId,
    /// The last node that reads it.
    pub end: NodeId,
}

impl Lifetime {
    /// Whether both are alive at some node. A node's source and its output overlap at that node.
    pub fn overlaps(self, other: Lifetime) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// Result of the analysis, per node; `None` for dead nodes and KV nodes, which own no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The value's own lifetime.
    pub values: Vec<Option<Lifetime>>,
    /// The node whose buffer holds the value: itself, or the head of a chain of in-place nodes.
    pub roots: Vec<Option<NodeId>>,
    /// Lifetime of the buffer, for roots: from the first to the last value of the chain.
    pub buffers: Vec<Option<Lifetime>>,
}

/// Computes lifetimes and in-place chains. With `share` false every value lives throughout the step
/// in a buffer of its own.
pub fn lifetimes(graph: &Graph, rules: &dyn Fn(BackendTag) -> BufferRules, share: bool) -> Lifetimes {
    let n = graph.nodes.len();
    let live = graph.live();
    let last_read = last_reads(graph, &live);
    let mut out = Lifetimes { values: vec![None; n], roots: vec![None; n], buffers: vec![None; n] };
    for node in graph.nodes.iter().filter(|x| live[x.id] && x.dtype != DType::Kv) {
        let id = node.id;
        let whole_step = node.is_input() || !share;
        let value = match whole_step {
            true => Lifetime { start: 0, end: n },
            false => Lifetime { start: id, end: last_read[id] },
        };
        out.values[id] = Some(value);
        let allowed = share && node.backend.is_some_and(|tag| rules(tag).in_place);
        match allowed.then(|| in_place_root(graph, node, &last_read, &out.roots)).flatten() {
            Some(root) => {
                out.roots[id] = Some(root);
                // The chain's buffer, not only the source's value, must live as long as its new owner.
                if let Some(buffer) = &mut out.buffers[root] {
                    buffer.end = buffer.end.max(value.end);
                }
            }
            None => {
                out.roots[id] = Some(id);
                out.buffers[id] = Some(value);
            }
        }
    }
    out
}

/// The last live reader of each value; the number of nodes for graph outputs.
fn last_reads(graph: &Graph, live: &[bool]) -> Vec<NodeId> {
    let mut last: Vec<NodeId> = (0..graph.nodes.len()).collect();
    for node in graph.nodes.iter().filter(|n| live[n.id]) {
        for &s in &node.src {
            last[s] = last[s].max(node.id);
        }
    }
    for &o in &graph.outputs {
        last[o] = graph.nodes.len();
    }
    last
}

/// The buffer a node may write over: that of a source which nobody reads later, on the same backend,
/// of the same size at every step, neither input nor graph output, and not read twice by this node.
fn in_place_root(
    graph: &Graph,
    node: &Node,
    last_read: &[NodeId],
    roots: &[Option<NodeId>],
) -> Option<NodeId> {
    let usable = |i: usize| {
        let source = graph.node(node.src[i]);
        let root = roots[source.id]?;
        let twice = (0..node.src.len()).any(|j| j != i && roots[node.src[j]] == Some(root));
        let fits = source.shape == node.shape && source.dtype == node.dtype;
        let free = last_read[source.id] == node.id && !source.is_input();
        (fits && free && !twice && source.backend == node.backend).then_some(root)
    };
    node.op.in_place_sources().iter().find_map(|&i| usable(i))
}
