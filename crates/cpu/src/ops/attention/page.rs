//! The arithmetic on one page: scores, softmax and weighted values of the rows of a tile.
//!
//! Both products, of queries with keys and of weights with values, are the same small matrix product: up to
//! [`GROUP`] rows by one or more panels of 16 positions or columns, each sum added in ascending order in a register of its own.

use super::spans::{Run, Span};
use crate::ops::kv::{Ahead, Line, PANEL, Panel, PanelKernel, Panels};
use crate::simd::{Kernel, Simd, exp_nonpositive, fold64, tanh};
use minfer_graph::PAGE;
use std::ops::Range;

/// Panels of keys per page.
const KEY_PANELS: usize = PAGE / PANEL;
/// Most rows computed together. Six rows and two vectors are twelve sums, enough to hide the latency of the
/// multipliers, and leave the registers for what they are made from.
pub const GROUP: usize = 6;
/// Panels of values that stay in the first-level cache while all rows meet them.
const NEAR_PANELS: usize = 4;
/// Lines of keys, likewise.
const NEAR_LINES: usize = 256;

/// A row's scores on a page, or its weights.
pub type Row = [f32; PAGE];

/// The sums of `R` rows with `P` panels.
type Sums<S, const R: usize, const P: usize> = [[[<S as Simd>::F; 2]; P]; R];

/// Calls a generic function with the number of rows and of panels at a time: eight sums or more
/// hide the latency of the multipliers; three rows of two panels would need a register too many.
macro_rules! by_rows {
    ($rows:expr, $function:ident($($arg:expr),*)) => {
        match $rows {
            1 => $function::<_, _, 1, 4>($($arg),*),
            2 => $function::<_, _, 2, 2>($($arg),*),
            3 => $function::<_, _, 3, 1>($($arg),*),
            4 => $function::<_, _, 4, 1>($($arg),*),
            5 => $function::<_, _, 5, 1>($($arg),*),
            _ => $function::<_, _, GROUP, 1>($($arg),*),
        }
    };
}

/// The factors of `R` rows.
trait Factors<const R: usize> {
    /// Number of steps.
    fn steps(&self) -> usize;
    /// The factor of a row at a step.
    fn at(&self, row: usize, step: usize) -> f32;
}

/// `[step][row]`.
impl<const R: usize> Factors<R> for [[f32; R]] {
    #[inline(always)]
    fn steps(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn at(&self, row: usize, step: usize) -> f32 {
        self[step][row]
    }
}

impl<const R: usize> Factors<R> for [Row; R] {
    #[inline(always)]
    fn steps(&self) -> usize {
        PAGE
    }

    #[inline(always)]
    fn at(&self, row: usize, step: usize) -> f32 {
        self[row][step]
    }
}

/// The sum of `a[r][i] * b[p][i][column]` for `i` in `steps`, ascending.
#[inline(always)]
fn sum_products<S: Simd, B: Panel, const R: usize, const P: usize>(
    s: S,
    a: &(impl Factors<R> + ?Sized),
    mut b: [B; P],
    steps: Range<usize>,
) -> Sums<S, R, P> {
    let mut sums = [[[s.zero(); 2]; P]; R];
    // Every index below is less than the length of what it indexes, and the compiler knows.
    let end = steps.end.min(a.steps());
    for b in &mut b {
        *b = b.up_to(end);
    }
    for i in steps.start..end {
        let mut lines = [[s.zero(); 2]; P];
        for (line, b) in lines.iter_mut().zip(&b) {
            *line = b.line(s, i);
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = s.splat(a.at(row, i));
            for (sum, line) in sums.iter_mut().zip(&lines) {
                *sum = [s.fma(factor, line[0], sum[0]), s.fma(factor, line[1], sum[1])];
            }
        }
    }
    sums
}

/// `P` neighbouring panels.
#[inline(always)]
fn neighbours<B: Panels, const P: usize>(panels: &B, first: usize) -> [B::Panel; P] {
    let mut list = [panels.panel(first); P];
    for (i, panel) in list.iter_mut().enumerate().skip(1) {
        *panel = panels.panel(first + i);
    }
    list
}

/// Arranges the queries of a group of rows as [`Scores`] takes them: `[dim][row]`.
pub struct PackQueries<'a, 'q> {
    /// One query after the other; at most [`GROUP`].
    pub queries: &'a [&'q [f32]],
    /// As many values.
    pub out: &'a mut [f32],
}

impl Kernel for PackQueries<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        by_rows!(self.queries.len(), pack(s, self.queries, self.out));
    }
}

#[inline(always)]
fn pack<S: Simd, Q: AsRef<[f32]>, const R: usize, const P: usize>(_s: S, queries: &[Q], out: &mut [f32]) {
    let Some(queries) = queries.first_chunk::<R>() else { return };
    let out = out.as_chunks_mut::<R>().0;
    for (row, q) in queries.iter().enumerate() {
        for (q, out) in q.as_ref().iter().zip(out.iter_mut()) {
            out[row] = *q;
        }
    }
}

/// `scale * (q . k)` of groups of rows with the positions that some row of them sees, in whole panels of keys.
pub struct Scores<'a> {
    /// Values per key.
    pub dims: usize,
    /// Group after group `[dim][row]`.
    pub q: &'a [f32],
    /// Factor on the products.
    pub scale: f32,
    /// The rows of each group, and what they see together.
    pub groups: &'a [Span],
    /// `[row][pos]`.
    pub e: &'a mut [Row],
    /// Memory to ask for meanwhile.
    pub ahead: Ahead<'a>,
}

impl PanelKernel for Scores<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S, k: impl Panels) {
        let Scores { dims, q, scale, groups, e, ahead } = self;
        let mut ahead = ahead.in_steps(groups.len() * KEY_PANELS / 2);
        let near = if groups.len() <= 2 { KEY_PANELS } else { (NEAR_LINES / dims).clamp(1, KEY_PANELS) };
        for first in (0..KEY_PANELS).step_by(near) {
            for Span { rows, seen } in groups {
                let from = first.max(seen.start / PANEL);
                let to = (first + near).min(seen.end.div_ceil(PANEL));
                if from >= to {
                    continue;
                }
                let q = &q[rows.start * dims..rows.end * dims];
                let e = &mut e[rows.clone()];
                by_rows!(rows.len(), score_panels(s, &k, q, dims, scale, e, from..to, &mut ahead));
            }
        }
    }
}

#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "a closure or a struct of them would hide the loop from the optimiser"
)]
fn score_panels<S: Simd, B: Panels, const R: usize, const P: usize>(
    s: S,
    k: &B,
    q: &[f32],
    dims: usize,
    scale: f32,
    e: &mut [Row],
    range: Range<usize>,
    ahead: &mut Ahead<'_>,
) {
    let mut at = range.start;
    while at + P <= range.end {
        ahead.step(s);
        score::<S, B, R, P>(s, k, q, dims, scale, e, at);
        at += P;
    }
    while at < range.end {
        ahead.step(s);
        score::<S, B, R, 1>(s, k, q, dims, scale, e, at);
        at += 1;
    }
}

#[inline(always)]
fn score<S: Simd, B: Panels, const R: usize, const P: usize>(
    s: S,
    k: &B,
    q: &[f32],
    dims: usize,
    scale: f32,
    e: &mut [Row],
    panel: usize,
) {
    let k = neighbours::<B, P>(k, panel);
    let sums = sum_products(s, q.as_chunks::<R>().0, k, 0..dims);
    let first = panel * PANEL;
    let scale = s.splat(scale);
    for (sums, e) in sums.iter().zip(e) {
        for (sum, out) in sums.iter().zip(e[first..].chunks_exact_mut(PANEL)) {
            s.store(s.mul(scale, sum[0]), out);
            s.store(s.mul(scale, sum[1]), &mut out[8..]);
        }
    }
}

/// Turns the scores of rows into exponentials; fills each row's maximum and sum.
pub struct Softmax<'a> {
    /// `[row][pos]`.
    pub e: &'a mut [Row],
    /// What each row sees; nothing, and the row is left alone.
    pub seen: &'a [Range<usize>],
    /// Bound on the scores.
    pub softcap: Option<f32>,
    /// Maximum of each row.
    pub m: &'a mut [f32],
    /// Sum of the exponentials of each row.
    pub l: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Softmax { e, seen, softcap, m, l } = self;
        if let Some(cap) = softcap {
            for e in e.iter_mut() {
                bound(s, e, cap);
            }
        }
        // Two passes: in one, each row would wait for the exponentials of the row before.
        for ((e, seen), m) in e.iter_mut().zip(seen).zip(m.iter_mut()) {
            *m = if seen.len() == PAGE { top(s, e) } else { top_of_part(s, e, seen) };
        }
        for (((e, seen), m), l) in e.iter_mut().zip(seen).zip(m).zip(l) {
            *l = if seen.len() == PAGE { sum_exp(s, e, *m) } else { sum_exp_of_part(s, e, *m, seen) };
        }
    }
}

/// `cap * tanh(score / cap)`.
#[inline(always)]
fn bound<S: Simd>(s: S, scores: &mut Row, cap: f32) {
    let cap = s.splat(cap);
    for x in scores.chunks_exact_mut(8) {
        let y = s.mul(cap, tanh(s, s.div(s.load(x), cap)));
        s.store(y, x);
    }
}

/// The maximum of a row that sees the whole page.
#[inline(always)]
fn top<S: Simd>(s: S, e: &Row) -> f32 {
    let mut top = s.load(e);
    for e in e[8..].chunks_exact(8) {
        top = s.max(top, s.load(e));
    }
    s.fold_max(top)
}

/// Vectors that hold some positions.
#[inline(always)]
fn vectors(seen: &Range<usize>) -> Range<usize> {
    seen.start / 8..seen.end.div_ceil(8)
}

/// The maximum of a row that sees a part of the page. The rest of its vectors becomes minus infinity.
#[inline(always)]
fn top_of_part<S: Simd>(s: S, e: &mut Row, seen: &Range<usize>) -> f32 {
    if seen.is_empty() {
        return f32::NEG_INFINITY;
    }
    let vectors = vectors(seen);
    e[8 * vectors.start..seen.start].fill(f32::NEG_INFINITY);
    e[seen.end..8 * vectors.end].fill(f32::NEG_INFINITY);
    let mut top = s.splat(f32::NEG_INFINITY);
    for e in e[8 * vectors.start..8 * vectors.end].chunks_exact(8) {
        top = s.max(top, s.load(e));
    }
    s.fold_max(top)
}

/// The exponentials of a row that sees the whole page, and their sum.
#[inline(always)]
fn sum_exp<S: Simd>(s: S, e: &mut Row, m: f32) -> f32 {
    let m = s.splat(m);
    let mut x = [s.zero(); PAGE / 8];
    for (x, e) in x.iter_mut().zip(e.chunks_exact_mut(8)) {
        *x = exp_nonpositive(s, s.sub(s.load(e), m));
        s.store(*x, e);
    }
    fold64(s, x)
}

/// The exponentials of a row that sees a part of the page, and their sum. They are 0 in the vectors that are skipped.
#[inline(always)]
fn sum_exp_of_part<S: Simd>(s: S, e: &mut Row, m: f32, seen: &Range<usize>) -> f32 {
    let (m, vectors) = (s.splat(m), vectors(seen));
    let mut x = [s.zero(); PAGE / 8];
    for (i, (x, e)) in x.iter_mut().zip(e.chunks_exact_mut(8)).enumerate() {
        if vectors.contains(&i) {
            *x = exp_nonpositive(s, s.sub(s.load(e), m));
            s.store(*x, e);
        }
    }
    fold64(s, x)
}

/// Weighted values of runs of rows, merged into what their earlier pages gave.
pub struct Values<'a> {
    /// Panels of values.
    pub width: usize,
    /// `[row][pos]`.
    pub e: &'a [Row],
    /// Rows that see the same.
    pub runs: &'a [Run],
    /// Factor on the earlier pages' values, per row.
    pub c: &'a [f32],
    /// Factor on this page's values, per row.
    pub c_p: &'a [f32],
    /// `[row][panel][16]`.
    pub a: &'a mut [Line],
    /// Memory to ask for meanwhile.
    pub ahead: Ahead<'a>,
}

impl PanelKernel for Values<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S, v: impl Panels) {
        let Values { width, e, runs, c, c_p, a, ahead } = self;
        let mut ahead = ahead.in_steps(runs.len() * width / 2);
        for first in (0..width).step_by(NEAR_PANELS) {
            let columns = first..width.min(first + NEAR_PANELS);
            for run in runs {
                let rows = run.span.rows.clone();
                let scales = if run.first { None } else { Some((&c[rows.clone()], &c_p[rows.clone()])) };
                let e = &e[rows.clone()];
                let a = &mut a[rows.start * width..rows.end * width];
                let seen = run.span.seen.clone();
                by_rows!(rows.len(), weigh_panels(s, &v, e, seen, scales, a, columns.clone(), &mut ahead));
            }
        }
    }
}

#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "a closure or a struct of them would hide the loop from the optimiser"
)]
fn weigh_panels<S: Simd, B: Panels, const R: usize, const P: usize>(
    s: S,
    v: &B,
    e: &[Row],
    seen: Range<usize>,
    scales: Option<(&[f32], &[f32])>,
    a: &mut [Line],
    columns: Range<usize>,
    ahead: &mut Ahead<'_>,
) {
    let Some(e) = e.first_chunk::<R>() else { return };
    let mut at = columns.start;
    while at + P <= columns.end {
        ahead.step(s);
        weigh::<S, B, R, P>(s, v, e, seen.clone(), scales, a, at);
        at += P;
    }
    while at < columns.end {
        ahead.step(s);
        weigh::<S, B, R, 1>(s, v, e, seen.clone(), scales, a, at);
        at += 1;
    }
}

#[inline(always)]
fn weigh<S: Simd, B: Panels, const R: usize, const P: usize>(
    s: S,
    v: &B,
    e: &[Row; R],
    seen: Range<usize>,
    scales: Option<(&[f32], &[f32])>,
    a: &mut [Line],
    column: usize,
) {
    let sums = sum_products(s, e, neighbours::<B, P>(v, column), seen);
    let width = a.len() / R;
    let Some((c, c_p)) = scales else {
        for (sums, a) in sums.iter().zip(a.chunks_exact_mut(width)) {
            for (sum, a) in sums.iter().zip(&mut a[column..]) {
                s.store(sum[0], a);
                s.store(sum[1], &mut a[8..]);
            }
        }
        return;
    };
    for (((sums, a), c), c_p) in sums.iter().zip(a.chunks_exact_mut(width)).zip(c).zip(c_p) {
        let (c, c_p) = (s.splat(*c), s.splat(*c_p));
        for (sum, a) in sums.iter().zip(&mut a[column..]) {
            s.store(s.fma(s.load(a), c, s.mul(sum[0], c_p)), a);
            s.store(s.fma(s.load(&a[8..]), c, s.mul(sum[1], c_p)), &mut a[8..]);
        }
    }
}
