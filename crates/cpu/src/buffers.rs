//! The backend's memory: a slot map of 64-byte aligned buffers with a free list.
//!
//! Kernels never see a buffer, only the byte ranges that [`BufferPool::share`] hands out after it
//! has checked that they exist and that nothing written overlaps anything else in the same call.

use crate::matmul::Region;
use crate::matmul::shared::SharedMut;
use minfer_graph::{BackendError, BufferId, BufferSlice};
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Freed buffers that are kept for reuse; the smallest goes first beyond that.
const MAX_FREE: usize = 16;

/// From this size on a buffer lies on huge pages: large KV regions, which attention streams through. A step that touches
/// some of it takes up to 2 MiB too much, which is little of this.
const HUGE_FROM: usize = 32 << 20;

/// What owns a buffer's memory.
enum Owner {
    /// Starts at the address, [`ALIGNMENT`] bytes longer than the buffer.
    Allocator(NonNull<u8>, Layout),
    /// Freed when dropped.
    Mapping { _region: Region },
}

/// One allocation. `start` is its first aligned byte.
struct Buffer {
    owner: Owner,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buffer` owns its memory alone and has no thread affinity; all access goes through
// the pool, which needs `&mut self` for it.
unsafe impl Send for Buffer {}
// SAFETY: as above; what threads do with the bytes at the same time is on `BufferPool::share`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed memory. Large regions (a KV cache) stay untouched until first use.
    fn new(bytes: usize) -> Result<Buffer, BackendError> {
        // Elsewhere a region is allocated, and touched at once.
        if cfg!(target_os = "linux") && bytes >= HUGE_FROM {
            let mut region = Region::new(bytes)?;
            let start = NonNull::from(region.bytes_mut()).cast();
            return Ok(Buffer { owner: Owner::Mapping { _region: region }, start, len: bytes });
        }
        Buffer::allocate(bytes)
    }

    /// `alloc_zeroed` with a small alignment gets fresh pages from the system, so the alignment is made here.
    fn allocate(bytes: usize) -> Result<Buffer, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory(bytes);
        let size = bytes.checked_add(ALIGNMENT).ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(size, 8).map_err(|_| out_of_memory())?;
        // SAFETY: the layout's size is at least ALIGNMENT, so not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        let skip = base.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        // SAFETY: `skip <= ALIGNMENT` and the allocation is `bytes + ALIGNMENT` long.
        let start = unsafe { base.add(skip) };
        Ok(Buffer { owner: Owner::Allocator(base, layout), start, len: bytes })
    }

    /// Debug builds fill memory that has no defined content with NaN (f32 and f16) and -1 (i32), so
    /// that a read before a write shows.
    fn poison(&mut self) {
        if cfg!(debug_assertions) {
            // SAFETY: `start..start + len` lies in the allocation, which `&mut self` owns alone.
            unsafe { self.start.as_ptr().write_bytes(0xff, self.len) };
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::Allocator(base, layout) = self.owner {
            // SAFETY: `base` came from `alloc_zeroed` with this layout and is freed only here.
            unsafe { std::alloc::dealloc(base.as_ptr(), layout) };
        }
    }
}

/// Ranges to read and ranges to write.
pub type Views<'a, const R: usize, const W: usize> = ([&'a [u8]; R], [SharedMut<'a, u8>; W]);

/// The buffers of a backend. Ids are never used twice, so a stale id is an error and not another buffer.
#[derive(Default)]
pub struct BufferPool {
    slots: BTreeMap<usize, Buffer>,
    free: Vec<Buffer>,
    next: usize,
}

impl BufferPool {
    /// No buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of all buffers, those on the free list included.
    pub fn bytes(&self) -> usize {
        self.slots.values().chain(&self.free).map(|b| b.len).sum()
    }

    /// A buffer of at least `bytes` bytes, recycled if a freed one fits without wasting half of it.
    pub fn alloc(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let fits = |b: &Buffer| b.len >= bytes && b.len / 2 <= bytes;
        let best = (0..self.free.len()).filter(|&i| fits(&self.free[i])).min_by_key(|&i| self.free[i].len);
        match best {
            Some(i) => {
                let buffer = self.free.swap_remove(i);
                Ok(self.insert(buffer))
            }
            None => self.alloc_fresh(bytes),
        }
    }

    /// A new allocation, past the free list.
    pub fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let buffer = match Buffer::new(bytes) {
            Ok(buffer) => buffer,
            Err(_) => {
                // What the free list holds may be just what is missing.
                self.free.clear();
                Buffer::new(bytes)?
            }
        };
        Ok(self.insert(buffer))
    }

    fn insert(&mut self, mut buffer: Buffer) -> BufferId {
        buffer.poison();
        let id = self.next;
        self.next += 1;
        self.slots.insert(id, buffer);
        BufferId(id)
    }

    /// Puts a buffer on the free list; an unknown id is ignored.
    pub fn free(&mut self, id: BufferId) {
        let Some(buffer) = self.slots.remove(&id.0) else { return };
        self.free.push(buffer);
        if self.free.len() > MAX_FREE {
            self.free.sort_by_key(|b| std::cmp::Reverse(b.len));
            self.free.pop();
        }
    }

    /// First byte of a range after checking that it exists.
    fn locate(&self, s: BufferSlice) -> Result<NonNull<u8>, BackendError> {
        if s.len == 0 {
            return Ok(NonNull::<u64>::dangling().cast());
        }
        let buffer = self
            .slots
            .get(&s.buffer.0)
            .ok_or_else(|| BackendError::BadBuffer(format!("no buffer {}", s.buffer.0)))?;
        match s.offset.checked_add(s.len) {
            // SAFETY: `offset < offset + len <= buffer.len`, inside the allocation.
            Some(end) if end <= buffer.len => Ok(unsafe { buffer.start.add(s.offset) }),
            _ => Err(BackendError::BadBuffer(format!(
                "{} bytes at {} of buffer {}, which has {}",
                s.len, s.offset, s.buffer.0, buffer.len
            ))),
        }
    }

    /// The bytes of several ranges for the members of a team. Reads may overlap each other; a write may overlap nothing.
    ///
    /// # Safety
    ///
    /// All who hold views of the pool at the same time asked for the same ranges.
    pub unsafe fn share<const R: usize, const W: usize>(
        &self,
        reads: [BufferSlice; R],
        writes: [BufferSlice; W],
    ) -> Result<Views<'_, R, W>, BackendError> {
        self.check_overlaps(&reads, &writes)?;
        let mut read: [&[u8]; R] = [&[]; R];
        for (view, &s) in read.iter_mut().zip(&reads) {
            // SAFETY: `locate` checked the range, the memory was initialised when it was allocated, and nobody writes it:
            // no range in `writes` overlaps it, and by the caller's promise others write to these alone.
            *view = unsafe { std::slice::from_raw_parts(self.locate(s)?.as_ptr(), s.len) };
        }
        let mut write = [SharedMut::new(&mut []); W];
        for (view, &s) in write.iter_mut().zip(&writes) {
            // SAFETY: as above; all who touch the range do so through such a view.
            *view = unsafe { SharedMut::from_raw(self.locate(s)?, s.len) };
        }
        Ok((read, write))
    }

    fn check_overlaps(&self, reads: &[BufferSlice], writes: &[BufferSlice]) -> Result<(), BackendError> {
        for (i, &w) in writes.iter().enumerate() {
            if let Some(&other) = reads.iter().chain(&writes[..i]).find(|&&o| overlaps(w, o)) {
                return Err(BackendError::BadBuffer(format!("written range {w:?} overlaps {other:?}")));
            }
        }
        Ok(())
    }

    /// The bytes of one range, to read.
    pub fn read(&mut self, s: BufferSlice) -> Result<&[u8], BackendError> {
        let start = self.locate(s)?;
        // SAFETY: `locate` checked the range (a dangling start has length 0), the memory was initialised when it was
        // allocated, and `&mut self` is borrowed for the view's lifetime.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), s.len) })
    }

    /// The bytes of one range, to write.
    pub fn write(&mut self, s: BufferSlice) -> Result<&mut [u8], BackendError> {
        let start = self.locate(s)?;
        // SAFETY: as in `read`.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), s.len) })
    }
}

fn overlaps(a: BufferSlice, b: BufferSlice) -> bool {
    let end = |s: BufferSlice| s.offset.saturating_add(s.len);
    a.buffer == b.buffer && a.len > 0 && b.len > 0 && a.offset < end(b) && b.offset < end(a)
}

/// Bytes as values; an error if they are misaligned or no whole number of values.
pub fn typed<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Result<&[T], BackendError> {
    bytemuck::try_cast_slice(bytes).map_err(|e| bad_cast::<T>(bytes.len(), e))
}

fn bad_cast<T>(len: usize, e: bytemuck::PodCastError) -> BackendError {
    BackendError::BadBuffer(format!("{len} bytes as {}: {e}", std::any::type_name::<T>()))
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, BufferPool, typed};
    use minfer_graph::{BackendError, BufferId, BufferSlice};

    fn slice(buffer: BufferId, offset: usize, len: usize) -> BufferSlice {
        BufferSlice { buffer, offset, len }
    }

    /// R80: the pool behind both ways.
    #[test]
    fn recycles_only_past_the_fresh_path() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(1000).unwrap();
        let start = pool.read(slice(a, 0, 1000)).unwrap().as_ptr();
        assert_eq!(start as usize % ALIGNMENT, 0);
        pool.free(a);
        assert!(matches!(pool.read(slice(a, 0, 1)), Err(BackendError::BadBuffer(_))));
        let fresh = pool.alloc_fresh(1000).unwrap();
        assert_ne!(pool.read(slice(fresh, 0, 1)).unwrap().as_ptr(), start);
        let b = pool.alloc(900).unwrap();
        assert_ne!(a, b);
        assert_eq!(pool.read(slice(b, 0, 900)).unwrap().as_ptr(), start);
        pool.free(BufferId(77));
    }

    #[test]
    fn checks_ranges_and_overlaps() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(256).unwrap();
        assert!(pool.write(slice(a, 200, 56)).is_ok());
        assert!(pool.write(slice(a, 200, 57)).is_err());
        assert!(pool.write(slice(a, usize::MAX, 57)).is_err());
        // SAFETY: each result is gone before the next call.
        unsafe {
            assert!(pool.share([slice(a, 0, 64), slice(a, 32, 64)], [slice(a, 96, 8)]).is_ok());
            assert!(pool.share([slice(a, 0, 64)], [slice(a, 63, 8)]).is_err());
            assert!(pool.share([], [slice(a, 0, 64), slice(a, 0, 64)]).is_err());
            assert!(pool.share([slice(BufferId(9), 5, 0)], [slice(a, 0, 64)]).is_ok());
        }
        let bytes = pool.read(slice(a, 2, 8)).unwrap();
        assert!(typed::<f32>(bytes).is_err());
    }

    #[test]
    fn large_buffers_are_like_small_ones() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(super::HUGE_FROM + 1).unwrap();
        let end = slice(a, super::HUGE_FROM - 99, 100);
        pool.write(end).unwrap().fill(3);
        assert_eq!(pool.read(end).unwrap(), [3; 100]);
        pool.free(a);
        assert!(pool.read(end).is_err());
        let b = pool.alloc(super::HUGE_FROM).unwrap();
        assert!(
            pool.write(slice(b, 0, super::HUGE_FROM + 1)).is_ok_and(|bytes| bytes.len() > super::HUGE_FROM)
        );
    }

    #[test]
    fn a_buffer_too_large_is_an_error() {
        let mut pool = BufferPool::new();
        assert!(matches!(pool.alloc(usize::MAX - 1), Err(BackendError::OutOfMemory(_))));
        assert!(matches!(pool.alloc(isize::MAX as usize - 4096), Err(BackendError::OutOfMemory(_))));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn new_memory_is_nan_in_debug_builds() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(64).unwrap();
        let bytes = pool.read(slice(a, 0, 64)).unwrap();
        assert!(typed::<f32>(bytes).unwrap().iter().all(|v| v.is_nan()));
    }
}
