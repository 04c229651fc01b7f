//! Bit planes: codes of 32 columns of 8 rows, packed without a spare bit.
//!
//! A *group* is one vector: four neighbouring columns of each of the 8 rows, so that a row is one
//! 32-bit lane. A block has 8 groups. Shifts move 16 bits at a time; masks keep bytes apart.

use crate::simd::Simd;

/// A packing of 2, 3, 4, 5, 6 or 8 bits per code.
pub trait Planes: 'static {
    /// Bits per code.
    const BITS: usize;
    /// Bytes of a block.
    const BYTES: usize = 32 * Self::BITS;

    /// Packs the groups of a block into `BYTES` bytes.
    fn pack<S: Simd>(s: S, groups: &[S::I; 8], out: &mut [u8]);

    /// The groups of a block of `BYTES` bytes.
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8];
}

/// Four groups of two bits per vector.
pub struct Bits2;

impl Planes for Bits2 {
    const BITS: usize = 2;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        for (g, out) in g.as_chunks::<4>().0.iter().zip(out.chunks_exact_mut(32)) {
            let low = s.or(g[0], s.shl_i16::<2>(g[1]));
            let high = s.or(s.shl_i16::<4>(g[2]), s.shl_i16::<6>(g[3]));
            s.store_bytes(s.or(low, high), out);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let low = s.splat_u8(3);
        let mut groups = [low; 8];
        for j in 0..2 {
            let v = s.load_bytes(&block[32 * j..]);
            groups[4 * j] = s.and(v, low);
            groups[4 * j + 1] = s.and(s.shr_u16::<2>(v), low);
            groups[4 * j + 2] = s.and(s.shr_u16::<4>(v), low);
            groups[4 * j + 3] = s.and(s.shr_u16::<6>(v), low);
        }
        groups
    }
}

/// Groups 0 to 5 in the low six bits of three vectors; 6 and 7 in the two bits above.
pub struct Bits3;

impl Planes for Bits3 {
    const BITS: usize = 3;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        let (m3, m4) = (s.splat_u8(3), s.splat_u8(4));
        // The low two bits of group 6, those of group 7, the third bits of both.
        let thirds = s.or(s.shl_i16::<4>(s.and(g[6], m4)), s.shl_i16::<5>(s.and(g[7], m4)));
        let tops = [s.shl_i16::<6>(s.and(g[6], m3)), s.shl_i16::<6>(s.and(g[7], m3)), thirds];
        for j in 0..3 {
            let low = s.or(g[2 * j], s.shl_i16::<3>(g[2 * j + 1]));
            s.store_bytes(s.or(low, tops[j]), &mut out[32 * j..]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let (low, m3, m4) = (s.splat_u8(7), s.splat_u8(3), s.splat_u8(4));
        let mut groups = [low; 8];
        let v = [s.load_bytes(block), s.load_bytes(&block[32..]), s.load_bytes(&block[64..])];
        for j in 0..3 {
            groups[2 * j] = s.and(v[j], low);
            groups[2 * j + 1] = s.and(s.shr_u16::<3>(v[j]), low);
        }
        groups[6] = s.or(s.and(s.shr_u16::<6>(v[0]), m3), s.and(s.shr_u16::<4>(v[2]), m4));
        groups[7] = s.or(s.and(s.shr_u16::<6>(v[1]), m3), s.and(s.shr_u16::<5>(v[2]), m4));
        groups
    }
}

/// Two groups of nibbles per vector: `j` below `j + 4`.
pub struct Bits4;

impl Planes for Bits4 {
    const BITS: usize = 4;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        for j in 0..4 {
            s.store_bytes(s.or(g[j], s.shl_i16::<4>(g[j + 4])), &mut out[32 * j..]);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let low = s.splat_u8(15);
        let mut groups = [low; 8];
        for j in 0..4 {
            let v = s.load_bytes(&block[32 * j..]);
            groups[j] = s.and(v, low);
            groups[j + 4] = s.and(s.shr_u16::<4>(v), low);
        }
        groups
    }
}

/// Groups 0 to 4 in the low five bits of five vectors; 5, 6 and 7 in the fifteen bits above.
pub struct Bits5;

impl Planes for Bits5 {
    const BITS: usize = 5;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        let (m7, m8, m10, m18) = (s.splat_u8(7), s.splat_u8(8), s.splat_u8(0x10), s.splat_u8(0x18));
        for j in 0..3 {
            s.store_bytes(s.or(g[j], s.shl_i16::<5>(s.and(g[j + 5], m7))), &mut out[32 * j..]);
        }
        // Bits 3 and 4 of group 5, bit 3 of group 7; bits 3 and 4 of group 6, bit 4 of group 7.
        let v3 = s.or(s.shl_i16::<2>(s.and(g[5], m18)), s.shl_i16::<4>(s.and(g[7], m8)));
        let v4 = s.or(s.shl_i16::<2>(s.and(g[6], m18)), s.shl_i16::<3>(s.and(g[7], m10)));
        s.store_bytes(s.or(g[3], v3), &mut out[96..]);
        s.store_bytes(s.or(g[4], v4), &mut out[128..]);
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let (low, m7, m18) = (s.splat_u8(31), s.splat_u8(7), s.splat_u8(0x18));
        let (m8, m10) = (s.splat_u8(8), s.splat_u8(0x10));
        let mut v = [low; 5];
        for (j, v) in v.iter_mut().enumerate() {
            *v = s.load_bytes(&block[32 * j..]);
        }
        let [v0, v1, v2, v3, v4] = v;
        let g5 = s.or(s.and(s.shr_u16::<5>(v0), m7), s.and(s.shr_u16::<2>(v3), m18));
        let g6 = s.or(s.and(s.shr_u16::<5>(v1), m7), s.and(s.shr_u16::<2>(v4), m18));
        let g7 = s.or(s.and(s.shr_u16::<5>(v2), m7), s.and(s.shr_u16::<4>(v3), m8));
        let g7 = s.or(g7, s.and(s.shr_u16::<3>(v4), m10));
        [s.and(v0, low), s.and(v1, low), s.and(v2, low), s.and(v3, low), s.and(v4, low), g5, g6, g7]
    }
}

/// Each half of four groups in three vectors: 0, 1 and 2 in the low six bits, 3 in the bits above.
pub struct Bits6;

impl Planes for Bits6 {
    const BITS: usize = 6;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        for (g, out) in g.as_chunks::<4>().0.iter().zip(out.chunks_exact_mut(96)) {
            pack6(s, g, out);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let (a, b) = (unpack6(s, block), unpack6(s, &block[96..]));
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }
}

/// Packs four vectors of six bits per byte into 96 bytes.
#[inline(always)]
pub fn pack6<S: Simd>(s: S, g: &[S::I; 4], out: &mut [u8]) {
    let m3 = s.splat_u8(3);
    let tops = [s.and(g[3], m3), s.and(s.shr_u16::<2>(g[3]), m3), s.and(s.shr_u16::<4>(g[3]), m3)];
    for j in 0..3 {
        s.store_bytes(s.or(g[j], s.shl_i16::<6>(tops[j])), &mut out[32 * j..]);
    }
}

/// Inverse of [`pack6`].
#[inline(always)]
pub fn unpack6<S: Simd>(s: S, half: &[u8]) -> [S::I; 4] {
    let (low, m3, mc, m30) = (s.splat_u8(63), s.splat_u8(3), s.splat_u8(12), s.splat_u8(0x30));
    let v = [s.load_bytes(half), s.load_bytes(&half[32..]), s.load_bytes(&half[64..])];
    let g3 = s.or(s.and(s.shr_u16::<6>(v[0]), m3), s.and(s.shr_u16::<4>(v[1]), mc));
    let g3 = s.or(g3, s.and(s.shr_u16::<2>(v[2]), m30));
    [s.and(v[0], low), s.and(v[1], low), s.and(v[2], low), g3]
}

/// One group per vector.
pub struct Bits8;

impl Planes for Bits8 {
    const BITS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(s: S, g: &[S::I; 8], out: &mut [u8]) {
        for (&g, out) in g.iter().zip(out.chunks_exact_mut(32)) {
            s.store_bytes(g, out);
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[u8]) -> [S::I; 8] {
        let mut groups = [s.splat_u8(0); 8];
        for (j, group) in groups.iter_mut().enumerate() {
            *group = s.load_bytes(&block[32 * j..]);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::{Bits2, Bits3, Bits4, Bits5, Bits6, Bits8, Planes};
    use crate::simd::{Scalar, Simd};

    fn round_trip<P: Planes>() {
        let mut state = 1u32;
        for _ in 0..100 {
            let codes: [[u8; 32]; 8] = std::array::from_fn(|_| {
                std::array::from_fn(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) as u8 >> (8 - P::BITS)
                })
            });
            let mut block = vec![0; P::BYTES];
            P::pack(Scalar, &codes.map(|c| Scalar.load_bytes(&c)), &mut block);
            for (group, want) in P::unpack(Scalar, &block).into_iter().zip(codes) {
                let mut bytes = [0; 32];
                Scalar.store_bytes(group, &mut bytes);
                assert_eq!(bytes, want);
            }
        }
    }

    #[test]
    fn packing_is_lossless() {
        round_trip::<Bits2>();
        round_trip::<Bits3>();
        round_trip::<Bits4>();
        round_trip::<Bits5>();
        round_trip::<Bits6>();
        round_trip::<Bits8>();
    }
}
