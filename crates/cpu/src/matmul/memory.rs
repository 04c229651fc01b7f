//! Memory of packed weights and activations: aligned to a cache line, on huge pages where that helps.

use minfer_graph::BackendError;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Alignment in bytes: a cache line.
const ALIGN: usize = 64;

/// From this size on a region is mapped by itself, so that huge pages can back it: a matvec streams
/// through weights, and 4 KiB pages cost a fifth of the bandwidth.
#[cfg(target_os = "linux")]
const MAP_FROM: usize = 1 << 20;
/// Size of a huge page.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// Zeroed, aligned bytes.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Bytes mapped; 0 if the allocator owns the memory.
    mapped: usize,
}

// SAFETY: the region owns its bytes; access follows the borrow of the region.
unsafe impl Send for Region {}
// SAFETY: as above, shared access only reads.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    pub fn new(len: usize) -> Result<Region, BackendError> {
        #[cfg(target_os = "linux")]
        if len >= MAP_FROM {
            return Region::map(len).ok_or(BackendError::OutOfMemory(len));
        }
        Region::allocate(len).ok_or(BackendError::OutOfMemory(len))
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(ALIGN), ALIGN).ok()
    }

    fn allocate(len: usize) -> Option<Region> {
        let layout = Region::layout(len)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Region { start, len, mapped: 0 })
    }

    /// Maps a region that starts on a huge page. What was mapped to find such a start is returned at once.
    #[cfg(target_os = "linux")]
    fn map(len: usize) -> Option<Region> {
        const PAGE: usize = 4096;
        let wanted = len.checked_next_multiple_of(PAGE)?;
        let total = wanted.checked_add(HUGE)?;
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), total, access, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let skip = base.addr().next_multiple_of(HUGE) - base.addr();
        // SAFETY: both ranges are page-aligned parts of the mapping just made, outside of what is kept;
        // the advice covers what is kept. Failures only cost address space or speed.
        let start = unsafe {
            let start = base.byte_add(skip);
            if skip > 0 {
                libc::munmap(base, skip);
            }
            if skip < HUGE {
                libc::munmap(start.byte_add(wanted), HUGE - skip);
            }
            libc::madvise(start, wanted, libc::MADV_HUGEPAGE);
            start
        };
        Some(Region { start: NonNull::new(start.cast())?, len, mapped: wanted })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised (zeroed) bytes for as long as the region lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.mapped > 0 {
            // SAFETY: exactly the mapping that `map` kept; nothing borrows it any more.
            unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.mapped);
            }
            return;
        }
        debug_assert_eq!(self.mapped, 0);
        if let Some(layout) = Region::layout(self.len) {
            // SAFETY: allocated by `allocate` with this very layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Region};

    #[test]
    fn aligned_and_zeroed() {
        for len in [0, 1, 100, 1 << 20, (3 << 20) + 5] {
            let mut region = Region::new(len).unwrap();
            assert_eq!(region.bytes().len(), len);
            assert_eq!(region.bytes().as_ptr().addr() % ALIGN, 0);
            assert!(region.bytes().iter().all(|&b| b == 0));
            region.bytes_mut().fill(7);
            assert!(region.bytes().iter().all(|&b| b == 7));
        }
        assert!(Region::new(usize::MAX / 4).is_err());
    }
}
