//! A model whose weights are on its devices, ready for sessions.

use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::load::{LoadMode, LoadProgress, load_weights};
use crate::placement::Layout;
use minfer_graph::Backends;
use minfer_models::ModelSpec;
use minfer_text::Tokenizer;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Threads of the CPU backend; the machine's limits decide if `None`.
    pub threads: Option<usize>,
    /// Which device runs which block, from [`Placement::resolve`](crate::Placement::resolve); the CPU runs all by
    /// default.
    pub layout: Layout,
    /// How the file is reached.
    pub load: LoadMode,
    /// Called as bytes arrive.
    pub progress: Option<&'a mut dyn FnMut(LoadProgress)>,
}

struct Inner {
    file: ModelFile,
    spec: ModelSpec,
    id: u64,
    layout: Layout,
    backends: Mutex<Backends>,
    device: String,
}

/// A loaded model. Cheap to clone; clones share the weights.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

impl Model {
    /// Opens a file, checks it, and places its weights.
    ///
    /// # Errors
    /// [`ErrorKind::Model`] if the file is not a model that can be run, [`ErrorKind::Device`] if the
    /// device is not there, [`ErrorKind::Memory`] if the weights do not fit.
    pub fn load(path: &Path, options: LoadOptions<'_>) -> Result<Model, Error> {
        Self::from_file(ModelFile::open(path)?, options)
    }

    /// Places the weights of an opened file.
    pub fn from_file(file: ModelFile, options: LoadOptions<'_>) -> Result<Model, Error> {
        let spec = file.spec()?;
        let layout = options.layout;
        layout.check(&spec)?;
        let mut backends = layout.open(options.threads)?;
        let id = fingerprint(&file);
        let placed = layout.weights(&spec, &backends)?;
        let mut quiet = |_| {};
        let progress = options.progress.unwrap_or(&mut quiet);
        load_weights(&file, &placed, &mut backends, options.load, progress)?;
        let device = describe(&layout, &backends);
        let backends = Mutex::new(backends);
        Ok(Model { inner: Arc::new(Inner { file, spec, id, layout, backends, device }) })
    }

    /// The opened file.
    pub fn file(&self) -> &ModelFile {
        &self.inner.file
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// Tells models apart in graph uids.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Which device runs which block.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// The devices it runs on, for people.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// The file's tokenizer.
    ///
    /// # Errors
    /// As [`ModelFile::tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.inner.file.tokenizer()
    }

    pub(crate) fn backends(&self) -> Result<MutexGuard<'_, Backends>, Error> {
        let lost = |_| Error::new(ErrorKind::Internal, "a thread died while it used the devices");
        self.inner.backends.lock().map_err(lost)
    }
}

/// Identity of a file for graph uids: its header and size, not its weights.
fn fingerprint(file: &ModelFile) -> u64 {
    let mut hasher = DefaultHasher::new();
    file.gguf().file_len.hash(&mut hasher);
    for t in &file.gguf().tensors {
        (&t.name, &t.dims, t.ty, t.part, t.offset).hash(&mut hasher);
    }
    hasher.finish()
}

/// Names of the devices, and what each runs if there are several.
fn describe(layout: &Layout, backends: &Backends) -> String {
    let one = |b: &dyn minfer_graph::Backend| match layout.shares() {
        [] => b.name(),
        _ => format!("{} ({})", b.name(), layout.describe(b.tag())),
    };
    backends.iter().map(one).collect::<Vec<_>>().join(" + ")
}
