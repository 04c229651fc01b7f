//! IQ4_XS: 256 elements, in eight groups of 32, in 136 bytes.
//!
//! | bytes    | content                                                                               |
//! |----------|---------------------------------------------------------------------------------------|
//! | 0..2     | `d`, half                                                                             |
//! | 2..4     | the high two bits of the scales, 16-bit number: bits `2 g` and `2 g + 1` for group `g` |
//! | 4..8     | the low four bits of the scales: byte `p` holds group `2 p` (low nibble) and `2 p + 1` (high) |
//! | 8..136   | `q`: byte `16 g + j` holds element `j` of group `g` (low nibble) and `j + 16` (high)  |
//!
//! `x[i] = (d * (scale[i / 32] - 32)) * LEVELS[q[i]]` with the levels of IQ4_NL

use super::iq4_nl::LEVELS;
use super::{half_at, inverse, largest, nearest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 256;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 136;

/// Unpacks the scales of an IQ4_XS block's eight groups, each below 64, from its bytes 2..8.
pub const fn iq4_xs_scales(packed: &[u8; 6]) -> [u8; 8] {
    let mut scales = [0; 8];
    let mut g = 0;
    while g < 8 {
        let low = packed[2 + g / 2] >> (g % 2 * 4) & 15;
        scales[g] = low | (packed[g / 4] >> (g % 4 * 2) & 3) << 4;
        g += 1;
    }
    scales
}

/// The inverse of [`iq4_xs_scales`]; only the low six bits of each number are kept.
pub const fn pack_iq4_xs_scales(scales: &[u8; 8]) -> [u8; 6] {
    let mut packed = [0; 6];
    let mut g = 0;
    while g < 8 {
        packed[2 + g / 2] |= (scales[g] & 15) << (g % 2 * 4);
        packed[g / 4] |= (scales[g] >> 4 & 3) << (g % 4 * 2);
        g += 1;
    }
    packed
}

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 0);
    let scales = iq4_xs_scales(&std::array::from_fn(|i| block[2 + i]));
    for (g, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let step = d * (f32::from(scales[g]) - 32.0);
        for j in 0..16 {
            let byte = block[8 + 16 * g + j];
            x[j] = step * f32::from(LEVELS[usize::from(byte & 15)]);
            x[j + 16] = step * f32::from(LEVELS[usize::from(byte >> 4)]);
        }
    }
}

/// Encodes a block, rounding to nearest.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let (groups, _) = x.as_chunks::<32>();
    // In each group the element of largest magnitude becomes -127 steps; scales carry the sign.
    let steps: [f32; 8] = std::array::from_fn(|g| largest(&groups[g]) / -127.0);
    let d = put_half(&mut block, 0, largest(&steps) / -32.0);
    let scales = steps.map(|step| (step * inverse(d)).round().clamp(-32.0, 31.0));
    block[2..8].copy_from_slice(&pack_iq4_xs_scales(&scales.map(|scale| (scale + 32.0) as u8)));
    for (g, x) in groups.iter().enumerate() {
        let step = d * scales[g];
        for j in 0..16 {
            block[8 + 16 * g + j] = nearest(&LEVELS, step, x[j]) | nearest(&LEVELS, step, x[j + 16]) << 4;
        }
    }
    block
}
