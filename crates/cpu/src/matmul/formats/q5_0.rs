//! Q5_0: a scale and five bits around 16.

use super::half_scales;
use crate::matmul::format::{BLOCK, Format, Product};
use crate::matmul::planes::Bits5;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q5_0;

impl Format for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    type Bits = Bits5;
    const PRODUCT: Product = Product::Zero16;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        half_scales::fives(s, &block[2..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_fives(&mut block[2..], codes);
    }

    half_scales::alone!();
}
