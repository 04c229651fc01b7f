//! MXFP4: a power of two and nibbles that stand for 4-bit floats, doubled.

use super::{byte_scales, half_scales, levels};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::TensorType;
use minfer_gguf::formats::mxfp4::LEVELS;

/// The levels around 16.
const TABLE: [u8; 32] = levels::table(&LEVELS, 16);

/// The format.
pub struct Mxfp4;

impl Format for Mxfp4 {
    const TYPE: TensorType = TensorType::Mxfp4;
    type Bits = Bits4;
    const HEAD: usize = 8;
    const PRODUCT: Product = Product::Zero16;
    const MINIMUM: Minimum = Minimum::None;
    const LARGEST: usize = 28;
    type Head<S: Simd> = ();

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        half_scales::nibbles(s, &block[1..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[1..], codes);
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, codes: [S::I; 8]) -> [S::I; 8] {
        levels::look_up(s, &TABLE, codes)
    }

    #[inline(always)]
    fn pack_head<S: Simd>(_s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        byte_scales::pack_one(blocks, 0, head);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        byte_scales::put(head, row, &mut block[..1]);
    }

    #[inline(always)]
    fn head<S: Simd>(_s: S, _packed: &[u8]) {}

    /// `2^(e - 128)` as a product of two powers that are both normal; the smallest scales are not.
    #[inline(always)]
    fn scales<S: Simd>(s: S, packed: &[u8], _head: &(), _sub: usize) -> Scales<S> {
        let e = s.load_u8_i32(packed);
        let (part, middle) = (s.shr_i32::<1>(e), s.splat_i32(64));
        let rest = s.sub_i32(s.sub_i32(e, part), middle);
        let scale = s.mul(s.pow2(s.sub_i32(part, middle)), s.pow2(rest));
        half_scales::scales(s, scale, s.zero())
    }
}
