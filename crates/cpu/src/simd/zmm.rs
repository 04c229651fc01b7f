//! Pairs of vectors in the registers of AVX-512, of which there are 32.

use super::Avx512Vnni;
use super::rows16::Rows16;
use super::x86::avx;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_mul_ps,
    _mm512_mullo_epi32, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_srai_epi32,
    _mm512_storeu_ps, _mm512_xor_si512,
};

/// Token of 512 bits, which exists where that of AVX-512 does. The arithmetic is that of [`Avx512Vnni`].
#[derive(Clone, Copy, Debug)]
pub struct Zmm(pub Avx512Vnni);

impl Rows16 for Zmm {
    const MANY: bool = true;
    type F = __m512;
    type I = __m512i;
    type Acc = __m512i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        avx!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[[f32; 8]; 2]) -> __m512 {
        // SAFETY: the features are there and the array has 512 bits; no alignment is needed.
        unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [[f32; 8]; 2]) {
        // SAFETY: as in `load`.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        avx!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        avx!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn from_i32(self, a: __m512i) -> __m512 {
        avx!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[[u8; 32]; 2]) -> __m512i {
        // SAFETY: as in `load`.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        avx!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        avx!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn shr3_i32(self, a: __m512i) -> __m512i {
        avx!(_mm512_srai_epi32::<3>(a))
    }
    #[inline(always)]
    fn acc_start(self, bias: i32) -> __m512i {
        avx!(_mm512_set1_epi32(i32::from(bias as i16) + (bias >> 16)))
    }
    #[inline(always)]
    fn acc_step(self, acc: __m512i, w: __m512i, x: i32) -> __m512i {
        avx!(_mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x)))
    }
    #[inline(always)]
    fn acc_finish(self, acc: __m512i) -> __m512i {
        acc
    }
    #[inline(always)]
    fn acc_finish_scaled(self, acc: __m512i, scale: __m512i) -> __m512i {
        avx!(_mm512_mullo_epi32(acc, _mm512_srai_epi32::<16>(scale)))
    }
    #[inline(always)]
    fn signed_start(self, total16: i32) -> __m512i {
        avx!(_mm512_set1_epi32(total16.wrapping_mul(-8)))
    }
    #[inline(always)]
    fn signed_step(self, sum: __m512i, w: __m512i, x: i32) -> __m512i {
        avx!({
            let w = _mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN));
            _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x))
        })
    }
    #[inline(always)]
    fn dot_pairs(self, a: i32, b: __m512i) -> __m512i {
        avx!(_mm512_madd_epi16(_mm512_set1_epi32(a), b))
    }
}
