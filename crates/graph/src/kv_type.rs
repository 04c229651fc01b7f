//! Types of a KV cache and their sizes.

use crate::backend::PAGE;
use crate::op::KvShape;
use std::fmt;

/// Values of a head at one position that share a scale in a `q8_0` cache.
pub const KV_BLOCK: usize = 32;

/// Most values of a key that are rotated together.
pub const MAX_ROTATION: usize = 256;

/// Type of a K or V cache, and so how a page is laid out.
///
/// A page holds [`PAGE`] positions of every KV head, head after head, so that one head's part of a page
/// (its *head page*) is contiguous. Within it:
///
/// * `f16`, `f32`: K is `[dim][pos]`, V is `[pos][dim]`.
/// * `q8_0`: signed bytes `q` in the same order as the floats, then f16 scales `d`, `[block][pos]` for both.
///   A block is up to [`KV_BLOCK`] neighbouring values of one head at one position (the last one is
///   shorter if the head's size is no multiple), and a value is `d * q`. A position is quantised once,
///   when it is written, and from nothing but its own values.
///   Keys are rotated first: [`KvType::key_rotation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
    /// Signed bytes with a 16-bit float scale per [`KV_BLOCK`] values.
    Q8_0,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 3] = [KvType::F16, KvType::F32, KvType::Q8_0];

    /// Command-line name.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// Values of a key that are rotated together before they are stored: a power of two that divides
    /// `dim`, 1 where the type stores keys as they are.
    ///
    /// The rotation is the Hadamard matrix, by butterflies over halves, quarters and so on; a query is
    /// rotated alike and divided by the number. Products stay what they are, and a large value that would
    /// leave the others of its block few levels is spread over all of them.
    pub const fn key_rotation(self, dim: usize) -> usize {
        match self {
            KvType::F16 | KvType::F32 => 1,
            KvType::Q8_0 => {
                // `dim` 0 has no lowest bit.
                let divisor = dim & dim.wrapping_neg();
                if divisor < MAX_ROTATION { divisor } else { MAX_ROTATION }
            }
        }
    }

    /// Bytes of one head with `dim` values at one position.
    pub const fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 2 * dim,
            KvType::F32 => 4 * dim,
            KvType::Q8_0 => dim + 2 * dim.div_ceil(KV_BLOCK),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Types of a K cache and its V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvTypes {
    /// Of K.
    pub k: KvType,
    /// Of V.
    pub v: KvType,
}

impl KvTypes {
    /// Bytes of a K page and of a V page.
    pub const fn page_bytes(self, shape: &KvShape) -> (usize, usize) {
        let rows = PAGE * shape.n_kv_head;
        (rows * self.k.head_bytes(shape.head_dim), rows * self.v.head_bytes(shape.v_dim))
    }
}

impl From<KvType> for KvTypes {
    fn from(ty: KvType) -> Self {
        KvTypes { k: ty, v: ty }
    }
}

impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.k == self.v {
            true => write!(f, "{}", self.k),
            false => write!(f, "{} and {}", self.k, self.v),
        }
    }
}
