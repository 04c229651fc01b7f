//! Products with weights.

use super::{Ctx, Kernel};
use crate::buffers::{typed, typed_mut};
use crate::matmul::{Activations, Input, Job, matmul_many};
use crate::pool::Pool;
use crate::simd::Isa;
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
        let ([x], [out]) = ctx.buffers.access([ctx.input(0)?], [ctx.output()?])?;
        let mut jobs = [Job { weight, bias, out: typed_mut(out)? }];
        project(ctx.isa, ctx.pool, &mut ctx.scratch.activations, typed(x)?, rows, self.act, &mut jobs)
    }
}

/// Products of `rows` rows of `x` with several weights; `x` is quantised once if one of them needs it.
pub fn project(
    isa: Isa,
    pool: &Pool,
    activations: &mut Activations,
    x: &[f32],
    rows: usize,
    act: ActPrecision,
    jobs: &mut [Job<'_>],
) -> Result<(), BackendError> {
    let cols = jobs.first().map_or(0, |j| j.weight.cols());
    let quantised = jobs.iter().any(|j| j.weight.is_quantized());
    if quantised {
        activations.quantize(isa, pool, x, rows, cols, act)?;
    }
    let quant = quantised.then_some(&*activations);
    matmul_many(isa, pool, &Input { x, rows, cols, quant }, jobs)
}
