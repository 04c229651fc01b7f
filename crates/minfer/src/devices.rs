//! Which devices there are and which one is asked for.

use crate::error::{Error, ErrorKind};
use crate::knobs::knob_value;
use minfer_cpu::{CpuBackend, CpuOptions, Isa};
use minfer_graph::{Backend, BackendTag, MemoryInfo};
use std::str::FromStr;

/// What the user asks for with `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best device there is; says what it took.
    #[default]
    Auto,
    /// The host's processors.
    Cpu,
    /// A wgpu adapter by index.
    Wgpu(u8),
    /// An NVIDIA device by index.
    Cuda(u8),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (kind, index) = s.split_once(':').unwrap_or((s, "0"));
        let index = index.parse::<u8>().map_err(|_| format!("`{s}`: the index is not a small number"))?;
        match kind {
            "auto" if !s.contains(':') => Ok(DeviceChoice::Auto),
            "cpu" if !s.contains(':') => Ok(DeviceChoice::Cpu),
            "wgpu" => Ok(DeviceChoice::Wgpu(index)),
            "cuda" => Ok(DeviceChoice::Cuda(index)),
            _ => Err(format!("`{s}` is no device; use auto, cpu, wgpu[:i] or cuda[:i]")),
        }
    }
}

/// A device that is there.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Tag, as `--device` takes it.
    pub tag: BackendTag,
    /// Name for people.
    pub name: String,
    /// Memory.
    pub memory: MemoryInfo,
}

/// All devices of this build on this machine.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let cpu = cpu_backend(None)?;
    Ok(vec![DeviceInfo { tag: cpu.tag(), name: cpu.name(), memory: cpu.memory() }])
}

/// The device for a choice.
pub(crate) fn open(choice: DeviceChoice, threads: Option<usize>) -> Result<Box<dyn Backend>, Error> {
    let absent = |name: &str, index: u8| {
        let message = format!("device {name}:{index} is not there: this build has no {name} backend");
        Err(Error::new(ErrorKind::Device, message))
    };
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Box::new(cpu_backend(threads)?)),
        DeviceChoice::Wgpu(index) => absent("wgpu", index),
        DeviceChoice::Cuda(index) => absent("cuda", index),
    }
}

/// The CPU, if that is what a choice comes to.
pub(crate) fn cpu(choice: DeviceChoice, threads: Option<usize>) -> Result<CpuBackend, Error> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => cpu_backend(threads),
        other => {
            let name = open(other, threads)?.name();
            Err(Error::new(ErrorKind::Device, format!("{name}: its speed is not forecast")))
        }
    }
}

fn cpu_backend(threads: Option<usize>) -> Result<CpuBackend, Error> {
    let isa = knob_value("MINFER_ISA").map(|name| parse_isa(&name)).transpose()?;
    Ok(CpuBackend::new(CpuOptions { threads, isa }))
}

fn parse_isa(name: &str) -> Result<Isa, Error> {
    let refuse = |why| Err(Error::new(ErrorKind::Device, format!("MINFER_ISA={name}: {why}")));
    match Isa::from_name(name) {
        None => refuse("no such instruction set; `minfer knobs` lists them"),
        Some(isa) if !isa.is_available() => refuse("this processor does not have it"),
        Some(isa) => Ok(isa),
    }
}
