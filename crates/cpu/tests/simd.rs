//! Every instruction set gives the bits of the scalar one, and `exp` is as accurate as promised.

use minfer_cpu::simd::{self, Isa, Rows16, Scalar, Simd, Sums};
use minfer_cpu::{dispatch, dispatch_products};

/// Bits with every NaN alike.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Any bits half of the time, else moderate numbers, with special values in between.
    fn float(&mut self) -> f32 {
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.5, 2.5, -1.5, 2147483648.0, 1e-40];
        match self.next() % 16 {
            0 => special[(self.next() % 10) as usize],
            1..8 => f32::from_bits((self.next() >> 32) as u32),
            _ => (self.next() >> 40) as f32 / 65536.0 - 128.0,
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| (self.next() >> 56) as u8)
    }
}

/// Results of every method on the same operands.
#[inline(always)]
fn floats<S: Simd>(s: S, x: &[[f32; 8]; 3], half: &[u16; 8]) -> Vec<u32> {
    let [a, b, c] = x.map(|x| s.from_array(x));
    let f = [
        s.add(a, b),
        s.sub(a, b),
        s.mul(a, b),
        s.div(a, b),
        s.fma(a, b, c),
        s.max(a, b),
        s.min(a, b),
        s.neg(a),
        s.abs(a),
        s.round_ties_even(a),
        s.select_lt(a, b, c, a),
        s.from_i32(s.to_i32(a)),
        s.load_f16(half),
        s.load_bf16(half),
        s.splat(x[0][0]),
        simd::exp(s, a),
        simd::tanh(s, a),
        simd::silu(s, a),
        simd::gelu(s, a),
        s.round_f16(a),
    ];
    let mut out: Vec<u32> = f.iter().flat_map(|&v| bits(&s.to_array(v))).collect();
    let mut h = [0; 8];
    s.store_f16(a, &mut h);
    out.extend(h.map(|h| if h & 0x7fff > 0x7c00 { 0x7e00 } else { u32::from(h) }));
    out.extend(bits(&[
        s.fold_add(a),
        s.fold_max(s.select_lt(a, a, a, s.zero())),
        simd::fold64(s, [a, b, c, a, b, c, a, b]),
        simd::sum_squares(s, x.as_flattened()),
    ]));
    out
}

/// 16 times the sum of four activations.
fn total16(q: i32) -> i32 {
    q.to_le_bytes().iter().map(|&b| 16 * i32::from(b.cast_signed())).sum()
}

#[inline(always)]
fn ints<S: Simd>(s: S, a: &[u8; 32], b: &[u8; 32], q: i32) -> Vec<u8> {
    let (x, y) = (s.load_bytes(a), s.load_bytes(b));
    let low = s.and(x, s.splat_u8(0x7f));
    // The contract of the products: sums of pairs fit i16, with what they start from.
    let start = i32::from_le_bytes({
        let [a, b] = [(q << 16) >> 18, q >> 18].map(|x| (x as i16).to_le_bytes());
        [a[0], a[1], b[0], b[1]]
    });
    let acc = s.acc_start(start);
    let acc = s.acc_step(acc, s.and(x, s.splat_u8(63)), q);
    let acc = s.acc_step(acc, s.and(y, s.splat_u8(31)), q);
    let lanes = [x, y, s.shr_i32::<23>(x), s.shr_i32::<25>(y)];
    let v = [
        x,
        s.and(x, y),
        s.lookup(s.load_bytes(&[&a[..16], &a[..16]].concat()), s.and(y, s.splat_u8(15))),
        s.or(x, y),
        s.eq_u8(s.and(x, s.splat_u8(3)), s.and(y, s.splat_u8(3))),
        s.load_halves(&a[5..], &b[16..]),
        s.transpose_u8(x),
        s.transpose_u16(x),
        s.shr_u16_by(x, usize::from(b[0] & 15)),
        s.shl_i16::<3>(x),
        s.shr_u16::<5>(x),
        s.shl_i32::<7>(x),
        s.shr_i32::<7>(x),
        s.add_i32(x, y),
        s.sub_i32(x, y),
        s.max_i32(x, y),
        s.splat_i32(s.fold_max_i32(x)),
        s.load_u8_i32(a),
        s.load_i8_i32(a),
        s.load_i8_pairs(a),
        s.pack_i8(lanes),
        s.acc_finish(acc),
        s.acc_finish_scaled(acc, s.load_i8_pairs(b)),
        s.signed_step(
            s.signed_step(s.signed_start(total16(q) + total16(!q & 0x0f0f_0f0f)), x, q),
            y,
            !q & 0x0f0f_0f0f,
        ),
        s.dot_pairs(q, y),
        s.to_bits(s.pow2(s.shr_i32::<25>(x))),
        s.to_bits(s.from_bits(x)),
    ];
    let Sums { starts, halves, total } = s.sums(x);
    let sums = starts.into_iter().chain([halves, total]).flat_map(i32::to_le_bytes);
    let rows = s.transpose_i32([x, y, lanes[2], lanes[3], low, v[1], v[2], v[3]]);
    let mut out = vec![0; 32 * (v.len() + rows.len())];
    for (v, out) in v.iter().chain(&rows).zip(out.chunks_exact_mut(32)) {
        s.store_bytes(*v, out);
    }
    out.extend(sums);
    out
}

/// Results of every method for two vectors at once.
#[inline(always)]
fn pairs<S: Rows16>(s: S, x: &[[f32; 8]; 6], bytes: &[[u8; 32]; 4], q: i32) -> Vec<u32> {
    let [a, b, c] = [0, 2, 4].map(|i| s.load(&[x[i], x[i + 1]]));
    let (w, y) = (s.load_bytes(&[bytes[0], bytes[1]]), s.load_bytes(&[bytes[2], bytes[3]]));
    // The contract of the products: small weights.
    let (v, z) = ([bytes[0].map(|b| b & 63), bytes[1].map(|b| b & 63)], bytes[2].map(|b| b & 31));
    let acc = s.acc_start((q << 16) >> 18 & 0xffff | (q >> 18) << 16);
    let acc = s.acc_step(s.acc_step(acc, s.load_bytes(&v), q), s.load_bytes(&[z, z]), q);
    let scales = bytes[3].map(|b| b & 31);
    let scales = [scales, scales].map(|x| std::array::from_fn(|i| if i % 2 == 0 { x[i / 4] } else { 0 }));
    let sum = s.signed_step(s.signed_step(s.signed_start(2 * total16(q)), w, q), y, q);
    let ints = [
        w,
        s.splat_i32(q),
        s.add_i32(w, y),
        s.shr3_i32(w),
        s.acc_finish(acc),
        s.acc_finish_scaled(acc, s.load_bytes(&scales)),
        sum,
        s.dot_pairs(q, w),
    ];
    let floats = [a, s.splat(x[0][0]), s.add(a, b), s.mul(a, b), s.fma(a, b, c)];
    let mut out = Vec::new();
    for v in floats.into_iter().chain(ints.map(|v| s.from_i32(v))) {
        let mut lanes = [[0.0; 8]; 2];
        s.store(v, &mut lanes);
        out.extend(bits(lanes.as_flattened()));
    }
    out
}

/// Compares the instruction sets on random operands.
fn compare(rounds: usize) {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    for _ in 0..rounds {
        let x: [[f32; 8]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| rng.float()));
        let half = std::array::from_fn(|_| (rng.next() >> 48) as u16);
        let (a, b) = (rng.bytes(), rng.bytes());
        let q = i32::from_le_bytes(rng.bytes::<4>().map(|b| if b == 0x80 { 0x81 } else { b }));
        let y: [[f32; 8]; 6] = std::array::from_fn(|_| std::array::from_fn(|_| rng.float()));
        let c: [[u8; 32]; 4] = std::array::from_fn(|_| rng.bytes());
        let pair = pairs(Scalar.rows16(), &y, &c, q);
        let want = (floats(Scalar, &x, &half), ints(Scalar, &a, &b, q));
        for isa in Isa::available() {
            let got =
                dispatch_products!(isa, s => s.vectorize(|| (floats(s, &x, &half), ints(s, &a, &b, q))));
            assert_eq!(got.0, want.0, "{isa} {x:?}");
            assert_eq!(got.1, want.1, "{isa} {a:?} {b:?}");
            let got = dispatch_products!(isa, s => s.vectorize(|| pairs(s.rows16(), &y, &c, q)));
            assert_eq!(got, pair, "{isa} {y:?} {c:?} {q}");
        }
    }
}

#[test]
fn instruction_sets_agree() {
    compare(20_000);
}

/// A part of the above, for emulators.
#[test]
fn instruction_sets_agree_quickly() {
    compare(500);
}

#[test]
fn extreme_products_are_exact() {
    for isa in Isa::available() {
        for w in [0u8, 0x7f, 0x80, 0xff] {
            for q in [-127i8, 127] {
                let x = i32::from_le_bytes([q.cast_unsigned(); 4]);
                let got = dispatch_products!(isa, s => {
                    let mut out = [0; 32];
                    s.store_bytes(s.signed_step(s.signed_start(total16(x)), s.splat_u8(w), x), &mut out);
                    out
                });
                let want = 4 * i32::from(w.cast_signed()) * i32::from(q);
                assert_eq!(got[..4], want.to_le_bytes(), "{isa} {w} {q}");
            }
        }
    }
}

#[test]
fn half_precision_is_complete() {
    for isa in Isa::available() {
        for first in (0..=u16::MAX).step_by(8) {
            let h: [u16; 8] = std::array::from_fn(|i| first + i as u16);
            let (wide, back) = dispatch_products!(isa, s => {
                let v = s.load_f16(&h);
                let mut back = [0; 8];
                s.store_f16(v, &mut back);
                (s.to_array(v), back)
            });
            for i in 0..8 {
                let want = half::f16::from_bits(h[i]);
                assert!(wide[i] == want.to_f32() || want.is_nan() && wide[i].is_nan(), "{isa} {:x}", h[i]);
                assert!(back[i] == h[i] || want.is_nan(), "{isa} {:x}", h[i]);
            }
        }
    }
}

/// Every 61st float of the range where `exp` is neither 0 nor infinite, against f64.
#[test]
fn exp_is_accurate() {
    let isa = Isa::detect();
    let mut worst = 0.0f64;
    let mut check = |x: &[f32; 8]| {
        let y = dispatch!(isa, s => s.vectorize(|| s.to_array(simd::exp(s, s.load(x)))));
        for (&x, y) in x.iter().zip(y) {
            let want = f64::from(x).exp();
            if x < -87.3 {
                assert_eq!(y.to_bits(), 0, "{x}");
            } else if want > f64::from(f32::MAX) {
                assert!(y == f32::INFINITY || want < f64::from(f32::MAX) * 1.0001, "{x} {y}");
            } else if y.is_finite() {
                worst = worst.max((f64::from(y) / want - 1.0).abs());
            } else {
                assert!(want > f64::from(f32::MAX) * 0.9999, "{x} {y}");
            }
        }
    };
    for sign in [0, 0x8000_0000u32] {
        for bits in (0..100f32.to_bits()).step_by(61 * 8) {
            check(&std::array::from_fn(|i| f32::from_bits(sign | (bits + 61 * i as u32))));
        }
    }
    check(&[-87.3, -87.29999, -87.30001, 88.7, 88.72, 88.73, 1e30, -1e30]);
    assert!(worst < 2e-7, "{worst:e}");
    assert!(simd::exp_f32(f32::NAN).is_nan());
    assert_eq!(simd::exp_f32(f32::NEG_INFINITY), 0.0);
    assert_eq!(simd::exp_f32(f32::INFINITY), f32::INFINITY);
    assert_eq!(simd::exp_f32(0.0), 1.0);
}

/// Every 61st float, against f64.
#[test]
fn tanh_is_accurate() {
    let isa = Isa::detect();
    let mut worst = 0.0f64;
    for bits in (0..f32::INFINITY.to_bits() - 61 * 8).step_by(61 * 8) {
        let x: [f32; 8] = std::array::from_fn(|i| f32::from_bits(bits + 61 * i as u32));
        let y = dispatch!(isa, s => s.vectorize(|| s.to_array(simd::tanh(s, s.load(&x)))));
        for (&x, y) in x.iter().zip(y) {
            assert_eq!(simd::tanh_f32(-x).to_bits(), (-y).to_bits(), "{x}");
            if x >= f32::MIN_POSITIVE {
                worst = worst.max((f64::from(y) / f64::from(x).tanh() - 1.0).abs());
            }
        }
    }
    assert!(worst < 3e-7, "{worst:e}");
    for (x, y) in [(0.0, 0.0), (1e-42, 1e-42), (9.1, 1.0), (1e30, 1.0), (f32::INFINITY, 1.0)] {
        assert_eq!(simd::tanh_f32(x), y, "{x}");
    }
    assert!(simd::tanh_f32(f32::NAN).is_nan());
}

#[test]
fn names_round_trip() {
    for isa in Isa::available() {
        assert_eq!(Isa::from_name(isa.name()), Some(isa));
    }
    assert_eq!(Isa::from_name("nonsense"), None);
}
