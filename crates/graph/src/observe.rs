//! Watching a step node by node: what profiles and traces are made of.

use crate::backend::BackendTag;
use crate::graph::{Graph, Node};
use crate::shape::StepDims;
use std::time::{Duration, Instant};

/// Told of every node of a step after it ran. Inputs, dead nodes and nodes without rows do not run.
pub type NodeObserver<'a> = dyn Fn(&NodeRun<'_>) + 'a;

/// A node that ran.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NodeRun<'a> {
    /// The graph, for weights and sources.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Where it ran.
    pub backend: BackendTag,
    /// Sizes of the step.
    pub dims: StepDims,
    /// When it was handed to its device.
    pub started: Instant,
    /// From then until its device had finished it.
    pub took: Duration,
}
