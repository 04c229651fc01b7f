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
    /// Read one tensor after the other. The default: survives a file that shrinks meanwhile.
    #[default]
    Read,
    /// Map the file. The weights are packed into memory of their own all the same; the file's pages come on top until the
    /// system takes them back.
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
        let fail = |e| read_error(path, e);
        let handle = File::open(path).map_err(fail)?;
        Ok(match mode {
            LoadMode::Read => Bytes::Read { file: handle, scratch: Vec::new() },
            LoadMode::Mmap => Bytes::Mapped(Mapped::new(&handle).map_err(fail)?),
        })
    }

    fn range(&mut self, offset: u64, len: usize) -> std::io::Result<&[u8]> {
        match self {
            Bytes::Read { file, scratch } => {
                scratch.try_reserve_exact(len.saturating_sub(scratch.len()))?;
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

/// Loads every weight onto the devices that use it, in the order of execution: there a step finds them one behind the
/// other. Most files have nearly the same order, so that a disk needn't seek far.
pub(crate) fn load_weights(
    file: &ModelFile,
    placed: &[(WeightSpec, Vec<BackendTag>)],
    backends: &mut Backends,
    mode: LoadMode,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), Error> {
    let mut list = Vec::with_capacity(placed.len());
    for (spec, tags) in placed {
        list.push((place(file, spec)?, spec, tags));
    }
    let total = list.iter().map(|(place, ..)| place.bytes).sum();
    let mut open: Option<(usize, Bytes)> = None;
    let mut done = 0;
    progress(LoadProgress { done, total });
    for (place, spec, tags) in list {
        let len = usize::try_from(place.bytes)
            .map_err(|_| Error::new(ErrorKind::Memory, format!("tensor `{}` is too large", spec.name)))?;
        let path = file.part(place.part);
        let bytes = match &mut open {
            Some((part, bytes)) if *part == place.part => bytes,
            other => &mut other.insert((place.part, Bytes::open(path, mode)?)).1,
        };
        let data = bytes.range(place.offset, len).map_err(|e| match e.kind() {
            std::io::ErrorKind::OutOfMemory => no_memory(&spec.name, place.bytes),
            _ => Error::model(path, e),
        })?;
        for &tag in tags {
            let backend = backends.get_mut(tag)?;
            let loaded = backend.load_weight(spec, data);
            loaded.map_err(|e| e.allocating(tag, format_args!("the weight `{}`", spec.name)))?;
        }
        done += place.bytes;
        progress(LoadProgress { done, total });
    }
    Ok(())
}

/// A file that can't be opened or mapped, the latter for want of address space too.
fn read_error(path: &Path, e: std::io::Error) -> Error {
    if e.kind() != std::io::ErrorKind::OutOfMemory {
        return Error::model(path, e);
    }
    let size =
        std::fs::metadata(path).map_or(String::new(), |m| format!(" of {:.1} MB", m.len() as f64 / 1e6));
    Error::new(ErrorKind::Memory, format!("{}: no memory to map a file{size}", path.display()))
}

fn no_memory(tensor: &str, bytes: u64) -> Error {
    let message = format!("no memory to read the {:.1} MB of the tensor `{tensor}`", bytes as f64 / 1e6);
    Error::new(ErrorKind::Memory, message)
}

/// Where a weight's bytes are.
struct Place {
    /// File of a split model.
    part: usize,
    offset: u64,
    bytes: u64,
}

/// The bytes of all of a tensor, or of some of its rows.
fn place(file: &ModelFile, spec: &WeightSpec) -> Result<Place, Error> {
    let missing = |what: &str| {
        Error::new(ErrorKind::Internal, format!("{what} of `{}` is not in the file", spec.tensor()))
    };
    let info = file.gguf().tensor(spec.tensor()).ok_or_else(|| missing("data"))?;
    let first_row = spec.part.as_ref().map_or(0, |p| p.first_row as u64);
    let bytes = spec.bytes().ok_or_else(|| missing("whole rows"))?;
    let row = bytes / (spec.rows as u64).max(1);
    let start = row.checked_mul(first_row);
    let start = start.filter(|s| s.checked_add(bytes).is_some_and(|end| end <= info.bytes));
    let offset = start.and_then(|s| s.checked_add(info.offset)).ok_or_else(|| missing("a part"))?;
    Ok(Place { part: info.part, offset, bytes })
}
