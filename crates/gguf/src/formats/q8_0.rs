//! Q8_0: 32 elements in 34 bytes.
//!
//! | bytes  | content                    |
//! |--------|----------------------------|
//! | 0..2   | `d`, half                  |
//! | 2..34  | `q`, signed bytes          |
//!
//! `x[i] = d * q[i]`

use super::{half_at, inverse, largest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 32;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 34;

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 0);
    x.iter_mut().zip(&block[2..]).for_each(|(x, &q)| *x = d * f32::from(q as i8));
}

/// Encodes a block: the element of largest magnitude becomes ±127; halves round away from zero.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let d = largest(x).abs() / 127.0;
    let id = inverse(d);
    let mut block = [0; BLOCK_BYTES];
    put_half(&mut block, 0, d);
    block[2..].iter_mut().zip(x).for_each(|(q, v)| *q = (v * id).round() as i8 as u8);
    block
}
