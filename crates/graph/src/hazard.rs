//! What the schedule verifier finds: hazards, and what it proved where there are none.

use crate::backend::BackendTag;
use crate::graph::{Graph, NodeId};
use std::fmt;

/// Where bytes lie: `[from, to)` of a buffer of a device's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The device.
    pub backend: BackendTag,
    /// Which of the arena's buffers.
    pub slot: usize,
    /// First byte.
    pub from: usize,
    /// One past the last byte.
    pub to: usize,
}

impl ByteRange {
    /// Whether two ranges have a byte in common.
    pub fn meets(self, other: ByteRange) -> bool {
        (self.backend, self.slot) == (other.backend, other.slot)
            && self.from < other.to
            && other.from < self.to
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slot {} bytes {}..{}", self.backend, self.slot, self.from, self.to)
    }
}

/// What is wrong with a read, a write or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HazardKind {
    /// The value was not written before.
    NotWritten,
    /// The value is on another device and no copy of this step is on the reader's.
    NotStaged,
    /// The value is read by the host, or by the caller after the step, while its device may still
    /// be writing it.
    Pending,
    /// The host reads or writes a device's memory, or takes its captures, between a split's first
    /// node and the wait for it: inside what may be a recording.
    InsideWindow,
    /// The bytes of the value now belong to another node.
    Overwritten(NodeId),
    /// The node writes over a source that it still reads, other than in place, or where its device
    /// does not write in place.
    WritesOverSource,
    /// The node reads and writes one buffer, on a device that cannot.
    OneBuffer,
    /// An input, which is filled before the step, shares bytes with another value.
    SharedInput,
    /// The node has no memory, or too little, or memory outside its arena, not aligned, or too long to be bound.
    NoMemory,
    /// The copy has no buffer that was planned for it.
    NoStaging,
    /// The node runs on another device than its memory is on, or not exactly once.
    Misplaced,
}

impl HazardKind {
    /// The rule that is broken, in words.
    pub const fn rule(self) -> &'static str {
        match self {
            HazardKind::NotWritten => "a value is written before it is read",
            HazardKind::NotStaged => "a value made elsewhere is copied in every step that reads it",
            HazardKind::Pending => "a device is waited for before anyone else reads what it wrote",
            HazardKind::InsideWindow => {
                "the host stays away from a device between a split and the wait for it"
            }
            HazardKind::Overwritten(_) => "bytes are not used again before their last reader",
            HazardKind::WritesOverSource => {
                "a node overwrites a source only in place, where op and device allow that"
            }
            HazardKind::OneBuffer => "a node reads and writes one buffer only where its device can",
            HazardKind::SharedInput => {
                "inputs are filled before the first node, so they share memory with nothing"
            }
            HazardKind::NoMemory => {
                "a live value has bytes of its size within its arena, as its device wants them"
            }
            HazardKind::NoStaging => "a copy goes to a buffer that was planned for it",
            HazardKind::Misplaced => "every live node runs exactly once, where its memory is",
        }
    }
}

/// The first hazard of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// The node that reads, or that is misplaced; the number of nodes for the caller after the step.
    pub reader: NodeId,
    /// The value that it reads.
    pub value: NodeId,
    /// What is wrong.
    pub kind: HazardKind,
    /// Where the value lies, if it has bytes.
    pub read: Option<ByteRange>,
    /// What was written over it, or what it must not share.
    pub written: Option<ByteRange>,
}

impl Hazard {
    /// The hazard with the names of a graph's nodes.
    pub fn explain(&self, graph: &Graph) -> String {
        let name = |id: NodeId| match graph.nodes.get(id) {
            Some(node) => node.reference().to_string(),
            None => "the caller".into(),
        };
        let mut text = format!("{}: {} reads {}", self.kind.rule(), name(self.reader), name(self.value));
        if let HazardKind::Overwritten(by) = self.kind {
            text += &format!(", overwritten by {}", name(by));
        }
        for (what, range) in [("value at", self.read), ("written at", self.written)] {
            if let Some(range) = range {
                text += &format!("; {what} {range}");
            }
        }
        text
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reader {}, value {}, {:?})", self.kind.rule(), self.reader, self.value, self.kind)
    }
}

/// What was shown of a schedule without hazards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Nodes that run, each once.
    pub nodes: usize,
    /// Reads of a source, each of final bytes on the reader's device.
    pub reads: usize,
    /// Those that read a copy staged in this step.
    pub staged_reads: usize,
    /// Nodes that overwrite a source in place as its last reader.
    pub in_place: usize,
    /// Values whose bytes were used before by a value that nobody reads any more.
    pub reused: usize,
    /// Inputs that share memory with nothing.
    pub inputs: usize,
    /// Copies across devices, each of a value that its device has finished.
    pub copies: usize,
    /// Waits for a device.
    pub syncs: usize,
    /// Changes of device along the node list.
    pub boundaries: usize,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof { nodes, reads, staged_reads, in_place, reused, inputs, copies, syncs, boundaries } = self;
        writeln!(f, "{nodes} nodes run once each, where their memory is; {boundaries} changes of device")?;
        writeln!(f, "{reads} reads of final bytes, {staged_reads} of them of a copy made in the same step")?;
        writeln!(
            f,
            "{reused} values lie where another one ended, {in_place} in place over their last reader's source"
        )?;
        writeln!(f, "{inputs} inputs share memory with nothing")?;
        write!(
            f,
            "{copies} copies across devices, {syncs} waits: no read of pending bytes, also not after the step"
        )
    }
}
