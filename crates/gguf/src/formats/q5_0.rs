//! Q5_0: 32 elements in 22 bytes.
//!
//! | bytes  | content                                                                      |
//! |--------|------------------------------------------------------------------------------|
//! | 0..2   | `d`, half                                                                    |
//! | 2..6   | the fifth bits, 32-bit number: bit `i` belongs to element `i`                |
//! | 6..22  | the low four bits: byte `j` holds element `j` (low nibble) and `j + 16` (high) |
//!
//! `x[i] = d * (q[i] - 16)`

use super::{half_at, inverse, largest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 22;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 0);
    let levels = unpack_levels(&[block[2], block[3], block[4], block[5]], &block[6..]);
    x.iter_mut().zip(levels).for_each(|(x, q)| *x = d * (f32::from(q) - 16.0));
}

/// Encodes a block: the element of largest magnitude becomes -16 steps exactly.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let d = largest(x) / -16.0;
    let id = inverse(d);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, d);
    pack_levels(x.map(|v| ((v * id + 16.5) as u8).min(31)), &mut block[2..]);
    block
}

/// Levels of five bits from the word of fifth bits and 16 bytes of nibbles. Q5_1 packs them the same way.
pub(super) fn unpack_levels(fifth: &[u8; 4], nibbles: &[u8]) -> [u8; BLOCK_LEN] {
    let fifth = u32::from_le_bytes(*fifth);
    std::array::from_fn(|i| {
        let byte = nibbles[i % 16];
        let low = if i < 16 { byte & 15 } else { byte >> 4 };
        low | ((fifth >> i & 1) as u8) << 4
    })
}

/// The inverse of [`unpack_levels`]: four bytes of fifth bits, then 16 bytes of nibbles.
pub(super) fn pack_levels(levels: [u8; BLOCK_LEN], to: &mut [u8]) {
    let fifth = levels.iter().enumerate().fold(0u32, |word, (i, q)| word | u32::from(q >> 4) << i);
    to[..4].copy_from_slice(&fifth.to_le_bytes());
    for j in 0..16 {
        to[4 + j] = levels[j] & 15 | levels[j + 16] << 4;
    }
}
