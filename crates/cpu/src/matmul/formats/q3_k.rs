//! Q3_K: three bits around 4, a 6-bit scale around 32 for each 16.
//!
//! Header: `d` of the rows, then the scales as four vectors of six bits per byte, `[16 columns][row]`.

use super::{byte_scales, half_scales};
use crate::matmul::format::{BLOCK, Format, Minimum, Product, Scales};
use crate::matmul::planes::{Bits3, pack6, unpack6};
use crate::simd::{Scalar, Simd};
use minfer_gguf::{TensorType, pack_q3_k_scales, q3_k_scales};

/// Where the file's block has its low bits, scales and `d`; the third bits come first.
const LOW: usize = 32;
const SCALES: usize = 96;
const D: usize = 108;

/// The header's content.
#[derive(Clone, Copy)]
pub struct Head<S: Simd> {
    d: S::F,
    /// `[8 (16 columns) + row]`.
    table: [u8; 128],
}

/// The scales, `[8 (16 columns) + row]`.
#[inline(always)]
fn table<S: Simd>(s: S, head: &[u8]) -> [u8; 128] {
    let scales = unpack6(s, &head[16..]);
    let mut table = [0; 128];
    for (v, out) in scales.iter().zip(table.chunks_exact_mut(32)) {
        s.store_bytes(*v, out);
    }
    table
}

/// The format.
pub struct Q3K;

impl Format for Q3K {
    const TYPE: TensorType = TensorType::Q3K;
    type Bits = Bits3;
    const HEAD: usize = 16 + 96;
    const PRODUCT: Product = Product::HalvesEight;
    const MINIMUM: Minimum = Minimum::None;
    const LARGEST: usize = 56;
    type Head<S: Simd> = Head<S>;

    #[inline(always)]
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I {
        let (third, low) = (s.load_bytes(block), s.load_bytes(&block[LOW + 32 * (sub / 4)..]));
        let third = s.and(s.shr_u16_by(third, sub), s.splat_u8(1));
        s.or(s.and(s.shr_u16_by(low, 2 * (sub % 4)), s.splat_u8(3)), s.shl_i16::<2>(third))
    }

    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]) {
        for (i, code) in codes.iter().enumerate() {
            block[i] |= (code >> 2) << sub;
            block[LOW + 32 * (sub / 4) + i] |= (code & 3) << (2 * (sub % 4));
        }
    }

    /// Eight times the codes, so that they are around 32.
    #[inline(always)]
    fn weights<S: Simd>(s: S, mut codes: [S::I; 8]) -> [S::I; 8] {
        for code in &mut codes {
            *code = s.shl_i16::<3>(*code);
        }
        codes
    }

    #[inline(always)]
    fn pack_head<S: Simd>(_s: S, blocks: [&[u8]; 8], head: &mut [u8]) {
        half_scales::pack(blocks, D, &mut head[..16]);
        let mut table = [0; 128];
        for (row, block) in blocks.iter().enumerate() {
            let scales = q3_k_scales(&std::array::from_fn(|i| block[SCALES + i]));
            for (i, scale) in scales.iter().enumerate() {
                table[8 * i + row] = *scale;
            }
        }
        let vectors = std::array::from_fn(|i| Scalar.load_bytes(&table[32 * i..]));
        pack6(Scalar, &vectors, &mut head[16..]);
    }

    fn put_head(head: &[u8], row: usize, block: &mut [u8]) {
        half_scales::put(head, row, block, D);
        let mut scales = [0; 16];
        byte_scales::put(&table(Scalar, head), row, &mut scales);
        block[SCALES..D].copy_from_slice(&pack_q3_k_scales(&scales));
    }

    #[inline(always)]
    fn head<S: Simd>(s: S, packed: &[u8]) -> Head<S> {
        Head { d: half_scales::load(s, packed), table: table(s, packed) }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, _packed: &[u8], head: &Head<S>, sub: usize) -> Scales<S> {
        let zero = s.splat_i32(32);
        let first = s.sub_i32(s.load_u8_i32(&head.table[16 * sub..]), zero);
        let second = s.sub_i32(s.load_u8_i32(&head.table[16 * sub + 8..]), zero);
        let halves = [byte_scales::pair(s, first, first), byte_scales::pair(s, second, second)];
        Scales { scale: head.d, minimum: s.zero(), halves, minima: s.splat_i32(0) }
    }
}
