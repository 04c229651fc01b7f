//! Division of products among threads and into tiles.
//!
//! A work item is a range of groups of 8 rows. With one token its groups are read in four streams, which
//! keeps enough loads in flight. With many, tokens are taken in blocks whose activations stay in the L2 cache, and within a
//! block each group stays in L1 while all tokens pass by.

use super::acts::Activations;
use super::float::{self, Float, with_float};
use super::format::{Format, with_format};
use super::kernel;
use super::shared::SharedMut;
use super::weight::{GROUP, PackedWeight};
use crate::dispatch;
use crate::pool::Pool;
use crate::simd::{Isa, Simd};
use minfer_graph::BackendError;
use std::ops::Range;

/// Bytes of activations per block of tokens: half of a small L2 cache.
const TOKEN_BLOCK: usize = 256 << 10;
/// Groups per work item with several tokens.
const ITEM: usize = 8;
/// Streams with one token.
const STREAMS: usize = 4;

/// The input of a product: `[rows, cols]` f32, and the same rows quantised if a weight needs that.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The values, row by row.
    pub x: &'a [f32],
    /// Rows (tokens).
    pub rows: usize,
    /// Values per row.
    pub cols: usize,
    /// The rows quantised; needed for quantised weights.
    pub quant: Option<&'a Activations>,
}

/// One product: `out[t, o] = sum_k weight[o, k] * x[t, k] + bias[o]`.
#[derive(Debug)]
pub struct Job<'a> {
    /// The weight `[n_out, cols]`.
    pub weight: &'a PackedWeight,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, n_out]`.
    pub out: &'a mut [f32],
}

/// Product with one weight; see [`matmul_many`].
///
/// # Errors
///
/// As [`matmul_many`].
pub fn matmul(
    isa: Isa,
    pool: &Pool,
    weight: &PackedWeight,
    input: &Input<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    matmul_many(isa, pool, input, &mut [Job { weight, bias, out }])
}

/// Products of one input with several weights, in one parallel region.
///
/// # Errors
///
/// [`BackendError::BadBuffer`] where lengths don't fit, or a quantised weight finds no quantised input.
pub fn matmul_many(
    isa: Isa,
    pool: &Pool,
    input: &Input<'_>,
    jobs: &mut [Job<'_>],
) -> Result<(), BackendError> {
    for job in jobs.iter() {
        check(input, job)?;
    }
    let jobs: Vec<Shared<'_>> = jobs.iter_mut().map(Shared::new).collect();
    let groups: usize = jobs.iter().map(|j| j.weight.groups()).sum();
    if input.rows == 0 || groups == 0 {
        return Ok(());
    }
    let chunk = match input.rows {
        1 => groups.div_ceil(4 * pool.threads()).next_multiple_of(STREAMS),
        _ => groups.div_ceil(2 * pool.threads()).min(ITEM),
    };
    pool.chunks(groups, chunk, |range| {
        let mut first = 0;
        for job in &jobs {
            let end = first + job.weight.groups();
            let part = range.start.max(first)..range.end.min(end);
            if !part.is_empty() {
                dispatch!(isa, s => run(s, input, job, part.start - first..part.end - first));
            }
            first = end;
        }
    });
    Ok(())
}

fn check(input: &Input<'_>, job: &Job<'_>) -> Result<(), BackendError> {
    let weight = job.weight;
    let n = weight.rows();
    let bad = |what: &str, len: usize| {
        let shape = format!("{} x {} with [{n}, {}]", input.rows, input.cols, weight.cols());
        Err(BackendError::BadBuffer(format!("product {shape}: {what} of {len}")))
    };
    if input.cols != weight.cols() || input.rows.checked_mul(input.cols) != Some(input.x.len()) {
        return bad("input", input.x.len());
    }
    if input.rows.checked_mul(n) != Some(job.out.len()) {
        return bad("output", job.out.len());
    }
    if let Some(bias) = job.bias.filter(|b| b.len() != n) {
        return bad("bias", bias.len());
    }
    match input.quant {
        Some(q) if (q.rows(), q.cols()) != (input.rows, input.cols) => bad("quantised rows", q.rows()),
        None if weight.is_quantized() => bad("quantised rows", 0),
        _ => Ok(()),
    }
}

/// A job whose output several threads write.
struct Shared<'a> {
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    out: SharedMut<'a, f32>,
}

impl<'a> Shared<'a> {
    fn new(job: &'a mut Job<'_>) -> Self {
        Shared { weight: job.weight, bias: job.bias, out: SharedMut::new(job.out) }
    }

    /// Adds the bias and writes the 8 outputs of group `g` for a token.
    ///
    /// # Safety
    ///
    /// No other thread may work on the same group.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, g: usize, token: usize, sum: S::F) {
        let n = self.weight.rows();
        let rows = g * GROUP..((g + 1) * GROUP).min(n);
        let len = rows.len();
        // SAFETY: the columns of this group belong to the calling thread.
        let out = unsafe { self.out.range(token * n + rows.start..token * n + rows.end) };
        if len == GROUP {
            let sum = self.bias.map_or(sum, |b| s.add(sum, s.load(&b[rows])));
            s.store(sum, out);
        } else {
            let mut bias = [0.0; GROUP];
            let sum = self.bias.map_or(sum, |b| {
                bias[..len].copy_from_slice(&b[rows]);
                s.add(sum, s.load(&bias))
            });
            out.copy_from_slice(&s.to_array(sum)[..len]);
        }
    }
}

/// What computes a tile: a format with planes of activations, or plain numbers.
trait Tiles {
    /// Bytes of activations per token.
    fn token_bytes(&self) -> usize;

    /// Sums of `G` groups and of `T` tokens from `first`.
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        first: usize,
    ) -> [[S::F; T]; G];
}

/// Products with quantised weights.
struct Quantised<'a, F, const P: usize> {
    acts: &'a Activations,
    format: std::marker::PhantomData<F>,
}

impl<F: Format, const P: usize> Tiles for Quantised<'_, F, P> {
    fn token_bytes(&self) -> usize {
        self.acts.cols() * 2 * P
    }

    #[inline(always)]
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        first: usize,
    ) -> [[S::F; T]; G] {
        kernel::tile::<S, F, G, T, P>(s, groups, std::array::from_fn(|t| self.acts.row::<P>(first + t)))
    }
}

/// Products with plain numbers.
struct Plain<'a, F> {
    x: &'a [f32],
    cols: usize,
    format: std::marker::PhantomData<F>,
}

impl<F: Float> Tiles for Plain<'_, F> {
    fn token_bytes(&self) -> usize {
        4 * self.cols
    }

    #[inline(always)]
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        first: usize,
    ) -> [[S::F; T]; G] {
        let tokens = std::array::from_fn(|t| &self.x[(first + t) * self.cols..][..self.cols]);
        float::tile::<S, F, G, T>(s, groups, tokens)
    }
}

/// Computes a range of groups for all tokens.
fn run<S: Simd>(s: S, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    use std::marker::PhantomData as format;
    let ty = job.weight.ty();
    with_format!(ty, F => if let Some(acts) = input.quant {
        match acts.planes() {
            1 => item(s, &Quantised::<F, 1> { acts, format }, input.rows, job, groups),
            _ => item(s, &Quantised::<F, 2> { acts, format }, input.rows, job, groups),
        }
    }, else => with_float!(ty, F => {
        item(s, &Plain::<F> { x: input.x, cols: input.cols, format }, input.rows, job, groups);
    }, else => ()));
}

fn item<S: Simd, K: Tiles>(s: S, tiles: &K, tokens: usize, job: &Shared<'_>, groups: Range<usize>) {
    if tokens == 1 {
        let part = groups.len() / STREAMS;
        s.vectorize(|| {
            for g in groups.start..groups.start + part {
                put_tile::<S, K, STREAMS, 1>(s, tiles, job, std::array::from_fn(|i| g + i * part), 0);
            }
        });
        s.vectorize(|| {
            for g in groups.start + part * STREAMS..groups.end {
                put_tile::<S, K, 1, 1>(s, tiles, job, [g], 0);
            }
        });
        return;
    }
    let block = (TOKEN_BLOCK / tiles.token_bytes().max(1)).max(8).next_multiple_of(8);
    for first in (0..tokens).step_by(block) {
        let end = tokens.min(first + block);
        for g in groups.clone() {
            let mut t = first;
            s.vectorize(|| {
                while t + 8 <= end {
                    put_tile::<S, K, 1, 8>(s, tiles, job, [g], t);
                    t += 8;
                }
            });
            if end - t >= 4 {
                s.vectorize(|| put_tile::<S, K, 1, 4>(s, tiles, job, [g], t));
                t += 4;
            }
            if end - t >= 2 {
                s.vectorize(|| put_tile::<S, K, 1, 2>(s, tiles, job, [g], t));
                t += 2;
            }
            if end - t == 1 {
                s.vectorize(|| put_tile::<S, K, 1, 1>(s, tiles, job, [g], t));
            }
        }
    }
}

/// Computes and writes a tile.
#[inline(always)]
fn put_tile<S: Simd, K: Tiles, const G: usize, const T: usize>(
    s: S,
    tiles: &K,
    job: &Shared<'_>,
    groups: [usize; G],
    first: usize,
) {
    let sums = tiles.tile::<S, G, T>(s, groups.map(|g| job.weight.group(g)), first);
    for (&g, sums) in groups.iter().zip(sums) {
        for (t, sum) in sums.into_iter().enumerate() {
            // SAFETY: work items are disjoint ranges of groups, each run by one thread.
            unsafe { job.put(s, g, first + t, sum) };
        }
    }
}
