//! Q2_K: a 4-bit scale and a 4-bit minimum for each 16, two bits.
//!
//! Header: `d` and `dmin` of the rows, then the bytes of scales and minima, `[16 columns][row]`.

use super::{byte_scales, half_scales};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits2;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// Where the file's block has its levels, `d` and `dmin`; the scales come first.
const LEVELS: usize = 16;
const D: usize = 80;
const DMIN: usize = 82;

/// The format.
pub struct Q2K;

impl Format for Q2K {
    const TYPE: TensorType = TensorType::Q2K;
    type Bits = Bits2;
    const HEAD: usize = 32 + 128;
    const PRODUCT: Product = Product::HalvesUnsigned2;
    const MINIMUM: Minimum = Minimum::Halves;
    /// `d` and `-dmin`.
    type Head<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        s.and(s.shr_u16_by(s.load_bytes(&block[LEVELS + 32 * (sub / 4)..]), 2 * (sub % 4)), s.splat_u8(3))
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        for (byte, code) in block[LEVELS + 32 * (sub / 4)..].iter_mut().zip(codes) {
            *byte |= code << (2 * (sub % 4));
        }
    }

    #[inline(always)]
    fn pack_head<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack(blocks, D, &mut head[..16]);
        half_scales::pack(blocks, DMIN, &mut head[16..32]);
        byte_scales::pack(s, blocks, 0, &mut head[32..]);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, D);
        half_scales::put(&head[16..], row, block, DMIN);
        byte_scales::put(&head[32..], row, &mut block[..LEVELS]);
    }

    #[inline(always)]
    fn head<S: Simd>(s: S, packed: &[u8]) -> (S::F, S::F) {
        (half_scales::load(s, packed), s.neg(half_scales::load(s, &packed[16..])))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, packed: &[u8], head: &(S::F, S::F), sub: usize) -> Scales<S> {
        let at = 32 + 16 * sub;
        let (first, second) = (s.load_u8_i32(&packed[at..]), s.load_u8_i32(&packed[at + 8..]));
        let low = s.splat_i32(15);
        let (scale0, scale1) = (s.and(first, low), s.and(second, low));
        let halves = [byte_scales::pair(s, scale0, scale0), byte_scales::pair(s, scale1, scale1)];
        let minima = byte_scales::pair(s, s.shr_i32::<4>(first), s.shr_i32::<4>(second));
        Scales { scale: head.0, minimum: head.1, halves, minima }
    }
}
