//! The schedule: the split protocol written out as a list of actions. It is data, so that it can be
//! proved before it runs, shown, and broken on purpose by a test.

use crate::backend::BackendTag;
use crate::graph::{Graph, Node, NodeId};
use crate::split::Split;
use std::collections::HashSet;
use std::fmt;

/// One action of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wait until the device has finished what was queued on it.
    Sync(BackendTag),
    /// Take the captures of a device that was waited for.
    Drain(BackendTag),
    /// Copy a value to another device, into the buffer staged for it there.
    Copy {
        /// The value.
        value: NodeId,
        /// Where it goes.
        to: BackendTag,
    },
    /// Run the nodes of a split in order, or its recording.
    Run {
        /// Index of the split.
        split: usize,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Sync(tag) => write!(f, "sync {tag}"),
            Action::Drain(tag) => write!(f, "drain {tag}"),
            Action::Copy { value, to } => write!(f, "copy {value} to {to}"),
            Action::Run { split } => write!(f, "run split {split}"),
        }
    }
}

/// The protocol for these splits: behind each of them, before the next and at the end, wait for its
/// device and take its captures; before each, copy what it reads from other devices, once per value
/// and device. A device on which the split ran nothing needs no wait.
pub fn schedule(graph: &Graph, splits: &[Split]) -> Vec<Action> {
    let live = graph.live();
    let mut actions = Vec::new();
    let mut staged = HashSet::new();
    for (i, split) in splits.iter().enumerate() {
        for &value in &split.inputs {
            let foreign = graph.node(value).backend != Some(split.backend);
            if foreign && staged.insert((value, split.backend)) {
                actions.push(Action::Copy { value, to: split.backend });
            }
        }
        actions.push(Action::Run { split: i });
        if graph.nodes[split.start..split.end].iter().any(|n| runs(n, &live)) {
            actions.push(Action::Sync(split.backend));
        }
        actions.push(Action::Drain(split.backend));
    }
    actions
}

/// Whether a device has something to do for a node.
fn runs(node: &Node, live: &[bool]) -> bool {
    live[node.id] && !node.is_input()
}

/// What a step copies across devices: `(value, destination)`, once each.
pub fn copies(actions: &[Action]) -> impl Iterator<Item = (NodeId, BackendTag)> {
    actions.iter().filter_map(|a| match *a {
        Action::Copy { value, to } => Some((value, to)),
        Action::Sync(_) | Action::Drain(_) | Action::Run { .. } => None,
    })
}
