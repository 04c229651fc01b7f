//! How much memory a run will take, before anything is allocated.

use crate::devices::{self, DeviceChoice};
use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::load::LoadMode;
use crate::session::{SessionOptions, stage_capacity};
use minfer_gguf::{Array, Value};
use minfer_graph::{Backends, PAGE, Plan, PlanOptions, WeightSpec, plan};
use minfer_models::{GraphParams, ModelSpec, Stage, build_graph};

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryForecast {
    /// Weights as the devices keep them.
    pub weights: u64,
    /// KV cache with its context full.
    pub kv: u64,
    /// Values of the graph, at the largest step.
    pub arenas: u64,
    /// Work space of the kernels: quantised activations and projections of the largest step.
    pub scratch: u64,
    /// Vocabulary and metadata.
    pub tokenizer: u64,
    /// The largest tensor once more: it is read before it is placed. 0 if the file is mapped.
    pub loading: u64,
    /// Pages of the file while it is mapped, which the system can take back. 0 if the file is read.
    pub mapped: u64,
    /// The program itself.
    pub program: u64,
}

/// Resident bytes of the program before it opens a model, measured.
const PROGRAM: u64 = 6 << 20;

impl MemoryForecast {
    /// Most bytes resident at once. While the weights load, neither cache nor arenas exist.
    pub fn peak(&self) -> u64 {
        self.loading_peak().max(self.needed())
    }

    /// Most bytes resident until the weights are placed.
    pub fn loading_peak(&self) -> u64 {
        self.base().saturating_add(self.loading).saturating_add(self.mapped)
    }

    /// Bytes that must be free: those of [`MemoryForecast::peak`] that the system cannot take back.
    pub fn needed(&self) -> u64 {
        let running = self.kv.saturating_add(self.arenas).saturating_add(self.scratch);
        self.base().saturating_add(running.max(self.loading))
    }

    /// Whether it fits what is free, if that is known.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] with both numbers.
    pub fn fits(&self, free: Option<u64>, n_ctx: usize) -> Result<(), Error> {
        let needed = self.needed();
        let Some(free) = free.filter(|&free| needed > free) else { return Ok(()) };
        let (needed, free) = (needed >> 20, free >> 20);
        let message = format!(
            "a context of {n_ctx} needs {needed} MiB and {free} MiB are free; a smaller --ctx-size needs less"
        );
        Err(Error::new(ErrorKind::Memory, message))
    }

    fn base(&self) -> u64 {
        self.program.saturating_add(self.tokenizer).saturating_add(self.weights)
    }
}

/// Plans a model for a session without loading it, and says what a run that fills the context takes.
///
/// # Errors
/// Not a model that can be run, or a device that is not there.
pub fn forecast(
    file: &ModelFile,
    options: &SessionOptions,
    device: DeviceChoice,
    load: LoadMode,
) -> Result<(Plan, MemoryForecast), Error> {
    let spec = file.spec()?;
    options.check(&spec)?;
    let mut backends = Backends::new();
    backends.push(devices::open(device, Some(1))?);
    let capacity = stage_capacity(options, Stage::Full);
    let max_pages = options.n_ctx.div_ceil(PAGE);
    let params = GraphParams { stage: Stage::Full, capacity, max_pages };
    let graph = build_graph(&spec, &params, 0)?;
    let planned =
        plan(graph, &backends, &PlanOptions { fuse: options.fusions, ..PlanOptions::new(capacity) })?;
    let sizes = spec.weights().into_iter().filter_map(WeightSpec::bytes);
    let weights = sizes.clone().sum();
    let (loading, mapped) = match load {
        LoadMode::Read => (sizes.max().unwrap_or(0), 0),
        LoadMode::Mmap => (0, weights),
    };
    let forecast = MemoryForecast {
        weights,
        kv: kv_bytes(&spec, options, max_pages),
        arenas: planned.memory.total() as u64,
        scratch: scratch_bytes(&spec, capacity.tokens),
        tokenizer: metadata_bytes(file),
        loading,
        mapped,
        program: PROGRAM,
    };
    Ok((planned, forecast))
}

/// Refuses a run that cannot fit, before anything is allocated.
///
/// # Errors
/// [`ErrorKind::Memory`] with both numbers, or as [`forecast`].
pub fn check_memory(
    file: &ModelFile,
    options: &SessionOptions,
    device: DeviceChoice,
    load: LoadMode,
) -> Result<(), Error> {
    let (_, memory) = forecast(file, options, device, load)?;
    memory.fits(free_memory(device)?, options.n_ctx)
}

/// Bytes that are free on a device, if the system tells.
///
/// # Errors
/// A device that is not there.
pub fn free_memory(device: DeviceChoice) -> Result<Option<u64>, Error> {
    Ok(devices::open(device, Some(1))?.memory().free)
}

fn kv_bytes(spec: &ModelSpec, options: &SessionOptions, max_pages: usize) -> u64 {
    let per_page = spec.kv_shapes().map(|s| {
        let (k, v) = options.kv_types.page_bytes(&s);
        (k + v) as u64
    });
    (max_pages as u64 * options.max_seqs as u64).saturating_mul(per_page.sum())
}

/// Activations are quantised once per matmul input: one byte per value and two floats per 32 of them,
/// in a work space that is reused.
fn scratch_bytes(spec: &ModelSpec, tokens: usize) -> u64 {
    let widest = spec.layers.iter().map(|l| l.ffn.n_hidden().max(spec.n_embd)).max().unwrap_or(0);
    (tokens * widest * 5 / 4) as u64
}

/// The file's metadata is kept, and the tokenizer holds its pieces and merges in tables of its own.
fn metadata_bytes(file: &ModelFile) -> u64 {
    const PER_STRING: usize = 24 + 16;
    const TOKENIZER_COPIES: usize = 3;
    let arrays = file.gguf().metadata.iter().map(|(_, value)| match value {
        Value::String(s) => s.len(),
        Value::Array(Array::String(list)) => {
            let text: usize = list.iter().map(String::len).sum();
            (text + list.len() * PER_STRING) * TOKENIZER_COPIES
        }
        Value::Array(other) => other.len() * 4,
        _ => 16,
    });
    arrays.sum::<usize>() as u64
}
