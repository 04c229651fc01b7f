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
use super::format::{Format, Minimum, Product};
use super::planes::Planes;
use crate::simd::Simd;

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
    let blocks = groups[0].len() / F::BYTES;
    assert!(groups.iter().all(|g| g.len() == blocks * F::BYTES));
    assert!(tokens.iter().all(|t| t.len() == blocks * F::SUBS));
    let mut acc = [[s.zero(); T]; G];
    for block in 0..blocks {
        for g in 0..G {
            let packed = &groups[g][block * F::BYTES..][..F::BYTES];
            let head = F::head(s, packed);
            for sub in 0..F::SUBS {
                let planes = F::HEAD + sub * F::Bits::BYTES;
                // Several streams fill the memory's queue without that, and would only compete with it.
                if G == 1 {
                    for line in 0..(F::BYTES / F::SUBS).div_ceil(64) {
                        s.prefetch(packed.as_ptr().wrapping_add(AHEAD + planes + 64 * line));
                    }
                }
                let w = F::weights(s, F::Bits::unpack(s, &packed[planes..planes + F::Bits::BYTES]));
                let scales = F::scales(s, packed, &head, sub);
                for t in 0..T {
                    let x = &tokens[t][block * F::SUBS + sub];
                    for p in 0..P {
                        let n = s.from_i32(product::<S, F>(s, &w, scales.halves, &x[p]));
                        acc[g][t] = s.fma(n, s.mul(scales.scale, s.splat(x[p].d)), acc[g][t]);
                    }
                    match F::MINIMUM {
                        Minimum::None => {}
                        Minimum::Block => {
                            acc[g][t] = s.fma(scales.minimum, s.splat(x[0].s), acc[g][t]);
                        }
                        Minimum::Halves => {
                            for p in 0..P {
                                let k = s.dot_pairs(x[p].halves, scales.minima);
                                let ms = s.mul(scales.minimum, s.splat(x[p].d));
                                acc[g][t] = s.fma(s.from_i32(k), ms, acc[g][t]);
                            }
                        }
                    }
                }
            }
        }
    }
    acc
}

/// The exact integer product of a block with 32 activations.
#[inline(always)]
fn product<S: Simd, F: Format>(s: S, w: &[S::I; 8], halves: [S::I; 2], x: &ActBlock) -> S::I {
    match F::PRODUCT {
        Product::Unsigned4 => whole(s, w, x, 0),
        Product::Unsigned5 => s.add_i32(whole(s, w, x, x.start16), s.splat_i32(x.sum16)),
        Product::Zero8 => whole(s, w, x, x.start8),
        Product::Zero16 => whole(s, w, x, x.start16),
        Product::Halves => both(s, w, x, halves, x.start32),
        Product::HalvesUnsigned2 => both(s, w, x, halves, [0; 2]),
        Product::HalvesEight => s.shr_i32::<3>(both(s, w, x, halves, x.start32)),
        Product::Signed => {
            let mut sum = s.signed_start(x.sum16);
            for j in 0..8 {
                sum = s.signed_step(sum, w[j], x.q[j]);
            }
            sum
        }
    }
}

/// Sum over a block, starting at `start`.
#[inline(always)]
fn whole<S: Simd>(s: S, w: &[S::I; 8], x: &ActBlock, start: i32) -> S::I {
    let mut acc = s.acc_start(start);
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
