//! Q4_1: 32 elements in 20 bytes.
//!
//! | bytes  | content                                                              |
//! |--------|----------------------------------------------------------------------|
//! | 0..2   | `d`, half                                                            |
//! | 2..4   | `m`, half                                                            |
//! | 4..20  | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high)     |
//!
//! `x[i] = d * q[i] + m`

use super::{half_at, inverse, put_half, range};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 20;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..16 {
        let byte = block[4 + j];
        x[j] = d * f32::from(byte & 15) + m;
        x[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// Encodes a block: levels spread evenly from the smallest to the largest element.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let (lo, hi) = range(x);
    let d = (hi - lo) / 15.0;
    let id = inverse(d);
    let level = |v: f32| (((v - lo) * id + 0.5) as u8).min(15);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, d);
    put_half(&mut block, 2, lo);
    for j in 0..16 {
        block[4 + j] = level(x[j]) | level(x[j + 16]) << 4;
    }
    block
}
