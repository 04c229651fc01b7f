//! The scheduler: runs a plan split by split so that no value is read before it was written.
//!
//! It carries out the plan's [`Action`]s: per split, copy across what the split reads from elsewhere, run
//! (or replay) its nodes in order, synchronise its backend and drain its captures. After `Ok` every
//! backend was synchronised, so that every output is final and readable.

use crate::alloc::GraphAllocator;
use crate::backend::{BackendTag, Backends, BufferSlice, Capture, KvPair, NodeCall, ReplayKey};
use crate::dump::trace_plan;
use crate::error::{BackendError, GraphError};
use crate::graph::{Graph, Node, NodeId};
use crate::memory::node_bytes;
use crate::observe::{NodeObserver, NodeRun};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::room::resize;
use crate::schedule::Action;
use crate::shape::{DType, StepDims};
use crate::split::{Split, split_graph};
use crate::verify::topo_order;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Receives the values of executed nodes and filled inputs, in node order.
pub type CaptureSink<'a> = dyn FnMut(&Node, StepDims, &[u8]) + 'a;

/// Receives the text of a plan.
pub type TraceSink = dyn FnMut(&str) + Send;

/// How a scheduler reports.
#[derive(Default)]
pub struct SchedulerOptions {
    /// Called with the text of each plan that has not run before (`MINFER_GRAPH_TRACE`).
    pub graph_trace: Option<Box<TraceSink>>,
}

/// What was done since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps begun.
    pub executes: u64,
    /// Splits begun.
    pub splits: u64,
    /// Times a backend was synchronised.
    pub syncs: u64,
    /// Values copied across backends.
    pub copies: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Nodes executed one by one.
    pub nodes: u64,
    /// Splits replayed from a recording.
    pub replays: u64,
}

/// One step of a plan. Inputs have been filled.
pub struct Step<'a> {
    /// Sizes, up to the plan's capacity.
    pub dims: StepDims,
    /// Largest KV extent of the batch in pages.
    pub kv_pages: usize,
    /// Takes the value of every node; turns replay off. KV nodes have no value.
    pub capture: Option<&'a mut CaptureSink<'a>>,
    /// Told of every node when it has finished: each is waited for, and replay is off. Costs nothing when absent.
    pub observe: Option<&'a NodeObserver<'a>>,
    /// Looked at before every node, and before a split that its backend takes at once; when true, the step ends with [`BackendError::Cancelled`].
    pub cancel: Option<&'a AtomicBool>,
    /// Whether backends may record and replay splits.
    pub replay: bool,
}

impl Step<'_> {
    /// A step of these sizes, without captures, observer or replay.
    pub fn new(dims: StepDims) -> Self {
        Step { dims, kv_pages: 0, capture: None, observe: None, cancel: None, replay: false }
    }
}

/// Runs plans. It keeps no state of a step, so that a failed one leaves nothing behind.
#[derive(Default)]
pub struct BackendScheduler {
    /// What was done.
    pub counters: Counters,
    progress: Progress,
    options: SchedulerOptions,
    traced: HashSet<u64>,
}

impl BackendScheduler {
    /// A scheduler.
    pub fn new(options: SchedulerOptions) -> Self {
        BackendScheduler { options, ..BackendScheduler::default() }
    }

    /// The splits of an assigned graph.
    pub fn split_graph(graph: &Graph) -> Vec<Split> {
        split_graph(graph)
    }

    /// How far the last step came; after an error, what had run.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Runs a step. After `Ok` every backend is synchronised and outputs can be read.
    ///
    /// # Errors
    /// [`GraphError::Capacity`] for a step larger than the plan or an input filled for another size;
    /// otherwise the first error of a backend, unchanged: no later node runs, and none is tried
    /// elsewhere. The next call starts clean.
    pub fn execute(
        &mut self,
        plan: &Plan,
        alloc: &mut GraphAllocator,
        backends: &mut Backends,
        step: Step<'_>,
    ) -> Result<(), GraphError> {
        debug_assert!(topo_order(&plan.graph).is_ok(), "the graph has a cycle");
        alloc.check_plan(plan)?;
        for split in &plan.splits {
            backends.get(split.backend)?;
        }
        check_step(plan, alloc, step.dims)?;
        self.trace(plan);
        self.counters.executes += 1;
        self.progress = Progress::default();
        alloc.begin_run();
        let dims = step.dims;
        let mut run = Run {
            plan,
            alloc,
            backends,
            step,
            counters: &mut self.counters,
            progress: &mut self.progress,
            dirty: Vec::new(),
            inputs: Vec::new(),
            captures: Vec::new(),
        };
        let result = run.all();
        if result.is_err() {
            run.abandon();
        } else {
            alloc.finish_run(dims);
        }
        result
    }

    fn trace(&mut self, plan: &Plan) {
        if let Some(sink) = &mut self.options.graph_trace
            && self.traced.insert(plan.graph.uid)
        {
            sink(&trace_plan(plan));
        }
    }
}

/// Refuses steps beyond capacity, and inputs that were not filled for this step's sizes. A pinned
/// input may have been placed on its device by other means.
fn check_step(plan: &Plan, alloc: &GraphAllocator, dims: StepDims) -> Result<(), GraphError> {
    let most = plan.capacity;
    if dims.tokens > most.tokens || dims.outputs > most.outputs || dims.seqs > most.seqs {
        return Err(GraphError::Capacity(format!("{dims:?} exceeds {most:?}")));
    }
    for node in plan.graph.nodes.iter().filter(|n| n.is_input()) {
        let needed = node_bytes(node, dims);
        let filled = alloc.filled(node.id).map(<[u8]>::len);
        let placed = node.pinned && filled.is_none();
        if alloc.node_buffer(node.id).is_none() || placed || filled.unwrap_or(0) == needed {
            continue;
        }
        let (node, filled) = (node.reference(), filled.unwrap_or(0));
        return Err(GraphError::Capacity(format!("{node} holds {filled} bytes, the step reads {needed}")));
    }
    Ok(())
}

/// A node's buffers.
struct Operands {
    node: NodeId,
    /// Of its sources, in [`Run::inputs`].
    inputs: Range<usize>,
    output: BufferSlice,
    kv: Option<KvPair>,
}

/// A step in progress.
struct Run<'r, 's> {
    plan: &'r Plan,
    alloc: &'r mut GraphAllocator,
    backends: &'r mut Backends,
    step: Step<'s>,
    counters: &'r mut Counters,
    progress: &'r mut Progress,
    /// Backends with work that nobody has waited for.
    dirty: Vec<BackendTag>,
    /// The buffers of the sources of the nodes at hand.
    inputs: Vec<BufferSlice>,
    /// Captures of inputs since the last drain.
    captures: Vec<Capture>,
}

impl Run<'_, '_> {
    fn all(&mut self) -> Result<(), GraphError> {
        let plan = self.plan;
        for &action in &plan.schedule {
            match action {
                Action::Sync(tag) => self.sync(tag)?,
                Action::Drain(tag) => self.drain(tag)?,
                Action::Copy { value, to } => self.copy(value, to)?,
                Action::Run { split } => self.run_split(split)?,
            }
        }
        Ok(())
    }

    fn run_split(&mut self, index: usize) -> Result<(), GraphError> {
        let plan = self.plan;
        let split = plan.splits.get(index).ok_or_else(|| GraphError::Internal {
            pass: "execute",
            reason: format!("the schedule runs split {index} of {}", plan.splits.len()),
        })?;
        self.counters.splits += 1;
        if !self.replay(split)? {
            self.run_nodes(split)?;
        }
        self.progress.splits += 1;
        Ok(())
    }

    /// Waits for a backend, if it has work that nobody waited for.
    fn sync(&mut self, tag: BackendTag) -> Result<(), GraphError> {
        let Some(at) = self.dirty.iter().position(|&t| t == tag) else { return Ok(()) };
        self.backends.get_mut(tag)?.synchronize().map_err(|e| e.on(tag))?;
        self.dirty.swap_remove(at);
        self.counters.syncs += 1;
        self.progress.finished = self.progress.splits;
        Ok(())
    }

    fn mark_dirty(&mut self, tag: BackendTag) {
        if !self.dirty.contains(&tag) {
            self.dirty.push(tag);
        }
    }

    /// Hands the captures of a synchronised backend to the sink, in node order.
    fn drain(&mut self, tag: BackendTag) -> Result<(), GraphError> {
        let Some(sink) = &mut self.step.capture else { return Ok(()) };
        self.captures.extend(self.backends.get_mut(tag)?.drain_captures().map_err(|e| e.on(tag))?);
        self.captures.sort_by_key(|c| c.node);
        for capture in self.captures.drain(..) {
            sink(self.plan.graph.node(capture.node), self.step.dims, &capture.bytes);
        }
        Ok(())
    }

    /// Brings a value to another backend, unless this run did so already.
    fn copy(&mut self, value: NodeId, to: BackendTag) -> Result<(), GraphError> {
        let moved = self.alloc.copy_across(&self.plan.graph, self.backends, value, self.step.dims, to)?;
        if moved > 0 {
            self.counters.copies += 1;
            self.counters.copied_bytes += moved as u64;
        }
        Ok(())
    }

    /// Lets the backend run the whole split from a recording. Only decode-shaped steps repeat often
    /// enough, and a read-back inside a recording would be baked into it.
    fn replay(&mut self, split: &Split) -> Result<bool, GraphError> {
        let dims = self.step.dims;
        let decode = dims.tokens > 0 && dims.tokens == dims.seqs;
        let watched = self.step.capture.is_some() || self.step.observe.is_some();
        if !self.step.replay || !decode || watched {
            return Ok(false);
        }
        self.check_cancel(split.backend, split.start)?;
        let key = ReplayKey {
            uid: self.plan.graph.uid,
            start: split.start,
            end: split.end,
            dims,
            kv_pages: self.step.kv_pages.next_power_of_two(),
            buffers: self.alloc.generation(),
        };
        let backend = self.backends.get_mut(split.backend)?;
        let replayed = backend.replay(&key).map_err(|e| e.on(split.backend))?;
        if replayed {
            self.mark_dirty(split.backend);
            self.counters.replays += 1;
            self.progress.replayed(self.plan, split);
        }
        Ok(replayed)
    }

    fn check_cancel(&self, tag: BackendTag, id: NodeId) -> Result<(), GraphError> {
        match self.step.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            true => Err(BackendError::Cancelled.at(self.plan.graph.node(id).reference(), tag)),
            false => Ok(()),
        }
    }

    fn run_nodes(&mut self, split: &Split) -> Result<(), GraphError> {
        let plan = self.plan;
        let at_once = self.step.capture.is_none()
            && self.step.observe.is_none()
            && self.backends.get(split.backend)?.takes_batches(self.step.dims);
        if at_once {
            self.check_cancel(split.backend, split.start)?;
        }
        self.inputs.clear();
        let mut batch = Vec::new();
        for node in &plan.graph.nodes[split.start..split.end] {
            // Dead nodes (what a fusion left behind) have no buffer.
            let Some((tag, buffer)) = self.alloc.node_buffer(node.id) else { continue };
            if node.is_input() {
                self.capture_input(node, tag, buffer)?;
                continue;
            }
            if tag != split.backend {
                let node = node.reference();
                return Err(GraphError::WrongBackend { node, buffer: tag, split: split.backend });
            }
            if self.is_empty(node) {
                continue;
            }
            let operands = self.operands(node, tag, buffer)?;
            if at_once {
                batch.push(operands);
                continue;
            }
            self.check_cancel(tag, node.id)?;
            match self.step.observe {
                None => self.run_calls(tag, &[operands])?,
                Some(observe) => self.run_observed(node, tag, operands, observe)?,
            }
            self.capture_output(node, tag, buffer)?;
            self.inputs.clear();
        }
        self.run_calls(split.backend, &batch)
    }

    /// Runs a node by itself: what was queued before is waited for first, and then the node, so that the time between
    /// is its own.
    fn run_observed(
        &mut self,
        node: &Node,
        backend: BackendTag,
        operands: Operands,
        observe: &NodeObserver<'_>,
    ) -> Result<(), GraphError> {
        self.sync(backend)?;
        let started = Instant::now();
        self.run_calls(backend, &[operands])?;
        self.sync(backend)?;
        let (graph, dims) = (&self.plan.graph, self.step.dims);
        observe(&NodeRun { graph, node, backend, dims, started, took: started.elapsed() });
        Ok(())
    }

    /// Whether the step gives the node no rows (no outputs wanted): then there is nothing to run.
    fn is_empty(&self, node: &Node) -> bool {
        let rows = |n: &Node| n.shape.n_rows(self.step.dims) == 0;
        match node.dtype {
            DType::Kv => node.op.writes_kv() && rows(self.plan.graph.node(node.src[0])),
            DType::F32 | DType::I32 => rows(node),
        }
    }

    /// Finds a node's buffers; those of its sources are added to `inputs`.
    fn operands(
        &mut self,
        node: &Node,
        tag: BackendTag,
        buffer: BufferSlice,
    ) -> Result<Operands, GraphError> {
        let first = self.inputs.len();
        for &s in &node.src {
            self.inputs.push(self.alloc.source_slice(&self.plan.graph, s, tag, self.step.dims)?);
        }
        Ok(Operands {
            node: node.id,
            inputs: first..self.inputs.len(),
            output: BufferSlice { len: node_bytes(node, self.step.dims), ..buffer },
            kv: node.op.kv_layer().and_then(|layer| self.alloc.kv_pair(layer)),
        })
    }

    /// Hands nodes to their backend.
    fn run_calls(&mut self, tag: BackendTag, operands: &[Operands]) -> Result<(), GraphError> {
        if operands.is_empty() {
            return Ok(());
        }
        // Marked first: a call that fails may have queued something too.
        self.mark_dirty(tag);
        let (graph, dims) = (&self.plan.graph, self.step.dims);
        let call = |o: &Operands| NodeCall {
            graph,
            node: graph.node(o.node),
            inputs: &self.inputs[o.inputs.clone()],
            output: o.output,
            kv: o.kv,
            dims,
        };
        let calls: Vec<NodeCall<'_>> = operands.iter().map(call).collect();
        let done = self.backends.get_mut(tag)?.execute_nodes(&calls);
        let n = done.as_ref().map_or_else(|(i, _)| *i, |()| calls.len());
        for call in &calls[..n] {
            self.counters.nodes += 1;
            self.progress.queued(call.node.id);
        }
        done.map_err(|(i, e)| e.at(graph.node(operands[i].node).reference(), tag))
    }

    fn capture_output(
        &mut self,
        node: &Node,
        tag: BackendTag,
        buffer: BufferSlice,
    ) -> Result<(), GraphError> {
        if self.step.capture.is_none() || node.dtype == DType::Kv {
            return Ok(());
        }
        let src = BufferSlice { len: node_bytes(node, self.step.dims), ..buffer };
        self.backends.get_mut(tag)?.capture(node.id, src).map_err(|e| e.at(node.reference(), tag))
    }

    /// Inputs are not executed; a capture takes them as the host filled them.
    fn capture_input(&mut self, node: &Node, tag: BackendTag, buffer: BufferSlice) -> Result<(), GraphError> {
        if self.step.capture.is_none() {
            return Ok(());
        }
        let len = node_bytes(node, self.step.dims);
        let bytes = match self.alloc.filled(node.id).filter(|f| f.len() == len) {
            Some(filled) => filled.to_vec(),
            None => {
                self.sync(tag)?;
                let mut bytes = Vec::new();
                resize(&mut bytes, len, 0).map_err(|e| e.on(BackendTag::CPU))?;
                let src = BufferSlice { len, ..buffer };
                self.backends.get_mut(tag)?.read_host(src, &mut bytes).map_err(|e| e.on(tag))?;
                bytes
            }
        };
        self.captures.push(Capture { node: node.id, bytes });
        Ok(())
    }

    /// After an error: waits for what was queued and forgets its captures, so that nothing of this
    /// step is left in a backend. Errors here would only repeat the first one.
    fn abandon(&mut self) {
        for tag in std::mem::take(&mut self.dirty) {
            if let Ok(backend) = self.backends.get_mut(tag) {
                backend.forget_recording();
                let _ = backend.synchronize();
                let _ = backend.drain_captures();
            }
        }
    }
}
