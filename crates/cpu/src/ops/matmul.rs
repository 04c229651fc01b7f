//! Products with weights, and what they do to their results themselves: add a residual, gate.

use super::norm::{self, LoadedNorm};
use super::parallel::for_each_row;
use super::{Ctx, Kernel, Scratch};
use crate::buffers::typed;
use crate::matmul::{ALONE, Input, Job, PackedWeight, Raw, SharedMut, Then, Up, matmul_together};
use crate::simd::Isa;
use crate::team::Team;
use minfer_graph::{ActPrecision, BackendError, GatedMatMul, Graph, Unsupported, WeightId, room};

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
        let raw = Raw { x: typed(x)?, rows, cols: weight.cols(), norm: None };
        project(ctx.isa, ctx.team, ctx.scratch, &raw, self.act, &jobs)
    }
}

/// The input quantised once, and the second product never leaving the scratch memory.
impl Kernel for GatedMatMul {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        norm::check(graph, self.norm)?;
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
        let raw =
            Raw { x: typed(x)?, rows, cols: weight.cols(), norm: LoadedNorm::optional(&ctx, self.norm)? };
        project(ctx.isa, ctx.team, ctx.scratch, &raw, self.act, &jobs)
    }
}

/// Products of one input with several weights; it is normalised and quantised once, if it has a norm and one of the weights
/// needs that.
pub fn project(
    isa: Isa,
    team: &Team<'_>,
    scratch: &mut Scratch,
    raw: &Raw<'_>,
    act: ActPrecision,
    jobs: &[Job<'_>],
) -> Result<(), BackendError> {
    let plain = jobs.iter().any(Job::is_plain);
    let raw = match &raw.norm {
        Some(norm) if plain => {
            Raw { x: normed(isa, team, raw, norm, &mut scratch.normed)?, norm: None, ..*raw }
        }
        _ => *raw,
    };
    let quant = match jobs.iter().any(Job::is_quantized) {
        true => Some(scratch.activations.quantize_together(isa, team, &raw, act)?),
        false => None,
    };
    // Without a weight that takes rows as they are, nobody looks at `x`.
    matmul_together(isa, team, &Input { x: raw.x, rows: raw.rows, cols: raw.cols, quant }, jobs)
}

/// The rows behind their norm, for all members.
fn normed<'s>(
    isa: Isa,
    team: &Team<'_>,
    raw: &Raw<'_>,
    norm: &LoadedNorm<'_>,
    space: &'s mut Vec<f32>,
) -> Result<&'s [f32], BackendError> {
    let len = raw.rows * raw.cols;
    let make_room = |space: &'s mut Vec<f32>| -> Result<_, BackendError> {
        room::grow(space, len, 0.0)?;
        Ok(SharedMut::new(&mut space[..len]))
    };
    let fill = |row: usize, out: &mut [f32]| norm.row(isa, out, Some(raw.row(row)));
    let out = if len <= ALONE {
        let out = make_room(space)?;
        // SAFETY: the room is this member's own.
        let rows = unsafe { out.range(0..len) }.chunks_exact_mut(raw.cols.max(1));
        rows.enumerate().for_each(|(row, out)| fill(row, out));
        out
    } else {
        // SAFETY: all members normalise the same rows.
        let out = unsafe { team.try_share(|| make_room(space)) }?;
        for_each_row(team, out, raw.cols, fill);
        out
    };
    // SAFETY: nobody writes any more: the room is this member's own, or all have met since the last write.
    Ok(unsafe { out.read() })
}
