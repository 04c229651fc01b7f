//! Elementwise ops. All of them may write over their operands.

use super::parallel::{for_each_row, for_each_span};
use super::vector::{Pairwise, zip};
use super::{Ctx, Kernel};
use crate::buffers::{typed, typed_mut};
use crate::dispatch;
use crate::simd::{Simd, silu};
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

/// An op on the elements of its sources, all of one shape.
pub struct Elementwise<F>(pub F);

impl<F: Pairwise + Sync> Kernel for Elementwise<F> {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let second = ctx.call.node.op.arity() - 1;
        let in_place = [ctx.in_place(0), ctx.in_place(second)];
        let reads = [ctx.beside(0)?, ctx.beside(second)?];
        let ([a, b], [out]) = ctx.buffers.access(reads, [ctx.output()?])?;
        let (a, b): (&[f32], &[f32]) = (typed(a)?, typed(b)?);
        for_each_span(ctx.pool, typed_mut(out)?, SPAN, |first, out| {
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
        let ([x], [out]) = ctx.buffers.access([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_row(ctx.pool, typed_mut(out)?, cols, |row, out| {
            let x = operand(x, in_place, row * cols, cols);
            dispatch!(ctx.isa, s => s.vectorize(|| zip(s, out, x, Some(bias), &Add)));
        });
        Ok(())
    }
}
