//! What a [`Chaos`](super::Chaos) device keeps until it is waited for.

use crate::backend::{BufferId, BufferSlice, KvPair};
use crate::graph::{Graph, NodeId};
use crate::shape::StepDims;
use std::sync::Arc;

/// Work in order.
pub(super) enum Command {
    Execute(Queued),
    Write(BufferSlice, Vec<u8>),
    CopyPages(KvPair, Vec<(usize, usize)>),
    Capture(NodeId, BufferSlice),
    Free(BufferId),
}

/// A node call that owns what it needs.
#[derive(Clone)]
pub(super) struct Queued {
    pub graph: Arc<Graph>,
    pub node: NodeId,
    pub inputs: Vec<BufferSlice>,
    pub output: BufferSlice,
    pub kv: Option<KvPair>,
    pub dims: StepDims,
}

/// A split's calls, as a device that records launches keeps them.
#[derive(Default)]
pub(super) struct Recording {
    /// How often the split came by.
    pub runs: u32,
    pub calls: Vec<Queued>,
}

/// Whether two ranges have a byte in common.
pub(super) fn overlap(a: BufferSlice, b: BufferSlice) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl Command {
    /// Whether running it changes any of these bytes.
    pub fn writes(&self, slice: BufferSlice) -> bool {
        match self {
            Command::Execute(call) => {
                let stores = call.graph.node(call.node).op.writes_kv();
                let kv = call.kv.filter(|_| stores);
                overlap(call.output, slice)
                    || kv.is_some_and(|kv| overlap(kv.k, slice) || overlap(kv.v, slice))
            }
            Command::Write(to, _) => overlap(*to, slice),
            Command::CopyPages(kv, _) => overlap(kv.k, slice) || overlap(kv.v, slice),
            Command::Capture(..) | Command::Free(_) => false,
        }
    }

    /// Whether running it looks at any of these bytes.
    pub fn reads(&self, slice: BufferSlice) -> bool {
        match self {
            Command::Execute(call) => {
                call.inputs.iter().any(|&i| overlap(i, slice))
                    || call.kv.is_some_and(|kv| overlap(kv.k, slice) || overlap(kv.v, slice))
            }
            Command::CopyPages(kv, _) => overlap(kv.k, slice) || overlap(kv.v, slice),
            Command::Capture(_, from) => overlap(*from, slice),
            Command::Write(..) | Command::Free(_) => false,
        }
    }
}
