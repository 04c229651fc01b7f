//! Block formats against `formats.gguf` (see `oracle/make_goldens.py`): decoders and encoders bit for bit, the type table, and
//! half precision exhaustively.

mod common;

use common::{Random, data, floats, golden};
use minfer_gguf::{
    Array, FormatError, TensorType, Value, can_encode, decode_row, encode_row, iq4_xs_scales, k_scales,
    pack_iq4_xs_scales, pack_k_scales, pack_q3_k_scales, q3_k_scales,
};

fn decodable() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|ty| ty.can_decode())
}

#[test]
fn decoders_match_the_oracle() {
    let (bytes, gguf) = golden("formats.gguf");
    assert_eq!(decodable().count(), 16);
    for ty in decodable() {
        let blocks = data(&bytes, &gguf, &format!("{ty}.blocks"));
        let expected = floats(&bytes, &gguf, &format!("{ty}.values"));
        let mut found = vec![0.0; expected.len()];
        decode_row(ty, blocks, &mut found).unwrap();
        for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
            // The payload of a NaN is nobody's business.
            assert!(
                f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan(),
                "{ty} element {i}: {f} is not {e}"
            );
        }
    }
}

#[test]
fn encoders_match_the_oracle() {
    let (bytes, gguf) = golden("formats.gguf");
    let input = floats(&bytes, &gguf, "input");
    use TensorType::{Bf16, F16, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    for ty in [F16, Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Mxfp4] {
        let mut found = vec![];
        encode_row(ty, &input, &mut found).unwrap();
        assert_eq!(found, data(&bytes, &gguf, &format!("{ty}.encoded")), "{ty}");
    }
}

#[test]
fn type_table_matches_the_oracle() {
    let (_, gguf) = golden("formats.gguf");
    let column = |name: &str| gguf.metadata.require_u32s(&format!("types.{name}")).unwrap();
    let names = gguf.metadata.require_strings("types.names").unwrap();
    let expected: Vec<_> =
        column("ids").into_iter().zip(names).zip(column("block_lens")).zip(column("block_bytes")).collect();
    assert_eq!(expected.len(), TensorType::ALL.len());
    for (ty, (((id, name), len), size)) in TensorType::ALL.iter().zip(expected) {
        assert_eq!((ty.id(), ty.name().to_uppercase()), (id, name.clone()));
        assert_eq!((ty.block_len(), ty.block_bytes()), (len as usize, size as usize), "{ty}");
        assert_eq!(TensorType::from_id(id), Some(*ty));
        assert_eq!(ty.is_quantized(), len > 1);
    }
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, u32::MAX] {
        assert_eq!(TensorType::from_id(id), None, "{id}");
    }
}

#[test]
fn row_bytes_refuses_partial_blocks_and_overflow() {
    assert_eq!(TensorType::Q4K.row_bytes(512), Some(288));
    assert_eq!(TensorType::Q4K.row_bytes(0), Some(0));
    assert_eq!(TensorType::Q4K.row_bytes(896), None);
    assert_eq!(TensorType::F64.row_bytes(usize::MAX), None);
}

/// The relative root-mean-square error that a type's encoder may make on normal data; about 1.2 times what it does make.
#[test]
fn encode_then_decode_stays_close() {
    let limits = [
        (TensorType::F32, 0.0),
        (TensorType::F16, 3e-4),
        (TensorType::Bf16, 2.5e-3),
        (TensorType::Q4_0, 0.11),
        (TensorType::Q4_1, 0.1),
        (TensorType::Q5_0, 0.055),
        (TensorType::Q5_1, 0.05),
        (TensorType::Q8_0, 0.008),
        (TensorType::Q2K, 0.5),
        (TensorType::Q3K, 0.25),
        (TensorType::Q4K, 0.1),
        (TensorType::Q5K, 0.05),
        (TensorType::Q6K, 0.024),
        (TensorType::Iq4Nl, 0.1),
        (TensorType::Iq4Xs, 0.1),
        (TensorType::Mxfp4, 0.15),
    ];
    assert!(decodable().eq(TensorType::ALL.iter().copied().filter(|&ty| can_encode(ty))));
    assert_eq!(limits.len(), decodable().count());
    let mut random = Random(7);
    for scale in [1.0, 1e-3, 1e3] {
        let x: Vec<f32> = (0..256 * 64).map(|_| random.normal() * scale).collect();
        for (ty, limit) in limits {
            let error = error_of(ty, &x);
            assert!(error <= limit && error >= limit * 0.5, "{ty} at scale {scale}: {error}");
        }
    }
}

/// Relative root-mean-square error of encoding and decoding.
fn error_of(ty: TensorType, x: &[f32]) -> f64 {
    let mut bytes = vec![];
    encode_row(ty, x, &mut bytes).unwrap();
    let mut back = vec![0.0; x.len()];
    decode_row(ty, &bytes, &mut back).unwrap();
    let error: f64 = x.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let norm: f64 = x.iter().map(|a| f64::from(*a).powi(2)).sum();
    (error / norm).sqrt()
}

/// One-sided, constant, sparse and tiny blocks: still finite, and within the step that the block's range allows.
#[test]
fn k_encoders_survive_odd_blocks() {
    let mut random = Random(9);
    let noise: Vec<f32> = (0..256).map(|_| random.normal()).collect();
    let blocks: [Vec<f32>; 7] = [
        vec![0.0; 256],
        vec![1.0; 256],
        vec![-1.0; 256],
        noise.iter().map(|v| v.abs() + 3.0).collect(),
        noise.iter().map(|v| -v.abs() - 3.0).collect(),
        (0..256).map(|i| if i == 77 { 5.0 } else { 0.0 }).collect(),
        noise.iter().map(|v| v * 1e-20).collect(),
    ];
    // Steps over the range; for the types with fixed levels, over the range as wide as their widest gap.
    let steps = [
        (TensorType::Q2K, 3.0),
        (TensorType::Q3K, 3.0),
        (TensorType::Q4K, 15.0),
        (TensorType::Q5K, 31.0),
        (TensorType::Q6K, 31.0),
        (TensorType::Iq4Nl, 10.0),
        (TensorType::Iq4Xs, 10.0),
        (TensorType::Mxfp4, 4.0),
    ];
    for (ty, steps) in steps {
        for (n, x) in blocks.iter().enumerate() {
            let mut bytes = vec![];
            encode_row(ty, x, &mut bytes).unwrap();
            let mut back = [0.0; 256];
            decode_row(ty, &bytes, &mut back).unwrap();
            let reach = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            // Half a step over twice the reach, and as much again for the six-bit scale and minimum.
            let bound = reach * 2.0 / steps + 1e-12;
            for (a, b) in x.iter().zip(&back) {
                assert!((a - b).abs() <= bound, "{ty} block {n}: {a} became {b}");
            }
        }
    }
}

#[test]
fn k_scales_round_trip() {
    let mut random = Random(11);
    for _ in 0..1000 {
        let mut six_bits = || std::array::from_fn::<u8, 8, _>(|_| (random.next() & 63) as u8);
        let (scales, minima) = (six_bits(), six_bits());
        assert_eq!(k_scales(&pack_k_scales(&scales, &minima)), (scales, minima));
    }
}

#[test]
fn other_scales_round_trip() {
    let mut random = Random(12);
    for _ in 0..1000 {
        let scales = std::array::from_fn(|_| (random.next() & 63) as u8);
        assert_eq!(q3_k_scales(&pack_q3_k_scales(&scales)), scales);
        let scales = std::array::from_fn(|_| (random.next() & 63) as u8);
        assert_eq!(iq4_xs_scales(&pack_iq4_xs_scales(&scales)), scales);
    }
}

/// Powers of two down to the smallest scale and below come back exactly, or as zero.
#[test]
fn mxfp4_reaches_its_smallest_scale() {
    for exponent in -149..=127 {
        let x = 2f32.powi(exponent);
        let (mut bytes, mut back) = (vec![], [0.0; 32]);
        encode_row(TensorType::Mxfp4, &[x; 32], &mut bytes).unwrap();
        decode_row(TensorType::Mxfp4, &bytes, &mut back).unwrap();
        assert_eq!(back, [if exponent < -128 { 0.0 } else { x }; 32], "2^{exponent}");
    }
}

#[test]
fn wrong_calls_are_errors() {
    let mut out = [0.0; 33];
    let error = decode_row(TensorType::Q4_0, &[0; 18], &mut out).unwrap_err();
    assert_eq!(error, FormatError::RowLength { ty: TensorType::Q4_0, len: 33 });
    let error = decode_row(TensorType::Q4_0, &[0; 17], &mut out[..32]).unwrap_err();
    assert_eq!(error.to_string(), "a Q4_0 row of 32 elements takes 18 bytes, not 17");
    let error = decode_row(TensorType::Nvfp4, &[0; 36], &mut [0.0; 64]).unwrap_err();
    assert_eq!(error.to_string(), "decoding tensor type NVFP4 is not supported");
    let mut bytes = vec![];
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = [0.0; 32];
        x[5] = bad;
        let error = encode_row(TensorType::Q8_0, &x, &mut bytes).unwrap_err();
        assert!(matches!(error, FormatError::NotFinite { index: 5, .. }), "{error}");
        encode_row(TensorType::F16, &x, &mut vec![]).unwrap();
    }
    assert!(bytes.is_empty());
    decode_row(TensorType::Q4K, &[], &mut []).unwrap();
}

/// The value of a half-precision number by the definition of IEEE 754.
fn half_by_definition(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[test]
fn every_half_decodes_and_encodes() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut values = vec![0.0f32; 65536];
    decode_row(TensorType::F16, &all, &mut values).unwrap();
    let mut back = vec![];
    encode_row(TensorType::F16, &values, &mut back).unwrap();
    for (bits, &value) in (0..=u16::MAX).zip(&values) {
        let expected = half_by_definition(bits);
        let at = usize::from(bits) * 2;
        let again = u16::from_le_bytes([back[at], back[at + 1]]);
        if expected.is_nan() {
            assert!(value.is_nan() && half_by_definition(again).is_nan(), "{bits:#x}");
        } else {
            assert_eq!(f64::from(value).to_bits(), expected.to_bits(), "{bits:#x}");
            assert_eq!(again, bits);
        }
    }
}

/// Between any two neighbouring halves: the middle rounds to the even one, anything beside it to the nearer.
#[test]
fn halves_round_to_nearest_even() {
    for bits in 0..0x7c00u16 {
        // Infinity takes the place of 2^16 for rounding.
        let above = if bits == 0x7bff { 65536.0 } else { half_by_definition(bits + 1) };
        let middle = ((half_by_definition(bits) + above) / 2.0) as f32;
        let even = if bits % 2 == 0 { bits } else { bits + 1 };
        for (x, expected) in [(middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1)] {
            let mut bytes = vec![];
            encode_row(TensorType::F16, &[x, -x], &mut bytes).unwrap();
            let found = [expected, expected | 0x8000].map(u16::to_le_bytes).concat();
            assert_eq!(bytes, found, "{x}");
        }
    }
}

#[test]
fn every_bf16_decodes() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut values = vec![0.0f32; 65536];
    decode_row(TensorType::Bf16, &all, &mut values).unwrap();
    for (bits, value) in (0..=u16::MAX).zip(values) {
        let expected = f32::from_bits(u32::from(bits) << 16);
        assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan());
    }
}

#[test]
fn golden_metadata_are_typed_arrays() {
    let (_, gguf) = golden("formats.gguf");
    assert!(matches!(gguf.metadata.get("types.ids"), Some(Value::Array(Array::I32(_)))));
}
