//! The plans that a session makes, one per stage. They can be had without loading a model, to be shown or proved.

use crate::error::Error;
use crate::file::ModelFile;
use crate::placement::Layout;
use crate::session::{SessionOptions, stage_capacity};
use minfer_graph::{Backends, PAGE, Plan, PlanOptions};
use minfer_models::{GraphParams, ModelSpec, Stage, build_graph};

/// The plan of a stage: the one function by which sessions, forecasts and checks come to it.
pub(crate) fn stage_plan(
    spec: &ModelSpec,
    options: &SessionOptions,
    layout: &Layout,
    backends: &Backends,
    stage: Stage,
    model_id: u64,
) -> Result<Plan, Error> {
    let capacity = stage_capacity(options, stage);
    let params = GraphParams { stage, capacity, max_pages: options.n_ctx.div_ceil(PAGE) };
    let graph = build_graph(spec, &params, model_id)?;
    let plan_options = PlanOptions { fuse: options.fusions, ..PlanOptions::new(capacity) };
    Ok(layout.plan(graph, backends, plan_options)?)
}

/// All plans of a session of these sizes, as it would make them: tokens to logits, tokens to hidden states, and
/// hidden states to logits.
///
/// # Errors
/// Not a model that can be run, sizes that make no sense, or a device that is not there.
pub fn session_plans(
    file: &ModelFile,
    options: &SessionOptions,
    layout: &Layout,
) -> Result<Vec<(Stage, Plan)>, Error> {
    let spec = file.spec()?;
    options.check(&spec)?;
    layout.check(&spec)?;
    let backends = layout.open(Some(1))?;
    let plan = |stage| Ok((stage, stage_plan(&spec, options, layout, &backends, stage, 0)?));
    [Stage::Full, Stage::Body, Stage::Head].into_iter().map(plan).collect()
}
