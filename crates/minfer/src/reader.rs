//! A file that several threads read at once, each where it wants.

use std::fs::File;
use std::io;

/// An open file.
pub(crate) struct Reader {
    #[cfg(unix)]
    file: File,
    /// Elsewhere the position in the file is shared.
    #[cfg(not(unix))]
    file: std::sync::Mutex<File>,
}

impl Reader {
    pub(crate) fn new(file: File) -> Self {
        #[cfg(not(unix))]
        let file = std::sync::Mutex::new(file);
        Reader { file }
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The system's, or the file ends before.
    #[cfg(unix)]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset)
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The system's, or the file ends before.
    #[cfg(not(unix))]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

#[cfg(test)]
mod tests {
    use super::Reader;
    use std::fs::File;

    #[test]
    fn reads_anywhere_and_not_past_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        let bytes: Vec<u8> = (0..=255).collect();
        std::fs::write(&path, &bytes).unwrap();
        let reader = Reader::new(File::open(&path).unwrap());
        std::thread::scope(|scope| {
            for start in [0, 100, 200] {
                let (reader, bytes) = (&reader, &bytes);
                scope.spawn(move || {
                    let mut out = [0; 56];
                    reader.read(start as u64, &mut out).unwrap();
                    assert_eq!(out, bytes[start..start + 56]);
                });
            }
        });
        assert_eq!(reader.read(201, &mut [0; 56]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
