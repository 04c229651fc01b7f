//! Q6_K: six bits around 32, a signed 8-bit scale for each 16.
//!
//! Header: `d` of the rows, then the scales, `[16 columns][row]`.

use super::{byte_scales, half_scales};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits6;
use crate::simd::Simd;
use minfer_gguf::TensorType;

/// Where the file's block has its scales and `d`.
const SCALES: usize = 192;
const D: usize = 208;

/// The format.
pub struct Q6K;

impl Format for Q6K {
    const TYPE: TensorType = TensorType::Q6K;
    type Bits = Bits6;
    const HEAD: usize = 16 + 128;
    const PRODUCT: Product = Product::Halves;
    const MINIMUM: Minimum = Minimum::None;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        let low = s.load_bytes(&block[64 * (sub / 4) + 32 * (sub % 2)..]);
        let high = s.load_bytes(&block[128 + 32 * (sub / 4)..]);
        let high = s.and(s.shr_u16_by(high, 2 * (sub % 4)), s.splat_u8(3));
        s.or(s.and(s.shr_u16_by(low, 4 * (sub / 2 % 2)), s.splat_u8(15)), s.shl_i16::<4>(high))
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        for (i, code) in codes.iter().enumerate() {
            block[64 * (sub / 4) + 32 * (sub % 2) + i] |= (code & 15) << (4 * (sub / 2 % 2));
            block[128 + 32 * (sub / 4) + i] |= (code >> 4) << (2 * (sub % 4));
        }
    }

    #[inline(always)]
    fn pack_head<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack(blocks, D, &mut head[..16]);
        byte_scales::pack(s, blocks, SCALES, &mut head[16..]);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, D);
        byte_scales::put(&head[16..], row, &mut block[SCALES..D]);
    }

    #[inline(always)]
    fn head<S: Simd>(s: S, packed: &[u8]) -> S::F {
        half_scales::load(s, packed)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, packed: &[u8], head: &S::F, sub: usize) -> Scales<S> {
        let at = 16 + 16 * sub;
        let halves = [s.load_i8_pairs(&packed[at..]), s.load_i8_pairs(&packed[at + 8..])];
        Scales { scale: *head, minimum: s.zero(), halves, minima: s.splat_i32(0) }
    }
}
