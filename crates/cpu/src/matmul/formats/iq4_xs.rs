//! IQ4_XS: a 6-bit scale around 32 for each 32, nibbles that stand for fixed levels.
//!
//! Header: `d` of the rows; then of the scales the low four bits, `[4 blocks][row]` with the blocks 4 to 7 in the high nibbles; then
//! the high two bits, `[2 blocks][row]` with the blocks `2 k` and `2 k + 1` in bits `2 k` and `2 k + 1`.

use super::{half_scales, iq4_nl, levels};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::Bits4;
use crate::simd::Simd;
use minfer_gguf::{TensorType, iq4_xs_scales, pack_iq4_xs_scales};

/// The header's parts.
const LOW: usize = 16;
const HIGH: usize = 48;

/// The header's content.
#[derive(Clone, Copy)]
pub struct Head<S: Simd> {
    d: S::F,
    /// `[8 sub + row]`: the low bits of the scales.
    low: [u8; 64],
    /// The same of the high bits, which are written in overlapping pieces.
    high: [u8; 80],
}

/// The format.
pub struct Iq4Xs;

impl Format for Iq4Xs {
    const TYPE: TensorType = TensorType::Iq4Xs;
    type Bits = Bits4;
    const HEAD: usize = 64;
    const PRODUCT: Product = Product::Signed;
    const MINIMUM: Minimum = Minimum::None;
    const LARGEST: usize = 255;
    type Head<S: Simd> = Head<S>;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        half_scales::nibbles(s, &block[8 + 16 * sub..])
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        half_scales::put_nibbles(&mut block[8 + 16 * sub..], codes);
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, codes: [S::I; 8]) -> [S::I; 8] {
        levels::look_up(s, &iq4_nl::TABLE, codes)
    }

    #[inline(always)]
    fn pack_head<S: Simd>(_s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack(blocks, 0, &mut head[..LOW]);
        head[LOW..Self::HEAD].fill(0);
        for (row, block) in blocks.iter().enumerate() {
            let scales = iq4_xs_scales(&std::array::from_fn(|i| block[2 + i]));
            for (sub, scale) in scales.iter().enumerate() {
                head[LOW + 8 * (sub % 4) + row] |= (scale & 15) << (4 * (sub / 4));
                head[HIGH + 8 * (sub % 2) + row] |= (scale >> 4) << (2 * (sub / 2));
            }
        }
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, 0);
        let scales = std::array::from_fn(|sub| {
            let low = head[LOW + 8 * (sub % 4) + row] >> (4 * (sub / 4)) & 15;
            low | (head[HIGH + 8 * (sub % 2) + row] >> (2 * (sub / 2)) & 3) << 4
        });
        block[2..8].copy_from_slice(&pack_iq4_xs_scales(&scales));
    }

    #[inline(always)]
    fn head<S: Simd>(s: S, packed: &[u8]) -> Head<S> {
        let (m15, m48) = (s.splat_u8(15), s.splat_u8(0x30));
        let nibbles = s.load_bytes(&packed[LOW..]);
        let mut low = [0; 64];
        s.store_bytes(s.and(nibbles, m15), &mut low);
        s.store_bytes(s.and(s.shr_u16::<4>(nibbles), m15), &mut low[32..]);
        // Only half of this vector belongs to the header, and only that half stays in the table.
        let bits = s.load_bytes(&packed[HIGH..]);
        let mut high = [0; 80];
        s.store_bytes(s.and(s.shl_i16::<4>(bits), m48), &mut high);
        s.store_bytes(s.and(s.shl_i16::<2>(bits), m48), &mut high[16..]);
        s.store_bytes(s.and(bits, m48), &mut high[32..]);
        s.store_bytes(s.and(s.shr_u16::<2>(bits), m48), &mut high[48..]);
        Head { d: half_scales::load(s, packed), low, high }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, _packed: &[u8], head: &Head<S>, sub: usize) -> Scales<S> {
        let (low, high) = (s.load_u8_i32(&head.low[8 * sub..]), s.load_u8_i32(&head.high[8 * sub..]));
        let scale = s.sub_i32(s.or(low, high), s.splat_i32(32));
        half_scales::scales(s, s.mul(head.d, s.from_i32(scale)), s.zero())
    }
}
