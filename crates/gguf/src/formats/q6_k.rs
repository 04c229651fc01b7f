//! Q6_K: 256 elements, in sixteen groups of 16, in 210 bytes.
//!
//! | bytes     | content                                                   |
//! |-----------|-----------------------------------------------------------|
//! | 0..128    | the low four bits                                         |
//! | 128..192  | the high two bits                                         |
//! | 192..208  | `scale`, signed bytes, one per group                      |
//! | 208..210  | `d`, half                                                 |
//!
//! Each half `h` of the block (128 elements) owns 64 bytes of low and 32 bytes of high bits. Element `32 k + j` of a half has its low
//! bits in byte `32 (k % 2) + j` (low nibble for `k < 2`, else high) and its high bits in bits `2 k` and `2 k + 1` of byte `j`.
//!
//! `x[i] = (d * scale[i / 16]) * (q[i] - 32)`

use super::{half_at, inverse, largest, put_half};

/// Elements per block.
pub const BLOCK_LEN: usize = 256;
/// Bytes per block.
pub const BLOCK_BYTES: usize = 210;

/// Where element `i` is: byte and shift of its low bits, byte and shift of its high bits.
const fn place(i: usize) -> (usize, usize, usize, usize) {
    let (h, k, j) = (i / 128, i % 128 / 32, i % 32);
    (h * 64 + k % 2 * 32 + j, k / 2 * 4, 128 + h * 32 + j, k * 2)
}

/// Decodes a block.
pub fn decode_block(block: &[u8; BLOCK_BYTES], x: &mut [f32; BLOCK_LEN]) {
    let d = half_at(block, 208);
    for (i, x) in x.iter_mut().enumerate() {
        let (low, low_shift, high, high_shift) = place(i);
        let level = block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4;
        let step = d * f32::from(block[192 + i / 16] as i8);
        *x = step * (f32::from(level) - 32.0);
    }
}

/// Encodes a block, rounding to nearest.
pub fn encode_block(x: &[f32; BLOCK_LEN]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let (groups, _) = x.as_chunks::<16>();
    // In each group the element of largest magnitude becomes -32 steps; scales carry the sign.
    let steps: [f32; 16] = std::array::from_fn(|g| largest(&groups[g]) / -32.0);
    let d = put_half(&mut block, 208, largest(&steps) / -128.0);
    let scales = steps.map(|step| (step * inverse(d)).round().clamp(-128.0, 127.0) as i8);
    scales.iter().zip(&mut block[192..208]).for_each(|(&scale, byte)| *byte = scale as u8);
    for (i, v) in x.iter().enumerate() {
        let step = d * f32::from(scales[i / 16]);
        let level = ((v * inverse(step)).round().clamp(-32.0, 31.0) + 32.0) as u8;
        let (low, low_shift, high, high_shift) = place(i);
        block[low] |= (level & 15) << low_shift;
        block[high] |= (level >> 4) << high_shift;
    }
    block
}
