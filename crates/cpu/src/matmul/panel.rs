//! Products with many tokens: weights of 16 rows are expanded once into a panel, and all tokens pass by.
//!
//! A panel holds a range of columns, few enough for the L1 cache. A tile is 16 rows and 4 or 8 tokens: its integer sums
//! stay in registers, its float sums too where there are enough of them, else in a small array. The numbers are those of
//! [`kernel::tile`](super::kernel::tile): every output has one float accumulator that takes the blocks in ascending order.
#![allow(
    clippy::needless_range_loop,
    reason = "several arrays are indexed alike, and iterators hide that from the eye"
)]

use super::acts::{ActBlock, ActRows};
use super::format::{BLOCK, Format, Minimum, Product};
use super::outputs::{Rows, Shared};
use super::planes::Planes;
use super::weight::GROUP;
use crate::simd::{Kernel, Rows16, Simd};
use minfer_graph::{BackendError, room};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Groups of 8 rows per panel.
pub const GROUPS: usize = 2;
/// Most tokens per tile.
const TOKENS: usize = 8;
/// Most blocks of 32 columns in a panel: with the tokens of a tile they fill the L1 cache.
const MOST_BLOCKS: usize = 40;
/// Bytes of activations that pass by the panels of a work item before the next ones do: they stay in the L2 cache.
const TOKEN_BYTES: usize = 224 << 10;

/// 32 columns of 16 rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block {
    /// What the kernel multiplies, `[4 columns][group]`.
    weights: [[[u8; 32]; GROUPS]; BLOCK / 4],
    /// [`Scales::scale`](super::format::Scales::scale), `[group][row]`; like the next ones, of which a format fills what it has.
    scale: [[f32; GROUP]; GROUPS],
    minimum: [[f32; GROUP]; GROUPS],
    /// `[half][group]`.
    halves: [[[u8; 32]; GROUPS]; 2],
    minima: [[u8; 32]; GROUPS],
}

const EMPTY: Block = Block {
    weights: [[[0; 32]; GROUPS]; BLOCK / 4],
    scale: [[0.0; GROUP]; GROUPS],
    minimum: [[0.0; GROUP]; GROUPS],
    halves: [[[0; 32]; GROUPS]; 2],
    minima: [[0; 32]; GROUPS],
};

/// Float sums of a token.
type Sums = [[f32; GROUP]; GROUPS];

/// What a thread works in.
struct Scratch {
    panels: Vec<Block>,
    sums: [Sums; TOKENS],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { panels: Vec::new(), sums: [[[0.0; GROUP]; GROUPS]; TOKENS] })
    };
}

/// Takes this thread's memory for [`item`] with up to so many groups.
///
/// # Errors
///
/// [`BackendError::OutOfMemory`].
pub fn reserve(cols: usize, groups: usize) -> Result<(), BackendError> {
    // No panel is longer: a format's blocks come in eights at most, of which `MOST_BLOCKS` is a multiple.
    let blocks = (cols / BLOCK).next_multiple_of(8).clamp(1, MOST_BLOCKS);
    let len = groups.div_ceil(GROUPS) * blocks;
    SCRATCH.with_borrow_mut(|scratch| room::grow(&mut scratch.panels, len, EMPTY))
}

/// Computes a range of a job's groups for some of its rows.
pub fn item<S: Simd, F: Format, const P: usize>(
    s: S,
    acts: ActRows<'_>,
    job: &Shared<'_>,
    groups: Range<usize>,
    tokens: Range<usize>,
) {
    let blocks = acts.cols() / BLOCK;
    let per_chunk = blocks.div_ceil(blocks.div_ceil(MOST_BLOCKS).max(1)).next_multiple_of(F::SUBS).max(1);
    let n_panels = groups.len().div_ceil(GROUPS);
    let token_block =
        (TOKEN_BYTES / (per_chunk * size_of::<[ActBlock; P]>())).max(1).next_multiple_of(TOKENS);
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { panels, sums } = scratch;
        // `reserve` made it long enough.
        let panels = &mut panels[..n_panels * per_chunk];
        for start in (0..blocks).step_by(per_chunk) {
            let chunk = start..blocks.min(start + per_chunk);
            for (panel, group) in panels.chunks_exact_mut(per_chunk).zip(groups.clone().step_by(GROUPS)) {
                let end = groups.end.min(group + GROUPS);
                let panel = &mut panel[..chunk.len()];
                s.run(Expand::<F> { job, groups: group..end, first: start, panel, format: PhantomData });
            }
            for first in tokens.clone().step_by(token_block) {
                let tokens = first..tokens.end.min(first + token_block);
                for (panel, group) in panels.chunks_exact(per_chunk).zip(groups.clone().step_by(GROUPS)) {
                    let (panel, tokens, chunk) = (&panel[..chunk.len()], tokens.clone(), chunk.clone());
                    let groups = group..groups.end.min(group + GROUPS);
                    let last = chunk.end == blocks;
                    s.run(Strip::<F, P> {
                        acts,
                        job,
                        groups,
                        chunk,
                        last,
                        tokens,
                        panel,
                        sums,
                        format: PhantomData,
                    });
                }
            }
        }
    });
}

/// Fills a panel from packed groups; a missing second group becomes zeros.
struct Expand<'a, 'j, F> {
    job: &'a Shared<'j>,
    groups: Range<usize>,
    /// First block of 32 columns.
    first: usize,
    panel: &'a mut [Block],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Expand<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for g in 0..GROUPS {
            if self.groups.start + g >= self.groups.end {
                self.panel.iter_mut().for_each(|block| clear(block, g));
                continue;
            }
            let packed = self.job.packed(self.groups.start + g);
            let packed = &packed[self.first / F::SUBS * F::BYTES..];
            for (packed, blocks) in packed.chunks_exact(F::BYTES).zip(self.panel.chunks_exact_mut(F::SUBS)) {
                let head = F::head(s, packed);
                for (sub, block) in blocks.iter_mut().enumerate() {
                    let planes = &packed[F::HEAD + sub * F::Bits::BYTES..][..F::Bits::BYTES];
                    let w = F::weights(s, F::Bits::unpack(s, planes));
                    for j in 0..BLOCK / 4 {
                        s.store_bytes(w[j], &mut block.weights[j][g]);
                    }
                    let scales = F::scales(s, packed, &head, sub);
                    s.store(scales.scale, &mut block.scale[g]);
                    if F::MINIMUM != Minimum::None {
                        s.store(scales.minimum, &mut block.minimum[g]);
                    }
                    if F::PRODUCT.by_halves() {
                        s.store_bytes(scales.halves[0], &mut block.halves[0][g]);
                        s.store_bytes(scales.halves[1], &mut block.halves[1][g]);
                    }
                    if F::MINIMUM == Minimum::Halves {
                        s.store_bytes(scales.minima, &mut block.minima[g]);
                    }
                }
            }
        }
    }
}

/// Makes a group of a block zero.
fn clear(block: &mut Block, group: usize) {
    for weights in &mut block.weights {
        weights[group] = [0; 32];
    }
    (block.scale[group], block.minimum[group]) = ([0.0; GROUP], [0.0; GROUP]);
}

/// All tokens of a block of them past one panel.
struct Strip<'a, 'j, F, const P: usize> {
    acts: ActRows<'a>,
    job: &'a Shared<'j>,
    groups: Range<usize>,
    /// Blocks of 32 columns.
    chunk: Range<usize>,
    /// Whether these are the last columns.
    last: bool,
    tokens: Range<usize>,
    panel: &'a [Block],
    /// Room for float sums.
    sums: &'a mut [Sums; TOKENS],
    format: PhantomData<F>,
}

impl<F: Format, const P: usize> Kernel for Strip<'_, '_, F, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Range { start: mut token, end } = self.tokens;
        if S::Rows16::MANY {
            while end - token > 4 {
                self.tile::<S, 8>(s, token);
                token = end.min(token + 8);
            }
        }
        while token < end {
            self.tile::<S, 4>(s, token);
            token = end.min(token + 4);
        }
    }
}

impl<F: Format, const P: usize> Strip<'_, '_, F, P> {
    /// Computes up to `T` tokens from `first` on.
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(&mut self, s: S, first: usize) {
        let Strip { acts, job, groups, chunk, last, tokens, panel, sums, format: _ } = self;
        let Some(space) = sums.first_chunk_mut::<T>() else { return };
        // Tokens that are not there repeat the last one and are not stored.
        let n = T.min(tokens.end - first);
        let rows: [&[[ActBlock; P]]; T] = match job.rows {
            Rows::All(_) if n == T => acts.parts(first, chunk.clone()),
            _ => {
                let mut rows: [&[[ActBlock; P]]; T] = [&[]; T];
                for t in 0..T {
                    rows[t] = acts.part(job.rows.at(first + t.min(n - 1)).input, chunk.clone());
                }
                rows
            }
        };
        let mut sums = [s.rows16().splat(0.0); T];
        if chunk.start > 0 {
            for t in 0..T {
                let row = job.rows.at(first + t.min(n - 1)).output;
                // SAFETY: work items are disjoint ranges of groups and tokens, each run by one thread.
                sums[t] = unsafe { job.take_two(s, groups.clone(), row) };
            }
        }
        if *last {
            job.ask::<S, T>(s, groups, first);
        }
        let sums = tile::<S::Rows16, F, P, T>(s.rows16(), panel, rows, sums, space);
        // SAFETY: as above.
        unsafe { job.put_two(s, groups.clone(), (first, n), sums, *last) };
    }
}

/// Adds the products of a panel and `T` tokens to sums, which are held in `space` where registers are few.
#[inline(always)]
fn tile<S: Rows16, F: Format, const P: usize, const T: usize>(
    s: S,
    panel: &[Block],
    mut rows: [&[[ActBlock; P]]; T],
    mut sums: [S::F; T],
    space: &mut [Sums; T],
) -> [S::F; T] {
    let n = panel.len();
    for t in 0..T {
        rows[t] = &rows[t][..n];
        if !S::MANY {
            s.store(sums[t], &mut space[t]);
        }
    }
    for b in 0..n {
        let block = &panel[b];
        for p in 0..P {
            let mut x = [&rows[0][b][p]; T];
            for t in 1..T {
                x[t] = &rows[t][b][p];
            }
            let products = products::<S, F, T>(s, block, x);
            for t in 0..T {
                let scale = s.mul(s.load(&block.scale), s.splat(x[t].d));
                let before = if S::MANY { sums[t] } else { s.load(&space[t]) };
                let mut sum = s.fma(s.from_i32(products[t]), scale, before);
                if F::MINIMUM == Minimum::Block && p + 1 == P {
                    sum = s.fma(s.load(&block.minimum), s.splat(rows[t][b][0].s), sum);
                }
                if S::MANY {
                    sums[t] = sum;
                } else {
                    s.store(sum, &mut space[t]);
                }
            }
        }
        if F::MINIMUM == Minimum::Halves {
            for p in 0..P {
                for t in 0..T {
                    let x = &rows[t][b][p];
                    let k = s.dot_pairs(x.halves, s.load_bytes(&block.minima));
                    let ms = s.mul(s.load(&block.minimum), s.splat(x.d));
                    let before = if S::MANY { sums[t] } else { s.load(&space[t]) };
                    let sum = s.fma(s.from_i32(k), ms, before);
                    if S::MANY {
                        sums[t] = sum;
                    } else {
                        s.store(sum, &mut space[t]);
                    }
                }
            }
        }
    }
    if !S::MANY {
        for t in 0..T {
            sums[t] = s.load(&space[t]);
        }
    }
    sums
}

/// A member of each token's block.
macro_rules! each {
    ($x:ident, $member:ident) => {{
        let mut list = [$x[0].$member; T];
        for t in 1..T {
            list[t] = $x[t].$member;
        }
        list
    }};
}
/// The exact integer products of a block.
#[inline(always)]
fn products<S: Rows16, F: Format, const T: usize>(s: S, block: &Block, x: [&ActBlock; T]) -> [S::I; T] {
    match F::PRODUCT {
        Product::Unsigned4 => whole(s, block, x, [0; T]),
        Product::Unsigned5 => {
            let mut sums = whole(s, block, x, each!(x, start16));
            for t in 0..T {
                sums[t] = s.add_i32(sums[t], s.splat_i32(x[t].sum16));
            }
            sums
        }
        Product::Zero8 => whole(s, block, x, each!(x, start8)),
        Product::Zero16 => whole(s, block, x, each!(x, start16)),
        Product::Halves => by_halves(s, block, x, each!(x, start32)),
        Product::HalvesUnsigned2 => by_halves(s, block, x, [[0; 2]; T]),
        Product::HalvesEight => {
            let mut sums = by_halves(s, block, x, each!(x, start32));
            for t in 0..T {
                sums[t] = s.shr3_i32(sums[t]);
            }
            sums
        }
        Product::Signed => signed(s, block, x),
    }
}

/// Adds the products of one group of 4 columns. Written out by its callers, because the compiler leaves a loop of
/// this size as it is.
#[inline(always)]
fn step<S: Rows16, const T: usize>(s: S, block: &Block, x: [&ActBlock; T], j: usize, acc: &mut [S::Acc; T]) {
    let w = s.load_bytes(&block.weights[j]);
    for t in 0..T {
        acc[t] = s.acc_step(acc[t], w, x[t].q[j]);
    }
}

/// Adds the products of one half of the columns.
#[inline(always)]
fn half<S: Rows16, const T: usize>(
    s: S,
    block: &Block,
    x: [&ActBlock; T],
    half: usize,
    acc: &mut [S::Acc; T],
) {
    step(s, block, x, 4 * half, acc);
    step(s, block, x, 4 * half + 1, acc);
    step(s, block, x, 4 * half + 2, acc);
    step(s, block, x, 4 * half + 3, acc);
}

/// Sums over a whole block that start at a value of each token.
#[inline(always)]
fn whole<S: Rows16, const T: usize>(s: S, block: &Block, x: [&ActBlock; T], start: [i32; T]) -> [S::I; T] {
    let mut acc = [s.acc_start(0); T];
    for t in 0..T {
        acc[t] = s.acc_start(start[t]);
    }
    half(s, block, x, 0, &mut acc);
    half(s, block, x, 1, &mut acc);
    let mut sums = [s.splat_i32(0); T];
    for t in 0..T {
        sums[t] = s.acc_finish(acc[t]);
    }
    sums
}

/// Sums over the halves, that start at a value of each token and half, times the scales of the halves.
#[inline(always)]
fn by_halves<S: Rows16, const T: usize>(
    s: S,
    block: &Block,
    x: [&ActBlock; T],
    start: [[i32; 2]; T],
) -> [S::I; T] {
    let mut acc = [s.acc_start(0); T];
    for t in 0..T {
        acc[t] = s.acc_start(start[t][0]);
    }
    half(s, block, x, 0, &mut acc);
    let mut sums = [s.splat_i32(0); T];
    for t in 0..T {
        sums[t] = s.acc_finish_scaled(acc[t], s.load_bytes(&block.halves[0]));
    }
    for t in 0..T {
        acc[t] = s.acc_start(start[t][1]);
    }
    half(s, block, x, 1, &mut acc);
    for t in 0..T {
        let more = s.acc_finish_scaled(acc[t], s.load_bytes(&block.halves[1]));
        sums[t] = s.add_i32(sums[t], more);
    }
    sums
}

/// Sums of products with signed weights.
#[inline(always)]
fn signed<S: Rows16, const T: usize>(s: S, block: &Block, x: [&ActBlock; T]) -> [S::I; T] {
    let mut sums = [s.splat_i32(0); T];
    for t in 0..T {
        sums[t] = s.signed_start(x[t].sum16);
    }
    for j in 0..BLOCK / 4 {
        let w = s.load_bytes(&block.weights[j]);
        for t in 0..T {
            sums[t] = s.signed_step(sums[t], w, x[t].q[j]);
        }
    }
    sums
}
