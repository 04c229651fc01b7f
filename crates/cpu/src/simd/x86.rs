//! Vectors of 256 bits on x86: AVX2 with FMA and F16C, and what newer processors add to it.
//!
//! [`X86`] is everything that they share. A [`Level`] is what they differ in: the features that kernels are compiled
//! with, and the integer products.

use super::maddubs::MulAdd;
use super::{Kernel, Rows16, Simd, Sums};
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0,
    _mm_add_epi16, _mm_add_epi32, _mm_add_ps, _mm_add_ss, _mm_blend_epi32, _mm_cvtsi32_si128,
    _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128, _mm_madd_epi16, _mm_max_epi32,
    _mm_max_ps, _mm_max_ss, _mm_movehdup_ps, _mm_movehl_ps, _mm_mullo_epi16, _mm_packs_epi32, _mm_prefetch,
    _mm_set1_epi16, _mm_setr_epi16, _mm_shuffle_epi32, _mm_storeu_si128, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castps256_ps128, _mm256_castsi128_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cmpeq_epi8, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_inserti128_si256,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_epi32,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_packs_epi16, _mm256_packs_epi32,
    _mm256_permute2x128_si256, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_round_ps,
    _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi8, _mm256_setr_epi32,
    _mm256_shuffle_epi8, _mm256_shuffle_epi32, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srai_epi32,
    _mm256_srl_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi32,
    _mm256_sub_ps, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_ps,
};
use std::fmt;
use std::marker::PhantomData;

/// Token of a level.
#[derive(Clone, Copy, Debug)]
pub struct X86<L>(PhantomData<L>);

/// Token of AVX2, FMA and F16C.
pub type Avx2 = X86<MulAdd>;

impl<L: Level> X86<L> {
    /// The token, if the processor has the features.
    pub fn detect() -> Option<Self> {
        let base = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        (base && L::has_more()).then_some(X86(PhantomData))
    }
}

/// What levels differ in. The products are those of [`Simd`]; all keep their sums in a vector.
pub trait Level: Copy + fmt::Debug + Send + Sync + 'static {
    /// [`Simd::SLOW_STEPS`].
    const SLOW_STEPS: bool;
    /// [`Simd::Rows16`].
    type Rows16: Rows16;
    /// [`Simd::rows16`].
    fn rows16(s: X86<Self>) -> Self::Rows16;
    /// Whether the processor has what the level needs besides AVX2, FMA and F16C.
    fn has_more() -> bool;
    /// [`Simd::run`].
    fn run<K: Kernel>(s: X86<Self>, kernel: K) -> K::Output;
    /// [`Simd::acc_start`].
    fn acc_start(s: X86<Self>, bias: i32) -> __m256i;
    /// [`Simd::acc_step`].
    fn acc_step(s: X86<Self>, acc: __m256i, w: __m256i, x: i32) -> __m256i;
    /// [`Simd::acc_finish`].
    fn acc_finish(s: X86<Self>, acc: __m256i) -> __m256i;
    /// [`Simd::acc_finish_scaled`].
    fn acc_finish_scaled(s: X86<Self>, acc: __m256i, scale: __m256i) -> __m256i;
    /// [`Simd::signed_start`].
    fn signed_start(s: X86<Self>, total16: i32) -> __m256i;
    /// [`Simd::signed_step`].
    fn signed_step(s: X86<Self>, sum: __m256i, w: __m256i, x: i32) -> __m256i;
}

/// Calls intrinsics that touch no memory.
macro_rules! avx {
    ($e:expr) => {
        // SAFETY: a token exists only after `detect` saw the features of its level, and the intrinsic has
        // no other requirement.
        unsafe { $e }
    };
}
pub(super) use avx;

impl<L: Level> Simd for X86<L> {
    const WIDE: bool = true;
    const SLOW_STEPS: bool = L::SLOW_STEPS;
    type F = __m256;
    type I = __m256i;
    type Acc = __m256i;
    type Rows16 = L::Rows16;

    #[inline(always)]
    fn rows16(self) -> L::Rows16 {
        L::rows16(self)
    }
    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        L::run(self, kernel)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        avx!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> __m256 {
        let x = &x[..8];
        // SAFETY: the features are there (see `avx!`) and 8 elements are in bounds; no alignment is needed.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: __m256, out: &mut [f32]) {
        let out = &mut out[..8];
        // SAFETY: as in `load`.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16]) -> __m256 {
        let x = &x[..8];
        // SAFETY: as in `load`; 8 elements of 2 bytes are 128 bits.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn round_f16(self, v: __m256) -> __m256 {
        // SAFETY: as in `load_f16`.
        unsafe { _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    fn store_f16(self, v: __m256, out: &mut [u16]) {
        let out = &mut out[..8];
        // SAFETY: as in `load_f16`.
        unsafe {
            let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(out.as_mut_ptr().cast(), h);
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16]) -> __m256 {
        let x = &x[..8];
        // SAFETY: as in `load_f16`.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast())) };
        avx!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        avx!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn neg(self, a: __m256) -> __m256 {
        avx!(_mm256_xor_ps(a, _mm256_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        avx!(_mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff))))
    }
    #[inline(always)]
    fn round_ties_even(self, a: __m256) -> __m256 {
        avx!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn select_lt(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        avx!(_mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn zero_where_lt(self, a: __m256, b: __m256, y: __m256) -> __m256 {
        avx!(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b), y))
    }
    #[inline(always)]
    fn to_i32(self, a: __m256) -> __m256i {
        avx!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn from_i32(self, a: __m256i) -> __m256 {
        avx!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_bits(self, a: __m256) -> __m256i {
        avx!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn from_bits(self, a: __m256i) -> __m256 {
        avx!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn fold_add(self, a: __m256) -> f32 {
        avx!({
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    fn fold_max(self, a: __m256) -> f32 {
        avx!({
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        })
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8]) -> __m256i {
        let x = &x[..32];
        // SAFETY: the features are there and 32 bytes are in bounds; no alignment is needed.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_halves(self, low: &[u8], high: &[u8]) -> __m256i {
        let (low, high) = (&low[..16], &high[..16]);
        // SAFETY: as in `load_bytes`, with 16 bytes of each.
        unsafe {
            let (low, high) = (_mm_loadu_si128(low.as_ptr().cast()), _mm_loadu_si128(high.as_ptr().cast()));
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        }
    }
    #[inline(always)]
    fn store_bytes(self, v: __m256i, out: &mut [u8]) {
        let out = &mut out[..32];
        // SAFETY: as in `load_bytes`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn splat_u8(self, x: u8) -> __m256i {
        avx!(_mm256_set1_epi8(x.cast_signed()))
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m256i {
        avx!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn eq_u8(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_cmpeq_epi8(a, b))
    }
    #[inline(always)]
    fn transpose_i32(self, x: [__m256i; 8]) -> [__m256i; 8] {
        // Pairs of lanes, then of pairs, within 128-bit halves; then of halves.
        let [a0, a1, a2, a3] = avx!(transpose_quarters([x[0], x[1], x[2], x[3]]));
        let [b0, b1, b2, b3] = avx!(transpose_quarters([x[4], x[5], x[6], x[7]]));
        avx!([
            _mm256_permute2x128_si256::<0x20>(a0, b0),
            _mm256_permute2x128_si256::<0x20>(a1, b1),
            _mm256_permute2x128_si256::<0x20>(a2, b2),
            _mm256_permute2x128_si256::<0x20>(a3, b3),
            _mm256_permute2x128_si256::<0x31>(a0, b0),
            _mm256_permute2x128_si256::<0x31>(a1, b1),
            _mm256_permute2x128_si256::<0x31>(a2, b2),
            _mm256_permute2x128_si256::<0x31>(a3, b3),
        ])
    }
    #[inline(always)]
    fn transpose_u8(self, a: __m256i) -> __m256i {
        avx!({
            let columns = _mm256_setr_epi8(
                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14,
                3, 7, 11, 15,
            );
            let a = _mm256_shuffle_epi8(a, columns);
            _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        })
    }
    #[inline(always)]
    fn transpose_u16(self, a: __m256i) -> __m256i {
        avx!({
            let columns = _mm256_setr_epi8(
                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7,
                10, 11, 14, 15,
            );
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(a, columns))
        })
    }
    #[inline(always)]
    fn lookup(self, table: __m256i, index: __m256i) -> __m256i {
        avx!(_mm256_shuffle_epi8(table, index))
    }
    #[inline(always)]
    fn shl_i16<const N: i32>(self, a: __m256i) -> __m256i {
        avx!(_mm256_slli_epi16::<N>(a))
    }
    #[inline(always)]
    fn shr_u16<const N: i32>(self, a: __m256i) -> __m256i {
        avx!(_mm256_srli_epi16::<N>(a))
    }
    #[inline(always)]
    fn shr_u16_by(self, a: __m256i, n: usize) -> __m256i {
        avx!(_mm256_srl_epi16(a, _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn shl_i32<const N: i32>(self, a: __m256i) -> __m256i {
        avx!(_mm256_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shr_i32<const N: i32>(self, a: __m256i) -> __m256i {
        avx!(_mm256_srai_epi32::<N>(a))
    }
    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        avx!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn fold_max_i32(self, a: __m256i) -> i32 {
        avx!({
            let x = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        })
    }
    #[inline(always)]
    fn load_u8_i32(self, x: &[u8]) -> __m256i {
        avx!(_mm256_cvtepu8_epi32(load8(x)))
    }
    #[inline(always)]
    fn load_i8_i32(self, x: &[u8]) -> __m256i {
        avx!(_mm256_cvtepi8_epi32(load8(x)))
    }
    #[inline(always)]
    fn load_i8_pairs(self, x: &[u8]) -> __m256i {
        avx!({
            // The low 16 bits of each i32 lane, twice.
            let twice = _mm256_setr_epi8(
                0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12,
                13, 12, 13,
            );
            _mm256_shuffle_epi8(_mm256_cvtepi8_epi32(load8(x)), twice)
        })
    }
    #[inline(always)]
    fn sums(self, a: __m256i) -> Sums {
        let (pairs, halves, total) = avx!({
            // Every 32-bit lane of a half gets the pair of sums over it.
            let x = _mm256_maddubs_epi16(_mm256_set1_epi8(1), a);
            let x = _mm256_add_epi16(x, _mm256_shuffle_epi32::<0b01_00_11_10>(x));
            let x = _mm256_add_epi16(x, _mm256_shuffle_epi32::<0b10_11_00_01>(x));
            let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let both = _mm_blend_epi32::<0b1010>(low, high);
            let pairs = _mm_blend_epi32::<0b0011>(both, _mm_add_epi16(low, high));
            let halves = _mm_madd_epi16(both, _mm_set1_epi16(1));
            let total = _mm_add_epi32(halves, _mm_shuffle_epi32::<0b10_11_00_01>(halves));
            let halves = _mm_packs_epi32(halves, halves);
            let factors = _mm_setr_epi16(-8, -8, -16, -16, -32, -32, -32, -32);
            (_mm_mullo_epi16(pairs, factors), _mm_cvtsi128_si32(halves), _mm_cvtsi128_si32(total))
        });
        let mut starts = [0; 4];
        // SAFETY: there is room for 128 bits; no alignment is needed.
        unsafe { _mm_storeu_si128(starts.as_mut_ptr().cast(), pairs) };
        Sums { starts, halves, total }
    }
    #[inline(always)]
    fn pack_i8(self, x: [__m256i; 4]) -> __m256i {
        avx!({
            // Packing works within 128-bit halves; the permutation restores the order.
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        })
    }
    #[inline(always)]
    fn acc_start(self, bias: i32) -> __m256i {
        L::acc_start(self, bias)
    }
    #[inline(always)]
    fn acc_step(self, acc: __m256i, w: __m256i, x: i32) -> __m256i {
        L::acc_step(self, acc, w, x)
    }
    #[inline(always)]
    fn acc_finish(self, acc: __m256i) -> __m256i {
        L::acc_finish(self, acc)
    }
    #[inline(always)]
    fn acc_finish_scaled(self, acc: __m256i, scale: __m256i) -> __m256i {
        L::acc_finish_scaled(self, acc, scale)
    }
    #[inline(always)]
    fn signed_start(self, total16: i32) -> __m256i {
        L::signed_start(self, total16)
    }
    #[inline(always)]
    fn signed_step(self, sum: __m256i, w: __m256i, x: i32) -> __m256i {
        L::signed_step(self, sum, w, x)
    }
    #[inline(always)]
    fn dot_pairs(self, a: i32, b: __m256i) -> __m256i {
        avx!(_mm256_madd_epi16(_mm256_set1_epi32(a), b))
    }
    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch reads nothing that the program can see and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// The first 8 bytes of `x` in the low half.
#[inline(always)]
fn load8(x: &[u8]) -> __m128i {
    let x = &x[..8];
    // SAFETY: SSE2 is part of x86-64 and 8 bytes are in bounds.
    unsafe { _mm_loadl_epi64(x.as_ptr().cast()) }
}

/// Four vectors transposed as 32-bit lanes within each of their halves.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_quarters([x0, x1, x2, x3]: [__m256i; 4]) -> [__m256i; 4] {
    let (low0, high0) = (_mm256_unpacklo_epi32(x0, x1), _mm256_unpackhi_epi32(x0, x1));
    let (low1, high1) = (_mm256_unpacklo_epi32(x2, x3), _mm256_unpackhi_epi32(x2, x3));
    [
        _mm256_unpacklo_epi64(low0, low1),
        _mm256_unpackhi_epi64(low0, low1),
        _mm256_unpacklo_epi64(high0, high1),
        _mm256_unpackhi_epi64(high0, high1),
    ]
}

/// Keeps the order of the steps of sums. The compiler would load the operands of many steps first, and turn a chain of
/// additions into a tree, and then spill: the kernels lose a third of their speed that way.
#[inline]
#[target_feature(enable = "avx2")]
#[cfg_attr(minfer_no_pin, allow(unused_mut, reason = "the pin is off"))]
pub(super) fn pin(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction is emitted; the register is only said to have changed.
    #[cfg(not(minfer_no_pin))]
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags));
    }
    x
}
