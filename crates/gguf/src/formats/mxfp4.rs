//! MXFP4: 32 elements in 17 bytes: 4-bit floats (a sign, two bits of exponent, one of fraction) with a power of two as their scale.
//!
//! | bytes  | content                                                              |
//! |--------|----------------------------------------------------------------------|
//! | 0      | `e`, the scale's exponent                                            |
//! | 1..17  | `q`: byte `j` holds element `j` (low nibble) and `j + 16` (high)     |
//!
//! `x[i] = 2^(e - 128) * LEVELS[q[i]]`; the levels are twice the 4-bit floats, so that they are whole numbers.

use super::nearest;

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 17;

/// Twice the 4-bit floats.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `2^(e - 128)`; the smallest two are subnormal.
fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = scale(block[0]);
    for j in 0..16 {
        let byte = block[1 + j];
        x[j] = d * f32::from(LEVELS[usize::from(byte & 15)]);
        x[j + 16] = d * f32::from(LEVELS[usize::from(byte >> 4)]);
    }
}

/// Encodes a block: the scale puts the largest magnitude between 4 and 8 (the largest 4-bit float is 6), all go to the nearest level,
/// of two equally near ones to the first.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let top = x.iter().fold(0.0, |top: f32, v| top.max(v.abs()));
    // The bits of a positive number are its exponent (biased by 127) and its fraction.
    let e = ((top.to_bits() >> 23) as u8).saturating_sub(2);
    let d = scale(e);
    let mut block = [0; BLOCK_BYTES];
    block[0] = e;
    for j in 0..16 {
        block[1 + j] = nearest(&LEVELS, d, x[j]) | nearest(&LEVELS, d, x[j + 16]) << 4;
    }
    block
}
