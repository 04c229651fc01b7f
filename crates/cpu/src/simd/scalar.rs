//! The plain implementation: the definition that the others are tested against.

use super::{Kernel, Simd, Sums, Two};
use half::f16;

/// Token of the plain implementation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

/// Eight floats.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct F8([f32; 8]);

/// 256 bits.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct I256([u8; 32]);

impl I256 {
    #[inline(always)]
    fn i16s(self) -> [i16; 16] {
        std::array::from_fn(|i| i16::from_le_bytes([self.0[2 * i], self.0[2 * i + 1]]))
    }

    #[inline(always)]
    fn i32s(self) -> [i32; 8] {
        std::array::from_fn(|i| {
            i32::from_le_bytes([self.0[4 * i], self.0[4 * i + 1], self.0[4 * i + 2], self.0[4 * i + 3]])
        })
    }

    #[inline(always)]
    fn from_i16s(x: [i16; 16]) -> Self {
        I256(std::array::from_fn(|i| x[i / 2].to_le_bytes()[i % 2]))
    }

    #[inline(always)]
    fn from_i32s(x: [i32; 8]) -> Self {
        I256(std::array::from_fn(|i| x[i / 4].to_le_bytes()[i % 4]))
    }

    #[inline(always)]
    fn map_i16(self, f: impl Fn(i16) -> i16) -> Self {
        Self::from_i16s(self.i16s().map(f))
    }

    #[inline(always)]
    fn map_i32(self, f: impl Fn(i32) -> i32) -> Self {
        Self::from_i32s(self.i32s().map(f))
    }

    #[inline(always)]
    fn zip_i32(self, other: Self, f: impl Fn(i32, i32) -> i32) -> Self {
        let (a, b) = (self.i32s(), other.i32s());
        Self::from_i32s(std::array::from_fn(|i| f(a[i], b[i])))
    }
}

impl F8 {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        F8(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        F8(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let x = self.0;
        let half: [f32; 4] = std::array::from_fn(|i| f(x[i], x[i + 4]));
        f(f(half[0], half[2]), f(half[1], half[3]))
    }
}

#[inline(always)]
fn to_i32(x: f32) -> i32 {
    let r = x.round_ties_even();
    // The comparison is false for NaN. 2^31 itself does not fit.
    if (-2147483648.0..2147483648.0).contains(&r) { r as i32 } else { i32::MIN }
}

impl Simd for Scalar {
    const WIDE: bool = false;
    const SLOW_STEPS: bool = false;
    type F = F8;
    type I = I256;
    type Acc = I256;
    type Rows16 = Two<Self>;

    #[inline(always)]
    fn rows16(self) -> Two<Self> {
        Two(self)
    }
    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> F8 {
        F8([x; 8])
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> F8 {
        let x = &x[..8];
        F8(std::array::from_fn(|i| x[i]))
    }
    #[inline(always)]
    fn store(self, v: F8, out: &mut [f32]) {
        out[..8].copy_from_slice(&v.0);
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16]) -> F8 {
        let x = &x[..8];
        F8(std::array::from_fn(|i| f16::from_bits(x[i]).to_f32_const()))
    }
    #[inline(always)]
    fn round_f16(self, v: F8) -> F8 {
        F8(v.0.map(|x| f16::from_f32_const(x).to_f32_const()))
    }
    #[inline(always)]
    fn store_f16(self, v: F8, out: &mut [u16]) {
        out[..8].copy_from_slice(&v.0.map(|x| f16::from_f32_const(x).to_bits()));
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16]) -> F8 {
        let x = &x[..8];
        F8(std::array::from_fn(|i| f32::from_bits(u32::from(x[i]) << 16)))
    }
    #[inline(always)]
    fn add(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F8, b: F8, c: F8) -> F8 {
        F8(std::array::from_fn(|i| a.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn max(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F8, b: F8) -> F8 {
        a.zip(b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn neg(self, a: F8) -> F8 {
        a.map(|x| -x)
    }
    #[inline(always)]
    fn abs(self, a: F8) -> F8 {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn round_ties_even(self, a: F8) -> F8 {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn select_lt(self, a: F8, b: F8, x: F8, y: F8) -> F8 {
        F8(std::array::from_fn(|i| if a.0[i] < b.0[i] { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    fn to_i32(self, a: F8) -> I256 {
        I256::from_i32s(a.0.map(to_i32))
    }
    #[inline(always)]
    fn from_i32(self, a: I256) -> F8 {
        F8(a.i32s().map(|x| x as f32))
    }
    #[inline(always)]
    fn to_bits(self, a: F8) -> I256 {
        I256::from_i32s(a.0.map(|x| x.to_bits().cast_signed()))
    }
    #[inline(always)]
    fn from_bits(self, a: I256) -> F8 {
        F8(a.i32s().map(|x| f32::from_bits(x.cast_unsigned())))
    }
    #[inline(always)]
    fn fold_add(self, a: F8) -> f32 {
        a.fold(|a, b| a + b)
    }
    #[inline(always)]
    fn fold_max(self, a: F8) -> f32 {
        a.fold(|a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8]) -> I256 {
        let x = &x[..32];
        I256(std::array::from_fn(|i| x[i]))
    }
    #[inline(always)]
    fn load_halves(self, low: &[u8], high: &[u8]) -> I256 {
        let (low, high) = (&low[..16], &high[..16]);
        I256(std::array::from_fn(|i| if i < 16 { low[i] } else { high[i - 16] }))
    }
    #[inline(always)]
    fn store_bytes(self, v: I256, out: &mut [u8]) {
        out[..32].copy_from_slice(&v.0);
    }
    #[inline(always)]
    fn splat_u8(self, x: u8) -> I256 {
        I256([x; 32])
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> I256 {
        I256::from_i32s([x; 8])
    }
    #[inline(always)]
    fn and(self, a: I256, b: I256) -> I256 {
        I256(std::array::from_fn(|i| a.0[i] & b.0[i]))
    }
    #[inline(always)]
    fn or(self, a: I256, b: I256) -> I256 {
        I256(std::array::from_fn(|i| a.0[i] | b.0[i]))
    }
    #[inline(always)]
    fn eq_u8(self, a: I256, b: I256) -> I256 {
        I256(std::array::from_fn(|i| if a.0[i] == b.0[i] { 0xff } else { 0 }))
    }
    #[inline(always)]
    fn transpose_i32(self, x: [I256; 8]) -> [I256; 8] {
        std::array::from_fn(|i| I256(std::array::from_fn(|b| x[b / 4].0[4 * i + b % 4])))
    }
    #[inline(always)]
    fn transpose_u8(self, a: I256) -> I256 {
        I256(std::array::from_fn(|b| a.0[4 * (b % 8) + b / 8]))
    }
    #[inline(always)]
    fn transpose_u16(self, a: I256) -> I256 {
        I256(std::array::from_fn(|b| a.0[4 * (b / 2 % 8) + 2 * (b / 16) + b % 2]))
    }
    #[inline(always)]
    fn lookup(self, table: I256, index: I256) -> I256 {
        I256(std::array::from_fn(|i| table.0[usize::from(index.0[i] & 15)]))
    }
    #[inline(always)]
    fn shl_i16<const N: i32>(self, a: I256) -> I256 {
        a.map_i16(|x| x << N)
    }
    #[inline(always)]
    fn shr_u16<const N: i32>(self, a: I256) -> I256 {
        a.map_i16(|x| (x.cast_unsigned() >> N).cast_signed())
    }
    #[inline(always)]
    fn shr_u16_by(self, a: I256, n: usize) -> I256 {
        a.map_i16(|x| (x.cast_unsigned() >> n).cast_signed())
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: I256) -> I256 {
        a.map_i32(|x| x << N)
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: I256) -> I256 {
        a.map_i32(|x| x >> N)
    }
    #[inline(always)]
    fn add_i32(self, a: I256, b: I256) -> I256 {
        a.zip_i32(b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i32(self, a: I256, b: I256) -> I256 {
        a.zip_i32(b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn max_i32(self, a: I256, b: I256) -> I256 {
        a.zip_i32(b, i32::max)
    }
    #[inline(always)]
    fn fold_max_i32(self, a: I256) -> i32 {
        a.i32s().into_iter().fold(i32::MIN, i32::max)
    }
    #[inline(always)]
    fn load_u8_i32(self, x: &[u8]) -> I256 {
        let x = &x[..8];
        I256::from_i32s(std::array::from_fn(|i| i32::from(x[i])))
    }
    #[inline(always)]
    fn load_i8_i32(self, x: &[u8]) -> I256 {
        let x = &x[..8];
        I256::from_i32s(std::array::from_fn(|i| i32::from(x[i].cast_signed())))
    }
    #[inline(always)]
    fn load_i8_pairs(self, x: &[u8]) -> I256 {
        let x = &x[..8];
        I256::from_i16s(std::array::from_fn(|i| i16::from(x[i / 2].cast_signed())))
    }
    #[inline(always)]
    fn sums(self, a: I256) -> Sums {
        let mut sums = [[0; 2]; 2];
        for (i, &byte) in a.0.iter().enumerate() {
            sums[i / 16][i / 2 % 2] += i32::from(byte.cast_signed());
        }
        Sums::of(sums)
    }
    #[inline(always)]
    fn pack_i8(self, x: [I256; 4]) -> I256 {
        let lanes = x.map(I256::i32s);
        I256(std::array::from_fn(|i| (lanes[i / 8][i % 8].clamp(-128, 127) as i8).cast_unsigned()))
    }
    #[inline(always)]
    fn acc_start(self, bias: i32) -> I256 {
        self.splat_i32(bias)
    }
    #[inline(always)]
    fn acc_step(self, acc: I256, w: I256, x: i32) -> I256 {
        let (a, x) = (acc.i16s(), x.to_le_bytes().map(|b| i32::from(b.cast_signed())));
        I256::from_i16s(std::array::from_fn(|i| {
            let pair =
                i32::from(w.0[2 * i]) * x[2 * (i % 2)] + i32::from(w.0[2 * i + 1]) * x[2 * (i % 2) + 1];
            a[i].wrapping_add(pair as i16)
        }))
    }
    #[inline(always)]
    fn acc_finish(self, acc: I256) -> I256 {
        let a = acc.i16s();
        I256::from_i32s(std::array::from_fn(|i| i32::from(a[2 * i]) + i32::from(a[2 * i + 1])))
    }
    #[inline(always)]
    fn acc_finish_scaled(self, acc: I256, scale: I256) -> I256 {
        let (a, s) = (acc.i16s(), scale.i16s());
        let product = |i: usize| i32::from(a[i]) * i32::from(s[i]);
        I256::from_i32s(std::array::from_fn(|i| product(2 * i).wrapping_add(product(2 * i + 1))))
    }
    #[inline(always)]
    fn signed_start(self, _total16: i32) -> I256 {
        self.splat_i32(0)
    }
    #[inline(always)]
    fn signed_step(self, sum: I256, w: I256, x: i32) -> I256 {
        let (sum, x) = (sum.i32s(), x.to_le_bytes().map(|b| i32::from(b.cast_signed())));
        I256::from_i32s(std::array::from_fn(|i| {
            (0..4).fold(sum[i], |s, j| s.wrapping_add(i32::from(w.0[4 * i + j].cast_signed()) * x[j]))
        }))
    }
    #[inline(always)]
    fn dot_pairs(self, a: i32, b: I256) -> I256 {
        self.acc_finish_scaled(self.splat_i32(a), b)
    }
    #[inline(always)]
    fn prefetch<T>(self, _at: *const T) {}
}
