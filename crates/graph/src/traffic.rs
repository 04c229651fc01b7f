//! What a step copies across devices, as data: which values, before which split, how many bytes.

use crate::backend::BackendTag;
use crate::graph::NodeId;
use crate::memory::node_bytes;
use crate::plan::Plan;
use crate::schedule::Action;
use crate::shape::StepDims;

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

/// The copies of the schedule in their order.
pub fn cross_copies(plan: &Plan) -> Vec<CrossCopy> {
    let mut copies: Vec<CrossCopy> = Vec::new();
    let mut ahead = 0;
    for action in &plan.schedule {
        match *action {
            Action::Copy { value, to } => {
                // A value that is copied has a device: it was assigned.
                let from = plan.graph.node(value).backend.unwrap_or(to);
                copies.push(CrossCopy { split: 0, node: value, from, to });
            }
            Action::Run { split } => {
                copies[ahead..].iter_mut().for_each(|copy| copy.split = split);
                ahead = copies.len();
            }
            Action::Sync(_) | Action::Drain(_) => {}
        }
    }
    copies
}

/// Bytes of all of a step's copies.
pub fn copied_bytes(plan: &Plan, dims: StepDims) -> usize {
    cross_copies(plan).iter().map(|c| c.bytes(plan, dims)).sum()
}
