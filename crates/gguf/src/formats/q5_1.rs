//! Q5_1: 32 elements in 24 bytes.
//!
//! | bytes  | content                                                                      |
//! |--------|------------------------------------------------------------------------------|
//! | 0..2   | `d`, half                                                                    |
//! | 2..4   | `m`, half                                                                    |
//! | 4..8   | the fifth bits, 32-bit number: bit `i` belongs to element `i`                |
//! | 8..24  | the low four bits: byte `j` holds element `j` (low nibble) and `j + 16` (high) |
//!
//! `x[i] = d * q[i] + m`

use super::q5_0::{pack_levels, unpack_levels};
use super::{half_at, inverse, put_half, range};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 24;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let levels = unpack_levels(&[block[4], block[5], block[6], block[7]], &block[8..]);
    x.iter_mut().zip(levels).for_each(|(x, q)| *x = d * f32::from(q) + m);
}

/// Encodes a block: levels spread evenly from the smallest to the largest element.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let (lo, hi) = range(x);
    let d = (hi - lo) / 31.0;
    let id = inverse(d);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, d);
    put_half(&mut block, 2, lo);
    pack_levels(x.map(|v| (((v - lo) * id + 0.5) as u8).min(31)), &mut block[4..]);
    block
}
