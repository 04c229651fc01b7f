//! IQ4_NL: a scale and nibbles that stand for fixed levels.

use super::{half_scales, levels};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::TensorType;
use minfer_gguf::formats::iq4_nl::LEVELS;

/// The levels as bytes; IQ4_XS has the same.
pub const TABLE: [u8; 32] = levels::table(&LEVELS, 0);

/// The format.
pub struct Iq4Nl;

impl Format for Iq4Nl {
    const TYPE: TensorType = TensorType::Iq4Nl;
    type Bits = Bits4;
    const HEAD: usize = 16;
    const PRODUCT: Product = Product::Signed;
    const MINIMUM: Minimum = Minimum::None;
    const LARGEST: usize = 255;
    type Head<S: Simd> = ();

    #[inline(always)]
    fn codes(block: &[u8], _sub: usize) -> [u8; BLOCK] {
        half_scales::nibbles(&block[2..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[2..], codes);
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, codes: [S::I; 8]) -> [S::I; 8] {
        levels::look_up(s, &TABLE, codes)
    }

    #[inline(always)]
    fn pack_head(blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack(blocks, 0, head);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, 0);
    }

    #[inline(always)]
    fn head<S: Simd>(_s: S, _packed: &[u8]) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, packed: &[u8], _head: &(), _sub: usize) -> Scales<S> {
        half_scales::scales(s, half_scales::load(s, packed), s.zero())
    }
}
