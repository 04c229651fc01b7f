//! The arithmetic on one page: scores, softmax and weighted values of up to four rows.

use crate::ops::kv::KvElement;
use crate::simd::{Simd, exp, fold64};
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
    /// `[dim][pos]`.
    k: Vec<f32>,
    /// `[pos][v_padded]`; only the visible positions are up to date.
    v: Vec<f32>,
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

    /// Reads a page: K as a whole, V at the positions that some row sees.
    ///
    /// Lanes of K that a row does not see may hold anything; they are computed with the others and masked.
    #[inline(always)]
    pub fn load<S: Simd, E: KvElement>(
        &mut self,
        s: S,
        k: &[E],
        v: &[E],
        visible: Range<usize>,
        v_dim: usize,
    ) {
        E::load(s, k, &mut self.k);
        for p in visible {
            let row = &mut self.v[p * self.v_padded..][..self.v_padded];
            E::load(s, &v[p * v_dim..][..v_dim], &mut row[..v_dim]);
            row[v_dim..].fill(0.0);
        }
    }

    /// Computes the partial results of 1 to [`GROUP`] rows, each of which sees some of the page.
    #[inline(always)]
    pub fn compute<S: Simd>(&mut self, s: S, q: &[&[f32]], visible: &[Range<usize>], scale: f32) {
        match *q {
            [a, b, c, d] => scores::<S, 4, 2>(s, [a, b, c, d], &self.k, scale, &mut self.e),
            [a, b, c] => scores::<S, 3, 2>(s, [a, b, c], &self.k, scale, &mut self.e),
            [a, b] => scores::<S, 2, 4>(s, [a, b], &self.k, scale, &mut self.e),
            [a] => scores::<S, 1, 8>(s, [a], &self.k, scale, &mut self.e),
            _ => return,
        }
        for (row, (e, visible)) in self.e.chunks_exact_mut(PAGE).zip(visible).enumerate() {
            (self.m[row], self.l[row]) = softmax(s, e, visible.clone());
        }
        self.weigh_values(s, visible);
    }

    /// `a_p` of each row. Positions that all rows see are added for all at once.
    #[inline(always)]
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
            let k: [S::F; N] = from_fn(|n| s.load(&k[first + 8 * n..]));
            for r in 0..R {
                let x = s.splat(q[r][d]);
                for n in 0..N {
                    acc[r][n] = s.fma(x, k[n], acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                s.store(s.mul(scale, acc[r][n]), &mut out[r * PAGE + first + 8 * n..]);
            }
        }
    }
}

/// Turns the scores of a row into exponentials and returns their maximum and sum.
///
/// Masked lanes are minus infinity before and 0 after.
#[inline(always)]
fn softmax<S: Simd>(s: S, e: &mut [f32], visible: Range<usize>) -> (f32, f32) {
    e[..visible.start].fill(f32::NEG_INFINITY);
    e[visible.end..].fill(f32::NEG_INFINITY);
    let x: [S::F; VECTORS] = from_fn(|n| s.load(&e[8 * n..]));
    let mut top = x[0];
    for &x in &x[1..] {
        top = s.max(top, x);
    }
    let m = s.fold_max(top);
    let top = s.splat(m);
    let x: [S::F; VECTORS] = from_fn(|n| exp(s, s.sub(x[n], top)));
    for n in 0..VECTORS {
        s.store(x[n], &mut e[8 * n..]);
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
    #[inline(always)]
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
            self.add_columns::<S, R, N>(s, column, positions.clone(), e, a);
            column += 8 * N;
        }
        while column < self.width {
            self.add_columns::<S, R, 2>(s, column, positions.clone(), e, a);
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
        let at = |r: usize, n: usize| r * self.width + column + 8 * n;
        let mut acc: [[S::F; N]; R] = from_fn(|r| from_fn(|n| s.load(&a[at(r, n)..])));
        for p in positions {
            let v = &self.v[p * self.width + column..][..8 * N];
            let v: [S::F; N] = from_fn(|n| s.load(&v[8 * n..]));
            for r in 0..R {
                let x = s.splat(e[r][p]);
                for n in 0..N {
                    acc[r][n] = s.fma(x, v[n], acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                s.store(acc[r][n], &mut a[at(r, n)..]);
            }
        }
    }
}
