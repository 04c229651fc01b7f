//! Two vectors at once: sixteen rows of a panel.

use super::Simd;

/// Sixteen lanes: the two vectors of 8 rows that lie side by side in a panel. Every method does to both what the method
/// of [`Simd`] with the same name does to one.
#[allow(clippy::wrong_self_convention, reason = "as in `Simd`")]
pub trait Rows16: Copy {
    /// Whether there are registers for the sums of 8 tokens, integers and floats, or for the integers of 4 only.
    const MANY: bool;
    /// Sixteen f32.
    type F: Copy;
    /// 512 bits.
    type I: Copy;
    /// Running sums of 16 rows.
    type Acc: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Two vectors of floats.
    fn load(self, x: &[[f32; 8]; 2]) -> Self::F;
    /// Writes two vectors of floats.
    fn store(self, v: Self::F, out: &mut [[f32; 8]; 2]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// i32 lanes as f32.
    fn from_i32(self, a: Self::I) -> Self::F;
    /// Two vectors of bytes.
    fn load_bytes(self, x: &[[u8; 32]; 2]) -> Self::I;
    /// All i32 lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I;
    /// `a + b` in i32 lanes.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// 32-bit lanes shifted right by 3, the sign coming in.
    fn shr3_i32(self, a: Self::I) -> Self::I;
    /// [`Simd::acc_start`].
    fn acc_start(self, bias: i32) -> Self::Acc;
    /// [`Simd::acc_step`].
    fn acc_step(self, acc: Self::Acc, w: Self::I, x: i32) -> Self::Acc;
    /// [`Simd::acc_finish`].
    fn acc_finish(self, acc: Self::Acc) -> Self::I;
    /// [`Simd::acc_finish_scaled`].
    fn acc_finish_scaled(self, acc: Self::Acc, scale: Self::I) -> Self::I;
    /// [`Simd::signed_start`].
    fn signed_start(self, total16: i32) -> Self::I;
    /// [`Simd::signed_step`].
    fn signed_step(self, sum: Self::I, w: Self::I, x: i32) -> Self::I;
    /// [`Simd::dot_pairs`].
    fn dot_pairs(self, a: i32, b: Self::I) -> Self::I;
}

/// A pair of vectors of an instruction set that has no larger ones.
#[derive(Clone, Copy, Debug)]
pub struct Two<S>(pub S);

/// Calls a method of the single vectors for both.
macro_rules! both {
    ($s:ident.$method:ident ($($pair:expr),*; $($one:expr),*)) => {
        [$s.0.$method($($pair[0],)* $($one),*), $s.0.$method($($pair[1],)* $($one),*)]
    };
}

impl<S: Simd> Rows16 for Two<S> {
    const MANY: bool = false;
    type F = [S::F; 2];
    type I = [S::I; 2];
    type Acc = [S::Acc; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [self.0.splat(x); 2]
    }
    #[inline(always)]
    fn load(self, x: &[[f32; 8]; 2]) -> Self::F {
        [self.0.load(&x[0]), self.0.load(&x[1])]
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [[f32; 8]; 2]) {
        self.0.store(v[0], &mut out[0]);
        self.0.store(v[1], &mut out[1]);
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.add(a, b;))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self.mul(a, b;))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(self.fma(a, b, c;))
    }
    #[inline(always)]
    fn from_i32(self, a: Self::I) -> Self::F {
        both!(self.from_i32(a;))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[[u8; 32]; 2]) -> Self::I {
        [self.0.load_bytes(&x[0]), self.0.load_bytes(&x[1])]
    }
    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [self.0.splat_i32(x); 2]
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self.add_i32(a, b;))
    }
    #[inline(always)]
    fn shr3_i32(self, a: Self::I) -> Self::I {
        [self.0.shr_i32::<3>(a[0]), self.0.shr_i32::<3>(a[1])]
    }
    #[inline(always)]
    fn acc_start(self, bias: i32) -> Self::Acc {
        [self.0.acc_start(bias); 2]
    }
    #[inline(always)]
    fn acc_step(self, acc: Self::Acc, w: Self::I, x: i32) -> Self::Acc {
        both!(self.acc_step(acc, w; x))
    }
    #[inline(always)]
    fn acc_finish(self, acc: Self::Acc) -> Self::I {
        both!(self.acc_finish(acc;))
    }
    #[inline(always)]
    fn acc_finish_scaled(self, acc: Self::Acc, scale: Self::I) -> Self::I {
        both!(self.acc_finish_scaled(acc, scale;))
    }
    #[inline(always)]
    fn signed_start(self, total16: i32) -> Self::I {
        [self.0.signed_start(total16); 2]
    }
    #[inline(always)]
    fn signed_step(self, sum: Self::I, w: Self::I, x: i32) -> Self::I {
        both!(self.signed_step(sum, w; x))
    }
    #[inline(always)]
    fn dot_pairs(self, a: i32, b: Self::I) -> Self::I {
        [self.0.dot_pairs(a, b[0]), self.0.dot_pairs(a, b[1])]
    }
}
