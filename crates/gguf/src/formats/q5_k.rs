//! Q5_K: 256 elements, in eight groups of 32, in 176 bytes.
//!
//! | bytes    | content                                                                         |
//! |----------|---------------------------------------------------------------------------------|
//! | 0..2     | `d`, half                                                                       |
//! | 2..4     | `dmin`, half                                                                    |
//! | 4..16    | 6-bit scales and minima, see [`k_scales`]                                       |
//! | 16..48   | the fifth bits: bit `g` of byte `j` belongs to element `j` of group `g`         |
//! | 48..176  | the low four bits: byte `32 p + j` holds element `j` of group `2 p` (low nibble) and of group `2 p + 1` (high) |
//!
//! `x[i] = (d * scale[g]) * q[i] - dmin * minimum[g]` with `g = i / 32`

use super::k_scale::quantise_groups;
use super::{half_at, k_scales, pack_k_scales, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 256;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 176;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, minima) = k_scales(&std::array::from_fn(|i| block[4 + i]));
    for g in 0..8 {
        let (step, minimum) = (d * f32::from(scales[g]), dmin * f32::from(minima[g]));
        for j in 0..32 {
            let byte = block[48 + g / 2 * 32 + j];
            let low = if g % 2 == 0 { byte & 15 } else { byte >> 4 };
            let level = low | (block[16 + j] >> g & 1) << 4;
            x[g * 32 + j] = step * f32::from(level) - minimum;
        }
    }
}

/// Encodes a block, rounding to nearest.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let groups = quantise_groups::<8>(x, 31, 63);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, groups.d);
    put_half(&mut block, 2, groups.dmin);
    block[4..16].copy_from_slice(&pack_k_scales(&groups.scales, &groups.minima));
    for (i, level) in groups.levels.iter().enumerate() {
        let (g, j) = (i / 32, i % 32);
        block[16 + j] |= (level >> 4) << g;
        block[48 + g / 2 * 32 + j] |= if g % 2 == 0 { level & 15 } else { level << 4 };
    }
    block
}
