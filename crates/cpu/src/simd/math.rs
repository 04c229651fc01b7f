//! Functions that every kernel shares: `exp`, `tanh`, `silu` and the 64-lane sums of the numeric contract.

use super::{Scalar, Simd};

/// `log2(e)`.
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// `-ln(2)` in two parts; the first has few enough bits that its product with any exponent is exact.
const NEG_LN2_HI: f32 = -0.693_359_4;
const NEG_LN2_LO: f32 = 2.121_944_4e-4;
/// Below this `exp` is 0. Down to here no result is subnormal.
const UNDERFLOW: f32 = -87.3;
/// Above this, the largest value below `128 ln 2`, `exp` is infinite.
const OVERFLOW: f32 = f32::from_bits(0x42b1_7217);

/// `e^x` in every lane: relative error below 2e-7, 0 for `x < -87.3`, infinite above 88.72, NaN for NaN.
///
/// `x = n ln 2 + r`, `|r| <= ln 2 / 2`; `e^r` is a polynomial of degree 7, and `n` is added to its exponent.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_lt(s.splat(OVERFLOW), x, s.splat(f32::INFINITY), exp_nonpositive(s, x))
}

/// [`exp`] where no `x` is above 88.72, as that of a score less its maximum.
#[inline(always)]
pub fn exp_nonpositive<S: Simd>(s: S, x: S::F) -> S::F {
    let (n, r, q) = reduce(s, x);
    let p = s.fma(q, r, s.splat(1.0));
    // The sum is a normal number wherever it is used. NaN has an `n` without low bits, which leaves it alone.
    let y = s.from_bits(s.add_i32(s.to_bits(p), s.shl_i32::<23>(n)));
    s.zero_where_lt(x, s.splat(UNDERFLOW), y)
}

/// `n`, `r` and `q` with `e^x = 2^n (1 + q r)`.
#[inline(always)]
fn reduce<S: Simd>(s: S, x: S::F) -> (S::I, S::F, S::F) {
    let n = s.round_ties_even(s.mul(x, s.splat(LOG2_E)));
    let r = s.fma(n, s.splat(NEG_LN2_LO), s.fma(n, s.splat(NEG_LN2_HI), x));
    let mut q = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
        q = s.fma(q, r, s.splat(c));
    }
    (s.to_i32(n), r, q)
}

/// `tanh(x)` in every lane: relative error below 3e-7, NaN for NaN, exactly odd.
///
/// With `t = e^(2|x|) - 1`, `tanh |x| = t / (t + 2)`. `t = 2^n q r + (2^n - 1)` loses nothing for small `x`.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // From 9.02 on the result rounds to 1.
    let a = s.min(s.splat(10.0), s.abs(x));
    let (n, r, q) = reduce(s, s.add(a, a));
    let scale = s.pow2(n);
    let t = s.fma(s.mul(q, r), scale, s.sub(scale, s.splat(1.0)));
    let y = s.div(t, s.add(t, s.splat(2.0)));
    let sign = s.and(s.to_bits(x), s.splat_i32(i32::MIN));
    s.from_bits(s.or(s.to_bits(y), sign))
}

/// [`tanh`] of one value, the same bits.
pub fn tanh_f32(x: f32) -> f32 {
    Scalar.to_array(tanh(Scalar, Scalar.splat(x)))[0]
}

/// [`exp`] of one value, the same bits.
pub fn exp_f32(x: f32) -> f32 {
    Scalar.to_array(exp(Scalar, Scalar.splat(x)))[0]
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// GELU in its tanh form, which is `x / (1 + exp(-2u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, of x rounded to
/// f16 and rounded to f16; 0 below -10, x above 10.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    const A: f32 = -1.595_769; // -2 sqrt(2 / pi)
    let h = s.round_f16(x);
    let inner = s.fma(s.mul(s.mul(h, h), s.splat(0.044_715)), h, h);
    let y = s.round_f16(s.div(h, s.add(s.splat(1.0), exp(s, s.mul(s.splat(A), inner)))));
    let y = s.select_lt(x, s.splat(-10.0), s.zero(), y);
    s.select_lt(s.splat(10.0), x, x, y)
}

/// Sum of 64 lanes by halves: `x[i] += x[i + 32]`, then 16, 8, 4, 2, 1.
#[inline(always)]
pub fn fold64<S: Simd>(s: S, mut x: [S::F; 8]) -> f32 {
    for half in [4, 2, 1] {
        for i in 0..half {
            x[i] = s.add(x[i], x[i + half]);
        }
    }
    s.fold_add(x[0])
}

/// Sum of squares of a row: lane `l` of 64 adds elements `l`, `l + 64`, ... by fma, then [`fold64`].
#[inline(always)]
pub fn sum_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = [s.zero(); 8];
    let chunks = x.chunks_exact(64);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (a, x) in acc.iter_mut().zip(chunk.chunks_exact(8)) {
            let v = s.load(x);
            *a = s.fma(v, v, *a);
        }
    }
    // Zeros add nothing: the sums are never negative zero.
    let mut tail = [0.0; 64];
    tail[..rest.len()].copy_from_slice(rest);
    if !rest.is_empty() {
        for (a, x) in acc.iter_mut().zip(tail.chunks_exact(8)) {
            let v = s.load(x);
            *a = s.fma(v, v, *a);
        }
    }
    fold64(s, acc)
}
