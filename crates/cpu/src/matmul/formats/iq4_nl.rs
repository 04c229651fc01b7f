//! IQ4_NL: a scale and nibbles that stand for fixed levels.

use super::{half_scales, levels};
use crate::matmul::format::{BLOCK, Format, Product};
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
    const PRODUCT: Product = Product::Signed;
    const LARGEST: usize = 255;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], _sub: usize) -> S::I {
        half_scales::nibbles(s, &block[2..])
    }

    fn put_codes(block: &mut [u8], _sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[2..], codes);
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, codes: [S::I; 8]) -> [S::I; 8] {
        levels::look_up(s, &TABLE, codes)
    }

    half_scales::alone!();
}
