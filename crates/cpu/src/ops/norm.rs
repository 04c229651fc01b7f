//! Root-mean-square norm.

use super::parallel::for_each_row;
use super::vector::{Pairwise, load_tail, store_tail, zip};
use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::dispatch;
use crate::simd::{Isa, Simd, sum_squares};
use minfer_graph::{BackendError, Graph, Norm, Unsupported};

/// A norm with its weight at hand: `x / sqrt(mean(x^2) + eps) * weight` on each part of a row.
#[derive(Clone, Copy, Debug)]
pub struct LoadedNorm<'a> {
    weight: Option<&'a [f32]>,
    eps: f32,
    parts: usize,
}

impl<'a> LoadedNorm<'a> {
    /// Looks the weight up.
    pub fn new(ctx: &Ctx<'a>, norm: Norm) -> Result<Self, BackendError> {
        let weight = norm.weight.map(|w| ctx.weights.vector(ctx.call.graph, w)).transpose()?;
        Ok(LoadedNorm { weight, eps: norm.eps, parts: norm.parts.max(1) })
    }

    /// The same of a norm that may be absent.
    pub fn optional(ctx: &Ctx<'a>, norm: Option<Norm>) -> Result<Option<Self>, BackendError> {
        norm.map(|norm| Self::new(ctx, norm)).transpose()
    }

    /// Normalises a row; without `x`, the row is in `out`.
    pub fn row(&self, isa: Isa, out: &mut [f32], x: Option<&[f32]>) {
        let cols = out.len() / self.parts;
        for (part, out) in out.chunks_exact_mut(cols.max(1)).enumerate() {
            let x = x.map(|x| &x[part * cols..][..cols]);
            dispatch!(isa, s => s.vectorize(|| norm_row(s, out, x, self.weight, self.eps)));
        }
    }
}

/// Whether a norm's weight, if it has one, can be read.
pub fn check(graph: &Graph, norm: Option<Norm>) -> Result<(), Unsupported> {
    let weight = norm.and_then(|n| n.weight);
    weight.map_or(Ok(()), |w| super::weights::check_vector(graph.weight(w)))
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

/// What a row is multiplied with before its weight.
#[inline(always)]
fn factor<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mean = sum_squares(s, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// Normalises a row; without `x`, the row is in `out`.
#[inline(always)]
fn norm_row<S: Simd>(s: S, out: &mut [f32], x: Option<&[f32]>, weight: Option<&[f32]>, eps: f32) {
    let factor = factor(s, x.unwrap_or(out), eps);
    match weight {
        Some(w) => zip(s, out, x, Some(w), &Weighted(factor)),
        None => zip(s, out, x, x, &Scaled(factor)),
    }
}

/// `out = norm(x) + r`; an absent operand is `out` itself.
#[inline(always)]
fn norm_add_row<S: Simd>(
    s: S,
    out: &mut [f32],
    [x, r]: [Option<&[f32]>; 2],
    weight: Option<&[f32]>,
    eps: f32,
) {
    let factor = factor(s, x.unwrap_or(out), eps);
    let whole = out.len() - out.len() % 8;
    for i in (0..whole).step_by(8) {
        let y = s.load(&x.unwrap_or(out)[i..]);
        let y = match weight {
            Some(w) => Weighted(factor).apply(s, y, s.load(&w[i..])),
            None => Scaled(factor).apply(s, y, y),
        };
        let r = s.load(&r.unwrap_or(out)[i..]);
        s.store(s.add(y, r), &mut out[i..]);
    }
    if whole < out.len() {
        let y = load_tail(s, &x.unwrap_or(out)[whole..]);
        let y = match weight {
            Some(w) => Weighted(factor).apply(s, y, load_tail(s, &w[whole..])),
            None => Scaled(factor).apply(s, y, y),
        };
        let r = load_tail(s, &r.unwrap_or(out)[whole..]);
        store_tail(s, s.add(y, r), &mut out[whole..]);
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight` on each part of each row.
pub struct RmsNorm(pub Norm);

impl Kernel for RmsNorm {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        check(graph, Some(self.0))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        // Parts are as good as rows.
        let norm = LoadedNorm { parts: 1, ..LoadedNorm::new(&ctx, self.0)? };
        let cols = ctx.call.node.shape.cols / self.0.parts.max(1);
        let in_place = ctx.in_place(0);
        let ([x], [out]) = ctx.views([ctx.beside(0)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            norm.row(ctx.isa, out, if in_place { None } else { Some(&x[row * cols..][..cols]) });
        });
        Ok(())
    }
}

/// `norm(x) + r`.
pub struct NormAdd(pub Norm);

impl Kernel for NormAdd {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        check(graph, Some(self.0))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let norm = LoadedNorm::new(&ctx, self.0)?;
        let cols = ctx.call.node.shape.cols / norm.parts;
        let in_place = [ctx.in_place(0), ctx.in_place(1)];
        let (reads, isa) = ([ctx.beside(0)?, ctx.beside(1)?], ctx.isa);
        let ([x, r], [out]) = ctx.views(reads, [ctx.output()?])?;
        let operands: [&[f32]; 2] = [typed(x)?, typed(r)?];
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            let part = |i: usize| if in_place[i] { None } else { Some(&operands[i][row * cols..][..cols]) };
            let operands = [part(0), part(1)];
            dispatch!(isa, s => s.vectorize(|| norm_add_row(s, out, operands, norm.weight, norm.eps)));
        });
        Ok(())
    }
}
