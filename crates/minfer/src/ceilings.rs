//! What this machine's threads can read and multiply at most: what a benchmark's rates are held against.

use crate::devices::cpu_backend;
use crate::error::{Error, ErrorKind};
use minfer_cpu::CpuBackend;
use minfer_cpu::measure::{ReadProbe, multiply_add_ceiling};

/// What the CPU's threads do together, without a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes per second read from memory. Decode reads every weight for every token, so that this bounds it.
    pub read: f64,
    /// Int8 multiply-adds per second with both operands in the innermost cache. This bounds prefill.
    pub multiply_adds: f64,
}

/// Measures [`Ceilings`], several times if need be: what a machine can read changes with its neighbours.
pub struct MachineProbe {
    cpu: CpuBackend,
    memory: ReadProbe,
}

impl MachineProbe {
    /// A probe with threads of its own, as many as a model is run with, and memory to read from (512 MiB, or less where
    /// little is free).
    ///
    /// # Errors
    /// No memory, or an instruction set that the machine does not have.
    pub fn new(threads: Option<usize>) -> Result<MachineProbe, Error> {
        let memory =
            ReadProbe::new().map_err(|e| Error::new(ErrorKind::Memory, format!("measuring: {e}")))?;
        Ok(MachineProbe { cpu: cpu_backend(threads)?, memory })
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.cpu.threads()
    }

    /// Name of the instruction set.
    pub fn isa(&self) -> &'static str {
        self.cpu.isa().name()
    }

    /// Measures, for about a quarter of a second.
    ///
    /// # Errors
    /// None so far.
    pub fn measure(&self) -> Result<Ceilings, Error> {
        let (isa, pool) = (self.cpu.isa(), self.cpu.pool());
        let read = self.memory.measure(isa, pool);
        let read = read.map_err(|e| Error::new(ErrorKind::Device, format!("measuring: {e}")))?;
        Ok(Ceilings { read, multiply_adds: multiply_add_ceiling(isa, pool) })
    }
}
