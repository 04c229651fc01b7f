//! Products with weights.

use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::matmul::{Activations, Input, Job, matmul_together};
use crate::simd::Isa;
use crate::team::Team;
use minfer_graph::{ActPrecision, BackendError, Graph, Unsupported, WeightId};

/// A product with a weight and an optional bias.
pub struct MatMul {
    /// The weight.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
    /// Precision of the activations.
    pub act: ActPrecision,
}

impl Kernel for MatMul {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        super::weights::check_matrix(graph.weight(self.weight))?;
        self.bias.map_or(Ok(()), |b| super::weights::check_vector(graph.weight(b)))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let graph = ctx.call.graph;
        let weight = ctx.weights.matrix(graph, self.weight, ctx.pool)?;
        let bias = self.bias.map(|b| ctx.weights.vector(graph, b)).transpose()?;
        let rows = ctx.call.node.shape.n_rows(ctx.call.dims);
        let ([x], [out]) = ctx.views([ctx.input(0)?], [ctx.output()?])?;
        let jobs = [Job { weight, bias, out: out.cast()? }];
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
    let quantised = jobs.iter().any(|j| j.weight.is_quantized());
    let quant = match quantised {
        true => Some(activations.quantize_together(isa, team, x, rows, cols, act)?),
        false => None,
    };
    matmul_together(isa, team, &Input { x, rows, cols, quant }, jobs)
}
