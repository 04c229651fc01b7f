//! Packed matmuls against the numeric contract, bit for bit: every type, precision, instruction set,
//! odd shapes, number of threads, and values at their extremes.

mod common;

use common::{Rng, TYPES, bits, random_weights, spec};
use minfer_cpu::matmul::{Activations, Input, Job, PackedWeight, SharedMut, matmul, matmul_many};
use minfer_cpu::{Isa, Pool};
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, BackendError, SharedBytes};
use std::sync::Arc;

const PRECISIONS: [(ActPrecision, usize); 2] = [(ActPrecision::Int8, 1), (ActPrecision::Int16, 2)];

/// A product as the crate computes it.
fn product(
    isa: Isa,
    pool: &Pool,
    weight: &PackedWeight,
    x: &[f32],
    act: ActPrecision,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let (cols, n) = (weight.cols(), weight.rows());
    let rows = x.len() / cols;
    let mut acts = Activations::new();
    if weight.is_quantized() {
        acts.quantize(isa, pool, x, rows, cols, act).unwrap();
    }
    let mut out = vec![f32::NAN; rows * n];
    let input = Input { x, rows, cols, quant: weight.is_quantized().then(|| acts.rows()) };
    matmul(isa, pool, weight, &input, bias, &mut out).unwrap();
    out
}

/// Tokens from which on other kernels do the work.
const MANY: usize = 17;

/// Compares with the reference on every instruction set: these tokens, and these over and over.
fn check(pool: &Pool, ty: TensorType, data: &[u8], x: &[f32], cols: usize, bias: Option<&[f32]>, what: &str) {
    let rows = data.len() / ty.row_bytes(cols).unwrap();
    let weight = PackedWeight::pack(&spec(ty, rows, cols), data, pool).unwrap();
    for (act, planes) in PRECISIONS {
        let want = bits(&common::matmul(ty, data, x, cols, planes, bias));
        for isa in Isa::available() {
            let got = bits(&product(isa, pool, &weight, x, act, bias));
            let tokens = x.len() / cols;
            assert!(got == want, "{what}: {ty} {rows}x{cols} {act:?} {isa}, {tokens} tokens");
            let times = MANY.div_ceil(tokens);
            let got = bits(&product(isa, pool, &weight, &x.repeat(times), act, bias));
            assert!(
                got == want.repeat(times),
                "{what}: {ty} {rows}x{cols} {act:?} {isa}, {times} x {tokens} tokens"
            );
        }
    }
}

/// Smallest row length that has several blocks.
fn cols(ty: TensorType) -> [usize; 2] {
    match ty.block_len() {
        1 => [5, 70],
        32 => [32, 160],
        n => [n, 3 * n],
    }
}

#[test]
fn odd_shapes() {
    let mut rng = Rng(1);
    let pool = Pool::new(2);
    for ty in TYPES {
        for cols in cols(ty) {
            for rows in [1, 7, 8, 9, 33] {
                let data = random_weights(&mut rng, ty, rows, cols);
                let bias = rng.floats(rows);
                for tokens in (1..=9).chain([17, 33]) {
                    let x = rng.floats(tokens * cols);
                    let bias = (tokens % 2 == 0).then_some(&bias[..]);
                    check(&pool, ty, &data, &x, cols, bias, "shape");
                }
            }
        }
    }
}

#[test]
fn threads_and_batches_change_nothing() {
    let mut rng = Rng(2);
    let pools = [1, 2, 3].map(Pool::new);
    for ty in TYPES {
        let (rows, cols) = (203, 512);
        let data = random_weights(&mut rng, ty, rows, cols);
        let x = rng.floats(21 * cols);
        let weight = PackedWeight::pack(&spec(ty, rows, cols), &data, &pools[1]).unwrap();
        for (act, planes) in PRECISIONS {
            let want = bits(&common::matmul(ty, &data, &x, cols, planes, None));
            for pool in &pools {
                for batch in [21, 1, 5, 16] {
                    let parts =
                        x.chunks(batch * cols).map(|x| product(Isa::detect(), pool, &weight, x, act, None));
                    let got = bits(&parts.flatten().collect::<Vec<_>>());
                    assert!(got == want, "{ty} {act:?} {} threads, batch {batch}", pool.threads());
                }
            }
        }
    }
}

/// Weights that stay as they are in the file.
#[test]
fn native_rows_give_the_same_bits() {
    let mut rng = Rng(3);
    let pool = Pool::new(2);
    for ty in TYPES {
        // Few pieces and many.
        for (rows, cols, isas) in [(19, 256, Isa::available()), (403, 512, vec![Isa::detect()])] {
            // Not at the start of what is mapped, and nothing behind.
            let data = random_weights(&mut rng, ty, rows, cols);
            let mapped = Arc::new([&[1, 2, 3][..], &data].concat());
            let shared = SharedBytes::new(mapped, 3..3 + data.len()).unwrap();
            let native = PackedWeight::native(&spec(ty, rows, cols), shared).unwrap();
            let packed = PackedWeight::pack(&spec(ty, rows, cols), &data, &pool).unwrap();
            let x = rng.floats(21 * cols);
            for (act, _) in PRECISIONS {
                for &isa in &isas {
                    for tokens in [1, 2, 21] {
                        let x = &x[..tokens * cols];
                        let want = bits(&product(isa, &pool, &packed, x, act, None));
                        let got = bits(&product(isa, &pool, &native, x, act, None));
                        assert!(got == want, "{ty} {rows}x{cols} {act:?} {isa}, {tokens} tokens");
                    }
                }
            }
            let (mut want, mut got) = (vec![0.0; cols], vec![1.0; cols]);
            packed.row(rows - 1, &mut want).unwrap();
            native.row(rows - 1, &mut got).unwrap();
            assert_eq!(bits(&got), bits(&want), "{ty}");
            assert!(native.row(rows, &mut got).is_err());
        }
    }
    let shared = SharedBytes::new(Arc::new([0; 18]), 0..18).unwrap();
    let short = PackedWeight::native(&spec(TensorType::Q4_0, 2, 32), shared);
    assert!(matches!(short, Err(BackendError::BadWeight { .. })));
    assert!(SharedBytes::new(Arc::new([0; 18]), 1..19).is_none());
}

/// More tokens than a block of the cache holds, more columns than a panel.
#[test]
fn many_tokens() {
    let mut rng = Rng(3);
    let pool = Pool::new(2);
    for ty in TYPES {
        let (rows, cols) = (17, 2048);
        let data = random_weights(&mut rng, ty, rows, cols);
        let bias = rng.floats(rows);
        check(&pool, ty, &data, &rng.floats(131 * cols), cols, Some(&bias), "tokens");
    }
}

#[test]
fn extremes_are_exact() {
    let pool = Pool::new(1);
    for ty in TYPES.into_iter().filter(|ty| ty.is_quantized()) {
        let cols = 2 * ty.block_len().max(32);
        // All codes and integer scales at 0x00, 0x7f, 0x80, 0xff; two rows of each.
        let row_bytes = ty.row_bytes(cols).unwrap();
        let mut data: Vec<u8> = [0, 0x7f, 0x80, 0xff].iter().flat_map(|&b| vec![b; 2 * row_bytes]).collect();
        for block in data.chunks_exact_mut(ty.block_bytes()) {
            for (i, at) in common::float_fields(ty).iter().enumerate() {
                let x = half::f16::from_f32([0.37, -1.3][i]);
                block[*at..at + 2].copy_from_slice(&x.to_le_bytes());
            }
        }
        let patterns: [fn(usize) -> f32; 5] = [
            |_| 1.0,
            |_| -1.0,
            |i| if i % 2 == 0 { 1.0 } else { -1.0 },
            |i| if i % 4 < 2 { 3.0e38 } else { -3.0e38 },
            |i| if i / 16 % 2 == 0 { 1e-37 } else { -1e-37 },
        ];
        let x: Vec<f32> = patterns.iter().flat_map(|f| (0..cols).map(f)).collect();
        check(&pool, ty, &data, &x, cols, None, "extreme");
    }
}

/// Zero, subnormal and non-finite activations, next to ordinary ones.
#[test]
fn special_activations() {
    let mut rng = Rng(4);
    let pool = Pool::new(1);
    let specials = [
        0.0,
        -0.0,
        1e-40,
        -1e-45,
        f32::MIN_POSITIVE,
        127.0 * f32::MIN_POSITIVE,
        1e-36,
        f32::MAX,
        f32::NAN,
        f32::INFINITY,
    ];
    for ty in TYPES {
        let (rows, cols) = (9, 512);
        let data = random_weights(&mut rng, ty, rows, cols);
        let mut x = Vec::new();
        for special in specials {
            let mut row = rng.floats(cols);
            row[64..96].fill(special);
            x.extend(row);
            let mut row = rng.floats(cols);
            row[37] = special;
            x.extend(row);
            x.extend(vec![special; cols]);
        }
        check(&pool, ty, &data, &x, cols, None, "special");
        let weight = PackedWeight::pack(&spec(ty, rows, cols), &data, &pool).unwrap();
        let y = product(Isa::detect(), &pool, &weight, &x, ActPrecision::Int8, None);
        for (token, y) in y.chunks_exact(rows).enumerate() {
            let poisoned = !x[token * cols..][..cols].iter().all(|x| x.is_finite());
            let spread = ty.is_quantized() || x[token * cols..][..cols].iter().any(|x| x.is_nan());
            if poisoned && spread {
                assert!(y.iter().all(|y| y.is_nan()), "{ty} token {token}");
            }
        }
    }
}

/// Every scale of MXFP4, the subnormal ones too, and products that overflow.
#[test]
fn every_power_of_two() {
    let mut rng = Rng(10);
    let (ty, pool) = (TensorType::Mxfp4, Pool::new(1));
    let mut data = random_weights(&mut rng, ty, 256, 32);
    for (row, block) in data.chunks_exact_mut(ty.block_bytes()).enumerate() {
        block[0] = row as u8;
    }
    let mut x = rng.floats(5 * 32);
    for (row, factor) in x.chunks_exact_mut(32).zip([1.0, 1e-30, 1e-36, 1e30, 3e38]) {
        row.iter_mut().for_each(|x| *x *= factor);
    }
    check(&pool, ty, &data, &x, 32, None, "power");
}

/// Scales that are infinite, NaN, subnormal or negative zero keep their meaning.
#[test]
fn special_scales() {
    let mut rng = Rng(5);
    let pool = Pool::new(1);
    for ty in TYPES.into_iter().filter(|&ty| !common::float_fields(ty).is_empty() && ty.is_quantized()) {
        let (rows, cols) = (16, 512);
        let mut data = random_weights(&mut rng, ty, rows, cols);
        let specials = [0x7c00u16, 0xfc00, 0x7e00, 0x0001, 0x8000, 0x7bff];
        let row_bytes = ty.row_bytes(cols).unwrap();
        for (row, bytes) in data.chunks_exact_mut(row_bytes).enumerate() {
            let at = common::float_fields(ty)[row % common::float_fields(ty).len()];
            bytes[at..at + 2].copy_from_slice(&specials[row / 2 % 6].to_le_bytes());
        }
        check(&pool, ty, &data, &rng.floats(3 * cols), cols, None, "scale");
    }
}

#[test]
fn rows_are_the_decoded_rows() {
    let mut rng = Rng(6);
    let pool = Pool::new(3);
    for ty in TYPES {
        for (rows, cols) in [(1, 256), (21, 512), (700, 768)] {
            let data = random_weights(&mut rng, ty, rows, cols);
            let weight = PackedWeight::pack(&spec(ty, rows, cols), &data, &pool).unwrap();
            assert_eq!((weight.rows(), weight.cols(), weight.ty()), (rows, cols, ty));
            assert_eq!(weight.bytes(), rows.next_multiple_of(8) * ty.row_bytes(cols).unwrap());
            let mut out = vec![0.0; cols];
            for (r, bytes) in data.chunks_exact(ty.row_bytes(cols).unwrap()).enumerate() {
                weight.row(r, &mut out).unwrap();
                assert_eq!(bits(&out), bits(&common::decode(ty, bytes, cols)), "{ty} row {r}");
            }
            assert!(matches!(weight.row(rows, &mut out), Err(BackendError::OutOfRange { .. })));
            assert!(matches!(weight.row(0, &mut out[1..]), Err(BackendError::BadBuffer(_))));
        }
    }
}

/// Close to the true dot product of decoded weights and dequantised activations, so that the reference isn't
/// wrong in the same way.
#[test]
fn close_to_the_truth() {
    let mut rng = Rng(7);
    let pool = Pool::new(1);
    for ty in TYPES {
        let (rows, cols) = (24, 1024);
        let mut data = Vec::new();
        minfer_gguf::encode_row(ty, &rng.floats(rows * cols), &mut data).unwrap();
        let x = rng.floats(cols);
        let weight = PackedWeight::pack(&spec(ty, rows, cols), &data, &pool).unwrap();
        for (act, planes) in PRECISIONS {
            let got = product(Isa::detect(), &pool, &weight, &x, act, None);
            let dequantised: Vec<f64> = common::quantize(&x, planes)
                .iter()
                .flat_map(|b| {
                    std::array::from_fn::<f64, 32, _>(|i| {
                        f64::from(b.q[i]) * f64::from(b.d) + f64::from(b.q2[i]) * f64::from(b.d2)
                    })
                })
                .collect();
            let plain: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let x = if ty.is_quantized() { &dequantised } else { &plain };
            for (r, bytes) in data.chunks_exact(ty.row_bytes(cols).unwrap()).enumerate() {
                let w = common::decode(ty, bytes, cols);
                let terms = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
                let size = terms().map(f64::abs).sum::<f64>();
                let error = (f64::from(got[r]) - terms().sum::<f64>()).abs() / size;
                assert!(error < 1e-6, "{ty} {act:?}: {error:e}");
            }
        }
    }
}

#[test]
fn several_weights_share_an_input() {
    let mut rng = Rng(8);
    let pool = Pool::new(3);
    let (tokens, cols) = (3, 256);
    let x = rng.floats(tokens * cols);
    let shapes = [
        (TensorType::Q5_0, 40),
        (TensorType::Q3K, 11),
        (TensorType::Iq4Xs, 24),
        (TensorType::Q6K, 9),
        (TensorType::F16, 8),
        (TensorType::Q8_0, 1),
    ];
    let data: Vec<_> = shapes.iter().map(|&(ty, n)| random_weights(&mut rng, ty, n, cols)).collect();
    let weights: Vec<_> = shapes
        .iter()
        .zip(&data)
        .map(|(&(ty, n), data)| PackedWeight::pack(&spec(ty, n, cols), data, &pool).unwrap())
        .collect();
    let mut acts = Activations::new();
    acts.quantize(Isa::detect(), &pool, &x, tokens, cols, ActPrecision::Int8).unwrap();
    let mut out: Vec<_> = shapes.iter().map(|&(_, n)| vec![f32::NAN; tokens * n]).collect();
    let jobs: Vec<_> = weights
        .iter()
        .zip(&mut out)
        .map(|(weight, out)| Job::new(weight, None, SharedMut::new(out)))
        .collect();
    let input = Input { x: &x, rows: tokens, cols, quant: Some(acts.rows()) };
    matmul_many(Isa::detect(), &pool, &input, &jobs).unwrap();
    for (((ty, _), data), out) in shapes.iter().zip(&data).zip(&out) {
        assert_eq!(bits(out), bits(&common::matmul(*ty, data, &x, cols, 1, None)), "{ty}");
    }
}

#[test]
fn mistakes_are_errors() {
    let pool = Pool::new(1);
    let isa = Isa::detect();
    let ty = TensorType::Q4_0;
    assert!(matches!(
        PackedWeight::pack(&spec(ty, 1, 33), &[0; 18], &pool),
        Err(BackendError::BadWeight { .. })
    ));
    assert!(matches!(
        PackedWeight::pack(&spec(ty, 2, 32), &[0; 18], &pool),
        Err(BackendError::BadWeight { .. })
    ));
    let huge = spec(ty, usize::MAX, 32);
    assert!(matches!(PackedWeight::pack(&huge, &[0; 18], &pool), Err(BackendError::BadWeight { .. })));
    let unknown = spec(TensorType::Nvfp4, 1, 64);
    assert!(!PackedWeight::supports(unknown.ty));
    assert!(matches!(PackedWeight::pack(&unknown, &[0; 18], &pool), Err(BackendError::Unsupported(_))));

    let weight = PackedWeight::pack(&spec(ty, 1, 32), &[0; 18], &pool).unwrap();
    let x = [1.0; 64];
    let mut acts = Activations::new();
    assert!(acts.quantize(isa, &pool, &x, 1, 33, ActPrecision::Int8).is_err());
    acts.quantize(isa, &pool, &x, 2, 32, ActPrecision::Int8).unwrap();
    let bad = |rows: usize, x: &[f32], quant, bias, out: &mut [f32]| {
        let input = Input { x, rows, cols: 32, quant };
        matches!(matmul(isa, &pool, &weight, &input, bias, out), Err(BackendError::BadBuffer(_)))
    };
    assert!(!bad(2, &x, Some(acts.rows()), None, &mut [0.0; 2]));
    assert!(bad(2, &x, None, None, &mut [0.0; 2]));
    assert!(bad(1, &x[..32], Some(acts.rows()), None, &mut [0.0; 1]));
    assert!(bad(2, &x[1..], Some(acts.rows()), None, &mut [0.0; 2]));
    assert!(bad(2, &x, Some(acts.rows()), None, &mut [0.0; 3]));
    assert!(bad(2, &x, Some(acts.rows()), Some(&x[..2]), &mut [0.0; 2]));

    let (mut out, input) = ([0.0; 2], Input { x: &x, rows: 2, cols: 32, quant: Some(acts.rows()) });
    let twice = [Job::new(&weight, None, SharedMut::new(&mut out)); 2];
    assert!(matches!(matmul_many(isa, &pool, &input, &twice), Err(BackendError::BadBuffer(_))));
}

#[test]
fn nothing_is_a_legal_size() {
    let pool = Pool::new(2);
    let isa = Isa::detect();
    for ty in TYPES {
        let weight = PackedWeight::pack(&spec(ty, 0, 256), &[], &pool).unwrap();
        assert!(product(isa, &pool, &weight, &[0.5; 256], ActPrecision::Int8, None).is_empty());
        let data = random_weights(&mut Rng(9), ty, 3, 256);
        let weight = PackedWeight::pack(&spec(ty, 3, 256), &data, &pool).unwrap();
        assert!(product(isa, &pool, &weight, &[], ActPrecision::Int16, None).is_empty());
    }
}
