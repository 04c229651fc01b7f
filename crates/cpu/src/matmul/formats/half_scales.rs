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

/// Copies the two halves at the start of each block: 32 bytes.
#[inline(always)]
pub fn pack_two<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
    let mut words = [0; 32];
    for (block, out) in blocks.iter().zip(words.chunks_exact_mut(4)) {
        out.copy_from_slice(&block[..4]);
    }
    s.store_bytes(s.transpose_u16(s.load_bytes(&words)), head);
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
pub fn nibbles<S: Simd>(s: S, bytes: &[u8]) -> S::I {
    let twice = s.load_halves(bytes, bytes);
    s.or(
        s.and(twice, s.load_bytes(&LOW_THEN_NONE)),
        s.and(s.shr_u16::<4>(twice), s.load_bytes(&NONE_THEN_LOW)),
    )
}

/// Masks of [`nibbles`].
const LOW_THEN_NONE: [u8; 32] = halves(15, 0);
const NONE_THEN_LOW: [u8; 32] = halves(0, 15);

const fn halves(first: u8, second: u8) -> [u8; 32] {
    let mut bytes = [first; 32];
    let mut i = 16;
    while i < 32 {
        bytes[i] = second;
        i += 1;
    }
    bytes
}

/// Inverse of [`nibbles`]; higher bits are dropped.
pub fn put_nibbles(bytes: &mut [u8], codes: &[u8; BLOCK]) {
    for (i, byte) in bytes[..16].iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

/// Codes of five bits: a word of fifth bits, then nibbles.
#[inline(always)]
pub fn fives<S: Simd>(s: S, bytes: &[u8]) -> S::I {
    let word = s.splat_i32(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    // Each column's byte of the word, then its bit there.
    let (byte, bit) = (s.lookup(word, s.load_bytes(&BYTE_OF_WORD)), s.load_bytes(&BIT_OF_BYTE));
    let fifth = s.and(s.eq_u8(s.and(byte, bit), bit), s.splat_u8(0x10));
    s.or(nibbles(s, &bytes[4..]), fifth)
}

/// For column `i`: its byte `i / 8` of a word, its bit `i % 8` there.
const BYTE_OF_WORD: [u8; 32] = columns(false);
const BIT_OF_BYTE: [u8; 32] = columns(true);

const fn columns(bit: bool) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = if bit { 1 << (i % 8) } else { (i / 8) as u8 };
        i += 1;
    }
    bytes
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
        fn pack_head<S: $crate::simd::Simd>(_s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
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
