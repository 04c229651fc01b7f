//! Q4_1: a scale, a minimum and nibbles.

use super::half_scales;
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q4_1;

impl Format for Q4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
    type Bits = Bits4;
    const HEAD: usize = 32;
    const PRODUCT: Product = Product::Unsigned4;
    const MINIMUM: Minimum = Minimum::Block;
    type Head<S: Simd> = ();

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        half_scales::nibbles(s, &block[4..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[4..], codes);
    }

    #[inline(always)]
    fn pack_head<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack_two(s, blocks, head);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, 0);
        half_scales::put(&head[16..], row, block, 2);
    }

    #[inline(always)]
    fn head<S: Simd>(_s: S, _packed: &[u8]) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, packed: &[u8], _head: &(), _sub: usize) -> Scales<S> {
        half_scales::scales(s, half_scales::load(s, packed), half_scales::load(s, &packed[16..]))
    }
}
