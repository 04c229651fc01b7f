//! [`CpuBackend`]: the host's processors as a device of the scheduler. Everything runs at once, on the
//! calling thread and the pool's workers, so that nothing is ever pending.

use crate::buffers::{ALIGNMENT, BufferPool};
use crate::matmul::SharedMut;
use crate::memory::memory_info;
use crate::ops::weights::Weights;
use crate::ops::{Ctx, Kernel, Scratch, kernel, kv};
use crate::pool::Pool;
use crate::simd::Isa;
use minfer_graph::{
    Backend, BackendError, BackendTag, BufferId, BufferRules, BufferSlice, Capture, Graph, KvPair,
    MemoryInfo, Node, NodeCall, NodeId, StepDims, Unsupported, WeightBytes, WeightSpec, room,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps of at most so many tokens are run by one team from their first node to their last: their nodes take microseconds.
const BATCHED: usize = 16;

/// How the backend runs. Results don't depend on any of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller included; what the machine and its limits allow if absent.
    pub threads: Option<usize>,
    /// Instruction set; the best that the machine has if absent.
    pub isa: Option<Isa>,
}

/// The CPU.
pub struct CpuBackend {
    /// Shared with backends made from this one.
    pool: Arc<Pool>,
    isa: Isa,
    buffers: BufferPool,
    weights: Weights,
    /// Of each member of a team.
    scratch: Vec<Mutex<Scratch>>,
    /// Of all members together.
    common: Vec<f32>,
    captures: Vec<Capture>,
    /// What it says of its memory; the host's own figures if absent.
    memory: Option<MemoryInfo>,
}

impl CpuBackend {
    /// A backend with its own threads and no weights.
    pub fn new(options: CpuOptions) -> Self {
        let threads = options.threads.unwrap_or_else(crate::threads::default_threads);
        Self::on(Arc::new(Pool::new(threads)), options.isa.unwrap_or_else(Isa::detect))
    }

    fn on(pool: Arc<Pool>, isa: Isa) -> Self {
        let scratch = (0..pool.threads()).map(|_| Mutex::default()).collect();
        CpuBackend {
            pool,
            isa,
            buffers: BufferPool::new(),
            weights: Weights::default(),
            scratch,
            common: Vec::new(),
            captures: Vec::new(),
            memory: None,
        }
    }

    /// Another backend with buffers and weights of its own on the same threads, which says `memory` of itself: what a
    /// device for tests is made of.
    pub fn sibling(&self, memory: MemoryInfo) -> Self {
        CpuBackend { memory: Some(memory), ..Self::on(Arc::clone(&self.pool), self.isa) }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl Backend for CpuBackend {
    fn tag(&self) -> BackendTag {
        BackendTag::CPU
    }

    fn name(&self) -> String {
        let threads = self.threads();
        format!("CPU ({}, {threads} thread{})", self.isa.name(), if threads == 1 { "" } else { "s" })
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), Unsupported> {
        kernel(&node.op).check(graph)
    }

    fn buffer_rules(&self) -> BufferRules {
        BufferRules {
            alignment: ALIGNMENT,
            max_binding: usize::MAX,
            read_write_one_buffer: true,
            in_place: true,
        }
    }

    fn memory(&self) -> MemoryInfo {
        self.memory.unwrap_or_else(memory_info)
    }

    fn buffer_bytes(&self) -> usize {
        self.buffers.bytes()
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.buffers.alloc(bytes)
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.buffers.alloc_fresh(bytes)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.buffers.free(buffer);
    }

    fn load_weight(&mut self, spec: &WeightSpec, data: &[u8]) -> Result<(), BackendError> {
        self.weights.load(spec, &data, &self.pool)
    }

    fn load_weight_from(&mut self, spec: &WeightSpec, bytes: &dyn WeightBytes) -> Result<(), BackendError> {
        self.weights.load(spec, bytes, &self.pool)
    }

    fn copy_pages(&mut self, kv: KvPair, pages: &[(usize, usize)]) -> Result<(), BackendError> {
        kv::copy_pages(&mut self.buffers, kv, pages)
    }

    fn write_host(&mut self, dst: BufferSlice, data: &[u8]) -> Result<(), BackendError> {
        check_host_len(dst, data.len())?;
        self.buffers.write(dst)?.copy_from_slice(data);
        Ok(())
    }

    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        check_host_len(src, out.len())?;
        out.copy_from_slice(self.buffers.read(src)?);
        Ok(())
    }

    fn takes_batches(&self, dims: StepDims) -> bool {
        dims.tokens <= BATCHED
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.execute_nodes(&[*call]).map_err(|(_, e)| e)
    }

    fn execute_nodes(&mut self, calls: &[NodeCall<'_>]) -> Result<(), (usize, BackendError)> {
        let kernels: Vec<Box<dyn Kernel>> = calls.iter().map(|call| kernel(&call.node.op)).collect();
        let common = kernels.iter().zip(calls).map(|(kernel, call)| kernel.common(call)).max().unwrap_or(0);
        room::grow(&mut self.common, common, 0.0).map_err(|e| (0, e))?;
        let common = SharedMut::new(&mut self.common[..]);
        self.pool.try_team_on(calls.len(), |team, i| {
            let mut scratch = self.scratch[team.index()].lock().unwrap_or_else(PoisonError::into_inner);
            kernels[i].run(Ctx {
                call: &calls[i],
                buffers: &self.buffers,
                weights: &self.weights,
                team,
                pool: &self.pool,
                isa: self.isa,
                scratch: &mut scratch,
                common,
            })
        })
    }

    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError> {
        let read = self.buffers.read(src)?;
        let mut bytes = room::with_room(read.len())?;
        bytes.extend_from_slice(read);
        self.captures.push(Capture { node, bytes });
        Ok(())
    }

    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        Ok(std::mem::take(&mut self.captures))
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn check_host_len(slice: BufferSlice, len: usize) -> Result<(), BackendError> {
    if slice.len == len {
        return Ok(());
    }
    Err(BackendError::BadBuffer(format!("range of {} bytes, host data of {len}", slice.len)))
}
