//! Memory of packed weights and other large regions: aligned to a cache line, on huge pages where that helps.
//!
//! A matvec streams through all weights, and pages of 4 KiB cost it a fifth of the bandwidth. So an [`Arena`] puts weights
//! one behind the other into large mappings, in which small matrices and the ends of large ones lie on huge pages too.

use minfer_graph::BackendError;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment in bytes: a cache line.
const ALIGN: usize = 64;

/// From this size on memory is mapped and not taken from the allocator.
#[cfg(target_os = "linux")]
const MAP_FROM: usize = 1 << 20;
/// Size of a huge page.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;
/// Address space that an arena takes at a time. What is never written takes no memory.
#[cfg(target_os = "linux")]
const SLAB: usize = 64 << 20;

/// Zeroed memory that regions share.
struct Slab {
    start: NonNull<u8>,
    len: usize,
    /// Whether it is a mapping; else the allocator owns it.
    mapped: bool,
}

// SAFETY: a slab owns its memory, which may be freed from any thread; it gives no access to the bytes itself.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// A slab of at least `len` bytes.
    fn new(len: usize) -> Option<Slab> {
        #[cfg(target_os = "linux")]
        if len >= MAP_FROM {
            return Slab::map(len);
        }
        Slab::allocate(len)
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(ALIGN), ALIGN).ok()
    }

    fn allocate(len: usize) -> Option<Slab> {
        let layout = Slab::layout(len)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Slab { start, len, mapped: false })
    }

    /// Maps whole huge pages. What was mapped to find such a start is returned at once.
    #[cfg(target_os = "linux")]
    fn map(len: usize) -> Option<Slab> {
        let len = len.checked_next_multiple_of(HUGE)?;
        let total = len.checked_add(HUGE)?;
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
                libc::munmap(start.byte_add(len), HUGE - skip);
            }
            libc::madvise(start, len, libc::MADV_HUGEPAGE);
            start
        };
        Some(Slab { start: NonNull::new(start.cast())?, len, mapped: true })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.mapped {
            // SAFETY: exactly the mapping that `map` kept; no region of it is left.
            unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            }
            return;
        }
        debug_assert!(!self.mapped);
        if let Some(layout) = Slab::layout(self.len) {
            // SAFETY: allocated by `allocate` with this very layout; no region of it is left.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// Zeroed, aligned bytes that nothing else reads or writes.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory.
    _slab: Arc<Slab>,
}

// SAFETY: the region alone owns its bytes; access follows the borrow of the region.
unsafe impl Send for Region {}
// SAFETY: as above, shared access only reads.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zeroed bytes by themselves.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    pub fn new(len: usize) -> Result<Region, BackendError> {
        let slab = Arc::new(Slab::new(len).ok_or(BackendError::OutOfMemory(len))?);
        Ok(Region { start: slab.start, len, _slab: slab })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised (zeroed) bytes for as long as the slab lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive, and regions of a slab don't overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish()
    }
}

/// Gives out regions that lie one behind the other in few large mappings. A mapping goes back to the system when all its
/// regions are gone.
#[derive(Default)]
pub struct Arena {
    /// The mapping in use and how many of its bytes are given out.
    #[cfg(target_os = "linux")]
    open: Option<(Arc<Slab>, usize)>,
}

impl Arena {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    #[cfg(target_os = "linux")]
    pub fn region(&mut self, len: usize) -> Result<Region, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory(len);
        let room = len.checked_next_multiple_of(ALIGN).ok_or_else(out_of_memory)?;
        let (slab, at) = match self.open.take() {
            Some((slab, used)) if room <= slab.len - used => (slab, used),
            _ => {
                // With little address space to have (`ulimit -v`), no more than it takes.
                let slab = Slab::map(room.max(SLAB)).or_else(|| Slab::map(room));
                (Arc::new(slab.ok_or_else(out_of_memory)?), 0)
            }
        };
        // SAFETY: `at + room <= slab.len`, so that the region lies in the slab; `used` only grows, so that it is given out
        // once; mappings start zeroed, and nothing wrote there yet.
        let start = unsafe { slab.start.add(at) };
        self.open = Some((Arc::clone(&slab), at + room));
        Ok(Region { start, len, _slab: slab })
    }

    /// `len` zeroed bytes. Allocators may write all of what they return, so that a slab would take its memory at once.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    #[cfg(not(target_os = "linux"))]
    pub fn region(&mut self, len: usize) -> Result<Region, BackendError> {
        Region::new(len)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Arena, Region};

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
        assert!(Region::new(usize::MAX).is_err());
    }

    /// Regions of an arena are as good as ones by themselves, whatever became of the arena and of their neighbours.
    #[test]
    fn regions_of_an_arena_are_apart() {
        let mut arena = Arena::default();
        let mut regions = Vec::new();
        for len in [0, 1, 63, 64, 65, 5 << 20, 100, 30 << 20, 30 << 20, 70 << 20, 1000] {
            let mut region = arena.region(len).unwrap();
            assert_eq!(region.bytes().len(), len);
            assert_eq!(region.bytes().as_ptr().addr() % ALIGN, 0);
            assert!(region.bytes().iter().all(|&b| b == 0));
            region.bytes_mut().fill(regions.len() as u8 + 1);
            regions.push(region);
        }
        assert!(arena.region(usize::MAX / 4).is_err());
        assert!(arena.region(usize::MAX).is_err());
        assert!(arena.region(10).unwrap().bytes().iter().all(|&b| b == 0));
        drop(arena);
        for (i, region) in regions.iter().enumerate().rev() {
            assert!(region.bytes().iter().all(|&b| usize::from(b) == i + 1), "{i}");
        }
        while regions.len() > 1 {
            regions.swap_remove(0);
            assert!(regions[0].bytes().windows(2).all(|w| w[0] == w[1]));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn small_regions_of_an_arena_follow_each_other() {
        let mut arena = Arena::default();
        let starts: Vec<usize> =
            [100, 64, 1].iter().map(|&n| arena.region(n).unwrap().bytes().as_ptr().addr()).collect();
        // Even though the regions before are gone: memory is not given out twice.
        assert_eq!((starts[1] - starts[0], starts[2] - starts[1]), (128, 64));
        assert_eq!(starts[0] % super::HUGE, 0);
    }
}
