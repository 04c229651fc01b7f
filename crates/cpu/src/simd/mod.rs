//! Vectors of eight lanes behind a token for the instruction set.
//!
//! A kernel is one function, generic over `S: Simd`, marked `#[inline(always)]` and entered through
//! [`Simd::vectorize`], which compiles it with the features of `S`. The caller picks `S` at run time
//! with [`dispatch!`](crate::dispatch), or with [`dispatch_products!`](crate::dispatch_products) for what multiplies
//! integers. A token is zero-sized and exists only if the processor has the features, so that every
//! method is safe. All instruction sets return identical bits for every method (payloads of NaN aside).
//!
//! ```
//! use minfer_cpu::simd::{Isa, Simd};
//!
//! #[inline(always)]
//! fn double<S: Simd>(s: S, x: &mut [f32]) {
//!     for x in x.chunks_exact_mut(8) {
//!         let v = s.load(x);
//!         s.store(s.add(v, v), x);
//!     }
//! }
//!
//! let mut x = [1.0; 16];
//! minfer_cpu::dispatch!(Isa::detect(), s => s.vectorize(|| double(s, &mut x)));
//! assert_eq!(x, [2.0; 16]);
//! ```

mod isa;
#[cfg(target_arch = "x86_64")]
mod maddubs;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows16;
mod scalar;
mod sums;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod zmm;

pub use isa::{Isa, ProductToken, TestedOn, Token, product_token, token};
pub use math::{exp, exp_f32, exp_nonpositive, fold64, gelu, silu, sum_squares, tanh, tanh_f32};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use rows16::{Rows16, Two};
pub use scalar::Scalar;
pub use sums::Sums;
#[cfg(all(target_arch = "x86_64", debug_assertions))]
pub use vnni::VnniModel;
#[cfg(target_arch = "x86_64")]
pub use vnni::{Avx512Vnni, AvxVnni};
#[cfg(target_arch = "x86_64")]
pub use x86::Avx2;
#[cfg(target_arch = "x86_64")]
pub use zmm::Zmm;

use std::fmt;

/// A function with its arguments, for any instruction set. `run` must be `#[inline(always)]`.
pub trait Kernel {
    /// Result of the function.
    type Output;

    /// Calls the function.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

struct Closure<F>(F);

impl<R, F: FnOnce() -> R> Kernel for Closure<F> {
    type Output = R;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> R {
        (self.0)()
    }
}

/// Eight f32 lanes and 256 integer bits of one instruction set.
///
/// Loads and stores use the first 8 (or 32) elements of a slice and panic if it is shorter.
/// Arithmetic on floats is IEEE with one rounding per call. Integer lanes wrap.
#[allow(clippy::wrong_self_convention, reason = "`self` is the token; the lanes are the arguments")]
pub trait Simd: Copy + Send + Sync + fmt::Debug + 'static {
    /// Whether kernels gain from larger tiles and several streams. Scalar ones are bound by arithmetic, and
    /// leaving their tiles out halves the time to compile them.
    const WIDE: bool;
    /// Whether a step of integer sums waits some cycles for the one before it, so that two sums side by side are faster
    /// where there is one token.
    const SLOW_STEPS: bool;
    /// Eight f32.
    type F: Copy;
    /// 256 bits: 32 bytes, 16 i16 or 8 i32, little-endian.
    type I: Copy;
    /// Running sums of `u8 * i8` products for 8 rows; see [`Simd::acc_start`].
    type Acc: Copy;
    /// Two vectors at once.
    type Rows16: Rows16;

    /// The token for two vectors at once.
    fn rows16(self) -> Self::Rows16;

    /// Runs a kernel compiled for this instruction set. Whatever it calls must be `#[inline(always)]`
    /// down to the methods of this trait.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// [`Simd::run`] for a closure. The compiler may decide not to inline a closure with a long body or with
    /// several callers, which leaves it correct but slow: hot loops should be a [`Kernel`].
    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        self.run(Closure(f))
    }

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// All lanes +0.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    /// The first 8 elements.
    fn load(self, x: &[f32]) -> Self::F;
    /// Writes the first 8 elements.
    fn store(self, v: Self::F, out: &mut [f32]);
    /// The first 8 elements, from IEEE half precision bits.
    fn load_f16(self, x: &[u16]) -> Self::F;
    /// Rounds to the nearest IEEE half precision value, ties to even.
    fn round_f16(self, v: Self::F) -> Self::F;
    /// Writes the first 8 elements as IEEE half precision bits, ties to even.
    fn store_f16(self, v: Self::F, out: &mut [u16]);
    /// The first 8 elements, from bfloat16 bits.
    fn load_bf16(self, x: &[u16]) -> Self::F;
    /// Lanes of an array.
    #[inline(always)]
    fn from_array(self, x: [f32; 8]) -> Self::F {
        self.load(&x)
    }
    /// Lanes as an array.
    #[inline(always)]
    fn to_array(self, v: Self::F) -> [f32; 8] {
        let mut out = [0.0; 8];
        self.store(v, &mut out);
        out
    }

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Sign bit flipped.
    fn neg(self, a: Self::F) -> Self::F;
    /// Sign bit cleared.
    fn abs(self, a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round_ties_even(self, a: Self::F) -> Self::F;
    /// Lane-wise `a < b ? x : y`; `y` where `a` or `b` is NaN.
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Lane-wise `a < b ? 0 : y`.
    #[inline(always)]
    fn zero_where_lt(self, a: Self::F, b: Self::F, y: Self::F) -> Self::F {
        self.select_lt(a, b, self.zero(), y)
    }
    /// The nearest i32, ties to even; `i32::MIN` for NaN and whatever does not fit.
    fn to_i32(self, a: Self::F) -> Self::I;
    /// i32 lanes as f32, rounded to nearest.
    fn from_i32(self, a: Self::I) -> Self::F;
    /// The bits of the lanes.
    fn to_bits(self, a: Self::F) -> Self::I;
    /// Lanes of these bits.
    fn from_bits(self, a: Self::I) -> Self::F;
    /// `2^n` for i32 lanes in `-126..=127`.
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        self.from_bits(self.shl_i32::<23>(self.add_i32(n, self.splat_i32(127))))
    }
    /// Sum by halves: `x[i] += x[i + 4]`, then 2, then 1; the last steps of the 64-lane fold.
    fn fold_add(self, a: Self::F) -> f32;
    /// Maximum by halves with [`Simd::max`]'s rule for NaN.
    fn fold_max(self, a: Self::F) -> f32;

    /// The first 32 bytes.
    fn load_bytes(self, x: &[u8]) -> Self::I;
    /// The first 16 bytes of each.
    fn load_halves(self, low: &[u8], high: &[u8]) -> Self::I;
    /// Writes the first 32 bytes.
    fn store_bytes(self, v: Self::I, out: &mut [u8]);
    /// All bytes `x`.
    fn splat_u8(self, x: u8) -> Self::I;
    /// All i32 lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bytes of ones where the bytes are equal, of zeros elsewhere.
    fn eq_u8(self, a: Self::I, b: Self::I) -> Self::I;
    /// The 32-bit lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose_i32(self, x: [Self::I; 8]) -> [Self::I; 8];
    /// Byte `4 i + j` becomes byte `8 j + i`: eight rows of four bytes become four of eight.
    fn transpose_u8(self, a: Self::I) -> Self::I;
    /// 16-bit lane `2 i + j` becomes lane `8 j + i`: eight rows of two become two of eight.
    fn transpose_u16(self, a: Self::I) -> Self::I;
    /// The byte of a 16-byte table for each byte of `index`, all of them below 16. The table stands twice in `table`.
    fn lookup(self, table: Self::I, index: Self::I) -> Self::I;
    /// 16-bit lanes shifted left.
    fn shl_i16<const N: i32>(self, a: Self::I) -> Self::I;
    /// 16-bit lanes shifted right, zeros coming in.
    fn shr_u16<const N: i32>(self, a: Self::I) -> Self::I;
    /// As [`Simd::shr_u16`], by less than 16.
    fn shr_u16_by(self, a: Self::I, n: usize) -> Self::I;
    /// 32-bit lanes shifted left.
    fn shl_i32<const N: i32>(self, a: Self::I) -> Self::I;
    /// 32-bit lanes shifted right, the sign coming in.
    fn shr_i32<const N: i32>(self, a: Self::I) -> Self::I;
    /// `a + b` in i32 lanes.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b` in i32 lanes.
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Larger of signed i32 lanes.
    fn max_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Largest signed i32 lane.
    fn fold_max_i32(self, a: Self::I) -> i32;
    /// The first 8 bytes as i32 lanes.
    fn load_u8_i32(self, x: &[u8]) -> Self::I;
    /// The first 8 signed bytes as i32 lanes.
    fn load_i8_i32(self, x: &[u8]) -> Self::I;
    /// The first 8 signed bytes, each as two equal i16 lanes.
    fn load_i8_pairs(self, x: &[u8]) -> Self::I;
    /// Sums of 32 signed bytes.
    fn sums(self, a: Self::I) -> Sums;
    /// Four vectors of i32 lanes as 32 signed bytes in order; saturates.
    fn pack_i8(self, x: [Self::I; 4]) -> Self::I;

    /// Starts sums at `bias`, two i16 per row: the first belongs to bytes 0 and 1 of each group of
    /// four, the second to bytes 2 and 3.
    fn acc_start(self, bias: i32) -> Self::Acc;
    /// Adds the products of four unsigned weights per row with four signed activations.
    ///
    /// The weights are at most 127, so that a pair of products fits i16; sums of pairs may wrap as
    /// long as the final ones fit.
    fn acc_step(self, acc: Self::Acc, w: Self::I, x: i32) -> Self::Acc;
    /// The sum of each row, i32 lanes.
    fn acc_finish(self, acc: Self::Acc) -> Self::I;
    /// The sum of each row times its scale (equal pairs of i16), i32 lanes.
    fn acc_finish_scaled(self, acc: Self::Acc, scale: Self::I) -> Self::I;
    /// Starts sums of products with signed weights. `total16` is 16 times the sum of all the activations to come.
    fn signed_start(self, total16: i32) -> Self::I;
    /// Adds the products of four signed weights per row (any i8) and four activations in `-127..=127`. After the last
    /// activation, and not before, the i32 lanes are the sums of the rows.
    fn signed_step(self, sum: Self::I, w: Self::I, x: i32) -> Self::I;
    /// For each row the sum of the products of two pairs of i16, i32 lanes: `a` with the row's pair in `b`.
    fn dot_pairs(self, a: i32, b: Self::I) -> Self::I;
    /// Asks for the cache line of `at` some time before it is needed; any address is allowed.
    fn prefetch<T>(self, at: *const T);
}
