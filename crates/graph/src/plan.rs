//! From a graph to a plan: verify, assign, fuse, memory, split, with a check after every pass.

use crate::assign::{PlacementHint, Refusal, assign};
use crate::backend::Backends;
use crate::check::verify_schedule;
use crate::error::GraphError;
use crate::fuse::{FusionSwitches, fuse};
use crate::fusion_report::FusionReport;
use crate::graph::Graph;
use crate::memory::{MemoryPlan, plan_memory, plan_staging};
use crate::schedule::{Action, schedule};
use crate::shape::StepDims;
use crate::split::{Split, split_graph};
use crate::verify::{verify, verify_assigned};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a plan depends on besides the graph and the devices. All of it goes into the plan's uid.
#[derive(Clone, Copy)]
pub struct PlanOptions<'a> {
    /// Largest step.
    pub capacity: StepDims,
    /// Which fusions may be applied.
    pub fuse: FusionSwitches,
    /// Whether values with disjoint lifetimes share memory; false only to check that they do it right.
    pub share_buffers: bool,
    /// Preferred backend per node, asked before the priority order.
    pub placement: Option<PlacementHint<'a>>,
}

impl PlanOptions<'_> {
    /// Everything on, no preference.
    pub fn new(capacity: StepDims) -> Self {
        PlanOptions { capacity, fuse: FusionSwitches::default(), share_buffers: true, placement: None }
    }
}

/// A graph that is ready to be allocated and executed, over and over, up to its capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The assigned and fused graph. Its uid covers the options and the placement.
    pub graph: Graph,
    /// Which devices refused nodes before others took them.
    pub refusals: Vec<Refusal>,
    /// Runs of nodes per backend.
    pub splits: Vec<Split>,
    /// Where values live.
    pub memory: MemoryPlan,
    /// What a step does, in order.
    pub schedule: Vec<Action>,
    /// What was fused.
    pub fusions: FusionReport,
    /// Largest step.
    pub capacity: StepDims,
}

/// Plans a graph for a set of devices.
///
/// # Errors
/// [`GraphError::Unassignable`], [`GraphError::NoBackend`], [`GraphError::Capacity`] for a value that
/// a device cannot bind, [`GraphError::Internal`] for a broken graph.
pub fn plan(mut graph: Graph, backends: &Backends, opts: &PlanOptions<'_>) -> Result<Plan, GraphError> {
    verify(&graph)?;
    let refusals = assign(&mut graph, backends, opts.placement)?;
    check(&graph)?;
    let fusions = fuse(&mut graph, backends, opts.fuse);
    check(&graph)?;
    graph.uid = plan_uid(&graph, opts);
    let mut memory = plan_memory(&graph, backends, opts.capacity, opts.share_buffers)?;
    let splits = split_graph(&graph);
    plan_staging(&mut memory, &graph, &splits, backends, opts.capacity)?;
    let schedule = schedule(&graph, &splits);
    let plan = Plan { graph, refusals, splits, memory, schedule, fusions, capacity: opts.capacity };
    if cfg!(debug_assertions) {
        verify_schedule(&plan)
            .map_err(|h| GraphError::Internal { pass: "verify_schedule", reason: h.explain(&plan.graph) })?;
    }
    Ok(plan)
}

fn check(graph: &Graph) -> Result<(), GraphError> {
    if cfg!(debug_assertions) { verify_assigned(graph) } else { Ok(()) }
}

/// Equal model, parameters, options and placement give an equal value, and nothing else does.
fn plan_uid(graph: &Graph, opts: &PlanOptions<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (graph.uid, opts.capacity, opts.fuse, opts.share_buffers, &graph.outputs).hash(&mut hasher);
    for node in &graph.nodes {
        (format!("{:?}", node.op), &node.src, node.backend).hash(&mut hasher);
    }
    hasher.finish()
}
