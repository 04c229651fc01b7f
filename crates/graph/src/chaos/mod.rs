//! A device for tests that punishes every early read.
//!
//! [`Chaos`] wraps a backend under a tag of its own. `execute_node` only queues; the work runs at
//! `synchronize`. Until then host access to bytes that queued work writes is an error (or yields NaN,
//! as an unsynchronised device would yield garbage). New buffers hold NaN, and so does every output
//! before its node runs.

mod fault;
mod queue;

pub use fault::{Fault, FaultKind};

use crate::backend::{
    Backend, BackendTag, BufferId, BufferRules, BufferSlice, Capture, KvPair, MemoryInfo, NodeCall,
    ReplayKey, Unsupported,
};
use crate::error::BackendError;
use crate::graph::{Graph, Node, NodeId, WeightSpec};
use crate::op::Op;
use crate::weight_bytes::WeightBytes;
use queue::{Command, Queued, Recording, overlap};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a [`Chaos`] device has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChaosStats {
    /// Nodes queued.
    pub queued: u64,
    /// Nodes that the inner backend was given.
    pub executed: u64,
    /// Times queued work was handed to the inner backend.
    pub submits: u64,
    /// Calls of `synchronize`.
    pub syncs: u64,
    /// Host reads.
    pub reads: u64,
    /// Host writes.
    pub writes: u64,
    /// Accesses to pending bytes that were refused or answered with NaN.
    pub violations: u64,
    /// Keys offered for replay.
    pub replay_keys: Vec<ReplayKey>,
    /// Splits queued from a recording.
    pub replays: u64,
}

/// What a host read of pending bytes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRead {
    /// Fails with [`BackendError::Pending`].
    Error,
    /// Succeeds with NaN.
    Poison,
    /// Succeeds with the bytes that were there before the queued work, as a device without checks does.
    Stale,
}

/// A device's statistics and its next fault, also after its move into [`crate::Backends`].
#[derive(Clone, Debug, Default)]
pub struct ChaosHandle(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    stats: ChaosStats,
    fault: Option<Fault>,
}

impl ChaosHandle {
    /// The statistics so far.
    pub fn stats(&self) -> ChaosStats {
        self.lock().stats.clone()
    }

    /// Sets the next fault, counted from now, instead of the one that was set, if any.
    pub fn inject(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// The fault that has not happened yet.
    pub fn fault(&self) -> Option<Fault> {
        self.lock().fault
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut ChaosStats)) {
        change(&mut self.lock().stats);
    }

    fn strikes(&self, kinds: &[FaultKind]) -> Option<FaultKind> {
        Fault::strikes(&mut self.lock().fault, kinds)
    }
}

type Mask = Box<dyn Fn(&Op) -> bool + Send>;

/// See the module's documentation.
pub struct Chaos<B: Backend> {
    inner: B,
    tag: BackendTag,
    mask: Mask,
    pending_read: PendingRead,
    rules: Option<BufferRules>,
    queue: Vec<Command>,
    graph: Option<Arc<Graph>>,
    /// `None` where splits are not recorded.
    recordings: Option<HashMap<ReplayKey, Recording>>,
    /// The split that is being recorded.
    open: Option<ReplayKey>,
    /// Why the device cannot be used any more.
    dead: Option<BackendError>,
    handle: ChaosHandle,
}

impl<B: Backend> Chaos<B> {
    /// Wraps a backend.
    pub fn new(inner: B, tag: BackendTag) -> Self {
        Chaos {
            inner,
            tag,
            mask: Box::new(|_| true),
            pending_read: PendingRead::Error,
            rules: None,
            queue: Vec::new(),
            graph: None,
            recordings: None,
            open: None,
            dead: None,
            handle: ChaosHandle::default(),
        }
    }

    /// Refuses ops for which `mask` is false.
    pub fn with_mask(mut self, mask: impl Fn(&Op) -> bool + Send + 'static) -> Self {
        self.mask = Box::new(mask);
        self
    }

    /// What a host read of pending bytes does.
    pub fn with_pending_read(mut self, pending_read: PendingRead) -> Self {
        self.pending_read = pending_read;
        self
    }

    /// Claims other buffer rules than the inner backend's; they must be at least as strict.
    pub fn with_rules(mut self, rules: BufferRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Records a split when its key comes by for the third time, and replays it from then on.
    pub fn with_replay(mut self) -> Self {
        self.recordings = Some(HashMap::new());
        self
    }

    /// Has a fault later on.
    pub fn with_fault(self, fault: Option<Fault>) -> Self {
        self.handle.inject(fault);
        self
    }

    /// Statistics and faults, also after the device was moved away.
    pub fn handle(&self) -> ChaosHandle {
        self.handle.clone()
    }

    /// The queue's copy of a graph, made once per plan.
    fn shared(&mut self, graph: &Graph) -> Arc<Graph> {
        match &self.graph {
            Some(kept) if kept.uid == graph.uid && **kept == *graph => Arc::clone(kept),
            _ => {
                let kept = Arc::new(graph.clone());
                self.graph = Some(Arc::clone(&kept));
                kept
            }
        }
    }

    fn poison(&mut self, slice: BufferSlice) -> Result<(), BackendError> {
        self.inner.write_host(slice, &nan_bytes(slice.len))
    }

    /// An error for every call on a device that failed for good.
    fn alive(&self) -> Result<(), BackendError> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        if self.queue.is_empty() {
            return Ok(());
        }
        self.handle.count(|s| s.submits += 1);
        if let Some(fault) = self.handle.strikes(&[FaultKind::Timeout]) {
            return Err(self.die(fault.error(0)));
        }
        // An error drops the rest of the queue: a device does not go on behind a fault. Buffers that were
        // to be freed are freed nevertheless.
        let mut failed = None;
        for command in std::mem::take(&mut self.queue) {
            let result = match command {
                Command::Free(buffer) => {
                    self.inner.free_buffer(buffer);
                    Ok(())
                }
                _ if failed.is_some() => Ok(()),
                Command::Execute(call) => self.run(&call),
                Command::Write(slice, bytes) => self.inner.write_host(slice, &bytes),
                Command::CopyPages(kv, pages) => self.inner.copy_pages(kv, &pages),
                Command::Capture(node, slice) => self.inner.capture(node, slice),
            };
            failed = failed.or(result.err());
        }
        match failed {
            Some(error) if error.poisons() => Err(self.die(error)),
            Some(error) => Err(error),
            None => self.inner.synchronize(),
        }
    }

    /// The device is not used again.
    fn die(&mut self, error: BackendError) -> BackendError {
        self.queue.clear();
        self.dead = Some(BackendError::Lost(format!("it failed before: {error}")));
        error
    }

    fn run(&mut self, call: &Queued) -> Result<(), BackendError> {
        let node = call.graph.node(call.node);
        let failed =
            |source: BackendError| BackendError::Queued { node: node.reference(), source: Box::new(source) };
        if let Some(fault) = self.handle.strikes(&[FaultKind::Node, FaultKind::Lost]) {
            return Err(failed(fault.error(0)));
        }
        self.handle.count(|s| s.executed += 1);
        let in_place = call.inputs.iter().any(|i| overlap(*i, call.output));
        if !in_place && call.output.len > 0 {
            self.poison(call.output)?;
        }
        let (graph, inputs) = (call.graph.as_ref(), call.inputs.as_slice());
        let (output, kv, dims) = (call.output, call.kv, call.dims);
        self.inner.execute_node(&NodeCall { graph, node, inputs, output, kv, dims }).map_err(failed)
    }

    /// Room for a buffer, if it is not this one that there is none for.
    fn room(&mut self, bytes: usize) -> Result<(), BackendError> {
        self.alive()?;
        match self.handle.strikes(&[FaultKind::Memory]) {
            Some(fault) => Err(fault.error(bytes)),
            None => Ok(()),
        }
    }

    fn new_buffer(&mut self, buffer: BufferId, bytes: usize) -> Result<BufferId, BackendError> {
        self.poison(BufferSlice { buffer, offset: 0, len: bytes })?;
        Ok(buffer)
    }
}

fn nan_bytes(len: usize) -> Vec<u8> {
    f32::NAN.to_ne_bytes().into_iter().cycle().take(len).collect()
}

impl<B: Backend> Backend for Chaos<B> {
    fn tag(&self) -> BackendTag {
        self.tag
    }

    fn name(&self) -> String {
        format!("chaos over {}", self.inner.name())
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), Unsupported> {
        match (self.mask)(&node.op) {
            true => self.inner.supports(graph, node),
            false => Err(Unsupported(format!("{} is masked", node.op.name()))),
        }
    }

    fn buffer_rules(&self) -> BufferRules {
        self.rules.unwrap_or_else(|| self.inner.buffer_rules())
    }

    fn memory(&self) -> MemoryInfo {
        self.inner.memory()
    }

    fn buffer_bytes(&self) -> usize {
        self.inner.buffer_bytes()
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.room(bytes)?;
        let buffer = self.inner.alloc_buffer(bytes)?;
        self.new_buffer(buffer, bytes)
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.room(bytes)?;
        let buffer = self.inner.alloc_fresh(bytes)?;
        self.new_buffer(buffer, bytes)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        let all = BufferSlice { buffer, offset: 0, len: usize::MAX };
        match self.queue.iter().any(|c| c.reads(all) || c.writes(all)) {
            true => self.queue.push(Command::Free(buffer)),
            false => self.inner.free_buffer(buffer),
        }
    }

    fn load_weight(&mut self, spec: &WeightSpec, data: &[u8]) -> Result<(), BackendError> {
        self.alive()?;
        self.inner.load_weight(spec, data)
    }

    fn load_weight_from(&mut self, spec: &WeightSpec, bytes: &dyn WeightBytes) -> Result<(), BackendError> {
        self.alive()?;
        self.inner.load_weight_from(spec, bytes)
    }

    fn copy_pages(&mut self, kv: KvPair, pages: &[(usize, usize)]) -> Result<(), BackendError> {
        self.alive()?;
        self.queue.push(Command::CopyPages(kv, pages.to_vec()));
        Ok(())
    }

    fn write_host(&mut self, dst: BufferSlice, data: &[u8]) -> Result<(), BackendError> {
        self.alive()?;
        self.handle.count(|s| s.writes += 1);
        if self.queue.iter().any(|c| c.writes(dst)) {
            self.handle.count(|s| s.violations += 1);
            return Err(BackendError::Pending(format!("host write to {dst:?}")));
        }
        if self.queue.iter().any(|c| c.reads(dst)) {
            self.queue.push(Command::Write(dst, data.to_vec()));
            return Ok(());
        }
        self.inner.write_host(dst, data)
    }

    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        self.alive()?;
        self.handle.count(|s| s.reads += 1);
        if !self.queue.iter().any(|c| c.writes(src)) {
            return self.inner.read_host(src, out);
        }
        self.handle.count(|s| s.violations += 1);
        match self.pending_read {
            PendingRead::Error => Err(BackendError::Pending(format!("host read of {src:?}"))),
            PendingRead::Poison => {
                out.copy_from_slice(&nan_bytes(out.len()));
                Ok(())
            }
            PendingRead::Stale => self.inner.read_host(src, out),
        }
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.alive()?;
        if !(self.mask)(&call.node.op) {
            return Err(BackendError::Unsupported(format!("{} is masked", call.node.op.name())));
        }
        let queued = Queued {
            graph: self.shared(call.graph),
            node: call.node.id,
            inputs: call.inputs.to_vec(),
            output: call.output,
            kv: call.kv,
            dims: call.dims,
        };
        if let (Some(key), Some(recordings)) = (self.open, &mut self.recordings) {
            recordings.entry(key).or_default().calls.push(queued.clone());
        }
        self.handle.count(|s| s.queued += 1);
        self.queue.push(Command::Execute(queued));
        Ok(())
    }

    fn replay(&mut self, key: &ReplayKey) -> Result<bool, BackendError> {
        self.alive()?;
        self.handle.count(|s| s.replay_keys.push(*key));
        self.open = None;
        let Some(recordings) = &mut self.recordings else { return Ok(false) };
        let recording = recordings.entry(*key).or_default();
        recording.runs += 1;
        match recording.runs {
            1 | 2 => Ok(false),
            3 => {
                self.open = Some(*key);
                Ok(false)
            }
            _ => {
                self.queue.extend(recording.calls.iter().cloned().map(Command::Execute));
                self.handle.count(|s| s.replays += 1);
                Ok(true)
            }
        }
    }

    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError> {
        self.alive()?;
        if self.open.is_some() {
            self.handle.count(|s| s.violations += 1);
            return Err(BackendError::Device("a capture inside a recording".into()));
        }
        self.queue.push(Command::Capture(node, src));
        Ok(())
    }

    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        self.alive()?;
        if self.queue.iter().any(|c| matches!(c, Command::Capture(..))) {
            self.handle.count(|s| s.violations += 1);
            return Err(BackendError::Pending("captures".into()));
        }
        self.inner.drain_captures()
    }

    fn forget_recording(&mut self) {
        if let (Some(key), Some(recordings)) = (self.open.take(), &mut self.recordings) {
            recordings.remove(&key);
        }
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.alive()?;
        self.handle.count(|s| s.syncs += 1);
        let result = self.flush();
        if result.is_err() {
            self.forget_recording();
        }
        self.open = None;
        result
    }
}
