//! Weights and activations of every sort.

use super::contract::{self, Rng};
use minfer_gguf::TensorType;

/// A number from 0 to `n - 1`.
pub fn below(rng: &mut Rng, n: usize) -> usize {
    (rng.next() >> 16) as usize % n
}

/// Whether one of `n` times.
pub fn one_in(rng: &mut Rng, n: usize) -> bool {
    below(rng, n) == 0
}

/// What the blocks of a weight are made of.
#[derive(Clone, Copy, Debug)]
pub enum Weights {
    /// Any codes, moderate scales.
    Moderate,
    /// Any bits at all.
    Bits,
    /// One byte over and over, moderate scales.
    Extreme(u8),
    /// All bits zero.
    Zero,
    /// Any codes, scales that are subnormal, infinite, NaN, negative zero or the largest.
    Scales,
}

impl Weights {
    /// One sort of them.
    pub fn any(rng: &mut Rng) -> Self {
        match below(rng, 8) {
            0 | 1 => Weights::Bits,
            2 | 3 => Weights::Extreme([0, 0x7f, 0x80, 0xff, 0x88, 0x77][below(rng, 6)]),
            4 => Weights::Zero,
            5 => Weights::Scales,
            _ => Weights::Moderate,
        }
    }

    /// `[rows, cols]` as a file has them.
    pub fn bytes(self, rng: &mut Rng, ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
        let mut data = contract::random_weights(rng, ty, rows, cols);
        match self {
            Weights::Moderate => {}
            Weights::Bits => data.fill_with(|| (rng.next() >> 56) as u8),
            Weights::Zero => data.fill(0),
            Weights::Extreme(byte) => fill_codes(&mut data, ty, byte),
            Weights::Scales => special_scales(rng, &mut data, ty),
        }
        data
    }
}

/// Everything but the scales of half precision.
fn fill_codes(data: &mut [u8], ty: TensorType, byte: u8) {
    if !ty.is_quantized() {
        return;
    }
    for block in data.chunks_exact_mut(ty.block_bytes()) {
        for (i, code) in block.iter_mut().enumerate() {
            if !contract::float_fields(ty).iter().any(|at| (*at..at + 2).contains(&i)) {
                *code = byte;
            }
        }
    }
}

fn special_scales(rng: &mut Rng, data: &mut [u8], ty: TensorType) {
    const SCALES: [u16; 9] = [0x7c00, 0xfc00, 0x7e00, 0x0001, 0x03ff, 0x8001, 0x8000, 0x7bff, 0x0400];
    for block in data.chunks_exact_mut(ty.block_bytes()) {
        for at in contract::float_fields(ty) {
            if ty.is_quantized() && !one_in(rng, 3) {
                let scale = SCALES[below(rng, SCALES.len())];
                block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
}

/// Rows of activations, each of a sort of its own.
pub fn activations(rng: &mut Rng, tokens: usize, cols: usize) -> Vec<f32> {
    (0..tokens).flat_map(|_| row(rng, cols)).collect()
}

fn row(rng: &mut Rng, cols: usize) -> Vec<f32> {
    const SPECIAL: [f32; 12] = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1e-40,
        -1e-45,
        f32::MIN_POSITIVE,
        127.0 * f32::MIN_POSITIVE,
        32258.0 * f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
    ];
    let mut x = rng.floats(cols);
    match below(rng, 8) {
        // Of any size, down to what is no longer normal.
        0 => {
            let size = 10f32.powi(below(rng, 77) as i32 - 38);
            x.iter_mut().for_each(|x| *x *= size);
        }
        // The largest levels, in any order of signs.
        1 => x.iter_mut().for_each(|x| *x = 3.0f32.copysign(*x)),
        2 => x.fill(SPECIAL[below(rng, SPECIAL.len())]),
        // Any bits.
        3 => x.fill_with(|| f32::from_bits((rng.next() >> 32) as u32)),
        // Halves of a level, which round to even.
        4 => x.iter_mut().for_each(|x| *x = (rng.next() >> 56) as f32 / 2.0 - 63.5),
        5 => {
            for _ in 0..=below(rng, 4) {
                x[below(rng, cols)] = SPECIAL[below(rng, SPECIAL.len())];
            }
        }
        _ => {}
    }
    x
}
