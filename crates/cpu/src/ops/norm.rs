//! Root-mean-square norm.

use super::parallel::for_each_row;
use super::vector::{Pairwise, zip};
use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::dispatch;
use crate::simd::{Simd, sum_squares};
use minfer_graph::{BackendError, Graph, Unsupported, WeightId};

/// `x / sqrt(mean(x^2) + eps) * weight` on each part of each row.
pub struct RmsNorm {
    /// The weight; a factor of one if absent.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
    /// Parts of a row that are normalised by themselves.
    pub parts: usize,
}

/// `x * factor`.
struct Scaled(f32);
/// `x * factor * weight`.
struct Weighted(f32);

impl Pairwise for Scaled {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: S::F, _: S::F) -> S::F {
        s.mul(x, s.splat(self.0))
    }
}

impl Pairwise for Weighted {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, x: S::F, w: S::F) -> S::F {
        s.mul(s.mul(x, s.splat(self.0)), w)
    }
}

/// Normalises a row; without `x`, the row is in `out`.
#[inline(always)]
fn norm_row<S: Simd>(s: S, out: &mut [f32], x: Option<&[f32]>, weight: Option<&[f32]>, eps: f32) {
    let mean = sum_squares(s, x.unwrap_or(out)) / out.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    match weight {
        Some(w) => zip(s, out, x, Some(w), &Weighted(factor)),
        None => zip(s, out, x, x, &Scaled(factor)),
    }
}

impl Kernel for RmsNorm {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        self.weight.map_or(Ok(()), |w| super::weights::check_vector(graph.weight(w)))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let weight = self.weight.map(|w| ctx.weights.vector(ctx.call.graph, w)).transpose()?;
        let cols = ctx.call.node.shape.cols / self.parts.max(1);
        let in_place = ctx.in_place(0);
        let ([x], [out]) = ctx.views([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            let x = if in_place { None } else { Some(&x[row * cols..][..cols]) };
            dispatch!(ctx.isa, s => s.vectorize(|| norm_row(s, out, x, weight, self.eps)));
        });
        Ok(())
    }
}
