//! The contract between the scheduler and a device.

use crate::error::BackendError;
use crate::graph::{Graph, Node, NodeId, WeightSpec};
use crate::kv_type::KvTypes;
use crate::shape::StepDims;
use crate::weight_bytes::WeightBytes;
use std::fmt;

/// Family of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendKind {
    /// The host's processors.
    Cpu,
    /// Metal, Vulkan or DX12 through wgpu.
    Wgpu,
    /// NVIDIA.
    Cuda,
    /// A test device that queues work and punishes early reads.
    Chaos,
}

/// Names one device. Splits, arenas and staging use the whole tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendTag {
    /// Family.
    pub kind: BackendKind,
    /// Index within the family.
    pub index: u8,
}

impl BackendTag {
    /// The host.
    pub const CPU: BackendTag = BackendTag { kind: BackendKind::Cpu, index: 0 };

    /// A device of a family.
    pub const fn new(kind: BackendKind, index: u8) -> Self {
        BackendTag { kind, index }
    }
}

impl fmt::Display for BackendTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BackendKind::Cpu => return f.write_str("cpu"),
            BackendKind::Wgpu => "wgpu",
            BackendKind::Cuda => "cuda",
            BackendKind::Chaos => "chaos",
        };
        write!(f, "{kind}:{}", self.index)
    }
}

/// Why a backend does not take a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(pub String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the memory planner must respect on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRules {
    /// Alignment of a node's offset within a buffer, in bytes; a power of two.
    pub alignment: usize,
    /// Largest buffer range a kernel can see, in bytes.
    pub max_binding: usize,
    /// Whether one dispatch may read and write different ranges of one buffer. If not, the planner
    /// gives values that meet in a node separate buffers.
    pub read_write_one_buffer: bool,
    /// Whether a node's output may be the very range of one of its inputs.
    pub in_place: bool,
}

/// Memory of a device in bytes; `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All of it.
    pub total: Option<u64>,
    /// Free now.
    pub free: Option<u64>,
}

/// A buffer in a backend's own pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// A range of a buffer. Buffers are identified, never passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferSlice {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Positions per KV page; a constant of the build because attention adds page by page.
pub const PAGE: usize = 64;

/// A layer's two KV regions on the backend that runs its attention, each page after page.
///
/// A page's layout depends on its type: [`KvType`](crate::KvType).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPair {
    /// K region.
    pub k: BufferSlice,
    /// V region.
    pub v: BufferSlice,
    /// Their types.
    pub ty: KvTypes,
    /// Pages in each region.
    pub n_pages: usize,
}

/// One node to run: identities only, no data.
#[derive(Clone, Copy, Debug)]
pub struct NodeCall<'a> {
    /// The graph the node belongs to (weight table, names).
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Buffers of its sources, in source order; each is cut to the step's length. A KV source has length 0.
    pub inputs: &'a [BufferSlice],
    /// Buffer of its output, cut to the step's length.
    pub output: BufferSlice,
    /// The layer's KV regions for ops that touch them.
    pub kv: Option<KvPair>,
    /// Sizes of this step.
    pub dims: StepDims,
}

/// Identity of a recorded split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayKey {
    /// `Graph::uid`.
    pub uid: u64,
    /// First node of the split.
    pub start: NodeId,
    /// One past its last node.
    pub end: NodeId,
    /// Sizes of the step.
    pub dims: StepDims,
    /// Largest KV extent of the step, in pages, rounded up to a power of two.
    pub kv_pages: usize,
    /// Changes whenever a buffer that the split uses is replaced.
    pub buffers: u64,
}

/// The values of a node, read back for a trace or a view.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// The node.
    pub node: NodeId,
    /// Its bytes at the moment after it ran.
    pub bytes: Vec<u8>,
}

/// A device. `execute_node` may only queue; whatever it wrote is final after `synchronize`.
pub trait Backend: Send {
    /// The device's tag.
    fn tag(&self) -> BackendTag;

    /// A name for people.
    fn name(&self) -> String;

    /// Whether the device has a kernel for the node, with the reason if not.
    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), Unsupported>;

    /// Constraints on the memory plan.
    fn buffer_rules(&self) -> BufferRules;

    /// Memory of the device.
    fn memory(&self) -> MemoryInfo;

    /// Bytes that the pool of buffers holds now, freed ones that are kept for reuse included. Weights and the
    /// work space of kernels are not part of it.
    fn buffer_bytes(&self) -> usize;

    /// A buffer of at least `bytes` bytes, perhaps recycled: its content is arbitrary.
    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError>;

    /// A buffer that no earlier buffer shares memory with, past the free list.
    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError>;

    /// Gives a buffer back.
    fn free_buffer(&mut self, buffer: BufferId);

    /// Makes a weight available under its name. `data` holds the file's bytes.
    fn load_weight(&mut self, spec: &WeightSpec, data: &[u8]) -> Result<(), BackendError>;

    /// As [`Backend::load_weight`], from bytes that may still be in a file. A backend that needn't have all of them in
    /// memory at once reads them in pieces; one whose memory is the host's may work on [`WeightBytes::shared`] ones.
    fn load_weight_from(&mut self, spec: &WeightSpec, bytes: &dyn WeightBytes) -> Result<(), BackendError> {
        if let Some(data) = bytes.slice() {
            return self.load_weight(spec, data);
        }
        match bytes.shared() {
            Some(shared) => self.load_weight(spec, shared.bytes()),
            None => self.load_weight(spec, &bytes.to_vec()?),
        }
    }

    /// Copies whole KV pages within a layer's regions, `(from, to)` each.
    fn copy_pages(&mut self, kv: KvPair, pages: &[(usize, usize)]) -> Result<(), BackendError>;

    /// Host to device. Ordered after everything queued before.
    fn write_host(&mut self, dst: BufferSlice, data: &[u8]) -> Result<(), BackendError>;

    /// Device to host. The caller has synchronised; pending bytes are an error where a device can tell.
    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError>;

    /// Runs or queues one node.
    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError>;

    /// Whether [`Backend::execute_nodes`] gains from taking all nodes of a split at once in a step of this size.
    fn takes_batches(&self, _dims: StepDims) -> bool {
        false
    }

    /// Runs or queues nodes in order.
    ///
    /// # Errors
    /// That of the first node that fails, with its place in the list. No later one has run.
    fn execute_nodes(&mut self, calls: &[NodeCall<'_>]) -> Result<(), (usize, BackendError)> {
        calls.iter().enumerate().try_for_each(|(i, call)| self.execute_node(call).map_err(|e| (i, e)))
    }

    /// Runs a whole recorded split in one launch; `Ok(false)` means the nodes must be executed.
    fn replay(&mut self, _key: &ReplayKey) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Forgets the recording that is being made: its split did not run to the end.
    fn forget_recording(&mut self) {}

    /// Remembers a node's bytes as they are after the work queued so far.
    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError>;

    /// The captures since the last call; the caller has synchronised.
    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError>;

    /// Waits, within a bound, until everything queued has finished.
    fn synchronize(&mut self) -> Result<(), BackendError>;
}

/// The devices of a process, in order of priority.
#[derive(Default)]
pub struct Backends {
    list: Vec<Box<dyn Backend>>,
}

impl Backends {
    /// No devices yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device with the lowest priority so far.
    pub fn push(&mut self, backend: Box<dyn Backend>) {
        self.list.push(backend);
    }

    /// Devices, highest priority first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Backend> {
        self.list.iter().map(|b| b.as_ref())
    }

    /// The device of a tag.
    pub fn get(&self, tag: BackendTag) -> Result<&dyn Backend, crate::GraphError> {
        let found = self.list.iter().find(|b| b.tag() == tag);
        found.map(|b| b.as_ref()).ok_or(crate::GraphError::NoBackend(tag))
    }

    /// The device of a tag, to run something on it.
    pub fn get_mut(&mut self, tag: BackendTag) -> Result<&mut dyn Backend, crate::GraphError> {
        match self.list.iter_mut().find(|b| b.tag() == tag) {
            Some(b) => Ok(b.as_mut()),
            None => Err(crate::GraphError::NoBackend(tag)),
        }
    }
}
