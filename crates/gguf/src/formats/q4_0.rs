//! Q4_0: 32 elements in 18 bytes.
//!
//! | bytes  | content                                                              |
//! |--------|----------------------------------------------------------------------|
//! | 0..2   | `d`, half                                                            |
//! | 2..18  | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high)     |
//!
//! `x[i] = d * (q[i] - 8)`

use super::{half_at, inverse, largest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 18;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let byte = block[2 + j];
        x[j] = d * (f32::from(byte & 15) - 8.0);
        x[j + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// Encodes a block: the element of largest magnitude becomes -8 steps exactly.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let d = largest(x) / -8.0;
    let id = inverse(d);
    let level = |v: f32| ((v * id + 8.5) as u8).min(15);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, d);
    for j in 0..16 {
        block[2 + j] = level(x[j]) | level(x[j + 16]) << 4;
    }
    block
}
