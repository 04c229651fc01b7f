//! Headers of bytes: `[byte of the block][row]`.

use crate::simd::Simd;

/// Copies the bytes from `at` on of each block, as many as the header has room for.
#[inline(always)]
pub fn pack(blocks: [&[u8]; 8], at: usize, head: &mut [u8]) {
    for (i, out) in head.iter_mut().enumerate() {
        *out = blocks[i % 8][at + i / 8];
    }
}

/// Copies a row's bytes back.
pub fn put(head: &[u8], row: usize, bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = head[8 * i + row];
    }
}

/// A pair of i16 per lane; both must fit.
#[inline(always)]
pub fn pair<S: Simd>(s: S, first: S::I, second: S::I) -> S::I {
    s.or(s.and(first, s.splat_i32(0xffff)), s.shl_i32::<16>(second))
}
