//! The integer products of AVX2: pairs of products added in 16-bit lanes, two lanes per row.

use super::x86::{Avx2, Level, avx, pin};
use super::{Kernel, Two};
use std::arch::x86_64::{
    __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_setzero_si256, _mm256_sign_epi8,
};

/// The level.
#[derive(Clone, Copy, Debug)]
pub struct MulAdd;

impl Level for MulAdd {
    const SLOW_STEPS: bool = false;
    type Rows16 = Two<Avx2>;
    #[inline(always)]
    fn rows16(s: Avx2) -> Two<Avx2> {
        Two(s)
    }
    fn has_more() -> bool {
        true
    }
    #[inline(always)]
    fn run<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
            kernel.run(s)
        }
        avx!(inner(s, kernel))
    }
    #[inline(always)]
    fn acc_start(_s: Avx2, bias: i32) -> __m256i {
        avx!(_mm256_set1_epi32(bias))
    }
    #[inline(always)]
    fn acc_step(_s: Avx2, acc: __m256i, w: __m256i, x: i32) -> __m256i {
        avx!(pin(_mm256_add_epi16(acc, _mm256_maddubs_epi16(w, _mm256_set1_epi32(x)))))
    }
    #[inline(always)]
    fn acc_finish(_s: Avx2, acc: __m256i) -> __m256i {
        avx!(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)))
    }
    #[inline(always)]
    fn acc_finish_scaled(_s: Avx2, acc: __m256i, scale: __m256i) -> __m256i {
        // Before the next sums begin: they need the register.
        avx!(pin(_mm256_madd_epi16(acc, scale)))
    }
    #[inline(always)]
    fn signed_start(_s: Avx2, _total16: i32) -> __m256i {
        avx!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn signed_step(_s: Avx2, sum: __m256i, w: __m256i, x: i32) -> __m256i {
        avx!({
            // |w| is at most 128 as an unsigned byte; the sign moves to x, which is never -128.
            let x = _mm256_sign_epi8(_mm256_set1_epi32(x), w);
            let pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), x);
            pin(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        })
    }
}
