//! A matrix for the kernels, which read groups of 8 interleaved rows.
//!
//! Either it was repacked when it was loaded, in the file's byte count (rows rounded up to 8). Or it stays as it is in the
//! file, mapped into memory, and threads pack the groups they are about to read into a small buffer: the same bytes for
//! the same kernels, less memory and more work.

use super::float::{self, with_float};
use super::format::{Format, pack_block, unpack_block, with_format};
use super::memory::{Arena, Region};
use super::shared::SharedMut;
use crate::dispatch;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd};
use minfer_gguf::TensorType;
use minfer_graph::{BackendError, SharedBytes, WeightBytes, WeightSpec, room};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rows per group.
pub const GROUP: usize = 8;
/// Largest block of any packed type in the file, in bytes.
const MAX_BLOCK: usize = 256;

/// A weight `[rows, cols]` in groups of 8 interleaved rows, or yet to be packed so.
#[derive(Debug)]
pub struct PackedWeight {
    ty: TensorType,
    rows: usize,
    cols: usize,
    group_bytes: usize,
    bytes: Bytes,
}

/// A weight's bytes.
#[derive(Debug)]
enum Bytes {
    Packed(Region),
    /// The rows of the file.
    Native(SharedBytes),
}

/// Packed groups of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups<'a> {
    /// The first of them.
    first: usize,
    group_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Groups<'a> {
    /// Bytes of group `g` of the weight, which must be one of these.
    #[inline(always)]
    pub fn at(&self, g: usize) -> &'a [u8] {
        &self.bytes[(g - self.first) * self.group_bytes..][..self.group_bytes]
    }
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
        PackedWeight::pack_with(spec, &data, pool, Region::new)
    }

    /// The weight as it is in the file.
    ///
    /// # Errors
    ///
    /// As [`PackedWeight::pack`].
    pub fn native(spec: &WeightSpec, data: SharedBytes) -> Result<PackedWeight, BackendError> {
        let group_bytes = group_bytes(spec, data.bytes().len())?;
        let (ty, rows, cols) = (spec.ty, spec.rows, spec.cols);
        Ok(PackedWeight { ty, rows, cols, group_bytes, bytes: Bytes::Native(data) })
    }

    /// As [`PackedWeight::pack`], into memory of an arena. What is still in a file is read in pieces by the threads that
    /// pack them.
    ///
    /// # Errors
    ///
    /// As [`PackedWeight::pack`], or the bytes can't be read.
    pub(crate) fn pack_in(
        spec: &WeightSpec,
        data: &dyn WeightBytes,
        pool: &Pool,
        arena: &mut Arena,
    ) -> Result<PackedWeight, BackendError> {
        PackedWeight::pack_with(spec, data, pool, |len| arena.region(len))
    }

    fn pack_with(
        spec: &WeightSpec,
        data: &dyn WeightBytes,
        pool: &Pool,
        region: impl FnOnce(usize) -> Result<Region, BackendError>,
    ) -> Result<PackedWeight, BackendError> {
        let group_bytes = group_bytes(spec, data.len())?;
        let (ty, rows, cols) = (spec.ty, spec.rows, spec.cols);
        let len = rows.div_ceil(GROUP).checked_mul(group_bytes);
        let mut region = region(len.ok_or(BackendError::OutOfMemory(usize::MAX))?)?;
        if !region.bytes().is_empty() {
            fill(spec, data, group_bytes, region.bytes_mut(), pool)?;
        }
        Ok(PackedWeight { ty, rows, cols, group_bytes, bytes: Bytes::Packed(region) })
    }

    /// The packed groups, if the weight has them all.
    pub(super) fn groups(&self) -> Option<Groups<'_>> {
        match &self.bytes {
            Bytes::Packed(region) => {
                Some(Groups { first: 0, group_bytes: self.group_bytes, bytes: region.bytes() })
            }
            Bytes::Native(_) => None,
        }
    }

    /// Packed bytes of a group.
    pub(super) fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// How many groups to pack at a time, an even number.
    pub(super) fn groups_per_piece(&self) -> usize {
        (PIECE / 2 / self.group_bytes.max(1)).next_multiple_of(2).max(2)
    }

    /// Bytes of up to so many groups that are packed at a time.
    pub(super) fn piece_bytes(&self, groups: usize) -> usize {
        self.groups_per_piece().min(groups).saturating_mul(self.group_bytes)
    }

    /// Packs groups of a weight that is as in the file into a buffer.
    pub(super) fn pack_groups<'a, S: Simd>(
        &self,
        s: S,
        groups: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Groups<'a> {
        let (first, group_bytes) = (groups.start, self.group_bytes);
        buffer.resize(groups.len() * group_bytes, 0);
        if let Bytes::Native(data) = &self.bytes
            && group_bytes > 0
        {
            let row_bytes = group_bytes / GROUP;
            let data = &data.bytes()[first * group_bytes..(groups.end * GROUP).min(self.rows) * row_bytes];
            s.run(PackGroups { ty: self.ty, data, row_bytes, packed: &mut *buffer });
        }
        Groups { first, group_bytes, bytes: buffer }
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

    /// Bytes in memory, in a mapped file too.
    pub fn bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Packed(region) => region.bytes().len(),
            Bytes::Native(data) => data.bytes().len(),
        }
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
        let packed = match &self.bytes {
            Bytes::Packed(region) => region.bytes(),
            Bytes::Native(data) => {
                let row = &data.bytes()[r * (self.group_bytes / GROUP)..][..self.group_bytes / GROUP];
                let decoded = minfer_gguf::decode_row(self.ty, row, out);
                return decoded.map_err(|e| BackendError::Device(e.to_string()));
            }
        };
        let (group, r) = (&packed[r / GROUP * self.group_bytes..][..self.group_bytes], r % GROUP);
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
}

/// Bytes of a group, if a weight of `len` bytes can be packed.
fn group_bytes(spec: &WeightSpec, len: usize) -> Result<usize, BackendError> {
    let WeightSpec { ty, rows, cols, .. } = *spec;
    if !PackedWeight::supports(ty) {
        return Err(BackendError::Unsupported(format!("weight `{}` of type {ty}", spec.name)));
    }
    let bad = |reason: String| BackendError::BadWeight { name: spec.name.clone(), reason };
    let row_bytes = ty
        .row_bytes(cols)
        .ok_or_else(|| bad(format!("rows of {cols} values are no whole number of {ty} blocks")))?;
    if rows.checked_mul(row_bytes) != Some(len) {
        return Err(bad(format!("{len} bytes instead of {rows} rows of {row_bytes}")));
    }
    GROUP.checked_mul(row_bytes).ok_or(BackendError::OutOfMemory(usize::MAX))
}

/// Packs a weight.
fn fill(
    spec: &WeightSpec,
    data: &dyn WeightBytes,
    group_bytes: usize,
    packed: &mut [u8],
    pool: &Pool,
) -> Result<(), BackendError> {
    let (ty, rows, row_bytes) = (spec.ty, spec.rows, group_bytes / GROUP);
    let isa = Isa::detect();
    let out = SharedMut::new(packed);
    let whole = data.slice();
    let scratch: Mutex<Vec<Vec<u8>>> = Mutex::default();
    let failed: Mutex<Option<BackendError>> = Mutex::default();
    pool.chunks(rows.div_ceil(GROUP), PIECE.div_ceil(group_bytes), |groups| {
        let bytes = groups.start * group_bytes..(groups.end * GROUP).min(rows) * row_bytes;
        // SAFETY: chunks don't overlap, so each group is written by one thread.
        let packed = unsafe { out.range(groups.start * group_bytes..groups.end * group_bytes) };
        if let Some(data) = whole {
            return dispatch!(isa, s => s.run(PackGroups { ty, data: &data[bytes], row_bytes, packed }));
        }
        let mut piece = lock(&scratch).pop().unwrap_or_default();
        match read_piece(data, bytes, &mut piece) {
            Ok(()) => dispatch!(isa, s => s.run(PackGroups { ty, data: &piece, row_bytes, packed })),
            Err(e) => *lock(&failed) = Some(e),
        }
        lock(&scratch).push(piece);
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Bytes that a thread reads and packs at a time: they stay in its cache in between.
const PIECE: usize = 128 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a range of a weight's bytes into a list.
fn read_piece(data: &dyn WeightBytes, range: Range<usize>, piece: &mut Vec<u8>) -> Result<(), BackendError> {
    room::resize(piece, range.len(), 0)?;
    data.read(range.start, piece)
}

/// Packs groups of 8 rows; rows that the last one lacks become zeros.
struct PackGroups<'a> {
    ty: TensorType,
    /// The rows that are there.
    data: &'a [u8],
    row_bytes: usize,
    packed: &'a mut [u8],
}

impl Kernel for PackGroups<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackGroups { ty, data, row_bytes, packed } = self;
        let groups = data.chunks(GROUP * row_bytes).zip(packed.chunks_exact_mut(GROUP * row_bytes));
        with_format!(ty, F => {
            let len = F::TYPE.block_bytes();
            let zeros = [0; MAX_BLOCK];
            for (data, group) in groups {
                for (i, packed) in group.chunks_exact_mut(F::BYTES).enumerate() {
                    // Eight short streams are more than the processor foresees, so the next group is asked for.
                    for line in 0..F::BYTES.div_ceil(64) {
                        s.prefetch(data.as_ptr().wrapping_add(GROUP * row_bytes + i * F::BYTES + 64 * line));
                    }
                    let mut blocks = [&zeros[..len]; GROUP];
                    for (r, block) in blocks.iter_mut().enumerate() {
                        let start = r * row_bytes + i * len;
                        *block = data.get(start..start + len).unwrap_or(*block);
                    }
                    pack_block::<S, F>(s, blocks, packed);
                }
            }
        }, else => with_float!(ty, F => {
            for (data, group) in groups {
                let mut rows: [&[u8]; GROUP] = [&[]; GROUP];
                for (row, data) in rows.iter_mut().zip(data.chunks_exact(row_bytes)) {
                    *row = data;
                }
                float::pack::<S, F>(s, &rows, group);
            }
        }, else => ()));
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE, PackedWeight};
    use crate::matmul::Arena;
    use crate::pool::Pool;
    use minfer_gguf::TensorType;
    use minfer_graph::{BackendError, WeightBytes, WeightSpec};

    /// Bytes that are read in pieces, up to where they break off.
    struct Read<'a>(&'a [u8], usize);

    impl WeightBytes for Read<'_> {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
            assert!(out.len() < 2 * PIECE);
            if offset + out.len() > self.1 {
                return Err(BackendError::Read("broken off".into()));
            }
            self.0.read(offset, out)
        }
    }

    #[test]
    fn pieces_of_a_file_become_the_same_weight() {
        let (pool, mut arena) = (Pool::new(2), Arena::default());
        for (ty, rows, cols) in
            [(TensorType::Q5K, 1003, 768), (TensorType::F16, 77, 3001), (TensorType::Q8_0, 5, 32)]
        {
            let spec = WeightSpec::new("w", ty, rows, cols);
            let len = rows * ty.row_bytes(cols).unwrap();
            let data: Vec<u8> = (0..len).map(|i| (i * i / 7) as u8).collect();
            let want = PackedWeight::pack(&spec, &data, &pool).unwrap();
            let got = PackedWeight::pack_in(&spec, &Read(&data, len), &pool, &mut arena).unwrap();
            assert!(got.groups().unwrap().bytes == want.groups().unwrap().bytes, "{ty}");
            let broken = PackedWeight::pack_in(&spec, &Read(&data, len - 1), &pool, &mut arena);
            assert!(matches!(broken, Err(BackendError::Read(_))));
        }
    }
}
