//! The half-finished file of a download: hashed while it is written, published only when it is proven whole.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::SourceError;
use super::report::Reporter;

/// What the finished file must be, as far as it is known beforehand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expect {
    /// Length in bytes.
    pub size: Option<u64>,
    /// Lower-case hex digest.
    pub sha256: Option<String>,
}

/// A `.part` file open for appending, with the running digest of everything in it.
pub struct PartFile {
    file: File,
    path: PathBuf,
    /// The final file's name, for messages.
    what: String,
    hash: Sha256,
    len: u64,
    start: [u8; 4],
    reporter: Arc<dyn Reporter>,
}

const MAGIC: &[u8; 4] = b"GGUF";

impl PartFile {
    /// Opens or creates the file at `path`, which becomes the file called `what`, and hashes what it holds. Content that is no GGUF start is dropped.
    pub fn open(path: &Path, what: &str, reporter: Arc<dyn Reporter>) -> Result<Self, SourceError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(SourceError::io("opening", path))?;
        let (path, what) = (path.to_owned(), what.to_owned());
        let mut part = Self { file, path, what, hash: Sha256::new(), len: 0, start: [0; 4], reporter };
        if !part.hash_present()? {
            part.restart()?;
        }
        Ok(part)
    }

    /// Hashes the bytes already there; false if they are no GGUF start.
    fn hash_present(&mut self) -> Result<bool, SourceError> {
        let mut block = vec![0; 1 << 20];
        loop {
            let n = self.file.read(&mut block).map_err(SourceError::io("reading", &self.path))?;
            if n == 0 {
                return Ok(true);
            }
            if self.take(&block[..n]).is_err() {
                return Ok(false);
            }
        }
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Empties the file.
    pub fn restart(&mut self) -> Result<(), SourceError> {
        self.file.set_len(0).map_err(SourceError::io("emptying", &self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(SourceError::io("emptying", &self.path))?;
        (self.hash, self.len) = (Sha256::new(), 0);
        Ok(())
    }

    /// Appends `bytes`. A first block that is no GGUF start is refused before anything is written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.take(bytes)?;
        self.file.write_all(bytes).map_err(SourceError::io("writing", &self.path))?;
        self.reporter.at(self.len);
        Ok(())
    }

    /// Accounts for `bytes` in length, digest and magic.
    fn take(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let at = self.len.min(4) as usize;
        for (slot, byte) in self.start[at..].iter_mut().zip(bytes) {
            *slot = *byte;
        }
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        let seen = self.len.min(4) as usize;
        if self.start[..seen] == MAGIC[..seen] { Ok(()) } else { Err(self.not_gguf(seen)) }
    }

    fn not_gguf(&self, seen: usize) -> SourceError {
        let start = String::from_utf8_lossy(&self.start[..seen]).into_owned();
        SourceError::NotGguf { what: self.what.clone(), start }
    }

    /// Refuses a length above the expected one; to be called whenever a length becomes known.
    pub fn check_len(&self, got: u64, expect: &Expect, whole: bool) -> Result<(), SourceError> {
        match expect.size {
            Some(expected) if got > expected || (whole && got != expected) => {
                Err(SourceError::WrongLength { what: self.what.clone(), expected, got })
            }
            _ => Ok(()),
        }
    }

    /// Checks length, magic and digest, and makes the bytes durable. Returns the digest, lower-case hex.
    pub fn finish(&self, expect: &Expect) -> Result<String, SourceError> {
        self.check_len(self.len, expect, true)?;
        if self.len < 4 {
            return Err(self.not_gguf(self.len as usize));
        }
        let got = hex(&self.hash.clone().finalize());
        if let Some(expected) = expect.sha256.as_ref().filter(|e| **e != got) {
            return Err(SourceError::WrongHash { what: self.what.clone(), expected: expected.clone(), got });
        }
        self.file.sync_all().map_err(SourceError::io("flushing", &self.path))?;
        Ok(got)
    }
}

/// Digest of a finished file, lower-case hex.
pub fn sha256_of(path: &Path) -> Result<String, SourceError> {
    let mut file = File::open(path).map_err(SourceError::io("opening", path))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).map_err(SourceError::io("reading", path))?;
    Ok(hex(&hash.finalize()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
