//! Q4_0: a scale and nibbles around 8.

use super::half_scales;
use crate::matmul::format::{BLOCK, Format, Product};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q4_0;

impl Format for Q4_0 {
    const TYPE: TensorType = TensorType::Q4_0;
    type Bits = Bits4;
    const PRODUCT: Product = Product::Zero8;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        half_scales::nibbles(s, &block[2..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[2..], codes);
    }

    half_scales::alone!();
}
