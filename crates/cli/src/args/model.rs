//! Options of every command that runs a model, and the whole numbers of all options.

use clap::{Args, ValueEnum};
use minfer::graph::{Fusion, FusionSwitches};
use minfer::{DEVICE_KINDS, DeviceChoice, GpuLayers, KvType};
use std::str::FromStr;

/// Options of every command that runs a model.
#[derive(Args, Clone)]
pub struct ModelOptions {
    /// The model, in place of the positional argument; -hf owner/repo[:quant] is -m hf:owner/repo[:quant]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Positions of the context [default: the least of the model's and 8192]
    #[arg(short, long = "ctx-size", value_name = "N", allow_negative_numbers = true, value_parser = from_one)]
    pub ctx_size: Option<usize>,
    /// Threads [default: what affinity, physical cores and CPU quota allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_threads)]
    pub threads: Option<usize>,
    /// Most tokens in one step; beyond the context it makes no difference
    #[arg(short, long = "batch-size", value_name = "N", default_value_t = 512, allow_negative_numbers = true,
        value_parser = parse_batch_size)]
    pub batch_size: usize,
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_delimiter = ',', help = device_help(),
        value_parser = str::parse::<DeviceChoice>)]
    pub device: Vec<DeviceChoice>,
    /// Blocks for these devices, counted from the last one; all (or -1), or auto: as many as fit (also -ngl)
    /// [default: auto]
    #[arg(long, aliases = ["ngl", "n-gpu-layers"], value_name = "N", allow_negative_numbers = true,
        value_parser = str::parse::<GpuLayers>)]
    pub gpu_layers: Option<GpuLayers>,
    /// Type of the K cache (also -ctk)
    #[arg(long, alias = "ctk", value_name = "TYPE", default_value = "f16")]
    pub cache_type_k: CacheType,
    /// Type of the V cache (also -ctv)
    #[arg(long, alias = "ctv", value_name = "TYPE", default_value = "f16")]
    pub cache_type_v: CacheType,
    /// Do without a fusion (several with commas), or without all of them if none is named: to find what is at fault
    #[arg(long, value_name = "FUSION", num_args = 0..=1, require_equals = true, default_missing_value = "all",
        value_delimiter = ',', value_parser = str::parse::<NoFuse>)]
    pub no_fuse: Vec<NoFuse>,
    /// How the file is reached
    #[arg(long, value_name = "MODE", default_value = "read")]
    pub load: Load,
    /// Never touch the network
    #[arg(long)]
    pub offline: bool,
}

/// A value of `--no-fuse`.
#[derive(Clone, Copy)]
pub enum NoFuse {
    /// No fusion at all.
    All,
    /// All but this one.
    One(Fusion),
}

impl FromStr for NoFuse {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "all" => Ok(NoFuse::All),
            _ => s.parse().map(NoFuse::One).map_err(|e| format!("{e}, and all")),
        }
    }
}

impl ModelOptions {
    /// The fusions that are left on.
    pub fn fusions(&self) -> FusionSwitches {
        self.no_fuse.iter().fold(FusionSwitches::default(), |on, off| match off {
            NoFuse::All => FusionSwitches::NONE,
            NoFuse::One(fusion) => on.with(*fusion, false),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    /// 16-bit float
    F16,
    /// 32-bit float
    F32,
    /// 8-bit integers, a 16-bit scale per 32 of a head: 8.5 bits per value
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<CacheType> for KvType {
    fn from(t: CacheType) -> Self {
        match t {
            CacheType::F16 => KvType::F16,
            CacheType::F32 => KvType::F32,
            CacheType::Q8_0 => KvType::Q8_0,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Load {
    /// Read it, and repack the weights for speed
    Read,
    /// Map it and leave the weights there, with the same results: needs little memory, decodes slower, and ends the
    /// program if the file is cut short meanwhile
    Mmap,
    /// read, or mmap where memory is too short for that
    Auto,
}

/// Help of `--device`.
fn device_help() -> String {
    let kinds = DEVICE_KINDS.join(", ");
    format!(
        "auto, cpu, or the devices that take blocks from the CPU: wgpu[:i], cuda[:i], several with commas. \
         In this build: {kinds}"
    )
}

fn parse_batch_size(s: &str) -> Result<usize, String> {
    const MOST: usize = i32::MAX as usize;
    match s.parse::<usize>() {
        Ok(n) if (1..=MOST).contains(&n) => Ok(n),
        _ => Err(format!("a whole number from 1 to {MOST}")),
    }
}

pub(super) fn parse_threads(s: &str) -> Result<usize, String> {
    match s.parse::<usize>() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err("a number from 1 to 1024".into()),
    }
}

pub(super) fn from_zero(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| format!("a whole number from 0 to {}", usize::MAX))
}

pub(super) fn from_one(s: &str) -> Result<usize, String> {
    match from_zero(s) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("a whole number from 1 to {}", usize::MAX)),
    }
}
