//! Products with weights, and what they do to their results themselves: add a residual, gate.

use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::matmul::{Activations, Input, Job, PackedWeight, Then, Up, matmul_together};
use crate::simd::Isa;
use crate::team::Team;
use minfer_graph::{ActPrecision, BackendError, GatedMatMul, Graph, Unsupported, WeightId};

/// A product with a weight and an optional bias.
pub struct MatMul {
    /// The weight.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
    /// Precision of the activations.
    pub act: ActPrecision,
    /// Whether the second source is added.
    pub add: bool,
}

/// Whether a weight and a bias can be multiplied with.
pub fn check(graph: &Graph, weight: WeightId, bias: Option<WeightId>) -> Result<(), Unsupported> {
    super::weights::check_matrix(graph.weight(weight))?;
    bias.map_or(Ok(()), |b| super::weights::check_vector(graph.weight(b)))
}

/// The loaded weight and bias.
fn loaded<'a>(
    ctx: &Ctx<'a>,
    weight: WeightId,
    bias: Option<WeightId>,
) -> Result<(&'a PackedWeight, Option<&'a [f32]>), BackendError> {
    let graph = ctx.call.graph;
    let bias = bias.map(|b| ctx.weights.vector(graph, b)).transpose()?;
    Ok((ctx.weights.matrix(graph, weight, ctx.pool)?, bias))
}

impl Kernel for MatMul {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        check(graph, self.weight, self.bias)
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let (weight, bias) = loaded(&ctx, self.weight, self.bias)?;
        let rows = ctx.call.node.shape.n_rows(ctx.call.dims);
        let ([x, r], [out]) =
            ctx.views([ctx.input(0)?, ctx.input(usize::from(self.add))?], [ctx.output()?])?;
        let then = if self.add { Then::Add(typed(r)?) } else { Then::Keep };
        let jobs = [Job { then, ..Job::new(weight, bias, out.cast()?) }];
        project(ctx.isa, ctx.team, &mut ctx.scratch.activations, typed(x)?, rows, self.act, &jobs)
    }
}

/// The input quantised once, and the second product never leaving the scratch memory.
impl Kernel for GatedMatMul {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        check(graph, self.gate, self.gate_bias)?;
        check(graph, self.up, self.up_bias)
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let (weight, bias) = loaded(&ctx, self.gate, self.gate_bias)?;
        let (up, up_bias) = loaded(&ctx, self.up, self.up_bias)?;
        let rows = ctx.call.node.shape.n_rows(ctx.call.dims);
        let ([x], [out]) = ctx.views([ctx.input(0)?], [ctx.output()?])?;
        let then = Then::Gate(self.gating, Up { weight: up, bias: up_bias });
        let jobs = [Job { then, ..Job::new(weight, bias, out.cast()?) }];
        project(ctx.isa, ctx.team, &mut ctx.scratch.activations, typed(x)?, rows, self.act, &jobs)
    }
}

/// Products of `rows` rows of `x` with several weights; `x` is quantised once if one of them needs it.
pub fn project(
    isa: Isa,
    team: &Team<'_>,
    activations: &mut Activations,
    x: &[f32],
    rows: usize,
    act: ActPrecision,
    jobs: &[Job<'_>],
) -> Result<(), BackendError> {
    let cols = jobs.first().map_or(0, |j| j.weight.cols());
    let quantised = jobs.iter().any(Job::is_quantized);
    let quant = match quantised {
        true => Some(activations.quantize_together(isa, team, x, rows, cols, act)?),
        false => None,
    };
    matmul_together(isa, team, &Input { x, rows, cols, quant }, jobs)
}
