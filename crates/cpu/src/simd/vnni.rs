//! The integer products of processors with `vpdpbusd`: four products of a row added at once, in one 32-bit lane.

use super::x86::{Level, X86, avx, pin};
use super::zmm::Zmm;
use super::{Kernel, Rows16, Two};
use std::arch::x86_64::{
    __m256i, _mm256_dpbusd_avx_epi32, _mm256_dpbusd_epi32, _mm256_madd_epi16, _mm256_mullo_epi32,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_srai_epi32, _mm256_xor_si256,
};
use std::fmt;
use std::marker::PhantomData;

/// The level, for an encoding of the instruction.
#[derive(Clone, Copy, Debug)]
pub struct Vnni<D>(PhantomData<D>);

/// Token of AVX-VNNI.
pub type AvxVnni = X86<Vnni<Vex>>;
/// Token of AVX-512-VNNI with vectors of 256 bits.
pub type Avx512Vnni = X86<Vnni<Evex>>;

/// `vpdpbusd`.
pub trait Dot: Copy + fmt::Debug + Send + Sync + 'static {
    /// [`Level::Rows16`].
    type Rows16: Rows16;
    /// [`Level::rows16`].
    fn rows16(s: X86<Vnni<Self>>) -> Self::Rows16;
    /// Whether the processor has it.
    fn has() -> bool;
    /// [`Level::run`].
    fn run<K: Kernel>(s: X86<Vnni<Self>>, kernel: K) -> K::Output;
    /// `acc` plus the products of four unsigned bytes of `w` and four signed ones of `x`, in each 32-bit lane.
    fn dot(s: X86<Vnni<Self>>, acc: __m256i, w: __m256i, x: __m256i) -> __m256i;
}

impl<D: Dot> Level for Vnni<D> {
    const SLOW_STEPS: bool = true;
    type Rows16 = D::Rows16;
    #[inline(always)]
    fn rows16(s: X86<Self>) -> D::Rows16 {
        D::rows16(s)
    }
    fn has_more() -> bool {
        D::has()
    }
    #[inline(always)]
    fn run<K: Kernel>(s: X86<Self>, kernel: K) -> K::Output {
        D::run(s, kernel)
    }
    #[inline(always)]
    fn acc_start(_s: X86<Self>, bias: i32) -> __m256i {
        // Both lanes of a row are one here.
        avx!(_mm256_madd_epi16(_mm256_set1_epi32(bias), _mm256_set1_epi16(1)))
    }
    #[inline(always)]
    fn acc_step(s: X86<Self>, acc: __m256i, w: __m256i, x: i32) -> __m256i {
        avx!(pin(D::dot(s, acc, w, _mm256_set1_epi32(x))))
    }
    #[inline(always)]
    fn acc_finish(_s: X86<Self>, acc: __m256i) -> __m256i {
        acc
    }
    #[inline(always)]
    fn acc_finish_scaled(_s: X86<Self>, acc: __m256i, scale: __m256i) -> __m256i {
        // A sum of 16 products has up to 17 bits, one too many for a product of 16-bit lanes.
        avx!(pin(_mm256_mullo_epi32(acc, _mm256_srai_epi32::<16>(scale))))
    }
    #[inline(always)]
    fn signed_start(_s: X86<Self>, total16: i32) -> __m256i {
        // Takes off what the 128 that `signed_step` adds to each weight will bring.
        avx!(_mm256_set1_epi32(total16.wrapping_mul(-8)))
    }
    #[inline(always)]
    fn signed_step(s: X86<Self>, sum: __m256i, w: __m256i, x: i32) -> __m256i {
        let w = avx!(_mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN)));
        avx!(pin(D::dot(s, sum, w, _mm256_set1_epi32(x))))
    }
}

/// `vpdpbusd` in the encoding of AVX.
#[derive(Clone, Copy, Debug)]
pub struct Vex;

impl Dot for Vex {
    type Rows16 = Two<AvxVnni>;
    #[inline(always)]
    fn rows16(s: AvxVnni) -> Two<AvxVnni> {
        Two(s)
    }
    fn has() -> bool {
        is_x86_feature_detected!("avxvnni")
    }
    #[inline(always)]
    fn run<K: Kernel>(s: AvxVnni, kernel: K) -> K::Output {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn inner<K: Kernel>(s: AvxVnni, kernel: K) -> K::Output {
            kernel.run(s)
        }
        avx!(inner(s, kernel))
    }
    #[inline(always)]
    fn dot(_s: AvxVnni, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        avx!(_mm256_dpbusd_avx_epi32(acc, w, x))
    }
}

/// `vpdpbusd` in the encoding of AVX-512.
#[derive(Clone, Copy, Debug)]
pub struct Evex;

impl Dot for Evex {
    type Rows16 = Zmm;
    #[inline(always)]
    fn rows16(s: Avx512Vnni) -> Zmm {
        Zmm(s)
    }
    fn has() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    }
    #[inline(always)]
    fn run<K: Kernel>(s: Avx512Vnni, kernel: K) -> K::Output {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn inner<K: Kernel>(s: Avx512Vnni, kernel: K) -> K::Output {
            kernel.run(s)
        }
        avx!(inner(s, kernel))
    }
    #[inline(always)]
    fn dot(_s: Avx512Vnni, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        avx!(_mm256_dpbusd_epi32(acc, w, x))
    }
}

/// `vpdpbusd` made of AVX2 instructions: runs the level's arithmetic where no processor has the instruction. For tests.
#[cfg(debug_assertions)]
pub use model::VnniModel;

#[cfg(debug_assertions)]
mod model {
    use super::{Dot, Vnni};
    use crate::simd::x86::{X86, avx};
    use crate::simd::{Kernel, Two};
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_madd_epi16, _mm256_set1_epi16, _mm256_slli_epi16,
        _mm256_srai_epi16, _mm256_srli_epi16,
    };

    /// Token of the model.
    pub type VnniModel = X86<Vnni<Model>>;

    /// The model.
    #[derive(Clone, Copy, Debug)]
    pub struct Model;

    impl Dot for Model {
        type Rows16 = Two<VnniModel>;
        #[inline(always)]
        fn rows16(s: VnniModel) -> Two<VnniModel> {
            Two(s)
        }
        fn has() -> bool {
            true
        }
        #[inline(always)]
        fn run<K: Kernel>(s: VnniModel, kernel: K) -> K::Output {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn inner<K: Kernel>(s: VnniModel, kernel: K) -> K::Output {
                kernel.run(s)
            }
            avx!(inner(s, kernel))
        }
        #[inline(always)]
        fn dot(_s: VnniModel, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
            avx!({
                // The bytes at even places and those at odd ones, widened to 16 bits.
                let (w0, w1) = (_mm256_and_si256(w, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(w));
                let (x0, x1) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
                let products = _mm256_add_epi32(_mm256_madd_epi16(w0, x0), _mm256_madd_epi16(w1, x1));
                _mm256_add_epi32(acc, products)
            })
        }
    }
}
