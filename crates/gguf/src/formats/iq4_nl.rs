//! IQ4_NL: 32 elements in 18 bytes.
//!
//! | bytes  | content                                                              |
//! |--------|----------------------------------------------------------------------|
//! | 0..2   | `d`, half                                                            |
//! | 2..18  | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high)     |
//!
//! `x[i] = d * LEVELS[q[i]]`

use super::{half_at, largest, nearest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 18;

/// The levels: closer together around zero. IQ4_XS has the same.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let byte = block[2 + j];
        x[j] = d * f32::from(LEVELS[usize::from(byte & 15)]);
        x[j + 16] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
    }
}

/// Encodes a block: the element of largest magnitude becomes -127 steps exactly, the others go to the nearest level.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let d = put_half(&mut block, 0, largest(x) / -127.0);
    for j in 0..16 {
        block[2 + j] = nearest(&LEVELS, d, x[j]) | nearest(&LEVELS, d, x[j + 16]) << 4;
    }
    block
}
