//! The header that Q4_K and Q5_K share: two halves and sixteen 6-bit numbers per row.
//!
//! Packed: `d` of the rows, `dmin` of the rows, then three vectors whose lane `8 sub + row` (`sub < 4`) holds the low
//! nibbles of scale `sub` and `sub + 4`, the same of the minima, and the two upper bits of all four.

use super::{byte_scales, half_scales};
use crate::matmul::format::Scales;
use crate::simd::Simd;
use minfer_gguf::pack_k_scales;

/// Bytes of the header.
pub const HEAD: usize = 128;

/// The header's content.
#[derive(Clone, Copy)]
pub struct Head<S: Simd> {
    d: S::F,
    neg_dmin: S::F,
    /// `[8 sub + row]`: scales, then minima.
    table: [u8; 128],
}

/// Packs the headers of 8 blocks.
#[inline(always)]
pub fn pack<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
    // Byte `sub` of a word: scale `sub` with two bits of scale `sub + 4` above; the same of the minima; the low nibbles of
    // both numbers `sub + 4`. See `minfer_gguf::k_scales`.
    let [halves, scale, minimum, later] = byte_scales::words(s, blocks, 0);
    let (low, high) = (s.splat_u8(15), s.splat_u8(0xf0));
    let scales = s.or(s.and(scale, low), s.and(s.shl_i16::<4>(later), high));
    let minima = s.or(s.and(minimum, low), s.and(later, high));
    let upper = s.or(s.and(s.shr_u16::<4>(scale), low), s.and(minimum, high));
    s.store_bytes(s.transpose_u16(halves), head);
    for (words, out) in [scales, minima, upper].into_iter().zip(head[32..].chunks_exact_mut(32)) {
        s.store_bytes(s.transpose_u8(words), out);
    }
}

/// Writes a row's numbers back.
pub fn put(head: &[u8], row: usize, block: &mut [u8]) {
    half_scales::put(head, row, block, 0);
    half_scales::put(&head[16..], row, block, 2);
    let (mut scale, mut minimum) = ([0; 8], [0; 8]);
    for sub in 0..4 {
        let lane = 32 + 8 * sub + row;
        let (s, m, top) = (head[lane], head[lane + 32], head[lane + 64]);
        scale[sub] = s & 15 | (top & 3) << 4;
        scale[sub + 4] = s >> 4 | (top >> 2 & 3) << 4;
        minimum[sub] = m & 15 | (top >> 4 & 3) << 4;
        minimum[sub + 4] = m >> 4 | (top >> 6) << 4;
    }
    block[4..16].copy_from_slice(&pack_k_scales(&scale, &minimum));
}

/// Reads the header.
#[inline(always)]
pub fn load<S: Simd>(s: S, head: &[u8]) -> Head<S> {
    let (low, top) = (s.splat_u8(15), s.splat_u8(0x30));
    let (scale, minimum, upper) =
        (s.load_bytes(&head[32..]), s.load_bytes(&head[64..]), s.load_bytes(&head[96..]));
    let mut table = [0; 128];
    s.store_bytes(s.or(s.and(scale, low), s.and(s.shl_i16::<4>(upper), top)), &mut table);
    s.store_bytes(
        s.or(s.and(s.shr_u16::<4>(scale), low), s.and(s.shl_i16::<2>(upper), top)),
        &mut table[32..],
    );
    s.store_bytes(s.or(s.and(minimum, low), s.and(upper, top)), &mut table[64..]);
    s.store_bytes(
        s.or(s.and(s.shr_u16::<4>(minimum), low), s.and(s.shr_u16::<2>(upper), top)),
        &mut table[96..],
    );
    Head { d: half_scales::load(s, head), neg_dmin: s.neg(half_scales::load(s, &head[16..])), table }
}

/// Scale and minimum of a block.
#[inline(always)]
pub fn scales<S: Simd>(s: S, head: &Head<S>, sub: usize) -> Scales<S> {
    let scale = s.from_i32(s.load_u8_i32(&head.table[8 * sub..]));
    let minimum = s.from_i32(s.load_u8_i32(&head.table[64 + 8 * sub..]));
    half_scales::scales(s, s.mul(head.d, scale), s.mul(head.neg_dmin, minimum))
}
