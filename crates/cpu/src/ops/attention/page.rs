//! The arithmetic on one page: scores, softmax and weighted values of up to four rows.

use crate::simd::{Simd, exp, fold64, tanh};
use minfer_graph::PAGE;
use std::array::from_fn;
use std::ops::Range;

/// Rows computed together: with two vectors each, enough independent sums to keep the multipliers busy.
pub const GROUP: usize = 4;
/// Vectors per page.
const VECTORS: usize = PAGE / 8;

/// A page as f32, and the partial results of a group of rows.
#[derive(Debug, Default)]
pub struct PageSpace {
    /// `[dim][pos]`. Positions that a row does not see may hold anything; they are computed with the
    /// others and masked.
    pub k: Vec<f32>,
    /// `[pos][v_padded]`; only the visible positions are up to date.
    pub v: Vec<f32>,
    v_padded: usize,
    /// `[row][pos]`: scores, then their exponentials.
    e: Vec<f32>,
    m: [f32; GROUP],
    l: [f32; GROUP],
    /// `[row][v_padded]`.
    a: Vec<f32>,
}

impl PageSpace {
    /// Room for pages of these sizes; `v_padded` is a multiple of 16.
    pub fn resize(&mut self, head_dim: usize, v_padded: usize) {
        self.k.resize(head_dim * PAGE, 0.0);
        self.v.resize(v_padded * PAGE, 0.0);
        self.e.resize(GROUP * PAGE, 0.0);
        self.a.resize(v_padded * GROUP, 0.0);
        self.v_padded = v_padded;
    }

    /// Computes the partial results of 1 to [`GROUP`] rows, each of which sees some of the page.
    ///
    /// Each loop enters the instruction set on its own: one large closure would not be inlined into it.
    pub fn compute<S: Simd>(
        &mut self,
        s: S,
        q: &[&[f32]],
        visible: &[Range<usize>],
        scale: f32,
        softcap: Option<f32>,
    ) {
        let PageSpace { k, e, m, l, .. } = self;
        match *q {
            [a, b, c, d] => s.vectorize(|| scores::<S, 4, 2>(s, [a, b, c, d], k, scale, e)),
            [a, b, c] => s.vectorize(|| scores::<S, 3, 2>(s, [a, b, c], k, scale, e)),
            [a, b] => s.vectorize(|| scores::<S, 2, 4>(s, [a, b], k, scale, e)),
            [a] => s.vectorize(|| scores::<S, 1, 8>(s, [a], k, scale, e)),
            _ => return,
        }
        if let Some(cap) = softcap {
            s.vectorize(|| bound(s, &mut e[..q.len() * PAGE], cap));
        }
        for (row, (e, visible)) in e.chunks_exact_mut(PAGE).zip(visible).enumerate() {
            (m[row], l[row]) = s.vectorize(|| softmax(s, e, visible.clone()));
        }
        self.weigh_values(s, visible);
    }

    /// `a_p` of each row. Positions that all rows see are added for all at once.
    fn weigh_values<S: Simd>(&mut self, s: S, visible: &[Range<usize>]) {
        let PageSpace { v, v_padded, e, a, .. } = self;
        let v = Values { v, width: *v_padded };
        let from = visible.iter().map(|r| r.start).max().unwrap_or(0);
        let to = visible.iter().map(|r| r.end).min().unwrap_or(0).max(from);
        a.fill(0.0);
        for (row, visible) in visible.iter().enumerate() {
            v.add::<S, 1, 8>(s, row, visible.start..from.min(visible.end), e, a);
        }
        match visible.len() {
            4 => v.add::<S, 4, 2>(s, 0, from..to, e, a),
            3 => v.add::<S, 3, 2>(s, 0, from..to, e, a),
            2 => v.add::<S, 2, 4>(s, 0, from..to, e, a),
            _ => v.add::<S, 1, 8>(s, 0, from..to, e, a),
        }
        for (row, visible) in visible.iter().enumerate() {
            v.add::<S, 1, 8>(s, row, to.max(visible.start)..visible.end, e, a);
        }
    }

    /// Maximum, sum and weighted values of a row of the last group.
    pub fn partial(&self, row: usize) -> (f32, f32, &[f32]) {
        (self.m[row], self.l[row], &self.a[row * self.v_padded..][..self.v_padded])
    }
}

/// `8 * N` values.
#[inline(always)]
fn load<S: Simd, const N: usize>(s: S, x: &[f32]) -> [S::F; N] {
    let x = &x[..8 * N];
    let mut lanes = [s.zero(); N];
    for (lanes, x) in lanes.iter_mut().zip(x.chunks_exact(8)) {
        *lanes = s.load(x);
    }
    lanes
}

/// `acc += factor * lanes`.
#[inline(always)]
fn add_product<S: Simd, const N: usize>(s: S, acc: &mut [S::F; N], factor: f32, lanes: &[S::F; N]) {
    let factor = s.splat(factor);
    for (acc, lanes) in acc.iter_mut().zip(lanes) {
        *acc = s.fma(factor, *lanes, *acc);
    }
}

/// `scale * (q . k)` of `R` rows with all 64 positions, `N` vectors of positions at a time.
#[inline(always)]
fn scores<S: Simd, const R: usize, const N: usize>(
    s: S,
    q: [&[f32]; R],
    k: &[f32],
    scale: f32,
    out: &mut [f32],
) {
    let dims = k.len() / PAGE;
    let q = q.map(|q| &q[..dims]);
    let scale = s.splat(scale);
    for first in (0..PAGE).step_by(8 * N) {
        let mut acc = [[s.zero(); N]; R];
        for (d, k) in k.chunks_exact(PAGE).enumerate() {
            let lanes = load::<S, N>(s, &k[first..]);
            for (acc, q) in acc.iter_mut().zip(&q) {
                add_product(s, acc, q[d], &lanes);
            }
        }
        for (acc, out) in acc.iter().zip(out.chunks_exact_mut(PAGE)) {
            for (acc, out) in acc.iter().zip(out[first..].chunks_exact_mut(8)) {
                s.store(s.mul(scale, *acc), out);
            }
        }
    }
}

/// `cap * tanh(score / cap)`.
#[inline(always)]
fn bound<S: Simd>(s: S, scores: &mut [f32], cap: f32) {
    let cap = s.splat(cap);
    for x in scores.chunks_exact_mut(8) {
        let y = s.mul(cap, tanh(s, s.div(s.load(x), cap)));
        s.store(y, x);
    }
}

/// Turns the scores of a row into exponentials and returns their maximum and sum.
///
/// Masked lanes are minus infinity before and 0 after.
#[inline(always)]
fn softmax<S: Simd>(s: S, e: &mut [f32], visible: Range<usize>) -> (f32, f32) {
    e[..visible.start].fill(f32::NEG_INFINITY);
    e[visible.end..].fill(f32::NEG_INFINITY);
    let mut x = load::<S, VECTORS>(s, e);
    let mut top = x[0];
    for &x in &x[1..] {
        top = s.max(top, x);
    }
    let m = s.fold_max(top);
    let top = s.splat(m);
    for (x, e) in x.iter_mut().zip(e.chunks_exact_mut(8)) {
        *x = exp(s, s.sub(*x, top));
        s.store(*x, e);
    }
    (m, fold64(s, x))
}

/// V of a page, `[pos][width]`.
struct Values<'a> {
    v: &'a [f32],
    width: usize,
}

impl Values<'_> {
    /// Adds positions to the values of `R` rows from `row` on, `N` vectors at a time where they fit.
    fn add<S: Simd, const R: usize, const N: usize>(
        &self,
        s: S,
        row: usize,
        positions: Range<usize>,
        e: &[f32],
        a: &mut [f32],
    ) {
        if positions.is_empty() {
            return;
        }
        let e: [&[f32]; R] = from_fn(|r| &e[(row + r) * PAGE..][..PAGE]);
        let a = &mut a[row * self.width..];
        let mut column = 0;
        while column + 8 * N <= self.width {
            s.vectorize(|| self.add_columns::<S, R, N>(s, column, positions.clone(), e, a));
            column += 8 * N;
        }
        while column < self.width {
            s.vectorize(|| self.add_columns::<S, R, 2>(s, column, positions.clone(), e, a));
            column += 16;
        }
    }

    #[inline(always)]
    fn add_columns<S: Simd, const R: usize, const N: usize>(
        &self,
        s: S,
        column: usize,
        positions: Range<usize>,
        e: [&[f32]; R],
        a: &mut [f32],
    ) {
        let mut acc = [[s.zero(); N]; R];
        for (acc, a) in acc.iter_mut().zip(a.chunks_exact(self.width)) {
            *acc = load(s, &a[column..]);
        }
        for p in positions {
            let lanes = load::<S, N>(s, &self.v[p * self.width + column..]);
            for (acc, e) in acc.iter_mut().zip(&e) {
                add_product(s, acc, e[p], &lanes);
            }
        }
        for (acc, a) in acc.iter().zip(a.chunks_exact_mut(self.width)) {
            for (acc, a) in acc.iter().zip(a[column..].chunks_exact_mut(8)) {
                s.store(*acc, a);
            }
        }
    }
}
