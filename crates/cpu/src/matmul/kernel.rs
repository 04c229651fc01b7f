//! The product of packed rows with quantised tokens.
//!
//! One function for every format, instruction set and shape: a tile of `G` groups of 8 rows and `T` tokens.
//! A block of weights is unpacked once and used for all tokens of the tile. Every output has one
//! accumulator that takes the blocks in ascending order, so that the tile's shape never changes a bit.

use super::acts::ActBlock;
use super::format::{Format, Product};
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
        let packed = groups.map(|g| &g[block * F::BYTES..][..F::BYTES]);
        let heads = packed.map(|p| F::head(s, p));
        for sub in 0..F::SUBS {
            for g in 0..G {
                // Many tokens find the group in the cache after their first tile.
                if T < 8 {
                    let start = F::HEAD + sub * F::Bits::BYTES;
                    for line in (0..F::BYTES / F::SUBS).step_by(64) {
                        s.prefetch(packed[g], AHEAD + start + line);
                    }
                }
                let w = F::Bits::unpack(s, &packed[g][F::HEAD + sub * F::Bits::BYTES..][..F::Bits::BYTES]);
                let scales = F::scales(s, packed[g], &heads[g], sub);
                for t in 0..T {
                    let x = &tokens[t][block * F::SUBS + sub];
                    for x in x {
                        let n = s.from_i32(product::<S, F>(s, &w, scales.halves, x));
                        acc[g][t] = s.fma(n, s.mul(scales.scale, s.splat(x.d)), acc[g][t]);
                    }
                    if F::MINIMUM {
                        acc[g][t] = s.fma(scales.minimum, s.splat(x[0].s), acc[g][t]);
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
    let whole = |start: i32| {
        let mut acc = s.acc_start(start);
        for (&w, &q) in w.iter().zip(&x.q) {
            acc = s.acc_step(acc, w, q);
        }
        s.acc_finish(acc)
    };
    let half = |h: usize| {
        let mut acc = s.acc_start(x.start32[h]);
        for j in 4 * h..4 * h + 4 {
            acc = s.acc_step(acc, w[j], x.q[j]);
        }
        s.acc_finish_scaled(acc, halves[h])
    };
    match F::PRODUCT {
        Product::Unsigned4 => whole(0),
        Product::Unsigned5 => s.add_i32(whole(x.start16), s.splat_i32(x.sum16)),
        Product::Zero8 => whole(x.start8),
        Product::Zero16 => whole(x.start16),
        Product::Halves => s.add_i32(half(0), half(1)),
        Product::Signed => {
            let mut sum = s.splat_i32(0);
            for (&w, &q) in w.iter().zip(&x.q) {
                sum = s.dot_signed(sum, w, q);
            }
            sum
        }
    }
}
