//! Loops over slices of any length: eight lanes at a time, the rest through padded arrays.

use crate::simd::Simd;

/// A function of two vectors. A trait and not a closure, because only a function can be marked
/// `#[inline(always)]`, without which a long one is not compiled for the instruction set.
pub trait Pairwise {
    /// The result for eight lanes.
    fn apply<S: Simd>(&self, s: S, a: S::F, b: S::F) -> S::F;
}

/// `out[i] = f(a[i], b[i])`; an absent operand is `out` itself.
#[inline(always)]
pub fn zip<S: Simd>(s: S, out: &mut [f32], a: Option<&[f32]>, b: Option<&[f32]>, f: &impl Pairwise) {
    let n = out.len();
    let (a, b) = (a.map(|a| &a[..n]), b.map(|b| &b[..n]));
    let whole = n - n % 8;
    for i in (0..whole).step_by(8) {
        let x = s.load(&a.unwrap_or(out)[i..]);
        let y = s.load(&b.unwrap_or(out)[i..]);
        s.store(f.apply(s, x, y), &mut out[i..]);
    }
    if whole < n {
        let x = load_tail(s, &a.unwrap_or(out)[whole..]);
        let y = load_tail(s, &b.unwrap_or(out)[whole..]);
        store_tail(s, f.apply(s, x, y), &mut out[whole..]);
    }
}

/// Fewer than eight values, padded with zeros.
#[inline(always)]
pub fn load_tail<S: Simd>(s: S, x: &[f32]) -> S::F {
    let mut lanes = [0.0; 8];
    lanes[..x.len()].copy_from_slice(x);
    s.load(&lanes)
}

/// The first lanes, as many as `out` takes.
#[inline(always)]
pub fn store_tail<S: Simd>(s: S, v: S::F, out: &mut [f32]) {
    let lanes = s.to_array(v);
    out.copy_from_slice(&lanes[..out.len()]);
}
