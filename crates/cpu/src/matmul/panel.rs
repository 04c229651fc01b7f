//! Products with many tokens: weights of 16 rows are expanded once into a panel, and all tokens pass by.
//!
//! A panel holds a range of columns, few enough for the L1 cache. A tile is 16 rows and 4 tokens: its integer sums stay
//! in registers, its float sums in a small array. The numbers are those of [`kernel::tile`](super::kernel::tile):
//! every output has one float accumulator that takes the blocks in ascending order.
#![allow(
    clippy::needless_range_loop,
    reason = "several arrays are indexed alike, and iterators hide that from the eye"
)]

use super::acts::{ActBlock, ActRows};
use super::format::{BLOCK, Format, Minimum, Product};
use super::planes::Planes;
use super::run::Shared;
use super::weight::GROUP;
use crate::simd::{Kernel, Simd};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Groups of 8 rows per panel.
pub const GROUPS: usize = 2;
/// Tokens per tile.
pub const TOKENS: usize = 4;
/// Most blocks of 32 columns in a panel: with the tokens of a tile they fill the L1 cache.
const MOST_BLOCKS: usize = 40;
/// Bytes of activations that pass by the panels of a work item before the next ones do: they stay in the L2 cache.
const TOKEN_BYTES: usize = 224 << 10;

/// 32 columns of 16 rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block {
    /// What the kernel multiplies, `[4 columns][group]`.
    weights: [[u8; 32]; BLOCK / 4 * GROUPS],
    /// [`Scales::scale`](super::format::Scales::scale), `[group][row]`; like the next ones, of which a format fills what it has.
    scale: [[f32; GROUP]; GROUPS],
    minimum: [[f32; GROUP]; GROUPS],
    /// `[half][group]`.
    halves: [[[u8; 32]; GROUPS]; 2],
    minima: [[u8; 32]; GROUPS],
}

const EMPTY: Block = Block {
    weights: [[0; 32]; BLOCK / 4 * GROUPS],
    scale: [[0.0; GROUP]; GROUPS],
    minimum: [[0.0; GROUP]; GROUPS],
    halves: [[[0; 32]; GROUPS]; 2],
    minima: [[0; 32]; GROUPS],
};

/// Float sums of a tile.
type Sums = [[[f32; GROUP]; GROUPS]; TOKENS];

/// What a thread works in.
struct Scratch {
    panels: Vec<Block>,
    sums: Sums,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { panels: Vec::new(), sums: [[[0.0; GROUP]; GROUPS]; TOKENS] })
    };
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
        if panels.len() < n_panels * per_chunk {
            panels.resize(n_panels * per_chunk, EMPTY);
        }
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
                        s.store_bytes(w[j], &mut block.weights[GROUPS * j + g]);
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
    for weights in block.weights.chunks_exact_mut(GROUPS) {
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
    sums: &'a mut Sums,
    format: PhantomData<F>,
}

impl<F: Format, const P: usize> Kernel for Strip<'_, '_, F, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Strip { acts, job, groups, chunk, last, tokens, panel, sums, format: _ } = self;
        for first in tokens.clone().step_by(TOKENS) {
            // Tokens that are not there repeat the last one and are not stored.
            let n = TOKENS.min(tokens.end - first);
            let mut rows: [&[[ActBlock; P]]; TOKENS] = [&[]; TOKENS];
            for t in 0..TOKENS {
                rows[t] = &acts.row::<P>(job.rows.at(first + t.min(n - 1)).input)[chunk.clone()];
            }
            *sums = [[[0.0; GROUP]; GROUPS]; TOKENS];
            if chunk.start > 0 {
                for t in 0..n {
                    // SAFETY: work items are disjoint ranges of groups and tokens, each run by one thread.
                    unsafe { job.take_tile(groups.clone(), job.rows.at(first + t).output, &mut sums[t]) };
                }
            }
            tile::<S, F, P>(s, panel, rows, sums);
            for t in 0..n {
                // SAFETY: as above.
                unsafe { job.put_tile(s, groups.clone(), job.rows.at(first + t).output, &sums[t], last) };
            }
        }
    }
}

/// Adds the products of a panel and 4 tokens.
#[inline(always)]
fn tile<S: Simd, F: Format, const P: usize>(
    s: S,
    panel: &[Block],
    rows: [&[[ActBlock; P]]; TOKENS],
    sums: &mut Sums,
) {
    let n = panel.len();
    let rows = [&rows[0][..n], &rows[1][..n], &rows[2][..n], &rows[3][..n]];
    for b in 0..n {
        let block = &panel[b];
        for p in 0..P {
            let x = [&rows[0][b][p], &rows[1][b][p], &rows[2][b][p], &rows[3][b][p]];
            let products = products::<S, F>(s, block, x);
            for t in 0..TOKENS {
                let d = s.splat(x[t].d);
                for g in 0..GROUPS {
                    let scale = s.mul(s.load(&block.scale[g]), d);
                    let mut sum = s.fma(s.from_i32(products[t][g]), scale, s.load(&sums[t][g]));
                    if F::MINIMUM == Minimum::Block && p + 1 == P {
                        sum = s.fma(s.load(&block.minimum[g]), s.splat(rows[t][b][0].s), sum);
                    }
                    s.store(sum, &mut sums[t][g]);
                }
            }
        }
        if F::MINIMUM == Minimum::Halves {
            for p in 0..P {
                for t in 0..TOKENS {
                    let x = &rows[t][b][p];
                    for g in 0..GROUPS {
                        let k = s.dot_pairs(x.halves, s.load_bytes(&block.minima[g]));
                        let ms = s.mul(s.load(&block.minimum[g]), s.splat(x.d));
                        let sum = s.fma(s.from_i32(k), ms, s.load(&sums[t][g]));
                        s.store(sum, &mut sums[t][g]);
                    }
                }
            }
        }
    }
}

type Tile<X> = [[X; GROUPS]; TOKENS];

/// The exact integer products of a block.
#[inline(always)]
fn products<S: Simd, F: Format>(s: S, block: &Block, x: [&ActBlock; TOKENS]) -> Tile<S::I> {
    match F::PRODUCT {
        Product::Unsigned4 => whole(s, block, x, [0; TOKENS]),
        Product::Unsigned5 => {
            let mut sums = whole(s, block, x, [x[0].start16, x[1].start16, x[2].start16, x[3].start16]);
            for t in 0..TOKENS {
                for g in 0..GROUPS {
                    sums[t][g] = s.add_i32(sums[t][g], s.splat_i32(x[t].sum16));
                }
            }
            sums
        }
        Product::Zero8 => whole(s, block, x, [x[0].start8, x[1].start8, x[2].start8, x[3].start8]),
        Product::Zero16 => whole(s, block, x, [x[0].start16, x[1].start16, x[2].start16, x[3].start16]),
        Product::Halves => both(s, block, x),
        Product::HalvesUnsigned2 => both_unsigned(s, block, x),
        Product::HalvesEight => {
            let mut sums = both(s, block, x);
            for t in 0..TOKENS {
                for g in 0..GROUPS {
                    sums[t][g] = s.shr_i32::<3>(sums[t][g]);
                }
            }
            sums
        }
        Product::Signed => signed(s, block, x),
    }
}

/// Adds the products of one group of 4 columns. Written out by its callers, because the compiler leaves a loop of
/// this size as it is.
#[inline(always)]
fn step<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS], j: usize, acc: &mut Tile<S::Acc>) {
    let w = [s.load_bytes(&block.weights[GROUPS * j]), s.load_bytes(&block.weights[GROUPS * j + 1])];
    for t in 0..TOKENS {
        for g in 0..GROUPS {
            acc[t][g] = s.acc_step(acc[t][g], w[g], x[t].q[j]);
        }
    }
}

/// Adds the products of one half of the columns.
#[inline(always)]
fn half<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS], half: usize, acc: &mut Tile<S::Acc>) {
    step(s, block, x, 4 * half, acc);
    step(s, block, x, 4 * half + 1, acc);
    step(s, block, x, 4 * half + 2, acc);
    step(s, block, x, 4 * half + 3, acc);
}

/// 16-bit sums that start at a value of each token.
#[inline(always)]
fn start<S: Simd>(s: S, start: [i32; TOKENS]) -> Tile<S::Acc> {
    let mut acc = [[s.acc_start(0); GROUPS]; TOKENS];
    for t in 0..TOKENS {
        acc[t] = [s.acc_start(start[t]); GROUPS];
    }
    acc
}

#[inline(always)]
fn whole<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS], from: [i32; TOKENS]) -> Tile<S::I> {
    let mut acc = start(s, from);
    half(s, block, x, 0, &mut acc);
    half(s, block, x, 1, &mut acc);
    let mut sums = [[s.splat_i32(0); GROUPS]; TOKENS];
    for t in 0..TOKENS {
        for g in 0..GROUPS {
            sums[t][g] = s.acc_finish(acc[t][g]);
        }
    }
    sums
}

#[inline(always)]
fn both<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS]) -> Tile<S::I> {
    let first = [x[0].start32[0], x[1].start32[0], x[2].start32[0], x[3].start32[0]];
    let second = [x[0].start32[1], x[1].start32[1], x[2].start32[1], x[3].start32[1]];
    by_halves(s, block, x, first, second)
}

#[inline(always)]
fn both_unsigned<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS]) -> Tile<S::I> {
    by_halves(s, block, x, [0; TOKENS], [0; TOKENS])
}

#[inline(always)]
fn by_halves<S: Simd>(
    s: S,
    block: &Block,
    x: [&ActBlock; TOKENS],
    first: [i32; TOKENS],
    second: [i32; TOKENS],
) -> Tile<S::I> {
    let mut acc = start(s, first);
    half(s, block, x, 0, &mut acc);
    let mut sums = [[s.splat_i32(0); GROUPS]; TOKENS];
    for t in 0..TOKENS {
        for g in 0..GROUPS {
            sums[t][g] = s.acc_finish_scaled(acc[t][g], s.load_bytes(&block.halves[0][g]));
        }
    }
    let mut acc = start(s, second);
    half(s, block, x, 1, &mut acc);
    for t in 0..TOKENS {
        for g in 0..GROUPS {
            let more = s.acc_finish_scaled(acc[t][g], s.load_bytes(&block.halves[1][g]));
            sums[t][g] = s.add_i32(sums[t][g], more);
        }
    }
    sums
}

#[inline(always)]
fn signed<S: Simd>(s: S, block: &Block, x: [&ActBlock; TOKENS]) -> Tile<S::I> {
    let mut sums = [[s.splat_i32(0); GROUPS]; TOKENS];
    for t in 0..TOKENS {
        sums[t] = [s.signed_start(x[t].sum16); GROUPS];
    }
    for j in 0..BLOCK / 4 {
        let w = [s.load_bytes(&block.weights[GROUPS * j]), s.load_bytes(&block.weights[GROUPS * j + 1])];
        for t in 0..TOKENS {
            for g in 0..GROUPS {
                sums[t][g] = s.signed_step(sums[t][g], w[g], x[t].q[j]);
            }
        }
    }
    sums
}
