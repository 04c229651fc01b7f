//! Headers of bytes: `[byte of the block][row]`.

use crate::simd::Simd;

/// Copies a byte at `at` of each block.
#[inline(always)]
pub fn pack_one(blocks: [&[u8]; 8], at: usize, head: &mut [u8]) {
    for (block, out) in blocks.iter().zip(head) {
        *out = block[at];
    }
}

/// Copies 16 bytes from `at` on of each block.
#[inline(always)]
pub fn pack<S: Simd>(s: S, blocks: [&[u8]; 8], at: usize, head: &mut [u8]) {
    for (four, out) in words(s, blocks, at).into_iter().zip(head.chunks_exact_mut(32)) {
        s.store_bytes(s.transpose_u8(four), out);
    }
}

/// 16 bytes from `at` on of each block as four vectors: a word of each block in every one.
#[inline(always)]
pub fn words<S: Simd>(s: S, blocks: [&[u8]; 8], at: usize) -> [S::I; 4] {
    let mut rows = [s.splat_u8(0); 8];
    for (row, block) in rows.iter_mut().zip(blocks) {
        let bytes = &block[at..at + 16];
        *row = s.load_halves(bytes, bytes);
    }
    let [a, b, c, d, ..] = s.transpose_i32(rows);
    [a, b, c, d]
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
