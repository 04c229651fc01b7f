//! Where the products of a job go: a job whose output several threads write, each other groups of it.

use super::job::{Job, Pair, Then};
use super::shared::SharedMut;
use super::weight::{GROUP, Groups, PackedWeight};
use crate::ops::vector::{load_tail, store_tail};
use crate::simd::{Rows16, Simd};
use std::ops::Range;

/// Which rows a job multiplies.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// This many, each to the output row of its number.
    All(usize),
    /// These.
    Some(&'a [Pair]),
}

impl Rows<'_> {
    /// How many.
    pub fn len(self) -> usize {
        match self {
            Rows::All(n) => n,
            Rows::Some(pairs) => pairs.len(),
        }
    }

    /// One of them.
    #[inline(always)]
    pub fn at(self, i: usize) -> Pair {
        match self {
            Rows::All(_) => Pair { input: i, output: i },
            Rows::Some(pairs) => pairs[i],
        }
    }
}

/// A job whose output several threads write.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    pub(super) weight: &'a PackedWeight,
    /// The groups that are packed: all, or those that a thread packs before it works on them.
    pub(super) held: Option<Groups<'a>>,
    /// First group of the weight, and outputs from there on.
    pub(super) first: usize,
    pub(super) n_out: usize,
    pub(super) bias: Option<&'a [f32]>,
    /// What is multiplied.
    pub rows: Rows<'a>,
    pub(super) out: SharedMut<'a, f32>,
    pub(super) then: Then<'a>,
}

impl<'a> Shared<'a> {
    /// All rows of a job's input.
    pub(super) fn new(job: &Job<'a>, rows: usize) -> Self {
        let Job { weight, bias, out, then } = *job;
        let held = weight.groups();
        Shared { weight, held, first: 0, n_out: weight.rows(), bias, rows: Rows::All(rows), out, then }
    }

    /// What is added to a row of the output when it is final, if anything is.
    #[inline(always)]
    fn residual(&self, last: bool) -> Option<&'a [f32]> {
        match self.then {
            Then::Add(r) if last => Some(r),
            _ => None,
        }
    }

    /// Groups of 8 outputs.
    pub(super) fn groups(&self) -> usize {
        self.n_out.div_ceil(GROUP)
    }

    /// Packed bytes of a group.
    #[inline(always)]
    pub fn packed(&self, g: usize) -> &'a [u8] {
        match &self.held {
            Some(held) => held.at(self.first + g),
            // `run` packs what a thread works on.
            None => &[],
        }
    }

    /// The 8 outputs of group `g` of a row of the output; the last group of a matrix may be shorter.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same group.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "as in `SharedMut::range`")]
    unsafe fn outputs(&self, g: usize, row: usize) -> &mut [f32] {
        let n = self.n_out;
        // SAFETY: the columns of this group belong to the calling thread.
        unsafe { self.out.range(row * n + g * GROUP..row * n + ((g + 1) * GROUP).min(n)) }
    }

    /// Writes the outputs of one or two neighbouring groups for `n` of the job's rows from `first` on; bias and residual are
    /// added if they are final.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same groups.
    #[inline(always)]
    pub unsafe fn put_two<S: Simd, const T: usize>(
        &self,
        s: S,
        groups: Range<usize>,
        (first, n): (usize, usize),
        sums: [<S::Rows16 as Rows16>::F; T],
        last: bool,
    ) {
        let two = s.rows16();
        let at = groups.start * GROUP;
        if !self.are_two(&groups) {
            for (t, sum) in sums.into_iter().enumerate().take(n) {
                let mut lanes = [[0.0; GROUP]; 2];
                two.store(sum, &mut lanes);
                for (g, sum) in groups.clone().zip(&lanes) {
                    // SAFETY: the caller's promise.
                    unsafe { self.put(s, g, self.rows.at(first + t).output, s.load(sum), last) };
                }
            }
        } else if matches!(self.rows, Rows::All(_)) && n == T {
            // SAFETY: the caller's promise.
            unsafe { self.put_lines(two, (first * self.n_out + at, self.n_out), sums, at, last) };
        } else {
            for (t, sum) in sums.into_iter().enumerate().take(n) {
                let start = self.rows.at(first + t).output * self.n_out + at;
                // SAFETY: the caller's promise.
                unsafe { self.put_lines(two, (start, 0), [sum], at, last) };
            }
        }
    }

    /// Writes lines of 16 outputs, `step` apart. One thing is done to all of them after another, in loops short enough to
    /// be unrolled, so that the sums stay in registers.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same groups.
    #[inline(always)]
    unsafe fn put_lines<S: Rows16, const T: usize>(
        &self,
        s: S,
        (start, step): (usize, usize),
        mut sums: [S::F; T],
        column: usize,
        last: bool,
    ) {
        if let Some(bias) = self.bias.filter(|_| last) {
            let bias = s.load(two_groups(bias, column));
            for sum in &mut sums {
                *sum = s.add(*sum, bias);
            }
        }
        if let Some(r) = self.residual(last) {
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.load(two_groups(r, start + t * step)));
            }
        }
        for (t, sum) in sums.into_iter().enumerate() {
            // SAFETY: the columns of these groups belong to the calling thread.
            s.store(sum, unsafe { self.out.array(start + t * step) });
        }
    }

    /// Reads what [`Shared::put_two`] wrote for a row.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same groups.
    #[inline(always)]
    pub unsafe fn take_two<S: Simd>(
        &self,
        s: S,
        groups: Range<usize>,
        row: usize,
    ) -> <S::Rows16 as Rows16>::F {
        if self.are_two(&groups) {
            // SAFETY: the caller's promise.
            return s.rows16().load(unsafe { self.out.array(row * self.n_out + groups.start * GROUP) });
        }
        // SAFETY: the caller's promise.
        s.rows16().load(&unsafe { self.take_parts(groups, row) })
    }

    /// [`Shared::take_two`] where a group is missing or not whole.
    ///
    /// # Safety
    ///
    /// As there.
    #[cold]
    #[inline(never)]
    unsafe fn take_parts(&self, groups: Range<usize>, row: usize) -> [[f32; GROUP]; 2] {
        let mut lanes = [[0.0; GROUP]; 2];
        for (g, lanes) in groups.zip(&mut lanes) {
            // SAFETY: the caller's promise.
            let out = unsafe { self.outputs(g, row) };
            lanes[..out.len()].copy_from_slice(out);
        }
        lanes
    }

    /// Asks for what will be added to lines of the first group's outputs, some time before it is needed.
    #[inline(always)]
    pub fn ask<S: Simd, const T: usize>(&self, s: S, groups: &Range<usize>, first: usize) {
        if let (Some(r), Rows::All(_)) = (self.residual(true), self.rows) {
            let start = r.as_ptr().wrapping_add(first * self.n_out + groups.start * GROUP);
            for t in 0..T {
                s.prefetch(start.wrapping_add(t * self.n_out));
            }
        }
    }

    /// Whether the groups are two and whole.
    #[inline(always)]
    fn are_two(&self, groups: &Range<usize>) -> bool {
        groups.len() == 2 && groups.end * GROUP <= self.n_out
    }

    /// Writes the 8 outputs of group `g` of a row of the output; bias and residual are added if they are final.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same group.
    #[inline(always)]
    pub(super) unsafe fn put<S: Simd>(&self, s: S, g: usize, row: usize, sum: S::F, last: bool) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.outputs(g, row) };
        let (first, n) = (g * GROUP, out.len());
        let mut sum = sum;
        if let Some(bias) = self.bias.filter(|_| last) {
            sum = s.add(sum, load_up_to(s, &bias[first..first + n]));
        }
        if let Some(r) = self.residual(last) {
            let first = row * self.n_out + first;
            sum = s.add(sum, load_up_to(s, &r[first..first + n]));
        }
        if n == GROUP { s.store(sum, out) } else { store_tail(s, sum, out) }
    }
}

/// Up to 8 values, padded with zeros.
#[inline(always)]
fn load_up_to<S: Simd>(s: S, x: &[f32]) -> S::F {
    if x.len() == GROUP { s.load(x) } else { load_tail(s, x) }
}

/// Two groups of eight from `start` on.
#[inline(always)]
fn two_groups(x: &[f32], start: usize) -> &[[f32; GROUP]; 2] {
    bytemuck::cast_ref::<[f32; 2 * GROUP], _>(x[start..].first_chunk().expect("two groups"))
}
