//! A file mapped into memory.
#![allow(unsafe_code, reason = "the one place that maps a file")]

use memmap2::Mmap;
use std::fs::File;
use std::io;

/// A read-only map of a whole file.
pub(crate) struct Mapped(Mmap);

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process. If another process shortens the
        // file meanwhile, reading past its new end raises SIGBUS; that is the documented price of
        // `--load mmap`, and why reading is the default.
        let map = unsafe { Mmap::map(file)? };
        Ok(Mapped(map))
    }

    /// Bytes of the file, if it has them.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get(start..start.checked_add(len)?)
    }
}
