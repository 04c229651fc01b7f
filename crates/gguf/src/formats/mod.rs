//! Block formats: what the bytes of each tensor type mean.
//!
//! One module per quantised type gives its layout and a scalar decoder, which *is* the definition of the type for the rest of the
//! engine: kernels are tested against it. Arithmetic is in single precision, in the order written, without fused multiply-add. Encoders
//! are for tests, tiny models and conversion; those of the K types round to nearest and search no better scale.
//!
//! All multi-byte numbers are little-endian. Element `i` of a block is `x[i]`; `d` is a half-precision scale.
#![allow(
    clippy::as_conversions,
    reason = "the formats are defined by narrowing and widening conversions of numbers"
)]

mod float;
pub mod iq4_nl;
pub mod iq4_xs;
mod k_scale;
pub mod mxfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

pub use iq4_xs::{iq4_xs_scales, pack_iq4_xs_scales};
pub use k_scale::{k_scales, pack_k_scales};
pub use q3_k::{pack_q3_k_scales, q3_k_scales};

use crate::{FormatError, TensorType};

/// The build fails if a module's block sizes are not those of the table.
macro_rules! assert_sizes {
    ($($ty:ident = $module:ident),*) => {
        $(
            const _: () = assert!($module::BLOCK_LEN == TensorType::$ty.block_len());
            const _: () = assert!($module::BLOCK_BYTES == TensorType::$ty.block_bytes());
        )*
    };
}
assert_sizes!(
    Q4_0 = q4_0,
    Q4_1 = q4_1,
    Q5_0 = q5_0,
    Q5_1 = q5_1,
    Q8_0 = q8_0,
    Q2K = q2_k,
    Q3K = q3_k,
    Q4K = q4_k,
    Q5K = q5_k,
    Q6K = q6_k,
    Iq4Nl = iq4_nl,
    Iq4Xs = iq4_xs,
    Mxfp4 = mxfp4
);

/// Decodes one row: `bytes` as `ty` stores them to `out.len()` elements.
///
/// # Errors
///
/// A type that has no decoder, a length that is no multiple of the block, a wrong number of bytes. `out` is unchanged then.
pub fn decode_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    let expected = ty.row_bytes(out.len()).ok_or(FormatError::RowLength { ty, len: out.len() })?;
    if bytes.len() != expected {
        return Err(FormatError::ByteLength { ty, len: out.len(), expected, found: bytes.len() });
    }
    match ty {
        TensorType::F32 => float::decode_f32(bytes, out),
        TensorType::F16 => float::decode_f16(bytes, out),
        TensorType::Bf16 => float::decode_bf16(bytes, out),
        TensorType::Q4_0 => decode_blocks(bytes, out, q4_0::decode_block),
        TensorType::Q4_1 => decode_blocks(bytes, out, q4_1::decode_block),
        TensorType::Q5_0 => decode_blocks(bytes, out, q5_0::decode_block),
        TensorType::Q5_1 => decode_blocks(bytes, out, q5_1::decode_block),
        TensorType::Q8_0 => decode_blocks(bytes, out, q8_0::decode_block),
        TensorType::Q2K => decode_blocks(bytes, out, q2_k::decode_block),
        TensorType::Q3K => decode_blocks(bytes, out, q3_k::decode_block),
        TensorType::Q4K => decode_blocks(bytes, out, q4_k::decode_block),
        TensorType::Q5K => decode_blocks(bytes, out, q5_k::decode_block),
        TensorType::Q6K => decode_blocks(bytes, out, q6_k::decode_block),
        TensorType::Iq4Nl => decode_blocks(bytes, out, iq4_nl::decode_block),
        TensorType::Iq4Xs => decode_blocks(bytes, out, iq4_xs::decode_block),
        TensorType::Mxfp4 => decode_blocks(bytes, out, mxfp4::decode_block),
        _ => return Err(FormatError::Unsupported { action: "decoding", ty }),
    }
    Ok(())
}

/// Whether [`encode_row`] writes this type.
pub const fn can_encode(ty: TensorType) -> bool {
    // Every decoder has an encoder so far.
    ty.can_decode()
}

/// Encodes one row and appends its bytes to `out`. Scales beyond the range of half precision become infinite.
///
/// # Errors
///
/// A type that has no encoder, a length that is no multiple of the block, for quantised types an element that is not finite. `out` is
/// unchanged then.
pub fn encode_row(ty: TensorType, x: &[f32], out: &mut Vec<u8>) -> Result<(), FormatError> {
    if ty.row_bytes(x.len()).is_none() {
        return Err(FormatError::RowLength { ty, len: x.len() });
    }
    if !can_encode(ty) {
        return Err(FormatError::Unsupported { action: "encoding", ty });
    }
    if ty.is_quantized()
        && let Some(index) = x.iter().position(|v| !v.is_finite())
    {
        return Err(FormatError::NotFinite { ty, index, value: x[index].to_string() });
    }
    match ty {
        TensorType::F32 => float::encode_f32(x, out),
        TensorType::F16 => float::encode_f16(x, out),
        TensorType::Bf16 => float::encode_bf16(x, out),
        TensorType::Q4_0 => encode_blocks(x, out, q4_0::encode_block),
        TensorType::Q4_1 => encode_blocks(x, out, q4_1::encode_block),
        TensorType::Q5_0 => encode_blocks(x, out, q5_0::encode_block),
        TensorType::Q5_1 => encode_blocks(x, out, q5_1::encode_block),
        TensorType::Q8_0 => encode_blocks(x, out, q8_0::encode_block),
        TensorType::Q2K => encode_blocks(x, out, q2_k::encode_block),
        TensorType::Q3K => encode_blocks(x, out, q3_k::encode_block),
        TensorType::Q4K => encode_blocks(x, out, q4_k::encode_block),
        TensorType::Q5K => encode_blocks(x, out, q5_k::encode_block),
        TensorType::Q6K => encode_blocks(x, out, q6_k::encode_block),
        TensorType::Iq4Nl => encode_blocks(x, out, iq4_nl::encode_block),
        TensorType::Iq4Xs => encode_blocks(x, out, iq4_xs::encode_block),
        TensorType::Mxfp4 => encode_blocks(x, out, mxfp4::encode_block),
        _ => return Err(FormatError::Unsupported { action: "encoding", ty }),
    }
    Ok(())
}

/// Applies a block decoder to a row whose lengths were checked.
fn decode_blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; B], &mut [f32; N]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (elements, _) = out.as_chunks_mut::<N>();
    blocks.iter().zip(elements).for_each(|(block, x)| decode(block, x));
}

/// Applies a block encoder to a row whose length was checked.
fn encode_blocks<const B: usize, const N: usize>(
    x: &[f32],
    out: &mut Vec<u8>,
    encode: fn(&[f32; N]) -> [u8; B],
) {
    let (elements, _) = x.as_chunks::<N>();
    elements.iter().for_each(|x| out.extend(encode(x)));
}

/// The half-precision number at byte `at` of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Puts a half-precision number at byte `at` of a block and returns what it has become.
fn put_half(block: &mut [u8], at: usize, v: f32) -> f32 {
    let rounded = half::f16::from_f32(v);
    block[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// The element of largest magnitude, the first of several; its sign kept.
fn largest(x: &[f32]) -> f32 {
    x.iter().copied().reduce(|best, v| if v.abs() > best.abs() { v } else { best }).unwrap_or(0.0)
}

/// The smallest and the largest element.
fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

/// `1 / d`, and 0 for 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Which of the levels, times `d`, is nearest to `v`; the first of several.
fn nearest(levels: &[i8; 16], d: f32, v: f32) -> u8 {
    let distance = |i: u8| (d * f32::from(levels[usize::from(i)]) - v).abs();
    (1..16).fold(0, |best, i| if distance(i) < distance(best) { i } else { best })
}
