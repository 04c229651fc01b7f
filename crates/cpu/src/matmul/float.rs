//! Products with F32, F16 and BF16 weights: packed as `[column][row]` within a group of 8 rows.
#![allow(
    clippy::needless_range_loop,
    reason = "several arrays are indexed alike, and iterators hide that from the eye"
)]

use crate::simd::Simd;
use minfer_gguf::TensorType;

/// Columns between prefetches are counted in bytes: this far ahead.
const AHEAD: usize = 2048;

/// A type of plain numbers, of two or four bytes.
pub trait Float: 'static {
    /// The type in the file.
    const TYPE: TensorType;
    /// Bytes per number.
    const SIZE: usize = Self::TYPE.block_bytes();

    /// Eight numbers of `8 * SIZE` bytes.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

/// IEEE single.
pub struct F32;
/// IEEE half.
pub struct F16;
/// Upper half of an IEEE single.
pub struct Bf16;

impl Float for F32 {
    const TYPE: TensorType = TensorType::F32;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.from_bits(s.load_bytes(bytes))
    }
}

#[inline(always)]
fn words(bytes: &[u8]) -> [u16; 8] {
    let (words, _) = bytes[..16].as_chunks();
    std::array::from_fn(|i| u16::from_le_bytes(words[i]))
}

impl Float for F16 {
    const TYPE: TensorType = TensorType::F16;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f16(&words(bytes))
    }
}

impl Float for Bf16 {
    const TYPE: TensorType = TensorType::Bf16;

    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bf16(&words(bytes))
    }
}

/// Sums of `G` groups and `T` tokens of f32 activations, columns in ascending order.
#[inline(always)]
pub fn tile<S: Simd, F: Float, const G: usize, const T: usize>(
    s: S,
    groups: [&[u8]; G],
    tokens: [&[f32]; T],
) -> [[S::F; T]; G] {
    let cols = tokens[0].len();
    assert!(groups.iter().all(|g| g.len() == cols * 8 * F::SIZE));
    assert!(tokens.iter().all(|t| t.len() == cols));
    let mut acc = [[s.zero(); T]; G];
    for col in 0..cols {
        for g in 0..G {
            let at = col * 8 * F::SIZE;
            if T < 8 && at.is_multiple_of(64) {
                s.prefetch(groups[g].as_ptr().wrapping_add(AHEAD + at));
            }
            let w = F::load(s, &groups[g][at..at + 8 * F::SIZE]);
            for t in 0..T {
                acc[g][t] = s.fma(w, s.splat(tokens[t][col]), acc[g][t]);
            }
        }
    }
    acc
}

/// Writes 8 rows of the file (empty ones stay zero) as a group.
#[inline(always)]
pub fn pack<S: Simd, F: Float>(s: S, rows: &[&[u8]; 8], group: &mut [u8]) {
    // Eight words of each row at a time, of one number or of two; then what is left.
    let bytes = rows[0].len() / 32 * 32;
    for (at, out) in (0..bytes).step_by(32).zip(group.chunks_exact_mut(32 * 8)) {
        let mut words = [s.splat_u8(0); 8];
        for (words, row) in words.iter_mut().zip(rows) {
            if !row.is_empty() {
                *words = s.load_bytes(&row[at..]);
            }
        }
        for (columns, out) in s.transpose_i32(words).into_iter().zip(out.chunks_exact_mut(32)) {
            let columns = if F::SIZE == 2 { s.transpose_u16(columns) } else { columns };
            s.store_bytes(columns, out);
        }
    }
    for (r, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
        let rest = row[bytes..].chunks_exact(F::SIZE);
        for (x, out) in rest.zip(group[8 * bytes..].chunks_exact_mut(8 * F::SIZE)) {
            out[r * F::SIZE..][..F::SIZE].copy_from_slice(x);
        }
    }
}

/// One row of a group as f32.
pub fn row<F: Float>(group: &[u8], r: usize, out: &mut [f32]) {
    let at = r * F::SIZE;
    for (x, out) in group.chunks_exact(8 * F::SIZE).zip(out) {
        let x = &x[at..at + F::SIZE];
        *out = match F::TYPE {
            TensorType::F32 => f32::from_le_bytes([x[0], x[1], x[2], x[3]]),
            TensorType::F16 => half::f16::from_le_bytes([x[0], x[1]]).to_f32(),
            _ => half::bf16::from_le_bytes([x[0], x[1]]).to_f32(),
        };
    }
}

/// `with_float!(ty, F => expr, else => other)`: like `with_format!`, for plain numbers.
macro_rules! with_float {
    ($ty:expr, $f:ident => $body:expr, else => $other:expr) => {
        match $ty {
            minfer_gguf::TensorType::F32 => {
                type $f = $crate::matmul::float::F32;
                $body
            }
            minfer_gguf::TensorType::F16 => {
                type $f = $crate::matmul::float::F16;
                $body
            }
            minfer_gguf::TensorType::Bf16 => {
                type $f = $crate::matmul::float::Bf16;
                $body
            }
            _ => $other,
        }
    };
}
pub(super) use with_float;
