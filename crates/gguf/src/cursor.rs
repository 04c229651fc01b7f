//! Checked little-endian reading of an untrusted header.
//!
//! The cursor knows how much of the file is left. A read first checks that the bytes it asks for exist, so a claimed length or count
//! can't cause an allocation beyond the file's size; large values are read in pieces, so memory follows what was really read.

use std::io::{ErrorKind, Read};

use crate::{GgufError, MAX_HEADER_BYTES};

/// Bytes read at a time into a growing buffer.
const PIECE: u64 = 1 << 16;

/// A reader of the header with its place in the file.
pub(crate) struct Cursor<R> {
    input: R,
    offset: u64,
    file_len: u64,
}

impl<R: Read> Cursor<R> {
    pub(crate) fn new(input: R, file_len: u64) -> Self {
        Cursor { input, offset: 0, file_len }
    }

    /// The place of the next byte in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// An error unless `count` things of at least `each` bytes can follow.
    pub(crate) fn expect(&self, what: &str, count: u64, each: u64) -> Result<(), GgufError> {
        let needed = count.saturating_mul(each);
        let available = self.file_len.saturating_sub(self.offset);
        if needed > available {
            return Err(GgufError::Truncated {
                what: what.to_owned(),
                offset: self.offset,
                needed,
                available,
            });
        }
        if needed > MAX_HEADER_BYTES.saturating_sub(self.offset) {
            let (what, offset) = (what.to_owned(), self.offset);
            return Err(GgufError::HeaderTooLarge { what, offset, needed, limit: MAX_HEADER_BYTES });
        }
        Ok(())
    }

    /// `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.fill(what, &mut bytes)?;
        Ok(bytes)
    }

    /// A number of 32 bits.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A number of 64 bits.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// `len` bytes.
    pub(crate) fn bytes(&mut self, what: &str, len: u64) -> Result<Vec<u8>, GgufError> {
        self.expect(what, len, 1)?;
        let mut bytes = Vec::with_capacity(usize::try_from(len.min(PIECE)).unwrap_or(0));
        let mut left = len;
        while left > 0 {
            let piece = left.min(PIECE);
            left -= piece;
            let from = bytes.len();
            // A piece is at most `PIECE`, so it fits `usize` on every machine.
            bytes.resize(from + usize::try_from(piece).unwrap_or(0), 0);
            self.fill(what, &mut bytes[from..])?;
        }
        Ok(bytes)
    }

    /// Fills `bytes` from the file.
    fn fill(&mut self, what: &str, bytes: &mut [u8]) -> Result<(), GgufError> {
        let needed = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.expect(what, needed, 1)?;
        self.input.read_exact(bytes).map_err(|source| {
            if source.kind() == ErrorKind::UnexpectedEof {
                // The file is shorter than its owner said, or shrank.
                GgufError::Truncated { what: what.to_owned(), offset: self.offset, needed, available: 0 }
            } else {
                GgufError::Io { offset: self.offset, source }
            }
        })?;
        self.offset += needed;
        Ok(())
    }
}
