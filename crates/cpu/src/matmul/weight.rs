//! A matrix repacked for the kernels, in the file's byte count (rows rounded up to 8).

use super::float::{self, with_float};
use super::format::{Format, pack_block, unpack_block, with_format};
use super::memory::{Arena, Region};
use super::shared::SharedMut;
use crate::dispatch;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd};
use minfer_gguf::TensorType;
use minfer_graph::{BackendError, WeightSpec};

/// Rows per group.
pub const GROUP: usize = 8;
/// Largest block of any packed type in the file, in bytes.
const MAX_BLOCK: usize = 256;

/// A weight `[rows, cols]` in groups of 8 interleaved rows.
#[derive(Debug)]
pub struct PackedWeight {
    ty: TensorType,
    rows: usize,
    cols: usize,
    group_bytes: usize,
    region: Region,
}

impl PackedWeight {
    /// Whether the type can be packed.
    pub fn supports(ty: TensorType) -> bool {
        ty.can_decode()
            && with_format!(ty, F => F::TYPE == ty, else => with_float!(ty, F => <F as float::Float>::TYPE == ty, else => false))
    }

    /// Repacks `data`, the file's bytes of a weight, with all threads of the pool, into memory of its own.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unsupported`] for a type without kernels, [`BackendError::BadWeight`] if the shape and the bytes don't fit the
    /// type, [`BackendError::OutOfMemory`].
    pub fn pack(spec: &WeightSpec, data: &[u8], pool: &Pool) -> Result<PackedWeight, BackendError> {
        PackedWeight::pack_with(spec, data, pool, Region::new)
    }

    /// As [`PackedWeight::pack`], into memory of an arena.
    ///
    /// # Errors
    ///
    /// As [`PackedWeight::pack`].
    pub(crate) fn pack_in(
        spec: &WeightSpec,
        data: &[u8],
        pool: &Pool,
        arena: &mut Arena,
    ) -> Result<PackedWeight, BackendError> {
        PackedWeight::pack_with(spec, data, pool, |len| arena.region(len))
    }

    fn pack_with(
        spec: &WeightSpec,
        data: &[u8],
        pool: &Pool,
        region: impl FnOnce(usize) -> Result<Region, BackendError>,
    ) -> Result<PackedWeight, BackendError> {
        let (ty, rows, cols) = (spec.ty, spec.rows, spec.cols);
        if !PackedWeight::supports(ty) {
            return Err(BackendError::Unsupported(format!("weight `{}` of type {ty}", spec.name)));
        }
        let bad = |reason: String| BackendError::BadWeight { name: spec.name.clone(), reason };
        let row_bytes = ty
            .row_bytes(cols)
            .ok_or_else(|| bad(format!("rows of {cols} values are no whole number of {ty} blocks")))?;
        if rows.checked_mul(row_bytes) != Some(data.len()) {
            return Err(bad(format!("{} bytes instead of {rows} rows of {row_bytes}", data.len())));
        }
        let group_bytes = GROUP * row_bytes;
        let groups = rows.div_ceil(GROUP);
        let len = groups.checked_mul(group_bytes).ok_or(BackendError::OutOfMemory(usize::MAX))?;
        let mut weight = PackedWeight { ty, rows, cols, group_bytes, region: region(len)? };
        if len > 0 {
            weight.fill(data, row_bytes, pool);
        }
        Ok(weight)
    }

    fn fill(&mut self, data: &[u8], row_bytes: usize, pool: &Pool) {
        let (ty, rows, group_bytes) = (self.ty, self.rows, self.group_bytes);
        let isa = Isa::detect();
        let out = SharedMut::new(self.region.bytes_mut());
        // About 256 KiB per piece.
        let chunk = (1usize << 18).div_ceil(group_bytes);
        pool.chunks(rows.div_ceil(GROUP), chunk, |range| {
            for g in range {
                // SAFETY: chunks don't overlap, so each group is written by one thread.
                let group = unsafe { out.range(g * group_bytes..(g + 1) * group_bytes) };
                let first = g * GROUP;
                let data = &data[first * row_bytes..(first + GROUP).min(rows) * row_bytes];
                dispatch!(isa, s => s.run(PackGroup { ty, data, row_bytes, group }));
            }
        });
    }

    /// Type in the file.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Rows: outputs of a matmul, entries of a table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    /// Whether products take quantised activations ([`Activations`](super::Activations)) rather than f32.
    pub fn is_quantized(&self) -> bool {
        self.ty.is_quantized()
    }

    /// Row `r` as f32: the values that [`minfer_gguf::decode_row`] gives for the file's bytes.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfRange`] for a row outside the matrix, [`BackendError::BadBuffer`] if `out` doesn't have the row's length.
    pub fn row(&self, r: usize, out: &mut [f32]) -> Result<(), BackendError> {
        if r >= self.rows {
            let value = i64::try_from(r).unwrap_or(i64::MAX);
            return Err(BackendError::OutOfRange { what: "row", value, limit: self.rows });
        }
        if out.len() != self.cols {
            return Err(BackendError::BadBuffer(format!("{} values for a row of {}", out.len(), self.cols)));
        }
        let (group, r) = (self.group(r / GROUP), r % GROUP);
        with_format!(self.ty, F => {
            let mut block = [0; MAX_BLOCK];
            let block = &mut block[..F::TYPE.block_bytes()];
            for (packed, out) in group.chunks_exact(F::BYTES).zip(out.chunks_exact_mut(F::TYPE.block_len())) {
                unpack_block::<F>(packed, r, block);
                minfer_gguf::decode_row(F::TYPE, block, out).map_err(|e| BackendError::Device(e.to_string()))?;
            }
        }, else => with_float!(self.ty, F => float::row::<F>(group, r, out), else => ()));
        Ok(())
    }

    /// Packed bytes of a group.
    #[inline(always)]
    pub(super) fn group(&self, g: usize) -> &[u8] {
        &self.region.bytes()[g * self.group_bytes..][..self.group_bytes]
    }
}

/// Packs up to 8 rows; missing ones become zeros.
struct PackGroup<'a> {
    ty: TensorType,
    /// The rows that are there.
    data: &'a [u8],
    row_bytes: usize,
    group: &'a mut [u8],
}

impl Kernel for PackGroup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackGroup { ty, data, row_bytes, group } = self;
        with_format!(ty, F => {
            let len = F::TYPE.block_bytes();
            let zeros = [0; MAX_BLOCK];
            for (i, packed) in group.chunks_exact_mut(F::BYTES).enumerate() {
                let mut blocks = [&zeros[..len]; GROUP];
                for (r, block) in blocks.iter_mut().enumerate() {
                    let start = r * row_bytes + i * len;
                    *block = data.get(start..start + len).unwrap_or(*block);
                }
                pack_block::<S, F>(s, blocks, packed);
            }
        }, else => with_float!(ty, F => {
            let mut rows: [&[u8]; GROUP] = [&[]; GROUP];
            for (row, data) in rows.iter_mut().zip(data.chunks_exact(row_bytes)) {
                *row = data;
            }
            float::pack::<F>(&rows, group);
        }, else => ()));
    }
}
