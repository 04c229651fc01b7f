//! Q3_K: 256 elements, in sixteen groups of 16, in 110 bytes.
//!
//! | bytes     | content                                                                         |
//! |-----------|---------------------------------------------------------------------------------|
//! | 0..32     | the third bits: bit `i / 32` of byte `i % 32` belongs to element `i`            |
//! | 32..96    | the low two bits, packed as in Q2_K                                             |
//! | 96..108   | 6-bit scales, see [`q3_k_scales`]                                               |
//! | 108..110  | `d`, half                                                                       |
//!
//! `x[i] = (d * (scale[i / 16] - 32)) * (q[i] - 4)`

use super::q2_k::place;
use super::{half_at, inverse, largest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 256;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 110;

/// Unpacks the scales of a Q3_K block's sixteen groups, each below 64: four low bits in the nibbles of bytes 0..8 (low nibbles
/// first), two high bits in bytes 8..12, scale `4 k + j` in bits `2 k` and `2 k + 1` of byte `8 + j`.
pub const fn q3_k_scales(packed: &[u8; 12]) -> [u8; 16] {
    let mut scales = [0; 16];
    let mut g = 0;
    while g < 16 {
        let low = packed[g % 8] >> (g / 8 * 4) & 15;
        scales[g] = low | (packed[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
        g += 1;
    }
    scales
}

/// The inverse of [`q3_k_scales`]; only the low six bits of each number are kept.
pub const fn pack_q3_k_scales(scales: &[u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    let mut g = 0;
    while g < 16 {
        packed[g % 8] |= (scales[g] & 15) << (g / 8 * 4);
        packed[8 + g % 4] |= (scales[g] >> 4 & 3) << (g / 4 * 2);
        g += 1;
    }
    packed
}

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 108);
    let scales = q3_k_scales(&std::array::from_fn(|i| block[96 + i]));
    for (i, x) in x.iter_mut().enumerate() {
        let (byte, shift) = place(i);
        let level = block[32 + byte] >> shift & 3 | (block[i % 32] >> (i / 32) & 1) << 2;
        let step = d * (f32::from(scales[i / 16]) - 32.0);
        *x = step * (f32::from(level) - 4.0);
    }
}

/// Encodes a block, rounding to nearest.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let (groups, _) = x.as_chunks::<16>();
    // In each group the element of largest magnitude becomes -4 steps; scales carry the sign.
    let steps: [f32; 16] = std::array::from_fn(|g| largest(&groups[g]) / -4.0);
    let d = put_half(&mut block, 108, largest(&steps) / -32.0);
    let scales = steps.map(|step| (step * inverse(d)).round().clamp(-32.0, 31.0));
    block[96..108].copy_from_slice(&pack_q3_k_scales(&scales.map(|scale| (scale + 32.0) as u8)));
    for (i, v) in x.iter().enumerate() {
        let step = d * scales[i / 16];
        let level = ((v * inverse(step)).round().clamp(-4.0, 3.0) + 4.0) as u8;
        let (byte, shift) = place(i);
        block[32 + byte] |= (level & 3) << shift;
        block[i % 32] |= (level >> 2) << (i / 32);
    }
    block
}
