//! Bit planes: codes of 32 columns of 8 rows, packed without a spare bit.
//!
//! A *group* is one vector: four neighbouring columns of each of the 8 rows, so that a row is one
//! 32-bit lane. A block has 8 groups. Packing works on those lanes ([`Words`]), with shifts and masks
//! that never carry from byte to byte.

use crate::simd::Simd;

/// `[group][row]`: four codes each.
pub type Words = [[u32; 8]; 8];

/// A packing of 4, 5, 6 or 8 bits per code.
pub trait Planes: 'static {
    /// Bits per code.
    const BITS: usize;
    /// Bytes of a block.
    const BYTES: usize = 32 * Self::BITS;

    /// Packs a block into `BYTES` bytes.
    fn pack(words: &Words, out: &mut [u8]);

    /// The groups of a block of `BYTES` bytes.
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8];
}

/// Writes vector `v` of a block; `f` gives its lane for a row.
#[inline(always)]
fn put(out: &mut [u8], v: usize, f: impl Fn(usize) -> u32) {
    for (r, bytes) in out[32 * v..][..32].chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&f(r).to_le_bytes());
    }
}

/// The same byte four times.
const fn each(byte: u8) -> u32 {
    u32::from_le_bytes([byte; 4])
}

/// Two groups of nibbles per vector: `j` below `j + 4`.
pub struct Bits4;

impl Planes for Bits4 {
    const BITS: usize = 4;

    #[inline(always)]
    fn pack(w: &Words, out: &mut [u8]) {
        for v in 0..4 {
            put(out, v, |r| w[v][r] | w[v + 4][r] << 4);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let low = s.splat_u8(15);
        let v: [S::I; 4] = std::array::from_fn(|i| s.load_bytes(&block[32 * i..]));
        std::array::from_fn(|j| if j < 4 { s.and(v[j], low) } else { s.and(s.shr_u16::<4>(v[j - 4]), low) })
    }
}

/// Groups 0 to 4 in the low five bits of five vectors; 5, 6 and 7 in the fifteen bits above.
pub struct Bits5;

impl Planes for Bits5 {
    const BITS: usize = 5;

    #[inline(always)]
    fn pack(w: &Words, out: &mut [u8]) {
        for v in 0..3 {
            put(out, v, |r| w[v][r] | (w[v + 5][r] & each(7)) << 5);
        }
        // Bits 3 and 4 of group 5, bit 3 of group 7; bits 3 and 4 of group 6, bit 4 of group 7.
        put(out, 3, |r| w[3][r] | (w[5][r] & each(0x18)) << 2 | (w[7][r] & each(8)) << 4);
        put(out, 4, |r| w[4][r] | (w[6][r] & each(0x18)) << 2 | (w[7][r] & each(16)) << 3);
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let v: [S::I; 5] = std::array::from_fn(|i| s.load_bytes(&block[32 * i..]));
        let (low, m7, m18) = (s.splat_u8(31), s.splat_u8(7), s.splat_u8(0x18));
        let (m8, m10) = (s.splat_u8(8), s.splat_u8(0x10));
        let top = |v| s.and(s.shr_u16::<5>(v), m7);
        let g5 = s.or(top(v[0]), s.and(s.shr_u16::<2>(v[3]), m18));
        let g6 = s.or(top(v[1]), s.and(s.shr_u16::<2>(v[4]), m18));
        let g7 = s.or(s.or(top(v[2]), s.and(s.shr_u16::<4>(v[3]), m8)), s.and(s.shr_u16::<3>(v[4]), m10));
        let g = v.map(|v| s.and(v, low));
        [g[0], g[1], g[2], g[3], g[4], g5, g6, g7]
    }
}

/// Each half of four groups in three vectors: 0, 1 and 2 in the low six bits, 3 in the bits above.
pub struct Bits6;

impl Planes for Bits6 {
    const BITS: usize = 6;

    #[inline(always)]
    fn pack(w: &Words, out: &mut [u8]) {
        for half in 0..2 {
            let w = &w[4 * half..];
            for v in 0..3 {
                put(out, 3 * half + v, |r| w[v][r] | (w[3][r] >> (2 * v) & each(3)) << 6);
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let (low, m3, mc, m30) = (s.splat_u8(63), s.splat_u8(3), s.splat_u8(12), s.splat_u8(0x30));
        let half = |h: usize| {
            let v: [S::I; 3] = std::array::from_fn(|i| s.load_bytes(&block[96 * h + 32 * i..]));
            let g3 = s.or(s.and(s.shr_u16::<6>(v[0]), m3), s.and(s.shr_u16::<4>(v[1]), mc));
            let g3 = s.or(g3, s.and(s.shr_u16::<2>(v[2]), m30));
            [s.and(v[0], low), s.and(v[1], low), s.and(v[2], low), g3]
        };
        let (a, b) = (half(0), half(1));
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }
}

/// One group per vector.
pub struct Bits8;

impl Planes for Bits8 {
    const BITS: usize = 8;

    #[inline(always)]
    fn pack(w: &Words, out: &mut [u8]) {
        for (v, lanes) in w.iter().enumerate() {
            put(out, v, |r| lanes[r]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        std::array::from_fn(|i| s.load_bytes(&block[32 * i..]))
    }
}

#[cfg(test)]
mod tests {
    use super::{Bits4, Bits5, Bits6, Bits8, Planes, Words};
    use crate::simd::{Scalar, Simd};

    fn round_trip<P: Planes>() {
        let mut state = 1u32;
        for _ in 0..100 {
            let words: Words = std::array::from_fn(|_| {
                std::array::from_fn(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state ^ state >> 15) & super::each((0xffu32 >> (8 - P::BITS)) as u8)
                })
            });
            let mut block = vec![0; P::BYTES];
            P::pack(&words, &mut block);
            for (group, want) in P::unpack(Scalar, &block).into_iter().zip(words) {
                let mut bytes = [0; 32];
                Scalar.store_bytes(group, &mut bytes);
                assert_eq!(bytes.as_flattened_words(), want);
            }
        }
    }

    trait FlattenedWords {
        fn as_flattened_words(&self) -> [u32; 8];
    }

    impl FlattenedWords for [u8; 32] {
        fn as_flattened_words(&self) -> [u32; 8] {
            let (words, _) = self.as_chunks();
            std::array::from_fn(|i| u32::from_le_bytes(words[i]))
        }
    }

    #[test]
    fn packing_is_lossless() {
        round_trip::<Bits4>();
        round_trip::<Bits5>();
        round_trip::<Bits6>();
        round_trip::<Bits8>();
    }
}
