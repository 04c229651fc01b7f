//! Q8_0: a scale and signed bytes.

use super::half_scales;
use crate::matmul::format::{BLOCK, Format, Product};
use crate::matmul::planes::Bits8;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q8_0;

impl Format for Q8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    type Bits = Bits8;
    const PRODUCT: Product = Product::Signed;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        s.load_bytes(&block[2..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        block[2..].copy_from_slice(codes);
    }

    half_scales::alone!();
}
