//! The product of packed rows with quantised tokens.
//!
//! One function for every format, instruction set and shape: a tile of `G` groups of 8 rows and `T` tokens.
//! A block of weights is unpacked once and used for all tokens of the tile. Every output has one
//! accumulator that takes the blocks in ascending order, so that the tile's shape never changes a bit.
//!
//! No closures here and in what is called per block (so no `array::map` either): only functions can be
//! forced inline, and a call would neither have the features nor keep vectors in registers.
#![allow(
    clippy::needless_range_loop,
    reason = "several arrays are indexed alike, and iterators hide that from the eye"
)]

use super::acts::ActBlock;
use super::ahead;
use super::format::{Format, Minimum, Product, Scales};
use super::planes::Planes;
use crate::simd::{Rows16, Simd};

/// How far ahead of its use a packed block is asked for, in bytes.
const AHEAD: usize = 2048;

/// Sums of `G` groups and `T` tokens. `groups` holds each group's packed blocks, `tokens` the
/// activations, `P` planes a block.
#[inline(always)]
pub fn tile<S: Simd, F: Format, const G: usize, const T: usize, const P: usize>(
    s: S,
    groups: [&[u8]; G],
    tokens: [&[[ActBlock; P]]; T],
) -> [[S::F; T]; G] {
    const { assert!(G <= 4 && T <= 8) };
    let blocks = groups[0].len() / F::BYTES;
    assert!(groups.iter().all(|g| g.len() == blocks * F::BYTES));
    assert!(tokens.iter().all(|t| t.len() == blocks * F::SUBS));
    let mut acc = [[s.zero(); T]; G];
    let ask = G == 1 || ahead::pays();
    for block in 0..blocks {
        let (mut packed, mut x) = ([&groups[0][0..0]; G], [&tokens[0][0..0]; T]);
        for g in 0..G {
            // SAFETY: the lengths were compared above.
            packed[g] = unsafe { groups[g].get_unchecked(block * F::BYTES..(block + 1) * F::BYTES) };
        }
        for t in 0..T {
            // SAFETY: as above.
            x[t] = unsafe { tokens[t].get_unchecked(block * F::SUBS..(block + 1) * F::SUBS) };
        }
        // Written out where registers are enough for it: the compiler leaves a loop of this size as it is, with its sums
        // in memory.
        macro_rules! add {
            ($($g:literal)*) => { $(if $g < G { add_block::<S, F, T, P>(s, packed[$g], x, ask, &mut acc[$g]); })* };
        }
        if P == 1 {
            add!(0 1 2 3);
        } else {
            for g in 0..G {
                add_block::<S, F, T, P>(s, packed[g], x, ask, &mut acc[g]);
            }
        }
    }
    acc
}

/// Adds the products of a packed block and the tokens' blocks to sums. `ask`: for what comes later, ahead of its use.
#[inline(always)]
fn add_block<S: Simd, F: Format, const T: usize, const P: usize>(
    s: S,
    packed: &[u8],
    tokens: [&[[ActBlock; P]]; T],
    ask: bool,
    sums: &mut [S::F; T],
) {
    let head = F::head(s, packed);
    for sub in 0..F::SUBS {
        let planes = F::HEAD + sub * F::Bits::BYTES;
        if ask {
            for line in 0..(F::BYTES / F::SUBS).div_ceil(64) {
                s.prefetch(packed.as_ptr().wrapping_add(AHEAD + planes + 64 * line));
            }
        }
        let w = F::weights(s, F::Bits::unpack(s, &packed[planes..planes + F::Bits::BYTES]));
        let scales = F::scales(s, packed, &head, sub);
        // Written out where registers are enough for all the sums: the compiler leaves a loop of this size as it is, with
        // its sums in memory.
        macro_rules! add {
            ($($t:literal)*) => {
                $(if $t < T {
                    add_token::<S, F, P>(s, &w, &scales, &tokens[$t][sub], T == 1, &mut sums[$t]);
                })*
            };
        }
        if S::Rows16::MANY && is_plain::<F, P>() {
            add!(0 1 2 3 4 5 6 7);
        } else {
            for t in 0..T {
                add_token::<S, F, P>(s, &w, &scales, &tokens[t][sub], T == 1, &mut sums[t]);
            }
        }
    }
}

/// Whether a format's weights and scales take so few registers that those of AVX-512 hold 8 sums besides.
const fn is_plain<F: Format, const P: usize>() -> bool {
    let bits = F::Bits::BITS;
    !matches!(F::MINIMUM, Minimum::Halves) && (bits == 8 || bits == 4 && P == 1)
}

/// Adds the product of a block of weights and a token's block to a sum. `alone`: no other token is near.
#[inline(always)]
fn add_token<S: Simd, F: Format, const P: usize>(
    s: S,
    w: &[S::I; 8],
    scales: &Scales<S>,
    x: &[ActBlock; P],
    alone: bool,
    sum: &mut S::F,
) {
    for x in x {
        let n = s.from_i32(product::<S, F>(s, w, scales.halves, x, alone && P == 1));
        *sum = s.fma(n, s.mul(scales.scale, s.splat(x.d)), *sum);
    }
    match F::MINIMUM {
        Minimum::None => {}
        Minimum::Block => *sum = s.fma(scales.minimum, s.splat(x[0].s), *sum),
        Minimum::Halves => {
            for x in x {
                let k = s.dot_pairs(x.halves, scales.minima);
                let ms = s.mul(scales.minimum, s.splat(x.d));
                *sum = s.fma(s.from_i32(k), ms, *sum);
            }
        }
    }
}

/// The exact integer product of a block with 32 activations. If it is `alone`, it is split in two where that is faster.
#[inline(always)]
fn product<S: Simd, F: Format>(s: S, w: &[S::I; 8], halves: [S::I; 2], x: &ActBlock, alone: bool) -> S::I {
    match F::PRODUCT {
        Product::Unsigned4 => whole(s, w, x, 0, alone),
        Product::Unsigned5 => s.add_i32(whole(s, w, x, x.start16, alone), s.splat_i32(x.sum16)),
        Product::Zero8 => whole(s, w, x, x.start8, alone),
        Product::Zero16 => whole(s, w, x, x.start16, alone),
        Product::Halves => both(s, w, x, halves, x.start32),
        Product::HalvesUnsigned2 => both(s, w, x, halves, [0; 2]),
        Product::HalvesEight => s.shr_i32::<3>(both(s, w, x, halves, x.start32)),
        Product::Signed => {
            let mut sums = [s.signed_start(x.sum16), s.signed_start(0)];
            for j in 0..8 {
                let half = usize::from(S::SLOW_STEPS && alone && j >= 4);
                sums[half] = s.signed_step(sums[half], w[j], x.q[j]);
            }
            s.add_i32(sums[0], sums[1])
        }
    }
}

/// Sum over a block, starting at `start`.
#[inline(always)]
fn whole<S: Simd>(s: S, w: &[S::I; 8], x: &ActBlock, start: i32, alone: bool) -> S::I {
    let mut acc = s.acc_start(start);
    if S::SLOW_STEPS && alone {
        let mut more = s.acc_start(0);
        for j in 0..4 {
            acc = s.acc_step(acc, w[j], x.q[j]);
            more = s.acc_step(more, w[j + 4], x.q[j + 4]);
        }
        return s.add_i32(s.acc_finish(acc), s.acc_finish(more));
    }
    for j in 0..8 {
        acc = s.acc_step(acc, w[j], x.q[j]);
    }
    s.acc_finish(acc)
}

/// Sum over each half of a block, starting at `start`, times its scale.
#[inline(always)]
fn both<S: Simd>(s: S, w: &[S::I; 8], x: &ActBlock, scales: [S::I; 2], start: [i32; 2]) -> S::I {
    let mut sums = scales;
    for h in 0..2 {
        let mut acc = s.acc_start(start[h]);
        for j in 4 * h..4 * h + 4 {
            acc = s.acc_step(acc, w[j], x.q[j]);
        }
        sums[h] = s.acc_finish_scaled(acc, scales[h]);
    }
    s.add_i32(sums[0], sums[1])
}
