//! What a step copies across devices, as data: which values, before which split, how many bytes.

use crate::backend::BackendTag;
use crate::graph::NodeId;
use crate::memory::node_bytes;
use crate::plan::Plan;
use crate::shape::StepDims;
use std::collections::HashSet;

/// The step that makes one token of one sequence.
pub const ONE_TOKEN: StepDims = StepDims { tokens: 1, outputs: 1, seqs: 1 };

/// A value that is brought to another device before a split runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossCopy {
    /// Index of the split that needs it.
    pub split: usize,
    /// The value.
    pub node: NodeId,
    /// Where it was made or filled.
    pub from: BackendTag,
    /// Where the split runs.
    pub to: BackendTag,
}

impl CrossCopy {
    /// Bytes that are moved in a step of these sizes.
    pub fn bytes(&self, plan: &Plan, dims: StepDims) -> usize {
        node_bytes(plan.graph.node(self.node), dims)
    }
}

/// The copies of a step in their order. A value that several splits of a device read is copied there once.
pub fn cross_copies(plan: &Plan) -> Vec<CrossCopy> {
    let mut there = HashSet::new();
    let mut copies = Vec::new();
    for (split, s) in plan.splits.iter().enumerate() {
        for &node in &s.inputs {
            let Some(from) = plan.graph.node(node).backend.filter(|&tag| tag != s.backend) else { continue };
            if there.insert((node, s.backend)) {
                copies.push(CrossCopy { split, node, from, to: s.backend });
            }
        }
    }
    copies
}

/// Bytes of all of a step's copies.
pub fn copied_bytes(plan: &Plan, dims: StepDims) -> usize {
    cross_copies(plan).iter().map(|c| c.bytes(plan, dims)).sum()
}
