//! The rotation of keys before they are quantised, and of the queries that meet them.
//!
//! Some models have keys with a few values far larger than all others. Such a value would set the scale of
//! its block and leave the others few levels; the rotation spreads it over all of them.

use crate::simd::{Kernel, Simd};

/// Multiplies chunks of a power of two of values by the Hadamard matrix: butterflies from far to near.
pub struct Rotate<'a> {
    /// Whole chunks.
    pub x: &'a mut [f32],
    /// Values per chunk.
    pub chunk: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut half = self.chunk / 2;
        while half >= 8 {
            for pair in self.x.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.chunks_exact_mut(8).zip(b.chunks_exact_mut(8)) {
                    let (u, v) = (s.load(a), s.load(b));
                    s.store(s.add(u, v), a);
                    s.store(s.sub(u, v), b);
                }
            }
            half /= 2;
        }
        while half >= 1 {
            for pair in self.x.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half /= 2;
        }
    }
}

/// Rotates a query head and divides it by the chunk's length, so that its products with rotated keys are
/// those of the plain ones.
pub struct RotateQuery<'a> {
    /// The head's values.
    pub q: &'a mut [f32],
    /// Values per chunk.
    pub chunk: usize,
}

impl Kernel for RotateQuery<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A power of two: exact.
        let factor = 1.0 / self.chunk as f32;
        Rotate { x: self.q, chunk: self.chunk }.run(s);
        for q in self.q {
            *q *= factor;
        }
    }
}
