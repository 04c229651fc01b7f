//! Q2_K: 256 elements, in sixteen groups of 16, in 84 bytes.
//!
//! | bytes    | content                                                                       |
//! |----------|-------------------------------------------------------------------------------|
//! | 0..16    | one byte per group: its scale (low nibble) and its minimum (high nibble)      |
//! | 16..80   | `q`: bits `2 k` and `2 k + 1` of byte `32 h + j` hold element `128 h + 32 k + j` |
//! | 80..82   | `d`, half                                                                     |
//! | 82..84   | `dmin`, half                                                                  |
//!
//! `x[i] = (d * scale[g]) * q[i] - dmin * minimum[g]` with `g = i / 16`

use super::k_scale::quantise_groups;
use super::{half_at, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 256;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 84;

/// Byte and shift of element `i` of two bits, from the beginning of the levels. Q3_K packs its low bits the same way.
pub(super) const fn place(i: usize) -> (usize, usize) {
    (i / 128 * 32 + i % 32, i % 128 / 32 * 2)
}

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, x) in x.iter_mut().enumerate() {
        let header = block[i / 16];
        let (step, minimum) = (d * f32::from(header & 15), dmin * f32::from(header >> 4));
        let (byte, shift) = place(i);
        *x = step * f32::from(block[16 + byte] >> shift & 3) - minimum;
    }
}

/// Encodes a block, rounding to nearest.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let groups = quantise_groups::<16>(x, 3, 15);
    let mut block = [0; BLOCK_BYTES];
    for (g, byte) in block[..16].iter_mut().enumerate() {
        *byte = groups.scales[g] | groups.minima[g] << 4;
    }
    for (i, level) in groups.levels.iter().enumerate() {
        let (byte, shift) = place(i);
        block[16 + byte] |= level << shift;
    }
    put_half(&mut block, 80, groups.d);
    put_half(&mut block, 82, groups.dmin);
    block
}
