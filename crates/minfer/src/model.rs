//! A model whose weights are on its devices, ready for sessions.

use crate::devices::{self, DeviceChoice};
use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::load::{LoadMode, LoadProgress, load_weights};
use minfer_graph::{BackendTag, Backends, Graph, PlanOptions, StepDims, WeightSpec, plan};
use minfer_models::{GraphParams, ModelSpec, Stage, build_graph};
use minfer_text::Tokenizer;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Threads of the CPU backend; the machine's limits decide if `None`.
    pub threads: Option<usize>,
    /// Device.
    pub device: DeviceChoice,
    /// How the file is reached.
    pub load: LoadMode,
    /// Called as bytes arrive.
    pub progress: Option<&'a mut dyn FnMut(LoadProgress)>,
}

struct Inner {
    file: ModelFile,
    spec: ModelSpec,
    id: u64,
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
        let mut backends = Backends::new();
        backends.push(devices::open(options.device, options.threads)?);
        let id = fingerprint(&file);
        let placed = place_weights(&spec, id, &backends)?;
        let mut quiet = |_| {};
        let progress = options.progress.unwrap_or(&mut quiet);
        load_weights(&file, &placed, &mut backends, options.load, progress)?;
        let device = backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(" + ");
        Ok(Model { inner: Arc::new(Inner { file, spec, id, backends: Mutex::new(backends), device }) })
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

/// Which weight goes to which devices: those of the nodes that read it in a plan.
fn place_weights(
    spec: &ModelSpec,
    id: u64,
    backends: &Backends,
) -> Result<Vec<(WeightSpec, Vec<BackendTag>)>, Error> {
    let capacity = StepDims { tokens: 1, outputs: 1, seqs: 1 };
    let params = GraphParams { stage: Stage::Full, capacity, max_pages: 1 };
    let graph = build_graph(spec, &params, id)?;
    let planned = plan(graph, backends, &PlanOptions::new(capacity))?;
    let mut tags: BTreeMap<usize, Vec<BackendTag>> = BTreeMap::new();
    let live = planned.graph.live();
    for node in planned.graph.nodes.iter().filter(|n| live[n.id]) {
        for weight in node.op.weights() {
            let list = tags.entry(weight.0).or_default();
            list.extend(node.backend.filter(|t| !list.contains(t)));
        }
    }
    Ok(tags.into_iter().map(|(w, list)| (weight_of(&planned.graph, w), list)).collect())
}

fn weight_of(graph: &Graph, index: usize) -> WeightSpec {
    graph.weights[index].clone()
}
