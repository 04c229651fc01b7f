//! Splits: maximal runs of nodes on one device, the unit of submission.

use crate::backend::BackendTag;
use crate::graph::{Graph, Node, NodeId};
use crate::shape::DType;

/// A run of consecutive nodes on one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Where its nodes run.
    pub backend: BackendTag,
    /// First node.
    pub start: NodeId,
    /// One past the last node.
    pub end: NodeId,
    /// Values that the split reads and did not produce: made in another split (perhaps on the same
    /// backend, then no copy is needed), or host-filled inputs kept on another backend. In order of
    /// first use, no duplicates.
    pub inputs: Vec<NodeId>,
    /// Values made here that a split on another backend reads, ascending.
    pub outputs: Vec<NodeId>,
}

/// Cuts a graph where the backend changes along node order; nothing is reordered.
///
/// The ranges cover all nodes without gaps. Unpinned inputs and dead nodes open no split: they just
/// fall into one. A graph with nothing to run has no splits.
pub fn split_graph(graph: &Graph) -> Vec<Split> {
    let live = graph.live();
    let mut splits = cut(graph, &live);
    let made_in = producers(graph, &live, &splits);
    // The last split that listed a value.
    let mut listed = vec![None; graph.nodes.len()];
    for i in 0..splits.len() {
        splits[i].inputs = inputs_of(graph, &live, &made_in, i, &splits[i], &mut listed);
        for id in splits[i].inputs.clone() {
            let maker = made_in[id].filter(|&m| splits[m].backend != splits[i].backend);
            if let Some(maker) = maker {
                splits[maker].outputs.push(id);
            }
        }
    }
    for split in &mut splits {
        split.outputs.sort_unstable();
        split.outputs.dedup();
    }
    splits
}

/// Whether a node counts when splits are cut: something runs, or something was placed on a device.
fn counts(node: &Node, live: &[bool]) -> bool {
    live[node.id] && (!node.is_input() || node.pinned)
}

fn cut(graph: &Graph, live: &[bool]) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for node in graph.nodes.iter().filter(|n| counts(n, live)) {
        let Some(backend) = node.backend else { continue };
        match splits.last_mut() {
            Some(last) if last.backend == backend => {}
            Some(last) => {
                last.end = node.id;
                splits.push(Split { backend, start: node.id, end: 0, inputs: vec![], outputs: vec![] });
            }
            None => splits.push(Split { backend, start: 0, end: 0, inputs: vec![], outputs: vec![] }),
        }
    }
    if let Some(last) = splits.last_mut() {
        last.end = graph.nodes.len();
    }
    splits
}

/// The split that makes each value; `None` for unpinned inputs and dead nodes.
fn producers(graph: &Graph, live: &[bool], splits: &[Split]) -> Vec<Option<usize>> {
    let mut made_in = vec![None; graph.nodes.len()];
    for (i, split) in splits.iter().enumerate() {
        for node in graph.nodes[split.start..split.end].iter().filter(|n| counts(n, live)) {
            made_in[node.id] = Some(i);
        }
    }
    made_in
}

fn inputs_of(
    graph: &Graph,
    live: &[bool],
    made_in: &[Option<usize>],
    index: usize,
    split: &Split,
    listed: &mut [Option<usize>],
) -> Vec<NodeId> {
    let mut inputs = Vec::new();
    let running = graph.nodes[split.start..split.end].iter().filter(|n| live[n.id] && !n.is_input());
    for &s in running.flat_map(|n| &n.src) {
        let source = graph.node(s);
        let foreign = match made_in[s] {
            Some(i) => i != index,
            None => source.backend != Some(split.backend),
        };
        // KV nodes carry no bytes: their region never leaves its backend.
        if foreign && source.dtype != DType::Kv && listed[s] != Some(index) {
            listed[s] = Some(index);
            inputs.push(s);
        }
    }
    inputs
}
