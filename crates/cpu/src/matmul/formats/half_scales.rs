//! Headers of half-precision numbers, one per row, and what formats with nibbles share.

use crate::matmul::format::{BLOCK, Scales};
use crate::simd::Simd;

/// Copies two bytes at `at` of each block: 16 bytes.
#[inline(always)]
pub fn pack(blocks: [&[u8]; 8], at: usize, head: &mut [u8]) {
    for (block, out) in blocks.iter().zip(head.chunks_exact_mut(2)) {
        out.copy_from_slice(&block[at..at + 2]);
    }
}

/// Copies a row's two bytes back.
pub fn put(head: &[u8], row: usize, block: &mut [u8], at: usize) {
    block[at..at + 2].copy_from_slice(&head[2 * row..][..2]);
}

/// Eight halves as floats.
#[inline(always)]
pub fn load<S: Simd>(s: S, head: &[u8]) -> S::F {
    let mut halves = [0; 8];
    for (half, bytes) in halves.iter_mut().zip(head[..16].as_chunks().0) {
        *half = u16::from_le_bytes(*bytes);
    }
    s.load_f16(&halves)
}

/// A scale alone, or with a minimum.
#[inline(always)]
pub fn scales<S: Simd>(s: S, scale: S::F, minimum: S::F) -> Scales<S> {
    Scales { scale, minimum, halves: [s.splat_i32(0); 2], minima: s.splat_i32(0) }
}

/// Codes of 16 bytes: low nibbles, then high ones.
#[inline(always)]
pub fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    let bytes = &bytes[..16];
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// Inverse of [`nibbles`]; higher bits are dropped.
pub fn put_nibbles(bytes: &mut [u8], codes: &[u8; BLOCK]) {
    for (i, byte) in bytes[..16].iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

/// Codes of five bits: a word of fifth bits, then nibbles.
#[inline(always)]
pub fn fives(bytes: &[u8]) -> [u8; BLOCK] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let low = nibbles(&bytes[4..]);
    std::array::from_fn(|i| low[i] | ((fifth >> i & 1) << 4) as u8)
}

/// Inverse of [`fives`].
pub fn put_fives(bytes: &mut [u8], codes: &[u8; BLOCK]) {
    let fifth = codes.iter().enumerate().fold(0, |word, (i, &c)| word | u32::from(c >> 4 & 1) << i);
    bytes[..4].copy_from_slice(&fifth.to_le_bytes());
    put_nibbles(&mut bytes[4..], codes);
}

/// The items of a [`Format`](crate::matmul::format::Format) whose header is a half-precision scale and nothing else, at
/// the start of the file's blocks.
///
/// A macro and not functions to be called: kernels are compiled with the features of a CPU, which a generic step in
/// between may lose.
macro_rules! alone {
    () => {
        const HEAD: usize = 16;
        const MINIMUM: $crate::matmul::format::Minimum = $crate::matmul::format::Minimum::None;
        type Head<S: $crate::simd::Simd> = ();

        #[inline(always)]
        fn pack_head(blocks: [&[u8]; 8], head: &mut [u8]) {
            $crate::matmul::formats::half_scales::pack(blocks, 0, head);
        }

        fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
            $crate::matmul::formats::half_scales::put(head, row, block, 0);
        }

        #[inline(always)]
        fn head<S: $crate::simd::Simd>(_s: S, _packed: &[u8]) {}

        #[inline(always)]
        fn scales<S: $crate::simd::Simd>(
            s: S,
            packed: &[u8],
            _head: &(),
            _sub: usize,
        ) -> $crate::matmul::format::Scales<S> {
            let scale = $crate::matmul::formats::half_scales::load(s, packed);
            $crate::matmul::formats::half_scales::scales(s, scale, s.zero())
        }
    };
}
pub(super) use alone;
