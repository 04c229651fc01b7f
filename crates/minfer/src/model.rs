//! A model whose weights are on its devices, ready for sessions.

use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::guided::Guide;
use crate::load::{LoadMode, LoadProgress, load_weights};
use crate::placement::{Homes, Layout};
use minfer_graph::{BackendTag, Backends, KvShape};
use minfer_models::ModelSpec;
use minfer_text::Tokenizer;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

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
    /// Build the tokenizer meanwhile, on a thread of its own, rather than when it is first asked for.
    pub tokenizer: bool,
    /// Called as bytes arrive.
    pub progress: Option<&'a mut dyn FnMut(LoadProgress)>,
}

struct Inner {
    file: ModelFile,
    spec: ModelSpec,
    id: u64,
    layout: Layout,
    kv_layers: Vec<(KvShape, BackendTag)>,
    backends: Mutex<Backends>,
    device: String,
    guide: OnceLock<Result<Guide, String>>,
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
        let backends = options.layout.open(options.threads)?;
        Self::on(backends, file, options)
    }

    /// Places the weights on devices that are open.
    fn on(mut backends: Backends, file: ModelFile, options: LoadOptions<'_>) -> Result<Model, Error> {
        let spec = file.spec()?;
        let layout = options.layout;
        layout.check(&spec)?;
        let id = fingerprint(&file);
        let Homes { weights, kv_layers, n_refused } = layout.homes(&spec, &backends)?;
        let mut quiet = |_| {};
        let progress = options.progress.unwrap_or(&mut quiet);
        std::thread::scope(|scope| {
            if options.tokenizer {
                // Whoever asks for it is told of errors, here and where the system refuses a thread too.
                let build = || drop(file.tokenizer());
                let _ = std::thread::Builder::new().name("tokenizer".into()).spawn_scoped(scope, build);
            }
            load_weights(&file, &weights, &mut backends, options.load, progress)
        })?;
        let mut device = describe(&layout, &backends);
        if n_refused > 0 {
            device += &format!(", {n_refused} nodes not where their blocks are (`minfer graph` says why)");
        }
        let backends = Mutex::new(backends);
        Ok(Model {
            inner: Arc::new(Inner {
                file,
                spec,
                id,
                layout,
                kv_layers,
                backends,
                device,
                guide: OnceLock::new(),
            }),
        })
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

    /// Each KV layer's shape with the device that its attention runs on.
    pub(crate) fn kv_layers(&self) -> &[(KvShape, BackendTag)] {
        &self.inner.kv_layers
    }

    /// The devices it runs on, for people.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// Bytes of the buffers that each device holds for all sessions of this model: KV caches, values of
    /// graphs, staged copies, and what is kept of ended sessions for the next one. Weights are not part of it.
    ///
    /// # Errors
    /// A thread died while it used the devices.
    pub fn buffer_bytes(&self) -> Result<BTreeMap<BackendTag, usize>, Error> {
        Ok(self.backends()?.iter().map(|b| (b.tag(), b.buffer_bytes())).collect())
    }

    /// The file's tokenizer.
    ///
    /// # Errors
    /// As [`ModelFile::tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.inner.file.tokenizer()
    }

    /// What grammars for its answers are made with; made when it is first asked for.
    ///
    /// # Errors
    /// The model has no tokenizer, or no token that ends a text.
    pub fn guide(&self) -> Result<&Guide, Error> {
        let make = || self.tokenizer().and_then(Guide::new).map_err(|e| e.to_string());
        let made = self.inner.guide.get_or_init(make);
        made.as_ref().map_err(|why| Error::new(ErrorKind::Model, why.clone()))
    }

    /// After a panic of a thread that used the devices: they are used again. Whoever calls this lets go of all that the
    /// panic may have left half done.
    pub(crate) fn forgive_panic(&self) {
        self.inner.backends.clear_poison();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{DeviceChoice, cpu_backend};
    use crate::{Control, GpuLayers, Placement, Session, SessionOptions};
    use minfer_graph::{BackendTag, Chaos, MemoryInfo};
    use minfer_models::Stage;
    use minfer_testkit::tiny::TinySpec;

    fn logits(model: &Model) -> (Vec<u32>, usize) {
        let options = SessionOptions { n_ctx: 64, n_batch: 16, ..Default::default() };
        let mut session = Session::new(model, options).unwrap();
        let seq = session.new_sequence().unwrap();
        let tokens: Vec<u32> = (0..30).map(|i| (i * i * 7 + 3) % 200).collect();
        let mut bits = Vec::new();
        let mut take = |_: usize, row: &[f32]| {
            bits.extend(row.iter().map(|x| x.to_bits()));
            Ok(())
        };
        session.evaluate(seq, &tokens, &Control::default(), &mut take).unwrap();
        let splits = session.plan(Stage::Full).unwrap().splits.len();
        (bits, splits)
    }

    /// What a device has no kernel for runs on the CPU, whatever it is; nothing is lost and the user is told.
    #[test]
    fn nodes_that_a_device_refuses_run_elsewhere_with_the_same_bits() {
        for family in ["llama", "qwen3moe", "gemma2"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.gguf");
            std::fs::write(&path, TinySpec::named(family).unwrap().to_bytes().unwrap()).unwrap();
            let file = || ModelFile::open(&path).unwrap();
            let (expected, _) = logits(&Model::load(&path, LoadOptions::default()).unwrap());
            let device = DeviceChoice::Chaos { index: 0, kib: None };
            let placement = Placement::new([device], GpuLayers::Count(2));
            let layout = placement.resolve(&file(), &SessionOptions::default()).unwrap();
            for refused in ["RmsNorm", "Attention", "Add", "Rope", "MatMul", "KvStore", "Embed"] {
                let cpu = cpu_backend(Some(2)).unwrap();
                let chaos = Chaos::new(cpu.sibling(MemoryInfo::default()), device.tag())
                    .with_mask(move |op| op.name() != refused);
                let mut backends = Backends::new();
                backends.push(Box::new(cpu));
                backends.push(Box::new(chaos));
                let options = LoadOptions { layout: layout.clone(), ..Default::default() };
                let model = Model::on(backends, file(), options).unwrap();
                let (bits, splits) = logits(&model);
                assert!(bits == expected, "{family} without {refused}");
                let told = model.device().contains("`minfer graph` says why");
                // Nothing of the last blocks embeds; whatever else is refused cuts them.
                assert_eq!(
                    (told, splits > 3),
                    (refused != "Embed", refused != "Embed"),
                    "{family}, {refused}"
                );
                assert_eq!(model.layout().device_of(Some(0)), BackendTag::CPU);
            }
        }
    }
}
