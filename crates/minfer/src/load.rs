//! Brings tensors from the file to the devices.

use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::mapped::Mapped;
use minfer_graph::{BackendTag, Backends, WeightSpec};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How the file's bytes are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Read each tensor into memory. The default: survives a file that shrinks meanwhile.
    #[default]
    Read,
    /// Map the file.
    Mmap,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes placed.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// An open file.
enum Bytes {
    Read { file: File, scratch: Vec<u8> },
    Mapped(Mapped),
}

impl Bytes {
    fn open(path: &Path, mode: LoadMode) -> Result<Self, Error> {
        let fail = |e| Error::model(path, e);
        let handle = File::open(path).map_err(fail)?;
        Ok(match mode {
            LoadMode::Read => Bytes::Read { file: handle, scratch: Vec::new() },
            LoadMode::Mmap => Bytes::Mapped(Mapped::new(&handle).map_err(fail)?),
        })
    }

    fn range(&mut self, offset: u64, len: usize) -> std::io::Result<&[u8]> {
        match self {
            Bytes::Read { file, scratch } => {
                scratch.resize(len, 0);
                file.seek(SeekFrom::Start(offset))?;
                file.read_exact(scratch)?;
                Ok(scratch)
            }
            Bytes::Mapped(map) => {
                let start = usize::try_from(offset).map_err(std::io::Error::other)?;
                let range = start..start.saturating_add(len);
                map.bytes().get(range).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

/// Loads every weight onto the devices that use it, in file order.
pub(crate) fn load_weights(
    file: &ModelFile,
    placed: &[(WeightSpec, Vec<BackendTag>)],
    backends: &mut Backends,
    mode: LoadMode,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), Error> {
    let mut list = Vec::with_capacity(placed.len());
    for (spec, tags) in placed {
        let info = file.gguf().tensor(&spec.name).ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("tensor `{}` is not in the file", spec.name))
        })?;
        list.push((info, spec, tags));
    }
    list.sort_by_key(|(info, ..)| (info.part, info.offset));
    let total = list.iter().map(|(info, ..)| info.bytes).sum();
    let mut open: Option<(usize, Bytes)> = None;
    let mut done = 0;
    progress(LoadProgress { done, total });
    for (info, spec, tags) in list {
        let len = usize::try_from(info.bytes)
            .map_err(|_| Error::new(ErrorKind::Memory, format!("tensor `{}` is too large", info.name)))?;
        let path = file.part(info.part);
        let bytes = match &mut open {
            Some((part, bytes)) if *part == info.part => bytes,
            other => &mut other.insert((info.part, Bytes::open(path, mode)?)).1,
        };
        let data = bytes.range(info.offset, len).map_err(|e| Error::model(path, e))?;
        for &tag in tags {
            let backend = backends.get_mut(tag)?;
            let loaded = backend.load_weight(spec, data);
            loaded.map_err(|source| minfer_graph::GraphError::Backend { backend: tag, source })?;
        }
        done += info.bytes;
        progress(LoadProgress { done, total });
    }
    Ok(())
}
