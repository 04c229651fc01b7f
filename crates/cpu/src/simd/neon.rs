//! Pairs of 128-bit vectors on 64-bit Arm: NEON with the dot product of bytes.
//!
//! The codes of all formats are at most 127, so that `sdot`, which multiplies signed bytes, serves for both kinds of
//! products; `usdot` of the i8mm extension would do no more.

use super::{Kernel, Simd, Sums, Two};
use std::arch::aarch64::{
    float32x4_t, int16x8_t, int32x4_t, uint8x16_t, uint8x16x2_t, vabsq_f32, vadd_f32, vadd_s16, vaddq_f32,
    vaddq_s32, vandq_u8, vbslq_f32, vbslq_s32, vceqq_u8, vcgtq_f32, vcltq_f32, vcombine_s8, vcombine_s16,
    vcvt_f16_f32, vcvt_f32_f16, vcvtnq_s32_f32, vcvtq_f32_s32, vdivq_f32, vdupq_laneq_f32, vdupq_n_f32,
    vdupq_n_s16, vdupq_n_s32, vdupq_n_u8, vext_s16, vextq_f32, vfmaq_f32, vget_high_f32, vget_high_s16,
    vget_high_u16, vget_lane_f32, vget_lane_s16, vget_low_f32, vget_low_s16, vget_low_u16, vgetq_lane_f32,
    vld1_u8, vld1_u16, vld1q_f32, vld1q_u8, vmaxq_s32, vmaxvq_s32, vmovl_s8, vmovl_s16, vmovl_u8, vmovl_u16,
    vmull_s16, vmulq_f32, vmulq_s32, vnegq_f32, vorrq_u8, vpaddlq_s8, vpaddq_s32, vqmovn_s16, vqmovn_s32,
    vqtbl1q_u8, vqtbl2q_u8, vreinterpret_f16_u16, vreinterpret_s8_u8, vreinterpret_u16_f16,
    vreinterpretq_f32_u8, vreinterpretq_f32_u32, vreinterpretq_s8_u8, vreinterpretq_s16_s32,
    vreinterpretq_s16_u8, vreinterpretq_s32_u8, vreinterpretq_u8_f32, vreinterpretq_u8_s8,
    vreinterpretq_u8_s16, vreinterpretq_u8_s32, vreinterpretq_u8_u16, vreinterpretq_u8_u32,
    vreinterpretq_u8_u64, vreinterpretq_u16_u8, vreinterpretq_u32_u8, vreinterpretq_u64_u32, vrndnq_f32,
    vshlq_n_s32, vshlq_n_u16, vshlq_n_u32, vshlq_u16, vshrq_n_s32, vshrq_n_u16, vst1_u16, vst1q_f32,
    vst1q_u8, vsubq_f32, vsubq_s32, vtrn1q_u32, vtrn1q_u64, vtrn2q_u32, vtrn2q_u64, vzip1q_s16, vzip2q_s16,
};
use std::arch::asm;

/// Token of NEON with `sdot`.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The token, if the processor has `sdot`.
    pub fn detect() -> Option<Neon> {
        let found = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        found.then_some(Neon(()))
    }
}

/// Calls intrinsics that touch no memory.
macro_rules! neon {
    ($e:expr) => {
        // SAFETY: a `Neon` exists only after `detect` saw the features, and the intrinsic has no other
        // requirement.
        unsafe { $e }
    };
}

/// An intrinsic on both halves of its arguments.
macro_rules! each {
    ($f:ident($($x:ident),+)) => {
        neon!([$f($($x[0]),+), $f($($x[1]),+)])
    };
}

/// The same for bytes seen as lanes of another type.
macro_rules! lanes {
    ($to:ident, $from:ident, $f:expr, $($x:ident),+) => {
        neon!([$from($f($($to($x[0])),+)), $from($f($($to($x[1])),+))])
    };
}

/// Both halves at a pointer.
macro_rules! at {
    ($load:ident, $p:expr, $n:expr) => {
        [$load($p), $load($p.add($n))]
    };
}

impl Simd for Neon {
    const WIDE: bool = true;
    const SLOW_STEPS: bool = true;
    type F = [float32x4_t; 2];
    type I = [uint8x16_t; 2];
    type Acc = [int32x4_t; 2];
    type Rows16 = Two<Self>;

    #[inline(always)]
    fn rows16(self) -> Two<Self> {
        Two(self)
    }
    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline]
        #[target_feature(enable = "neon,dotprod")]
        fn inner<K: Kernel>(s: Neon, kernel: K) -> K::Output {
            kernel.run(s)
        }
        neon!(inner(self, kernel))
    }
    #[inline(always)]
    fn splat(self, x: f32) -> [float32x4_t; 2] {
        neon!([vdupq_n_f32(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> [float32x4_t; 2] {
        let x = &x[..8];
        // SAFETY: the features are there (see `neon!`) and 8 elements are in bounds.
        unsafe { at!(vld1q_f32, x.as_ptr(), 4) }
    }
    #[inline(always)]
    fn store(self, v: [float32x4_t; 2], out: &mut [f32]) {
        let out = &mut out[..8];
        // SAFETY: as in `load`.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), v[0]);
            vst1q_f32(out.as_mut_ptr().add(4), v[1]);
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16]) -> [float32x4_t; 2] {
        let x = &x[..8];
        // SAFETY: as in `load`.
        let h = unsafe { at!(vld1_u16, x.as_ptr(), 4) };
        neon!([vcvt_f32_f16(vreinterpret_f16_u16(h[0])), vcvt_f32_f16(vreinterpret_f16_u16(h[1]))])
    }
    #[inline(always)]
    fn round_f16(self, v: [float32x4_t; 2]) -> [float32x4_t; 2] {
        neon!([vcvt_f32_f16(vcvt_f16_f32(v[0])), vcvt_f32_f16(vcvt_f16_f32(v[1]))])
    }
    #[inline(always)]
    fn store_f16(self, v: [float32x4_t; 2], out: &mut [u16]) {
        let out = &mut out[..8];
        // SAFETY: as in `load`.
        unsafe {
            vst1_u16(out.as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(v[0])));
            vst1_u16(out.as_mut_ptr().add(4), vreinterpret_u16_f16(vcvt_f16_f32(v[1])));
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16]) -> [float32x4_t; 2] {
        let x = &x[..8];
        // SAFETY: as in `load`.
        let h = unsafe { at!(vld1_u16, x.as_ptr(), 4) };
        neon!([
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(h[0]))),
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(h[1]))),
        ])
    }
    #[inline(always)]
    fn add(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: [float32x4_t; 2], b: [float32x4_t; 2], c: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(larger(a, b))
    }
    #[inline(always)]
    fn min(self, a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        self.select_lt(a, b, a, b)
    }
    #[inline(always)]
    fn neg(self, a: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vnegq_f32(a))
    }
    #[inline(always)]
    fn abs(self, a: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vabsq_f32(a))
    }
    #[inline(always)]
    fn round_ties_even(self, a: [float32x4_t; 2]) -> [float32x4_t; 2] {
        each!(vrndnq_f32(a))
    }
    #[inline(always)]
    fn select_lt(
        self,
        a: [float32x4_t; 2],
        b: [float32x4_t; 2],
        x: [float32x4_t; 2],
        y: [float32x4_t; 2],
    ) -> [float32x4_t; 2] {
        let less = each!(vcltq_f32(a, b));
        each!(vbslq_f32(less, x, y))
    }
    #[inline(always)]
    fn to_i32(self, a: [float32x4_t; 2]) -> [uint8x16_t; 2] {
        // Conversion makes 0 of NaN and the largest number of what is too large.
        let (most, none) = (self.splat(2_147_483_648.0), neon!([vdupq_n_s32(i32::MIN); 2]));
        let (fits, n) = (each!(vcltq_f32(a, most)), each!(vcvtnq_s32_f32(a)));
        let n = each!(vbslq_s32(fits, n, none));
        each!(vreinterpretq_u8_s32(n))
    }
    #[inline(always)]
    fn from_i32(self, a: [uint8x16_t; 2]) -> [float32x4_t; 2] {
        let n = each!(vreinterpretq_s32_u8(a));
        each!(vcvtq_f32_s32(n))
    }
    #[inline(always)]
    fn to_bits(self, a: [float32x4_t; 2]) -> [uint8x16_t; 2] {
        each!(vreinterpretq_u8_f32(a))
    }
    #[inline(always)]
    fn from_bits(self, a: [uint8x16_t; 2]) -> [float32x4_t; 2] {
        each!(vreinterpretq_f32_u8(a))
    }
    #[inline(always)]
    fn fold_add(self, a: [float32x4_t; 2]) -> f32 {
        neon!({
            let x = vaddq_f32(a[0], a[1]);
            let x = vadd_f32(vget_low_f32(x), vget_high_f32(x));
            vget_lane_f32::<0>(x) + vget_lane_f32::<1>(x)
        })
    }
    #[inline(always)]
    fn fold_max(self, a: [float32x4_t; 2]) -> f32 {
        neon!({
            let x = larger(a[0], a[1]);
            // The upper half on the lower one, then lane 1 on lane 0.
            let x = larger(x, vextq_f32::<2>(x, x));
            vgetq_lane_f32::<0>(larger(x, vdupq_laneq_f32::<1>(x)))
        })
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8]) -> [uint8x16_t; 2] {
        let x = &x[..32];
        // SAFETY: the features are there and 32 bytes are in bounds.
        unsafe { at!(vld1q_u8, x.as_ptr(), 16) }
    }
    #[inline(always)]
    fn load_halves(self, low: &[u8], high: &[u8]) -> [uint8x16_t; 2] {
        let (low, high) = (&low[..16], &high[..16]);
        // SAFETY: as in `load_bytes`, with 16 bytes of each.
        unsafe { [vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())] }
    }
    #[inline(always)]
    fn store_bytes(self, v: [uint8x16_t; 2], out: &mut [u8]) {
        let out = &mut out[..32];
        // SAFETY: as in `load_bytes`.
        unsafe {
            vst1q_u8(out.as_mut_ptr(), v[0]);
            vst1q_u8(out.as_mut_ptr().add(16), v[1]);
        }
    }
    #[inline(always)]
    fn splat_u8(self, x: u8) -> [uint8x16_t; 2] {
        neon!([vdupq_n_u8(x); 2])
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> [uint8x16_t; 2] {
        neon!([vreinterpretq_u8_s32(vdupq_n_s32(x)); 2])
    }
    #[inline(always)]
    fn and(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        each!(vandq_u8(a, b))
    }
    #[inline(always)]
    fn or(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        each!(vorrq_u8(a, b))
    }
    #[inline(always)]
    fn eq_u8(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        each!(vceqq_u8(a, b))
    }
    #[inline(always)]
    fn transpose_i32(self, x: [[uint8x16_t; 2]; 8]) -> [[uint8x16_t; 2]; 8] {
        neon!({
            let a = transpose_quarter([x[0][0], x[1][0], x[2][0], x[3][0]]);
            let b = transpose_quarter([x[4][0], x[5][0], x[6][0], x[7][0]]);
            let c = transpose_quarter([x[0][1], x[1][1], x[2][1], x[3][1]]);
            let d = transpose_quarter([x[4][1], x[5][1], x[6][1], x[7][1]]);
            [
                [a[0], b[0]],
                [a[1], b[1]],
                [a[2], b[2]],
                [a[3], b[3]],
                [c[0], d[0]],
                [c[1], d[1]],
                [c[2], d[2]],
                [c[3], d[3]],
            ]
        })
    }
    #[inline(always)]
    fn transpose_u8(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        pick(self, a, &BYTES)
    }
    #[inline(always)]
    fn transpose_u16(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        pick(self, a, &WORDS)
    }
    #[inline(always)]
    fn lookup(self, table: [uint8x16_t; 2], index: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        each!(vqtbl1q_u8(table, index))
    }
    #[inline(always)]
    fn shl_i16<const N: i32>(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_u16_u8, vreinterpretq_u8_u16, vshlq_n_u16::<N>, a)
    }
    #[inline(always)]
    fn shr_u16<const N: i32>(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_u16_u8, vreinterpretq_u8_u16, vshrq_n_u16::<N>, a)
    }
    #[inline(always)]
    fn shr_u16_by(self, a: [uint8x16_t; 2], n: usize) -> [uint8x16_t; 2] {
        // A shift to the left by a negative number.
        let by = neon!([vdupq_n_s16(-(n as i16)); 2]);
        let a = each!(vreinterpretq_u16_u8(a));
        let a = each!(vshlq_u16(a, by));
        each!(vreinterpretq_u8_u16(a))
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_s32_u8, vreinterpretq_u8_s32, vshlq_n_s32::<N>, a)
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_s32_u8, vreinterpretq_u8_s32, vshrq_n_s32::<N>, a)
    }
    #[inline(always)]
    fn add_i32(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_s32_u8, vreinterpretq_u8_s32, vaddq_s32, a, b)
    }
    #[inline(always)]
    fn sub_i32(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_s32_u8, vreinterpretq_u8_s32, vsubq_s32, a, b)
    }
    #[inline(always)]
    fn max_i32(self, a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        lanes!(vreinterpretq_s32_u8, vreinterpretq_u8_s32, vmaxq_s32, a, b)
    }
    #[inline(always)]
    fn fold_max_i32(self, a: [uint8x16_t; 2]) -> i32 {
        neon!(vmaxvq_s32(vmaxq_s32(vreinterpretq_s32_u8(a[0]), vreinterpretq_s32_u8(a[1]))))
    }
    #[inline(always)]
    fn load_u8_i32(self, x: &[u8]) -> [uint8x16_t; 2] {
        let x = &x[..8];
        // SAFETY: the features are there and 8 bytes are in bounds.
        let x = unsafe { vmovl_u8(vld1_u8(x.as_ptr())) };
        neon!([
            vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(x))),
            vreinterpretq_u8_u32(vmovl_u16(vget_high_u16(x))),
        ])
    }
    #[inline(always)]
    fn load_i8_i32(self, x: &[u8]) -> [uint8x16_t; 2] {
        let x = load_i8(self, x);
        neon!([
            vreinterpretq_u8_s32(vmovl_s16(vget_low_s16(x))),
            vreinterpretq_u8_s32(vmovl_s16(vget_high_s16(x))),
        ])
    }
    #[inline(always)]
    fn load_i8_pairs(self, x: &[u8]) -> [uint8x16_t; 2] {
        let x = load_i8(self, x);
        neon!([vreinterpretq_u8_s16(vzip1q_s16(x, x)), vreinterpretq_u8_s16(vzip2q_s16(x, x))])
    }
    #[inline(always)]
    fn sums(self, a: [uint8x16_t; 2]) -> Sums {
        Sums::of(neon!([pair_sums(a[0]), pair_sums(a[1])]))
    }
    #[inline(always)]
    fn pack_i8(self, x: [[uint8x16_t; 2]; 4]) -> [uint8x16_t; 2] {
        neon!([pack_two(x[0], x[1]), pack_two(x[2], x[3])])
    }
    #[inline(always)]
    fn acc_start(self, bias: i32) -> [int32x4_t; 2] {
        // Both lanes of a row are one here.
        neon!([vdupq_n_s32(i32::from(bias as i16) + (bias >> 16)); 2])
    }
    #[inline(always)]
    fn acc_step(self, acc: [int32x4_t; 2], w: [uint8x16_t; 2], x: i32) -> [int32x4_t; 2] {
        neon!({
            let x = vdupq_n_s32(x);
            [sdot(acc[0], w[0], x), sdot(acc[1], w[1], x)]
        })
    }
    #[inline(always)]
    fn acc_finish(self, acc: [int32x4_t; 2]) -> [uint8x16_t; 2] {
        each!(vreinterpretq_u8_s32(acc))
    }
    #[inline(always)]
    fn acc_finish_scaled(self, acc: [int32x4_t; 2], scale: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // A sum of 16 products has up to 17 bits, one too many for a product of 16-bit lanes.
        let scale = self.shr_i32::<16>(scale);
        let scale = each!(vreinterpretq_s32_u8(scale));
        let product = each!(vmulq_s32(acc, scale));
        each!(vreinterpretq_u8_s32(product))
    }
    #[inline(always)]
    fn signed_start(self, _total16: i32) -> [uint8x16_t; 2] {
        self.splat_i32(0)
    }
    #[inline(always)]
    fn signed_step(self, sum: [uint8x16_t; 2], w: [uint8x16_t; 2], x: i32) -> [uint8x16_t; 2] {
        let sum = each!(vreinterpretq_s32_u8(sum));
        let sum = self.acc_step(sum, w, x);
        each!(vreinterpretq_u8_s32(sum))
    }
    #[inline(always)]
    fn dot_pairs(self, a: i32, b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        neon!({
            let a = vreinterpretq_s16_s32(vdupq_n_s32(a));
            [pair_products(a, b[0]), pair_products(a, b[1])]
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch reads nothing that the program can see and faults on no address.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, readonly, preserves_flags)) }
    }
}

/// Lane-wise `a > b ? a : b`.
#[inline]
#[target_feature(enable = "neon")]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// `acc` plus the products of four signed bytes of `w` and of `x`, in each lane. As text, because the intrinsic is not
/// stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, w: uint8x16_t, x: int32x4_t) -> int32x4_t {
    // SAFETY: registers alone are read and written.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// The sum of the first two of each four signed bytes, and that of the other two.
#[inline]
#[target_feature(enable = "neon")]
fn pair_sums(x: uint8x16_t) -> [i32; 2] {
    let x = vpaddlq_s8(vreinterpretq_s8_u8(x));
    let x = vadd_s16(vget_low_s16(x), vget_high_s16(x));
    let x = vadd_s16(x, vext_s16::<2>(x, x));
    [i32::from(vget_lane_s16::<0>(x)), i32::from(vget_lane_s16::<1>(x))]
}

/// For each row the sum of the products of its two i16.
#[inline]
#[target_feature(enable = "neon")]
fn pair_products(a: int16x8_t, b: uint8x16_t) -> uint8x16_t {
    let b = vreinterpretq_s16_u8(b);
    let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    let high = vmull_s16(vget_high_s16(a), vget_high_s16(b));
    vreinterpretq_u8_s32(vpaddq_s32(low, high))
}

/// Two vectors of i32 lanes as 16 signed bytes; saturates.
#[inline]
#[target_feature(enable = "neon")]
fn pack_two(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> uint8x16_t {
    let (a0, a1) = (vqmovn_s32(vreinterpretq_s32_u8(a[0])), vqmovn_s32(vreinterpretq_s32_u8(a[1])));
    let (b0, b1) = (vqmovn_s32(vreinterpretq_s32_u8(b[0])), vqmovn_s32(vreinterpretq_s32_u8(b[1])));
    let (a, b) = (vqmovn_s16(vcombine_s16(a0, a1)), vqmovn_s16(vcombine_s16(b0, b1)));
    vreinterpretq_u8_s8(vcombine_s8(a, b))
}

/// The first 8 signed bytes as i16.
#[inline(always)]
fn load_i8(_s: Neon, x: &[u8]) -> int16x8_t {
    let x = &x[..8];
    // SAFETY: the features are there and 8 bytes are in bounds.
    unsafe { vmovl_s8(vreinterpret_s8_u8(vld1_u8(x.as_ptr()))) }
}

/// Four vectors transposed as 32-bit lanes.
#[inline]
#[target_feature(enable = "neon")]
fn transpose_quarter(x: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    let (x0, x1) = (vreinterpretq_u32_u8(x[0]), vreinterpretq_u32_u8(x[1]));
    let (x2, x3) = (vreinterpretq_u32_u8(x[2]), vreinterpretq_u32_u8(x[3]));
    // Pairs of lanes, then of pairs.
    let even = [vreinterpretq_u64_u32(vtrn1q_u32(x0, x1)), vreinterpretq_u64_u32(vtrn1q_u32(x2, x3))];
    let odd = [vreinterpretq_u64_u32(vtrn2q_u32(x0, x1)), vreinterpretq_u64_u32(vtrn2q_u32(x2, x3))];
    [
        vreinterpretq_u8_u64(vtrn1q_u64(even[0], even[1])),
        vreinterpretq_u8_u64(vtrn1q_u64(odd[0], odd[1])),
        vreinterpretq_u8_u64(vtrn2q_u64(even[0], even[1])),
        vreinterpretq_u8_u64(vtrn2q_u64(odd[0], odd[1])),
    ]
}

/// The bytes of `a` at these places.
#[inline(always)]
fn pick(s: Neon, a: [uint8x16_t; 2], places: &[u8; 32]) -> [uint8x16_t; 2] {
    let places = s.load_bytes(places);
    neon!({
        let table = uint8x16x2_t(a[0], a[1]);
        [vqtbl2q_u8(table, places[0]), vqtbl2q_u8(table, places[1])]
    })
}

/// Where the bytes of [`Simd::transpose_u8`] and [`Simd::transpose_u16`] come from.
const BYTES: [u8; 32] = transposed(1);
const WORDS: [u8; 32] = transposed(2);

/// Eight rows of four bytes, as lanes of `size` bytes, become rows of eight.
const fn transposed(size: usize) -> [u8; 32] {
    let mut places = [0; 32];
    let mut b = 0;
    while b < 32 {
        let (lane, byte) = (b / size, b % size);
        places[b] = (4 * (lane % 8) + size * (lane / 8) + byte) as u8;
        b += 1;
    }
    places
}
