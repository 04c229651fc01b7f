//! What a quantised type must say about itself, and the table of types.

use super::planes::Planes;
use crate::simd::{Scalar, Simd};
use minfer_gguf::TensorType;

/// Values per block that share an activation scale.
pub const BLOCK: usize = 32;

/// How a block's integer product is computed. All are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Unsigned codes of at most 15, no zero point.
    Unsigned4,
    /// Unsigned codes of at most 31, no zero point; adds up around 16 and corrects.
    Unsigned5,
    /// Codes of at most 15 around 8.
    Zero8,
    /// Codes of at most 31 around 16.
    Zero16,
    /// Codes of at most 63 around 32; an i8 scale for each half of the block.
    Halves,
    /// Unsigned codes of at most 3, no zero point; an i8 scale for each half of the block.
    HalvesUnsigned2,
    /// Eight times codes of at most 7 around 4; an i8 scale for each half of the block; a shift takes the factor off again.
    HalvesEight,
    /// Signed bytes.
    Signed,
}

impl Product {
    /// Whether each half of a block has an integer scale.
    pub const fn by_halves(self) -> bool {
        matches!(self, Product::Halves | Product::HalvesUnsigned2 | Product::HalvesEight)
    }

    /// Whether 16-bit lanes hold every pair of products and every final sum (sums may wrap in between), and
    /// 24 bits the block's result, so that its conversion to f32 is exact. `largest` is [`Format::LARGEST`].
    pub const fn is_exact(self, largest: usize) -> bool {
        // Largest byte, zero point of the 16-bit sums, products per lane, largest |weight| times scale.
        let (top, zero, per_lane, weight) = match self {
            Product::Unsigned4 => (15, 0, 16, 15),
            Product::Unsigned5 => (31, 16, 16, 31),
            Product::Zero8 => (15, 8, 16, 8),
            Product::Zero16 => (31, 16, 16, 16),
            Product::Halves => (63, 32, 8, 32 * 128),
            Product::HalvesUnsigned2 => (3, 0, 8, 3 * 128),
            Product::HalvesEight => (56, 32, 8, 32 * 128),
            // No 16-bit sums: a pair of products is at most 2 * 128 * 127.
            Product::Signed => return largest <= 255,
        };
        let around_zero = if top - zero > zero { top - zero } else { zero };
        largest <= top
            && 2 * top * 127 <= 32767
            && per_lane * around_zero * 127 <= 32767
            && 32 * weight * 127 < 1 << 24
    }
}

/// What is added to a block's product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimum {
    /// Nothing.
    None,
    /// A minimum, times the sum of the activations.
    Block,
    /// A number, times the exact integer product of a small minimum per half and the half's sum of activations.
    Halves,
}

/// Scales of one block of 8 rows.
#[derive(Clone, Copy)]
pub struct Scales<S: Simd> {
    /// `ws` of the numeric contract.
    pub scale: S::F,
    /// `m` of the numeric contract, for [`Minimum::Block`]; `ms` for [`Minimum::Halves`].
    pub minimum: S::F,
    /// The two integer scales as pairs of equal i16, for the products by halves.
    pub halves: [S::I; 2],
    /// The two integer minima as a pair of i16, for [`Minimum::Halves`].
    pub minima: S::I,
}

/// A quantised type: how 8 rows of a file's blocks become a packed one, and what the kernel reads there.
///
/// A packed block is a header of the 8 rows' scales, then the [`Planes`] of each 32 columns; as many
/// bytes as the 8 blocks in the file.
pub trait Format: 'static {
    /// The type in the file.
    const TYPE: TensorType;
    /// Packing of the codes.
    type Bits: Planes;
    /// Bytes of the header.
    const HEAD: usize;
    /// Integer product.
    const PRODUCT: Product;
    /// Minimum.
    const MINIMUM: Minimum;
    /// Largest byte that [`Format::weights`] makes of a code.
    const LARGEST: usize = (1 << Self::Bits::BITS) - 1;
    /// Blocks of 32 per packed block.
    const SUBS: usize = Self::TYPE.block_len() / BLOCK;
    /// Bytes of a packed block.
    const BYTES: usize = {
        let bytes = Self::HEAD + Self::SUBS * Self::Bits::BYTES;
        assert!(bytes == 8 * Self::TYPE.block_bytes(), "packing must not change the size");
        assert!(Self::PRODUCT.is_exact(Self::LARGEST), "the integer product may overflow");
        bytes
    };
    /// The header, decoded as far as the blocks share it.
    type Head<S: Simd>: Copy;

    /// Codes of the 32 columns `sub` of a file's block, a byte each.
    fn codes<S: Simd>(s: S, block: &[u8], sub: usize) -> S::I;

    /// Inverse of [`Format::codes`] on a block whose codes are still zero.
    fn put_codes(block: &mut [u8], sub: usize, codes: &[u8; BLOCK]);

    /// What the kernel multiplies for these codes, which are below `2^BITS`: the codes themselves, unless a format says otherwise.
    #[inline(always)]
    fn weights<S: Simd>(_s: S, codes: [S::I; BLOCK / 4]) -> [S::I; BLOCK / 4] {
        codes
    }

    /// Writes the header of 8 blocks of the file.
    fn pack_head<S: Simd>(s: S, blocks: [&[u8]; 8], head: &mut [u8]);

    /// Writes one row's part of the header back to a file's block.
    fn put_head(head: &[u8], row: usize, block: &mut [u8]);

    /// Reads the header of a packed block.
    fn head<S: Simd>(s: S, packed: &[u8]) -> Self::Head<S>;

    /// Scales of the 32 columns `sub`.
    fn scales<S: Simd>(s: S, packed: &[u8], head: &Self::Head<S>, sub: usize) -> Scales<S>;
}

/// Packs the blocks of 8 rows.
#[inline(always)]
pub fn pack_block<S: Simd, F: Format>(s: S, blocks: [&[u8]; 8], packed: &mut [u8]) {
    let (head, planes) = packed[..F::BYTES].split_at_mut(F::HEAD);
    F::pack_head(s, blocks, head);
    for (sub, out) in planes.chunks_exact_mut(F::Bits::BYTES).enumerate() {
        let mut rows = [s.splat_u8(0); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = F::codes(s, block, sub);
        }
        // A group has the same four columns of all rows.
        F::Bits::pack(s, &s.transpose_i32(rows), out);
    }
}

/// Restores one row's block of the file.
pub fn unpack_block<F: Format>(packed: &[u8], row: usize, block: &mut [u8]) {
    block.fill(0);
    F::put_head(packed, row, block);
    for (sub, planes) in packed[F::HEAD..F::BYTES].chunks_exact(F::Bits::BYTES).enumerate() {
        let mut codes = [0; BLOCK];
        for (group, out) in F::Bits::unpack(Scalar, planes).into_iter().zip(codes.chunks_exact_mut(4)) {
            let mut bytes = [0; 32];
            Scalar.store_bytes(group, &mut bytes);
            out.copy_from_slice(&bytes[4 * row..][..4]);
        }
        F::put_codes(block, sub, &codes);
    }
}

/// The table of quantised types: `with_format!(ty, F => expr, else => other)` evaluates `expr` with
/// the type `F: Format` of a [`TensorType`].
macro_rules! with_format {
    ($ty:expr, $f:ident => $body:expr, else => $other:expr) => {
        $crate::matmul::format::with_format!(@ $ty, $f, $body, $other,
            Q4_0 => q4_0::Q4_0, Q4_1 => q4_1::Q4_1, Q5_0 => q5_0::Q5_0, Q5_1 => q5_1::Q5_1,
            Q8_0 => q8_0::Q8_0, Q2K => q2_k::Q2K, Q3K => q3_k::Q3K, Q4K => q4_k::Q4K, Q5K => q5_k::Q5K,
            Q6K => q6_k::Q6K, Iq4Nl => iq4_nl::Iq4Nl, Iq4Xs => iq4_xs::Iq4Xs, Mxfp4 => mxfp4::Mxfp4)
    };
    (@ $ty:expr, $f:ident, $body:expr, $other:expr, $($name:ident => $($path:ident)::+),+) => {
        match $ty {
            $(minfer_gguf::TensorType::$name => {
                type $f = $crate::matmul::formats::$($path)::+;
                $body
            })+
            _ => $other,
        }
    };
}
pub(super) use with_format;

#[cfg(test)]
mod tests {
    use super::{Format, pack_block, unpack_block};
    use crate::dispatch;
    use crate::simd::{Isa, Kernel, Scalar, Simd};
    use minfer_gguf::TensorType;
    use std::marker::PhantomData;

    /// Packs 8 rows with any instruction set.
    struct Pack<'a, F>(&'a [u8], &'a mut [u8], PhantomData<F>);

    impl<F: Format> Kernel for Pack<'_, F> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let rows = std::array::from_fn(|r| &self.0[r * F::TYPE.block_bytes()..][..F::TYPE.block_bytes()]);
            pack_block::<S, F>(s, rows, self.1);
        }
    }

    /// Packs random blocks of 8 rows and compares each row's bytes.
    fn round_trip<F: Format>(state: &mut u32) {
        let len = F::TYPE.block_bytes();
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..8 * len)
                .map(|_| {
                    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_be_bytes()[0]
                })
                .collect();
            let mut packed = vec![0; F::BYTES];
            Scalar.run(Pack::<F>(&bytes, &mut packed, PhantomData));
            for isa in Isa::available() {
                let mut same = vec![0; F::BYTES];
                dispatch!(isa, s => s.run(Pack::<F>(&bytes, &mut same, PhantomData)));
                assert!(same == packed, "{} with {isa}", F::TYPE);
            }
            for (r, want) in bytes.chunks_exact(len).enumerate() {
                let mut block = vec![0; len];
                unpack_block::<F>(&packed, r, &mut block);
                assert_eq!(block, want, "{} row {r}", F::TYPE);
            }
        }
    }

    #[test]
    fn every_byte_of_the_file_comes_back() {
        let (mut state, mut count) = (1, 0);
        for &ty in TensorType::ALL.iter().filter(|ty| ty.can_decode() && ty.is_quantized()) {
            with_format!(ty, F => round_trip::<F>(&mut state), else => panic!("{ty} has no kernel"));
            count += 1;
        }
        assert_eq!(count, 13);
    }
}
