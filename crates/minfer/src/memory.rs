//! How much memory a run will take, before anything is allocated.

use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::load::LoadMode;
use crate::placement::{Homes, Layout};
use crate::plans::stage_plan;
use crate::session::SessionOptions;
use minfer_cpu::AddressSpace;
use minfer_gguf::{Array, Value};
use minfer_graph::{BackendKind, BackendTag, Backends, Plan};
use minfer_models::{ModelSpec, Stage};

/// Bytes on a device by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device.
    pub device: BackendTag,
    /// Weights as the device keeps them; those that stay in the mapped file are not among them.
    pub weights: u64,
    /// KV cache of its blocks with its context full.
    pub kv: u64,
    /// Values of the graph and copies of other devices' values, at the largest step.
    pub arenas: u64,
    /// Of these, the most bytes of values that are alive at once.
    pub arenas_live: u64,
    /// Work space of the kernels: quantised activations and projections of the largest step.
    pub scratch: u64,
    /// Bytes that are free now, if the device tells.
    pub free: Option<u64>,
}

impl DeviceMemory {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.running())
    }

    /// How much of the memory for the graph's values is alive at the fullest node: 1 if no plan can do with less.
    pub fn arenas_usage(&self) -> f64 {
        if self.arenas == 0 { 1.0 } else { self.arenas_live as f64 / self.arenas as f64 }
    }

    /// Whether it fits what is free, if that is known.
    pub fn fits(&self) -> bool {
        self.free.is_none_or(|free| self.total() <= free)
    }

    /// What comes on top of the weights when a session opens.
    fn running(&self) -> u64 {
        self.kv.saturating_add(self.arenas).saturating_add(self.scratch)
    }

    fn in_host(&self) -> bool {
        in_host(self.device)
    }
}

/// Whether a device's memory is the host's: the CPU, and the device for tests that runs over it.
fn in_host(device: BackendTag) -> bool {
    matches!(device.kind, BackendKind::Cpu | BackendKind::Chaos)
}

/// Prepares the program for a limit of its address space (`ulimit -v`), if there is one. To be called first, while there
/// is one thread.
///
/// # Errors
/// [`ErrorKind::Memory`] if the limit leaves too little to begin with.
pub fn prepare_memory() -> Result<(), Error> {
    minfer_cpu::spare_address_space();
    let Some(space) = AddressSpace::now().filter(|space| space.left() == 0) else { return Ok(()) };
    let message = format!(
        "{} MiB of address space are free of the {} MiB that ulimit -v allows; the program itself wants {} MiB",
        space.limit.saturating_sub(space.used) >> 20,
        space.limit >> 20,
        AddressSpace::RESERVE >> 20
    );
    Err(Error::new(ErrorKind::Memory, message))
}

/// What a run takes, by device, and what the program itself takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryForecast {
    /// Devices, the CPU first.
    pub devices: Vec<DeviceMemory>,
    /// Vocabulary and metadata.
    pub tokenizer: u64,
    /// The largest tensor of the devices with memory of their own once more: it is read whole before it is placed. The
    /// host's weights are read in small pieces. 0 if the file is mapped.
    pub loading: u64,
    /// Pages of the file that are used while it is mapped, which the system can take back. 0 if the file is read.
    pub mapped: u64,
    /// The program itself.
    pub program: u64,
}

/// Resident bytes of the program before it opens a model, measured.
const PROGRAM: u64 = 6 << 20;

impl MemoryForecast {
    /// Most bytes of the host resident at once. While the weights load, neither cache nor arenas exist.
    pub fn peak(&self) -> u64 {
        self.needed().saturating_add(self.mapped)
    }

    /// Most bytes of the host resident until the weights are placed. What is mapped is first read by the first step.
    pub fn loading_peak(&self) -> u64 {
        self.base().saturating_add(self.loading)
    }

    /// Bytes of the host that must be free: those of [`MemoryForecast::peak`] that the system cannot take back.
    pub fn needed(&self) -> u64 {
        self.base().saturating_add(self.in_host(DeviceMemory::running).max(self.loading))
    }

    /// One figure summed over all devices.
    pub fn sum(&self, what: impl Fn(&DeviceMemory) -> u64) -> u64 {
        self.devices.iter().map(what).fold(0, u64::saturating_add)
    }

    /// Bytes of the host that are free now, if the system tells.
    pub fn free(&self) -> Option<u64> {
        self.devices.iter().find(|d| d.device == BackendTag::CPU).and_then(|d| d.free)
    }

    /// Whether everything fits what is free, as far as that is known.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] with the device and both numbers.
    pub fn fits(&self, n_ctx: usize) -> Result<(), Error> {
        let limited =
            |space: AddressSpace| format!(" of the {} MiB that ulimit -v allows", space.limit >> 20);
        let refuse = |device: BackendTag, needed: u64, free: u64, less: &str| {
            let (needed, free) = (needed.div_ceil(1 << 20), free >> 20);
            let of = AddressSpace::now().filter(|_| in_host(device)).map_or(String::new(), limited);
            let message = format!(
                "{device}: a context of {n_ctx} needs {needed} MiB and {free} MiB are free{of}; {less} needs less"
            );
            Err(Error::new(ErrorKind::Memory, message))
        };
        let mut others = self.devices.iter().filter(|d| d.device != BackendTag::CPU);
        if let Some(d) = others.find(|d| !d.fits()) {
            let less = "--gpu-layers with fewer blocks or a smaller --ctx-size";
            return refuse(d.device, d.total(), d.free.unwrap_or_default(), less);
        }
        let less =
            if self.mapped > 0 { "a smaller --ctx-size" } else { "a smaller --ctx-size or --load mmap" };
        if let Some(free) = self.free().filter(|&free| self.needed() > free) {
            return refuse(BackendTag::CPU, self.needed(), free, less);
        }
        // A mapped file needs no memory of its own, but its place in the address space.
        match AddressSpace::now().map(AddressSpace::left).filter(|&left| self.peak() > left) {
            Some(left) => refuse(BackendTag::CPU, self.peak(), left, less),
            None => Ok(()),
        }
    }

    fn in_host(&self, what: impl Fn(&DeviceMemory) -> u64) -> u64 {
        self.sum(|d| if d.in_host() { what(d) } else { 0 })
    }

    fn base(&self) -> u64 {
        let weights = self.in_host(|d| d.weights);
        self.program.saturating_add(self.tokenizer).saturating_add(weights)
    }
}

/// Plans a model for a session without loading it, and says what a run that fills the context takes.
///
/// # Errors
/// Not a model that can be run, or a device that is not there.
pub fn forecast(
    file: &ModelFile,
    options: &SessionOptions,
    layout: &Layout,
    load: LoadMode,
) -> Result<(Plan, MemoryForecast), Error> {
    let spec = file.spec()?;
    options.check(&spec)?;
    layout.check(&spec)?;
    let backends = layout.open(Some(1))?;
    let (planned, mut devices) = device_memory(&spec, options, layout, &backends)?;
    let (loading, mapped) = match load {
        LoadMode::Read => (largest_elsewhere(&spec, layout, &backends)?, 0),
        LoadMode::Mmap => {
            devices.iter_mut().filter(|d| d.in_host()).for_each(|d| d.weights = 0);
            (0, mapped_bytes(&spec, layout, &backends)?)
        }
    };
    let tokenizer = metadata_bytes(file);
    Ok((planned, MemoryForecast { devices, tokenizer, loading, mapped, program: PROGRAM }))
}

/// Bytes of the weights that products on the host read in the mapped file. Of a table that is no output head too, a
/// prompt reads few rows.
fn mapped_bytes(spec: &ModelSpec, layout: &Layout, backends: &Backends) -> Result<u64, Error> {
    let Homes { weights, .. } = layout.homes(spec, backends)?;
    let table = &spec.token_embd.name;
    let head = spec.output.weight.name == *table;
    let used = weights
        .iter()
        .filter(|(weight, tags)| (head || weight.name != *table) && tags.iter().any(|&tag| in_host(tag)));
    Ok(used.filter_map(|(weight, _)| weight.bytes()).sum())
}

/// Bytes of the largest weight on a device with memory of its own.
fn largest_elsewhere(spec: &ModelSpec, layout: &Layout, backends: &Backends) -> Result<u64, Error> {
    let Homes { weights, .. } = layout.homes(spec, backends)?;
    let elsewhere = weights.iter().filter(|(_, tags)| tags.iter().any(|&tag| !in_host(tag)));
    Ok(elsewhere.filter_map(|(weight, _)| weight.bytes()).max().unwrap_or(0))
}

/// The plan of the largest step and what each device takes, the CPU first.
pub(crate) fn device_memory(
    spec: &ModelSpec,
    options: &SessionOptions,
    layout: &Layout,
    backends: &Backends,
) -> Result<(Plan, Vec<DeviceMemory>), Error> {
    let planned = stage_plan(spec, options, layout, backends, Stage::Full, 0)?;
    let Homes { weights, kv_layers, .. } = layout.homes(spec, backends)?;
    let n_pages = options.n_pages() as u64;
    let mut list = Vec::new();
    for tag in layout.tags() {
        let placed = weights.iter().filter(|(_, tags)| tags.contains(&tag));
        let pages = kv_layers.iter().filter(|&&(_, at)| at == tag).map(|(shape, _)| {
            let (k, v) = options.kv_types.page_bytes(shape);
            (k + v) as u64
        });
        list.push(DeviceMemory {
            device: tag,
            weights: placed.filter_map(|(w, _)| w.bytes()).sum(),
            kv: n_pages.saturating_mul(pages.sum()),
            arenas: planned.memory.bytes_on(tag) as u64,
            arenas_live: planned.memory.arena(tag).map_or(0, |a| a.live_peak as u64),
            scratch: scratch_bytes(spec, layout, tag, planned.capacity.tokens),
            free: backends.get(tag)?.memory().free,
        });
    }
    Ok((planned, list))
}

/// Refuses a run that cannot fit, before anything is allocated.
///
/// # Errors
/// [`ErrorKind::Memory`] with the device and both numbers, or as [`forecast`].
pub fn check_memory(
    file: &ModelFile,
    options: &SessionOptions,
    layout: &Layout,
    load: LoadMode,
) -> Result<(), Error> {
    forecast(file, options, layout, load)?.1.fits(options.n_ctx)
}

/// [`LoadMode::Read`] if that fits what is free, else [`LoadMode::Mmap`].
///
/// # Errors
/// Neither fits, or as [`forecast`].
pub fn choose_load(file: &ModelFile, options: &SessionOptions, layout: &Layout) -> Result<LoadMode, Error> {
    match check_memory(file, options, layout, LoadMode::Read) {
        Ok(()) => Ok(LoadMode::Read),
        Err(e) if e.kind() == ErrorKind::Memory => {
            check_memory(file, options, layout, LoadMode::Mmap).map(|()| LoadMode::Mmap)
        }
        Err(e) => Err(e),
    }
}

/// Activations are quantised once per matmul input: one byte per value and two floats per 32 of them,
/// in a work space that is reused.
fn scratch_bytes(spec: &ModelSpec, layout: &Layout, tag: BackendTag, tokens: usize) -> u64 {
    let here = |block: usize| layout.device_of(Some(block)) == tag;
    let blocks = spec.layers.iter().enumerate().filter(|&(i, _)| here(i));
    let in_blocks = blocks.map(|(_, l)| l.ffn.n_hidden().max(spec.n_embd));
    let in_head = here(spec.layers.len()).then_some(spec.n_embd);
    let widest = in_blocks.chain(in_head).max().unwrap_or(0);
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
