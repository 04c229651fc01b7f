//! Elementwise ops. All of them may write over their operands.

use super::parallel::{for_each_row, for_each_span};
use super::vector::{Pairwise, zip};
use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::dispatch;
use crate::simd::{Simd, exp, gelu, silu, tanh};
use minfer_graph::{BackendError, Graph, Unsupported, WeightId};

/// Values per work item; small enough to stay in the first-level cache.
const SPAN: usize = 1024;

/// `a + b`.
pub struct Add;
/// `a * b`.
pub struct Mul;
/// `silu(a) * b`.
pub struct SwiGlu;
/// `a / (1 + exp(-a))`; has one source.
pub struct Silu;
/// GELU in its tanh form; has one source.
pub struct Gelu;
/// `gelu(a) * b`.
pub struct GeGlu;
/// `factor * a`; has one source.
pub struct Scale {
    /// The factor.
    pub factor: f32,
}
/// `cap * tanh(a / cap)`; has one source.
pub struct SoftCap {
    /// Bound on the result.
    pub cap: f32,
}
/// `g / (1 + exp(-alpha g)) * (u + 1)`, `g = min(a, limit)`, `u = b` clamped to `±limit`.
pub struct ClampedGlu {
    /// Steepness of the sigmoid.
    pub alpha: f32,
    /// Bound.
    pub limit: f32,
}

impl Pairwise for Add {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
}

impl Pairwise for Mul {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(a, b)
    }
}

impl Pairwise for SwiGlu {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(silu(s, a), b)
    }
}

impl Pairwise for Silu {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        silu(s, a)
    }
}

impl Pairwise for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        gelu(s, a)
    }
}

impl Pairwise for GeGlu {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(gelu(s, a), b)
    }
}

impl Pairwise for Scale {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        s.mul(a, s.splat(self.factor))
    }
}

impl Pairwise for SoftCap {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        let cap = s.splat(self.cap);
        s.mul(cap, tanh(s, s.div(a, cap)))
    }
}

impl Pairwise for ClampedGlu {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F {
        // `min` and `max` return their second operand for NaN, which so passes through.
        let limit = s.splat(self.limit);
        let g = s.min(limit, a);
        let u = s.max(s.neg(limit), s.min(limit, b));
        let one = s.splat(1.0);
        let gated = s.div(g, s.add(one, exp(s, s.mul(s.splat(-self.alpha), g))));
        s.mul(gated, s.add(u, one))
    }
}

/// An op on the elements of its sources, all of one shape.
pub struct Elementwise<F>(pub F);

impl<F: Pairwise + Sync> Kernel for Elementwise<F> {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let second = ctx.call.node.op.arity() - 1;
        let in_place = [ctx.in_place(0), ctx.in_place(second)];
        let reads = [ctx.beside(0)?, ctx.beside(second)?];
        let ([a, b], [out]) = ctx.views(reads, [ctx.output()?])?;
        let (a, b): (&[f32], &[f32]) = (typed(a)?, typed(b)?);
        for_each_span(ctx.team, out.cast()?, SPAN, |first, out| {
            let part = |x, in_place| operand(x, in_place, first, out.len());
            let (a, b) = (part(a, in_place[0]), part(b, in_place[1]));
            dispatch!(ctx.isa, s => s.vectorize(|| zip(s, out, a, b, &self.0)));
        });
        Ok(())
    }
}

/// The part of an operand that belongs to a span of the output, or nothing if it is the output.
fn operand(x: &[f32], in_place: bool, first: usize, len: usize) -> Option<&[f32]> {
    if in_place { None } else { Some(&x[first..][..len]) }
}

/// `x * (1 + gain * ln(1 + floor(position / interval)))` on each row. The factor is computed in f64.
pub struct PositionScale {
    /// Growth per unit of the logarithm.
    pub gain: f32,
    /// Positions per step.
    pub interval: usize,
}

impl PositionScale {
    /// The factor of a position.
    fn factor(&self, position: i32) -> f32 {
        let steps = i64::from(position).max(0) / i64::try_from(self.interval).unwrap_or(i64::MAX);
        (1.0 + f64::from(self.gain) * (steps as f64).ln_1p()) as f32
    }
}

impl Kernel for PositionScale {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let cols = ctx.call.node.shape.cols;
        let in_place = ctx.in_place(0);
        let ([x, positions], [out]) = ctx.views([ctx.beside(0)?, ctx.input(1)?], [ctx.output()?])?;
        let (x, positions): (&[f32], &[i32]) = (typed(x)?, typed(positions)?);
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            let x = operand(x, in_place, row * cols, cols);
            let scale = Scale { factor: self.factor(positions[row]) };
            dispatch!(ctx.isa, s => s.vectorize(|| zip(s, out, x, None, &scale)));
        });
        Ok(())
    }
}

/// `x + bias` on each row.
pub struct AddBias {
    /// The bias.
    pub bias: WeightId,
}

impl Kernel for AddBias {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        super::weights::check_vector(graph.weight(self.bias))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let bias = ctx.weights.vector(ctx.call.graph, self.bias)?;
        let cols = bias.len();
        let in_place = ctx.in_place(0);
        let ([x], [out]) = ctx.views([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            let x = operand(x, in_place, row * cols, cols);
            dispatch!(ctx.isa, s => s.vectorize(|| zip(s, out, x, Some(bias), &Add)));
        });
        Ok(())
    }
}
