//! How far a step came: what an error report says of the nodes before the one that failed.

use crate::graph::{Node, NodeId};
use crate::plan::Plan;
use crate::split::Split;

/// Nodes that are remembered by id.
const RECENT: usize = 16;

/// How far the last step came. Nodes of a device that queues have been handed over; they are known to
/// have run once their split is finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Splits whose nodes were all handed to their device.
    pub splits: usize,
    /// Splits whose device was waited for since.
    pub finished: usize,
    /// Nodes handed to their device.
    pub nodes: usize,
    /// The last nodes, as a ring.
    recent: [NodeId; RECENT],
    /// Nodes that passed through the ring.
    seen: usize,
}

impl Progress {
    pub(crate) fn queued(&mut self, id: NodeId) {
        self.nodes += 1;
        self.remember(id);
    }

    /// A recording ran the whole split.
    pub(crate) fn replayed(&mut self, plan: &Plan, split: &Split) {
        let nodes = plan.graph.nodes[split.start..split.end].iter().filter(|n| runs(plan, n));
        self.nodes += nodes.count();
        self.remember(split.end - 1);
    }

    fn remember(&mut self, id: NodeId) {
        self.recent[self.seen % RECENT] = id;
        self.seen += 1;
    }

    /// The last nodes that were handed over, oldest first.
    pub fn recent(&self) -> impl Iterator<Item = NodeId> + '_ {
        (self.seen - self.seen.min(RECENT)..self.seen).map(|i| self.recent[i % RECENT])
    }

    /// One line for an error report, with names.
    pub fn describe(&self, plan: &Plan) -> String {
        let Progress { splits, finished, nodes, .. } = self;
        let of_nodes = plan.graph.nodes.iter().filter(|n| runs(plan, n)).count();
        let of_splits = plan.splits.len();
        let names: Vec<&str> =
            self.recent().filter_map(|id| plan.graph.nodes.get(id)).map(|n| n.name.as_str()).collect();
        let last = if names.is_empty() { String::new() } else { format!("; the last: {}", names.join(" ")) };
        let (all, whole) = (counted(of_nodes, "node"), counted(of_splits, "split"));
        format!(
            "{nodes} of {all} had been handed over, with {splits} of {whole} complete and {finished} finished{last}"
        )
    }
}

/// A number with its noun.
fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Whether a device has something to do for a node.
fn runs(plan: &Plan, node: &Node) -> bool {
    !node.is_input() && plan.memory.nodes.get(node.id).is_some_and(Option::is_some)
}
