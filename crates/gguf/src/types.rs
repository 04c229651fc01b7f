//! The table of tensor types: id in the file, name, elements and bytes per block. One row per type; nothing else in the crate repeats
//! these numbers except the constants of each format's module, which a test compares with this table.

use std::fmt;

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// How a tensor's elements are stored: every type a GGUF file may name today.
        ///
        /// Knowing a type is enough to check a file; [`TensorType::can_decode`] tells whether its values can be read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum TensorType { $($(#[$doc])* $variant,)* }

        impl TensorType {
            /// Every type, in the order of their ids.
            pub const ALL: &[TensorType] = &[$(TensorType::$variant,)*];

            /// The type with this id in a file's tensor table, if there is one. Ids of withdrawn types are unknown.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(TensorType::$variant),)* _ => None }
            }

            /// The id in a file's tensor table.
            pub const fn id(self) -> u32 {
                match self { $(TensorType::$variant => $id,)* }
            }

            /// The usual name: `Q4_K`, `F16`.
            pub const fn name(self) -> &'static str {
                match self { $(TensorType::$variant => $name,)* }
            }

            /// Elements per block; 1 for plain numbers.
            pub const fn block_len(self) -> usize {
                match self { $(TensorType::$variant => $len,)* }
            }

            /// Bytes per block.
            pub const fn block_bytes(self) -> usize {
                match self { $(TensorType::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    // variant, id, name, elements per block, bytes per block
    /// IEEE single.
    F32 = 0, "F32", 1, 4;
    /// IEEE half.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8 bits, scale and sum; a format for activations, not for files.
    Q8_1 = 9, "Q8_1", 32, 36;
    /// 2 bits, 4-bit scales and minima.
    Q2K = 10, "Q2_K", 256, 84;
    /// 3 bits, 6-bit scales.
    Q3K = 11, "Q3_K", 256, 110;
    /// 4 bits, 6-bit scales and minima.
    Q4K = 12, "Q4_K", 256, 144;
    /// 5 bits, 6-bit scales and minima.
    Q5K = 13, "Q5_K", 256, 176;
    /// 6 bits, 8-bit scales.
    Q6K = 14, "Q6_K", 256, 210;
    /// 8 bits, single-precision scale and sums; a format for activations, not for files.
    Q8K = 15, "Q8_K", 256, 292;
    /// 2.06 bits, codebook.
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    /// 2.31 bits, codebook.
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    /// 3.06 bits, codebook.
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    /// 1.56 bits, codebook.
    Iq1S = 19, "IQ1_S", 256, 50;
    /// 4 bits, fixed non-linear levels.
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    /// 3.44 bits, codebook.
    Iq3S = 21, "IQ3_S", 256, 110;
    /// 2.5 bits, codebook.
    Iq2S = 22, "IQ2_S", 256, 82;
    /// 4 bits, fixed non-linear levels, 6-bit scales.
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    /// Signed byte.
    I8 = 24, "I8", 1, 1;
    /// Signed 16-bit integer.
    I16 = 25, "I16", 1, 2;
    /// Signed 32-bit integer.
    I32 = 26, "I32", 1, 4;
    /// Signed 64-bit integer.
    I64 = 27, "I64", 1, 8;
    /// IEEE double.
    F64 = 28, "F64", 1, 8;
    /// 1.75 bits, codebook.
    Iq1M = 29, "IQ1_M", 256, 56;
    /// The upper half of an IEEE single.
    Bf16 = 30, "BF16", 1, 2;
    /// Ternary, 1.69 bits.
    Tq1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2.06 bits.
    Tq2_0 = 35, "TQ2_0", 256, 66;
    /// 4-bit floats, power-of-two scale.
    Mxfp4 = 39, "MXFP4", 32, 17;
    /// 4-bit floats, 8-bit float scales.
    Nvfp4 = 40, "NVFP4", 64, 36;
    /// 1 bit, scale.
    Q1_0 = 41, "Q1_0", 128, 18;
    /// 2 bits, scale.
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// Bytes of a row of `n` elements; `None` if `n` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether elements are stored in blocks that share a scale.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether [`decode_row`](crate::decode_row) reads this type.
    pub const fn can_decode(self) -> bool {
        use TensorType::{
            Bf16, F16, F32, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
        };
        matches!(
            self,
            F32 | F16
                | Bf16
                | Q4_0
                | Q4_1
                | Q5_0
                | Q5_1
                | Q8_0
                | Q2K
                | Q3K
                | Q4K
                | Q5K
                | Q6K
                | Iq4Nl
                | Iq4Xs
                | Mxfp4
        )
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
