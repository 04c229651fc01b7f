//! The allocator: turns a memory plan into buffers, fills inputs, reads outputs, and keeps the copies
//! staged across backends. It never synchronises; the scheduler pairs that with it.

use crate::backend::{BackendTag, Backends, BufferId, BufferSlice, KvPair};
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId};
use crate::kv::{KvRegion, KvStorage};
use crate::memory::{Location, node_bytes};
use crate::plan::Plan;
use crate::room::resize;
use crate::shape::{DType, StepDims};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers buffer sets, so that no two allocators (nor two states of one) look alike to a recording.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A copy of a value on another backend.
#[derive(Debug)]
struct Staged {
    buffer: BufferSlice,
    /// The run that refreshed it.
    run: u64,
}

/// The buffers of one plan.
#[derive(Debug)]
pub struct GraphAllocator {
    uid: u64,
    generation: u64,
    run: u64,
    /// Sizes of the last step that succeeded.
    last: Option<StepDims>,
    arenas: BTreeMap<BackendTag, Vec<(BufferId, usize)>>,
    nodes: Vec<Option<(BackendTag, BufferSlice)>>,
    staging: HashMap<(NodeId, BackendTag), Staged>,
    /// Bytes last filled into each input: staging them elsewhere needs no read-back.
    filled: HashMap<NodeId, Vec<u8>>,
    kv: BTreeMap<usize, (BackendTag, KvPair)>,
}

impl GraphAllocator {
    /// Allocates everything that the plan needs. `kv` holds the regions of the graph's KV layers.
    ///
    /// # Errors
    /// A missing backend, no memory (what was allocated is given back), or a KV region that is
    /// missing, of another shape, or on another backend than its layer's nodes.
    pub fn new(plan: &Plan, backends: &mut Backends, kv: Option<&KvStorage>) -> Result<Self, GraphError> {
        let mut alloc = GraphAllocator {
            uid: plan.graph.uid,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            run: 0,
            last: None,
            arenas: BTreeMap::new(),
            nodes: vec![None; plan.graph.nodes.len()],
            staging: HashMap::new(),
            filled: HashMap::new(),
            kv: BTreeMap::new(),
        };
        match alloc.allocate(plan, backends, kv) {
            Ok(()) => Ok(alloc),
            Err(e) => {
                alloc.release(backends);
                Err(e)
            }
        }
    }

    fn allocate(
        &mut self,
        plan: &Plan,
        backends: &mut Backends,
        kv: Option<&KvStorage>,
    ) -> Result<(), GraphError> {
        self.bind_kv(&plan.graph, kv)?;
        for arena in &plan.memory.arenas {
            for &bytes in &arena.slots {
                let backend = backends.get_mut(arena.backend)?;
                let buffer = backend.alloc_buffer(bytes.max(4));
                let buffer = buffer.map_err(|e| e.allocating(arena.backend, "the values of a graph"))?;
                self.arenas.entry(arena.backend).or_default().push((buffer, bytes));
            }
        }
        for (id, placement) in plan.memory.nodes.iter().enumerate() {
            let Some(p) = placement else { continue };
            let slice = match p.location {
                Location::Arena { slot, offset, bytes } => {
                    let slots = self.arenas.get(&p.backend).map_or(&[][..], |s| s.as_slice());
                    let found = slots.get(slot).filter(|&&(_, size)| offset + bytes <= size);
                    let &(buffer, _) = found.ok_or_else(|| no_buffer(&plan.graph, id))?;
                    BufferSlice { buffer, offset, len: bytes }
                }
                Location::Kv { layer } => {
                    let pair = self.kv_pair(layer).ok_or_else(|| no_buffer(&plan.graph, id))?;
                    BufferSlice { len: 0, ..pair.k }
                }
            };
            self.nodes[id] = Some((p.backend, slice));
        }
        for s in &plan.memory.staging {
            self.stage_buffer(&plan.graph, backends, s.node, s.backend, s.bytes)?;
        }
        Ok(())
    }

    fn bind_kv(&mut self, graph: &Graph, kv: Option<&KvStorage>) -> Result<(), GraphError> {
        let live = graph.live();
        for node in graph.nodes.iter().filter(|n| live[n.id]) {
            let Some(shape) = node.op.kv_shape() else { continue };
            let invalid = |reason: String| GraphError::Invalid { node: node.reference(), reason };
            let region = kv.and_then(|s| s.region(shape.layer));
            let &KvRegion { shape: made, backend, pair } =
                region.ok_or_else(|| invalid(format!("layer {} has no KV region", shape.layer)))?;
            if made != shape {
                return Err(invalid(format!("KV region is {made:?}, the graph needs {shape:?}")));
            }
            if let Some(split) = node.backend.filter(|&t| t != backend) {
                return Err(GraphError::WrongBackend { node: node.reference(), buffer: backend, split });
            }
            self.kv.insert(shape.layer, (backend, pair));
        }
        Ok(())
    }

    /// Fills an i32 input for the next step; `values` are its rows one after the other.
    ///
    /// # Errors
    /// [`GraphError::Invalid`] if the node is no i32 input, [`GraphError::Capacity`] if the values
    /// are no whole rows or too many, or what the backend says.
    pub fn fill_input_i32(
        &mut self,
        plan: &Plan,
        backends: &mut Backends,
        node: NodeId,
        values: &[i32],
    ) -> Result<(), GraphError> {
        self.fill(plan, backends, node, DType::I32, bytemuck::cast_slice(values))
    }

    /// Fills an f32 input for the next step.
    ///
    /// # Errors
    /// As [`GraphAllocator::fill_input_i32`].
    pub fn fill_input_f32(
        &mut self,
        plan: &Plan,
        backends: &mut Backends,
        node: NodeId,
        values: &[f32],
    ) -> Result<(), GraphError> {
        self.fill(plan, backends, node, DType::F32, bytemuck::cast_slice(values))
    }

    fn fill(
        &mut self,
        plan: &Plan,
        backends: &mut Backends,
        id: NodeId,
        dtype: DType,
        bytes: &[u8],
    ) -> Result<(), GraphError> {
        self.check_plan(plan)?;
        let node = lookup(&plan.graph, id)?;
        if !node.is_input() || node.dtype != dtype {
            let reason = format!("is no {} input", dtype.name());
            return Err(GraphError::Invalid { node: node.reference(), reason });
        }
        let row = node.shape.cols * dtype.bytes();
        let most = node_bytes(node, plan.capacity);
        if bytes.len() > most || (row > 0 && !bytes.len().is_multiple_of(row)) {
            let (given, node) = (bytes.len(), node.reference());
            return Err(GraphError::Capacity(format!(
                "{node} got {given} bytes, takes rows of {row} bytes up to {most} bytes"
            )));
        }
        // A dead input has no buffer: nobody will read it.
        let Some((tag, slice)) = self.node_buffer(id) else { return Ok(()) };
        if !bytes.is_empty() {
            let dst = BufferSlice { len: bytes.len(), ..slice };
            backends.get_mut(tag)?.write_host(dst, bytes).map_err(|e| e.on(tag))?;
        }
        let kept = self.filled.entry(id).or_default();
        kept.clear();
        kept.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads rows of a value after a step into `out`, which takes exactly these rows.
    ///
    /// # Errors
    /// [`GraphError::Invalid`] if the value does not outlive the step (it is no graph output) or is
    /// no f32, [`GraphError::Capacity`] if the rows were not computed by the last step or do not fit
    /// `out`, or what the backend says.
    pub fn read_f32(
        &self,
        plan: &Plan,
        backends: &mut Backends,
        id: NodeId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), GraphError> {
        self.check_plan(plan)?;
        let node = lookup(&plan.graph, id)?;
        let invalid = |reason: &str| GraphError::Invalid { node: node.reference(), reason: reason.into() };
        if node.dtype != DType::F32 {
            return Err(invalid("holds no f32 values"));
        }
        if !plan.memory.survives(id) {
            return Err(invalid("its memory is used again within the step; only outputs can be read"));
        }
        let computed = self.last.map_or(0, |dims| node.shape.n_rows(dims));
        let cols = node.shape.cols;
        if rows.start > rows.end || rows.end > computed || out.len() != rows.len() * cols {
            let (node, n) = (node.reference(), out.len());
            return Err(GraphError::Capacity(format!(
                "{node}: rows {rows:?} of {computed} with {cols} values, read into {n} values"
            )));
        }
        let (tag, slice) = self.node_buffer(id).ok_or_else(|| no_buffer(&plan.graph, id))?;
        if out.is_empty() {
            return Ok(());
        }
        let src =
            BufferSlice { offset: slice.offset + rows.start * cols * 4, len: rows.len() * cols * 4, ..slice };
        backends.get_mut(tag)?.read_host(src, bytemuck::cast_slice_mut(out)).map_err(|e| e.on(tag))
    }

    /// A node's own buffer at capacity size; `None` for dead nodes.
    pub fn node_buffer(&self, id: NodeId) -> Option<(BackendTag, BufferSlice)> {
        self.nodes.get(id).copied().flatten()
    }

    /// The copy of a value on a backend, if this run (the last one, between runs) made one.
    pub fn cross_buffer(&self, id: NodeId, tag: BackendTag) -> Option<BufferSlice> {
        self.staging.get(&(id, tag)).filter(|s| s.run == self.run && self.run > 0).map(|s| s.buffer)
    }

    /// A layer's KV regions.
    pub fn kv_pair(&self, layer: usize) -> Option<KvPair> {
        self.kv.get(&layer).map(|&(_, pair)| pair)
    }

    /// Bytes allocated per backend, staging included, KV regions not.
    pub fn bytes(&self) -> BTreeMap<BackendTag, usize> {
        let mut sum = BTreeMap::new();
        for (&tag, slots) in &self.arenas {
            *sum.entry(tag).or_default() += slots.iter().map(|s| s.1).sum::<usize>();
        }
        for (&(_, tag), staged) in &self.staging {
            *sum.entry(tag).or_default() += staged.buffer.len;
        }
        sum
    }

    /// Changes whenever a buffer is replaced; part of the key of recordings.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Gives all buffers back. A backend that is gone took its memory along.
    pub fn release(self, backends: &mut Backends) {
        let arenas = self.arenas.iter().flat_map(|(&tag, s)| s.iter().map(move |&(b, _)| (tag, b)));
        let staging = self.staging.iter().map(|(&(_, tag), s)| (tag, s.buffer.buffer));
        for (tag, buffer) in arenas.chain(staging) {
            if let Ok(backend) = backends.get_mut(tag) {
                backend.free_buffer(buffer);
            }
        }
    }

    /// Copies a value to another backend through the host, into a staging buffer of its own; the
    /// value's canonical buffer stays as it is. Returns the bytes moved: 0 if the value is there
    /// already. The caller has synchronised the value's backend.
    ///
    /// # Errors
    /// [`GraphError::NoBuffer`] for a node without buffer, or what the backends say.
    pub fn copy_across(
        &mut self,
        graph: &Graph,
        backends: &mut Backends,
        id: NodeId,
        dims: StepDims,
        dst: BackendTag,
    ) -> Result<usize, GraphError> {
        let (src, slice) = self.node_buffer(id).ok_or_else(|| no_buffer(graph, id))?;
        if src == dst || self.cross_buffer(id, dst).is_some() {
            return Ok(0);
        }
        let node = graph.node(id);
        let len = node_bytes(node, dims);
        let staged = self.stage_buffer(graph, backends, id, dst, slice.len)?;
        if len > 0 {
            let to = BufferSlice { len, ..staged };
            match self.filled.get(&id).filter(|f| !node.pinned && f.len() >= len) {
                Some(filled) => {
                    backends.get_mut(dst)?.write_host(to, &filled[..len]).map_err(|e| e.on(dst))?
                }
                None => {
                    let mut bytes = Vec::new();
                    resize(&mut bytes, len, 0).map_err(|e| e.on(BackendTag::CPU))?;
                    let from = BufferSlice { len, ..slice };
                    backends.get_mut(src)?.read_host(from, &mut bytes).map_err(|e| e.on(src))?;
                    backends.get_mut(dst)?.write_host(to, &bytes).map_err(|e| e.on(dst))?;
                }
            }
        }
        if let Some(entry) = self.staging.get_mut(&(id, dst)) {
            entry.run = self.run;
        }
        Ok(len)
    }

    /// The staging buffer of a value on a backend; new ones bypass the backend's free list, because
    /// a recycled buffer could still be read by work that is queued.
    fn stage_buffer(
        &mut self,
        graph: &Graph,
        backends: &mut Backends,
        id: NodeId,
        tag: BackendTag,
        bytes: usize,
    ) -> Result<BufferSlice, GraphError> {
        if let Some(staged) = self.staging.get(&(id, tag)) {
            return Ok(staged.buffer);
        }
        let what = || format!("the copy of `{}` from another device", graph.node(id).name);
        let buffer = backends.get_mut(tag)?.alloc_fresh(bytes.max(4));
        let buffer = buffer.map_err(|e| e.allocating(tag, what()))?;
        let buffer = BufferSlice { buffer, offset: 0, len: bytes };
        self.staging.insert((id, tag), Staged { buffer, run: 0 });
        self.generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        Ok(buffer)
    }

    /// Host bytes of an input as last filled.
    pub(crate) fn filled(&self, id: NodeId) -> Option<&[u8]> {
        self.filled.get(&id).map(Vec::as_slice)
    }

    pub(crate) fn check_plan(&self, plan: &Plan) -> Result<(), GraphError> {
        if self.uid == plan.graph.uid && self.nodes.len() == plan.graph.nodes.len() {
            return Ok(());
        }
        let reason = "the allocator belongs to another plan".into();
        Err(GraphError::Internal { pass: "allocate", reason })
    }

    /// Starts a run: every staged copy is stale from here on.
    pub(crate) fn begin_run(&mut self) {
        self.run += 1;
        self.last = None;
    }

    pub(crate) fn finish_run(&mut self, dims: StepDims) {
        self.last = Some(dims);
    }

    /// The buffer that a split on `tag` reads a source from, cut to the step: the copy staged for
    /// this backend, else the source's own buffer if it is there.
    pub(crate) fn source_slice(
        &self,
        graph: &Graph,
        id: NodeId,
        tag: BackendTag,
        dims: StepDims,
    ) -> Result<BufferSlice, GraphError> {
        let own = || self.node_buffer(id).filter(|&(owner, _)| owner == tag).map(|(_, slice)| slice);
        let slice = self.cross_buffer(id, tag).or_else(own).ok_or_else(|| no_buffer(graph, id))?;
        Ok(BufferSlice { len: node_bytes(graph.node(id), dims), ..slice })
    }
}

fn no_buffer(graph: &Graph, id: NodeId) -> GraphError {
    GraphError::NoBuffer { node: graph.node(id).reference() }
}

fn lookup(graph: &Graph, id: NodeId) -> Result<&Node, GraphError> {
    graph
        .nodes
        .get(id)
        .ok_or_else(|| GraphError::Internal { pass: "allocate", reason: format!("node {id} does not exist") })
}
