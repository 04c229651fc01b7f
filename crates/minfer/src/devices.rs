//! Which devices there are and which one is asked for.

use crate::error::{Error, ErrorKind};
use crate::knobs::knob_value;
use minfer_cpu::{CpuBackend, CpuOptions, Isa};
use minfer_graph::{Backend, BackendKind, BackendTag, Backends, Chaos, Fault, MemoryInfo};
use std::str::FromStr;

/// Kinds of devices in this build, as `--device` names them; the one for tests is not among them.
pub const DEVICE_KINDS: &[&str] = &["cpu"];

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
    /// For tests: a device over the CPU that queues all work and punishes early reads.
    Chaos {
        /// Index.
        index: u8,
        /// Memory that it claims to have free, in KiB; it does not tell if absent.
        kib: Option<u64>,
    },
}

impl DeviceChoice {
    /// The device's tag; that of the CPU for [`DeviceChoice::Auto`], which is the best there is in this build.
    pub fn tag(self) -> BackendTag {
        let (kind, index) = match self {
            DeviceChoice::Auto | DeviceChoice::Cpu => return BackendTag::CPU,
            DeviceChoice::Wgpu(index) => (BackendKind::Wgpu, index),
            DeviceChoice::Cuda(index) => (BackendKind::Cuda, index),
            DeviceChoice::Chaos { index, .. } => (BackendKind::Chaos, index),
        };
        BackendTag::new(kind, index)
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (kind, mut index) = s.split_once(':').unwrap_or((s, "0"));
        let mut kib = None;
        if let Some((first, rest)) = index.split_once(':').filter(|_| kind == "chaos") {
            index = first;
            kib = Some(rest.parse().map_err(|_| format!("`{s}`: the memory is not a number of KiB"))?);
        }
        let index = index.parse::<u8>().map_err(|_| format!("`{s}`: the index is not a small number"))?;
        match kind {
            "chaos" => Ok(DeviceChoice::Chaos { index, kib }),
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
    /// Of the CPU: the instruction sets that its kernels are compiled for, slowest first.
    pub instruction_sets: Vec<InstructionSet>,
}

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstructionSet {
    /// Name, as `MINFER_ISA` takes it.
    pub name: &'static str,
    /// Whether this processor has it.
    pub available: bool,
    /// Whether it is the one in use.
    pub used: bool,
    /// On what its kernels have been tested: `processor`, `emulator`, or `nothing`.
    pub tested_on: &'static str,
}

/// All devices of this build on this machine.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let cpu = cpu_backend(None)?;
    let instruction_sets = Isa::ALL.iter().filter(|isa| isa.is_compiled()).map(|&isa| InstructionSet {
        name: isa.name(),
        available: isa.is_available(),
        used: isa == cpu.isa(),
        tested_on: isa.tested_on().name(),
    });
    let instruction_sets = instruction_sets.collect();
    Ok(vec![DeviceInfo { tag: cpu.tag(), name: cpu.name(), memory: cpu.memory(), instruction_sets }])
}

/// The CPU, which is always there, then the offload devices.
pub(crate) fn open(offload: &[DeviceChoice], threads: Option<usize>) -> Result<Backends, Error> {
    let cpu = cpu_backend(threads)?;
    let offload: Vec<_> = offload.iter().map(|&d| open_offload(d, &cpu)).collect::<Result<_, _>>()?;
    let mut backends = Backends::new();
    backends.push(Box::new(cpu));
    offload.into_iter().for_each(|device| backends.push(device));
    Ok(backends)
}

fn open_offload(choice: DeviceChoice, cpu: &CpuBackend) -> Result<Box<dyn Backend>, Error> {
    let absent = |name: &str, index: u8| {
        let message = format!("device {name}:{index} is not there: this build has no {name} backend");
        Err(Error::new(ErrorKind::Device, message))
    };
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            Err(Error::new(ErrorKind::Internal, "the cpu is no offload device"))
        }
        DeviceChoice::Chaos { kib, .. } => {
            let bytes = kib.map(|kib| kib.saturating_mul(1024));
            let inner = cpu.sibling(MemoryInfo { total: bytes, free: bytes });
            Ok(Box::new(Chaos::new(inner, choice.tag()).with_fault(chaos_fault()?)))
        }
        DeviceChoice::Wgpu(index) => absent("wgpu", index),
        DeviceChoice::Cuda(index) => absent("cuda", index),
    }
}

pub(crate) fn cpu_backend(threads: Option<usize>) -> Result<CpuBackend, Error> {
    let isa = knob_value("MINFER_ISA").map(|name| parse_isa(&name)).transpose()?;
    Ok(CpuBackend::new(CpuOptions { threads, isa }))
}

/// The fault that chaos devices are to have.
fn chaos_fault() -> Result<Option<Fault>, Error> {
    let refuse = |why| Error::input(format!("MINFER_CHAOS_FAULT: {why}"));
    knob_value("MINFER_CHAOS_FAULT").map(|text| text.parse().map_err(refuse)).transpose()
}

fn parse_isa(name: &str) -> Result<Isa, Error> {
    let refuse = |why| Err(Error::new(ErrorKind::Device, format!("MINFER_ISA={name}: {why}")));
    match Isa::from_name(name) {
        None => refuse("no such instruction set; `minfer devices` lists them"),
        Some(isa) if !isa.is_available() => refuse("this processor does not have it"),
        Some(isa) => Ok(isa),
    }
}
