//! A file mapped into memory.
#![allow(unsafe_code, reason = "the one place that maps a file")]

use memmap2::Mmap;
use std::fs::File;
use std::io;

/// A read-only map of a whole file. Pages are read when they are first used, and the system may drop them at any time.
pub(crate) struct Mapped(Mmap);

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process. If another process shortens the
        // file meanwhile, reading past its new end raises SIGBUS; that is the documented price of
        // `--load mmap`, and why reading is the default.
        let map = unsafe { Mmap::map(file)? };
        Ok(Mapped(map))
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
