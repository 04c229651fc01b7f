//! Brings tensors from the file to the devices.

use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::mapped::Mapped;
use crate::reader::Reader;
use minfer_graph::{BackendError, BackendTag, Backends, SharedBytes, WeightBytes, WeightSpec};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// How the file's bytes are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Read the tensors, each in pieces by several threads. The default: survives a file that shrinks meanwhile.
    #[default]
    Read,
    /// Map the file and leave the weights there: little memory of the program's own, and the system drops and reads pages
    /// as it needs memory. Each use packs them anew, which makes decoding slower. The numbers are the same.
    Mmap,
}

impl LoadMode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LoadMode::Read => "read",
            LoadMode::Mmap => "mmap",
        }
    }
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
enum Opened {
    Read(Reader),
    Mapped(Arc<Mapped>),
}

impl Opened {
    fn new(path: &Path, mode: LoadMode) -> Result<Self, Error> {
        let fail = |e| read_error(path, e);
        let file = File::open(path).map_err(fail)?;
        Ok(match mode {
            LoadMode::Read => Opened::Read(Reader::new(file)),
            LoadMode::Mmap => Opened::Mapped(Arc::new(Mapped::new(&file).map_err(fail)?)),
        })
    }
}

/// A tensor's bytes in an open file.
struct InFile<'a> {
    file: &'a Opened,
    offset: u64,
    len: usize,
}

impl WeightBytes for InFile<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        let failed = |e: std::io::Error| BackendError::Read(e.to_string());
        match self.file {
            Opened::Read(reader) => reader.read(self.offset + offset as u64, out).map_err(failed),
            Opened::Mapped(_) => {
                let bytes = self.shared().ok_or_else(|| failed(std::io::ErrorKind::UnexpectedEof.into()))?;
                bytes.bytes().read(offset, out)
            }
        }
    }

    fn shared(&self) -> Option<SharedBytes> {
        let Opened::Mapped(map) = self.file else { return None };
        let start = usize::try_from(self.offset).ok()?;
        SharedBytes::new(Arc::<Mapped>::clone(map), start..start.checked_add(self.len)?)
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
    let mut open: BTreeMap<usize, Opened> = BTreeMap::new();
    let mut done = 0;
    progress(LoadProgress { done, total });
    for (place, spec, tags) in list {
        let len = usize::try_from(place.bytes)
            .map_err(|_| Error::new(ErrorKind::Memory, format!("tensor `{}` is too large", spec.name)))?;
        let path = file.part(place.part);
        let opened = match open.entry(place.part) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Opened::new(path, mode)?),
        };
        let bytes = InFile { file: opened, offset: place.offset, len };
        for &tag in tags {
            let loaded = backends.get_mut(tag)?.load_weight_from(spec, &bytes);
            loaded.map_err(|e| match e {
                BackendError::Read(_) => Error::model(path, e),
                e => e.allocating(tag, format_args!("the weight `{}`", spec.name)).into(),
            })?;
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
