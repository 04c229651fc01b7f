//! The plain float types: F32, F16, BF16.

use half::{bf16, f16};

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    bytes.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = f32::from_le_bytes(b));
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    bytes.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = f16::from_le_bytes(b).to_f32());
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    bytes.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = bf16::from_le_bytes(b).to_f32());
}

pub(super) fn encode_f32(x: &[f32], out: &mut Vec<u8>) {
    x.iter().for_each(|v| out.extend(v.to_le_bytes()));
}

pub(super) fn encode_f16(x: &[f32], out: &mut Vec<u8>) {
    x.iter().for_each(|&v| out.extend(f16::from_f32(v).to_le_bytes()));
}

pub(super) fn encode_bf16(x: &[f32], out: &mut Vec<u8>) {
    x.iter().for_each(|&v| out.extend(bf16::from_f32(v).to_le_bytes()));
}
