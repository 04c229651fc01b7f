//! Typed errors of graph building, planning and execution.

use crate::backend::BackendTag;
use std::fmt;

/// Where an error happened: enough to find the node in a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// Node id.
    pub id: usize,
    /// Node name, `blk.3.ffn_down`.
    pub name: String,
    /// Bare op name.
    pub op: &'static str,
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} `{}` ({})", self.id, self.name, self.op)
    }
}

/// Everything that can go wrong between building a graph and reading its outputs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Shapes, types or arity of a node's sources don't fit its op.
    #[error("{node}: {reason}")]
    Invalid {
        /// The node.
        node: NodeRef,
        /// What does not fit, with the shapes.
        reason: String,
    },
    /// No backend can run a node.
    #[error("no device can run {node}: {reasons}")]
    Unassignable {
        /// The node.
        node: NodeRef,
        /// Every backend's reason.
        reasons: String,
    },
    /// A backend was asked for that is not there.
    #[error("device {0} is not enabled")]
    NoBackend(BackendTag),
    /// A node's buffer lives on another backend than the split that runs it.
    #[error("{node}: buffer on {buffer} but its split runs on {split}")]
    WrongBackend {
        /// The node.
        node: NodeRef,
        /// Backend that owns the buffer.
        buffer: BackendTag,
        /// Backend of the split.
        split: BackendTag,
    },
    /// A source has neither a buffer nor a staged copy.
    #[error("{node} has no buffer")]
    NoBuffer {
        /// The node without one.
        node: NodeRef,
    },
    /// A step is larger than the plan, or an input has the wrong length.
    #[error("step does not fit the plan: {0}")]
    Capacity(String),
    /// A backend failed while it ran a node.
    #[error("{node} on {backend}: {source}")]
    Execute {
        /// The node.
        node: NodeRef,
        /// The backend.
        backend: BackendTag,
        /// What it said.
        source: BackendError,
    },
    /// A backend failed outside a node (allocation, copy, synchronise).
    #[error("{backend}: {source}")]
    Backend {
        /// The backend.
        backend: BackendTag,
        /// What it said.
        source: BackendError,
    },
    /// A backend has no memory for something.
    #[error("{backend}: out of memory: {bytes} bytes for {what}")]
    Memory {
        /// The backend.
        backend: BackendTag,
        /// What it was for.
        what: String,
        /// How much of it.
        bytes: usize,
    },
    /// A pass broke an invariant; a bug of the engine.
    #[error("internal error in {pass}: {reason}")]
    Internal {
        /// The pass.
        pass: &'static str,
        /// The broken invariant.
        reason: String,
    },
}

/// Why a backend refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The op, type or shape has no kernel here; a mistake of the assignment.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A weight was used before it was loaded.
    #[error("weight `{0}` is not loaded")]
    WeightMissing(String),
    /// A weight's bytes don't fit its description.
    #[error("weight `{name}`: {reason}")]
    BadWeight {
        /// Name of the tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An index read from an input is outside its table (token id, KV row, page, output row).
    #[error("{what} {value} is outside 0..{limit}")]
    OutOfRange {
        /// What was indexed.
        what: &'static str,
        /// The offending value.
        value: i64,
        /// One past the largest legal value.
        limit: usize,
    },
    /// A buffer id or range does not exist.
    #[error("bad buffer access: {0}")]
    BadBuffer(String),
    /// Not enough memory.
    #[error("out of memory: {0} bytes")]
    OutOfMemory(usize),
    /// A weight's bytes could not be read.
    #[error("{0}")]
    Read(String),
    /// Host access to bytes that queued work still writes.
    #[error("read of a pending buffer: {0}")]
    Pending(String),
    /// A bounded wait ran out.
    #[error("timed out after {0} s")]
    Timeout(f64),
    /// The device is gone or failed earlier; every later call says so.
    #[error("device lost: {0}")]
    Lost(String),
    /// Queued work failed: found at a later call, but this is the node.
    #[error("{node}: {source}")]
    Queued {
        /// The node whose work failed.
        node: NodeRef,
        /// What went wrong.
        source: Box<BackendError>,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Anything else a device reports.
    #[error("{0}")]
    Device(String),
}

impl BackendError {
    /// The error of a device outside a node, unless it is that of a node that was queued.
    pub fn on(self, backend: BackendTag) -> GraphError {
        match self {
            BackendError::Queued { node, source } => GraphError::Execute { node, backend, source: *source },
            source => GraphError::Backend { backend, source },
        }
    }

    /// The error of a device while it made room for something.
    pub fn allocating(self, backend: BackendTag, what: impl fmt::Display) -> GraphError {
        match self {
            BackendError::OutOfMemory(bytes) => GraphError::Memory { backend, what: what.to_string(), bytes },
            other => other.on(backend),
        }
    }

    /// The error of a device while it was handed a node; of an earlier one, if it says so.
    pub fn at(self, node: NodeRef, backend: BackendTag) -> GraphError {
        match self {
            queued @ BackendError::Queued { .. } => queued.on(backend),
            source => GraphError::Execute { node, backend, source },
        }
    }

    /// Whether the device cannot be used any more.
    pub fn poisons(&self) -> bool {
        match self {
            BackendError::Timeout(_) | BackendError::Lost(_) => true,
            BackendError::Queued { source, .. } => source.poisons(),
            _ => false,
        }
    }
}
