//! Q5_K: a 6-bit scale and a 6-bit minimum for each 32, five bits.

use super::k_scales;
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits5;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// The format.
pub struct Q5K;

impl Format for Q5K {
    const TYPE: TensorType = TensorType::Q5K;
    type Bits = Bits5;
    const HEAD: usize = k_scales::HEAD;
    const PRODUCT: Product = Product::Unsigned5;
    const MINIMUM: Minimum = Minimum::Block;
    type Head<S: Simd> = k_scales::Head<S>;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        let (fifth, low) = (s.load_bytes(&block[16..]), s.load_bytes(&block[48 + 32 * (sub / 2)..]));
        let fifth = s.and(s.shr_u16_by(fifth, sub), s.splat_u8(1));
        s.or(s.and(s.shr_u16_by(low, 4 * (sub % 2)), s.splat_u8(15)), s.shl_i16::<4>(fifth))
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        for (i, code) in codes.iter().enumerate() {
            block[16 + i] |= (code >> 4) << sub;
            block[48 + 32 * (sub / 2) + i] |= (code & 15) << (4 * (sub % 2));
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
