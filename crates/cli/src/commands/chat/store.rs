//! Writing a file whole or not at all.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Where a text will be.
pub struct Target {
    /// The file itself: links on the way are followed.
    path: PathBuf,
    /// The mode of the file that is there now.
    existing: Option<Permissions>,
}

impl Target {
    /// The file that `path` names. Nothing has changed yet.
    ///
    /// # Errors
    /// What is there is no regular file, cannot be written, or is a link to nothing.
    pub fn new(path: &Path) -> Result<Self> {
        Self::find(path).with_context(|| path.display().to_string())
    }

    fn find(path: &Path) -> Result<Self> {
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Ok(Target { path: path.to_owned(), existing: None });
            }
            found => found?,
        };
        let metadata = match fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => bail!("a link to a file that is not there"),
            found => found?,
        };
        ensure!(metadata.is_file(), "not a regular file");
        let path = fs::canonicalize(path)?;
        // A new file could take the place of one that its owner protected from being written.
        OpenOptions::new().write(true).open(&path)?;
        Ok(Target { path, existing: Some(metadata.permissions()) })
    }

    /// The file that is there now.
    pub fn existing(&self) -> Option<&Path> {
        self.existing.is_some().then_some(&self.path)
    }

    /// Writes a text. A file keeps its mode; a new one is its owner's alone.
    ///
    /// # Errors
    /// The folder or the disk does not take it. What was there then still is.
    pub fn write(self, text: &str) -> Result<()> {
        let path = self.path.clone();
        self.replace(text).with_context(|| path.display().to_string())
    }

    /// Beside it first, under a name that nothing has: a disk that is full must not cost what the file held before.
    fn replace(self, text: &str) -> Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut beside = tempfile::Builder::new()
            .prefix(".minfer-")
            .suffix(".part")
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        beside.write_all(text.as_bytes())?;
        if let Some(mode) = self.existing {
            beside.as_file().set_permissions(mode)?;
        }
        beside.as_file().sync_all()?;
        beside.persist(&self.path)?;
        Ok(())
    }
}
