//! Elementwise ops. All of them may write over their operands.

use super::parallel::{for_each_row, for_each_span};
use super::vector::{map, zip};
use super::{Ctx, Kernel};
use crate::buffers::{typed, typed_mut};
use crate::dispatch;
use crate::simd::{Simd, silu};
use minfer_graph::{BackendError, Graph, Unsupported, WeightId};

/// Values per work item; small enough to stay in the first-level cache.
const SPAN: usize = 1024;

/// Ops of two operands of one shape.
#[derive(Clone, Copy)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `silu(a) * b`.
    SwiGlu,
}

impl Binary {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, out: &mut [f32], a: Option<&[f32]>, b: Option<&[f32]>) {
        match self {
            Binary::Add => zip(s, out, a, b, |a, b| s.add(a, b)),
            Binary::Mul => zip(s, out, a, b, |a, b| s.mul(a, b)),
            Binary::SwiGlu => zip(s, out, a, b, |a, b| s.mul(silu(s, a), b)),
        }
    }
}

impl Kernel for Binary {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let in_place = [ctx.in_place(0), ctx.in_place(1)];
        let ([a, b], [out]) = ctx.buffers.access([ctx.beside(0)?, ctx.beside(1)?], [ctx.output()?])?;
        let (a, b): (&[f32], &[f32]) = (typed(a)?, typed(b)?);
        for_each_span(ctx.pool, typed_mut(out)?, SPAN, |first, out| {
            let n = out.len();
            let part = |x, in_place| operand(x, in_place, first, n);
            let (a, b) = (part(a, in_place[0]), part(b, in_place[1]));
            dispatch!(ctx.isa, s => s.vectorize(|| self.apply(s, out, a, b)));
        });
        Ok(())
    }
}

/// The part of an operand that belongs to a span of the output, or nothing if it is the output.
fn operand(x: &[f32], in_place: bool, first: usize, len: usize) -> Option<&[f32]> {
    if in_place { None } else { Some(&x[first..][..len]) }
}

/// `x / (1 + exp(-x))`.
pub struct Silu;

impl Kernel for Silu {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let in_place = ctx.in_place(0);
        let ([x], [out]) = ctx.buffers.access([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_span(ctx.pool, typed_mut(out)?, SPAN, |first, out| {
            let x = operand(x, in_place, first, out.len());
            dispatch!(ctx.isa, s => s.vectorize(|| map(s, out, x, |x| silu(s, x))));
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
        let ([x], [out]) = ctx.buffers.access([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_row(ctx.pool, typed_mut(out)?, cols, |row, out| {
            let x = operand(x, in_place, row * cols, cols);
            dispatch!(ctx.isa, s => s.vectorize(|| zip(s, out, x, Some(bias), |x, b| s.add(x, b))));
        });
        Ok(())
    }
}
