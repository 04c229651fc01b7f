//! Q4_K: a 6-bit scale and a 6-bit minimum for each 32, nibbles.

use super::k_scales;
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q4K;

impl Format for Q4K {
    const TYPE: TensorType = TensorType::Q4K;
    type Bits = Bits4;
    const HEAD: usize = k_scales::HEAD;
    const PRODUCT: Product = Product::Unsigned4;
    const MINIMUM: Minimum = Minimum::Block;
    type Head<S: Simd> = k_scales::Head<S>;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        s.and(s.shr_u16_by(s.load_bytes(&block[16 + 32 * (sub / 2)..]), 4 * (sub % 2)), s.splat_u8(15))
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        for (byte, code) in block[16 + 32 * (sub / 2)..].iter_mut().zip(codes) {
            *byte |= code << (4 * (sub % 2));
        }
    }

    #[inline(always)]
    fn pack_head<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        k_scales::pack(s, blocks, head);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        k_scales::put(head, row, block);
    }

    #[inline(always)]
    fn head<S: Simd>(s: S, packed: &[u8]) -> Self::Head<S> {
        k_scales::load(s, packed)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, _packed: &[u8], head: &Self::Head<S>, sub: usize) -> Scales<S> {
        k_scales::scales(s, head, sub)
    }
}
