//! The schedule verifier: walks a plan as the scheduler would, without data, and returns the first
//! read of a value that is not there, not final, or written over.

use crate::backend::BackendTag;
use crate::graph::{Graph, Node, NodeId};
use crate::memory::{Location, MemoryPlan};
use crate::shape::DType;
use crate::split::Split;
use std::collections::HashSet;
use std::fmt;

/// What is wrong with a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HazardKind {
    /// The value was not written before.
    NotWritten,
    /// The value is on another backend and no copy was made for the reader's.
    NotStaged,
    /// The value is copied to another backend while its own backend still works on it.
    Pending,
    /// The bytes of the value now belong to another node.
    Overwritten(NodeId),
    /// The node writes over a source that it still reads, other than in place.
    WritesOverSource,
    /// The node has no memory, or runs on another backend than its split, or not exactly once.
    Misplaced,
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
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hazard { reader, value, kind } = self;
        match kind {
            HazardKind::NotWritten => write!(f, "node {reader} reads node {value} before it was written"),
            HazardKind::NotStaged => {
                write!(f, "node {reader} reads node {value}, which is on another device")
            }
            HazardKind::Pending => write!(f, "node {value} is copied for node {reader} while it is pending"),
            HazardKind::Overwritten(by) => {
                write!(f, "node {reader} reads node {value}, whose memory node {by} wrote over")
            }
            HazardKind::WritesOverSource => write!(f, "node {reader} writes over its source {value}"),
            HazardKind::Misplaced => write!(f, "node {reader} does not run where and when it should"),
        }
    }
}

/// Bytes of a buffer: backend, slot, first, one past the last.
type Bytes = (BackendTag, usize, usize, usize);

fn meet(a: Bytes, b: Bytes) -> bool {
    (a.0, a.1) == (b.0, b.1) && a.2 < b.3 && b.2 < a.3
}

/// The state of a step, without its data.
struct Simulation<'a> {
    graph: &'a Graph,
    memory: &'a MemoryPlan,
    live: Vec<bool>,
    done: Vec<bool>,
    /// Which node's value the bytes hold, for values that are still whole.
    contents: Vec<(Bytes, NodeId)>,
    /// Who last wrote over a value.
    lost_to: Vec<Option<NodeId>>,
    /// Values whose backend has not been synchronised since they were queued.
    pending: HashSet<NodeId>,
    /// Copies made in this step.
    staged: HashSet<(NodeId, BackendTag)>,
}

/// Simulates a step at capacity.
///
/// # Errors
/// The first hazard, with the nodes at both ends.
pub fn verify_schedule(graph: &Graph, memory: &MemoryPlan, splits: &[Split]) -> Result<(), Hazard> {
    let n = graph.nodes.len();
    let mut sim = Simulation {
        graph,
        memory,
        live: graph.live(),
        done: vec![false; n],
        contents: Vec::new(),
        lost_to: vec![None; n],
        pending: HashSet::new(),
        staged: HashSet::new(),
    };
    // The host fills all inputs before the first node runs.
    for node in graph.nodes.iter().filter(|x| x.is_input()) {
        sim.write(node);
    }
    let mut previous = None;
    for split in splits {
        if let Some(tag) = previous.filter(|&t| t != split.backend) {
            sim.synchronize(tag);
        }
        sim.copy_inputs(split)?;
        for node in &graph.nodes[split.start..split.end] {
            sim.run(node, split.backend)?;
        }
        previous = Some(split.backend);
    }
    sim.finish()
}

impl Simulation<'_> {
    fn bytes(&self, id: NodeId) -> Option<Bytes> {
        let place = self.memory.nodes.get(id).copied().flatten()?;
        match place.location {
            Location::Arena { slot, offset, bytes } => Some((place.backend, slot, offset, offset + bytes)),
            Location::Kv { .. } => None,
        }
    }

    fn backend(&self, id: NodeId) -> Option<BackendTag> {
        self.memory.nodes.get(id).copied().flatten().map(|p| p.backend)
    }

    fn write(&mut self, node: &Node) {
        self.done[node.id] = true;
        let Some(bytes) = self.bytes(node.id) else { return };
        let lost_to = &mut self.lost_to;
        self.contents.retain(|&(held, value)| {
            let keep = !meet(held, bytes);
            if !keep {
                lost_to[value] = Some(node.id);
            }
            keep
        });
        self.contents.push((bytes, node.id));
    }

    fn synchronize(&mut self, tag: BackendTag) {
        let memory = self.memory;
        self.pending.retain(|&id| memory.nodes[id].is_none_or(|p| p.backend != tag));
    }

    /// Whether a value is whole where it was made.
    fn intact(&self, reader: NodeId, value: NodeId) -> Result<(), Hazard> {
        let hazard = |kind| Err(Hazard { reader, value, kind });
        if !self.done[value] {
            return hazard(HazardKind::NotWritten);
        }
        match self.lost_to[value] {
            Some(by) => hazard(HazardKind::Overwritten(by)),
            None => Ok(()),
        }
    }

    fn copy_inputs(&mut self, split: &Split) -> Result<(), Hazard> {
        for &value in &split.inputs {
            if self.backend(value) == Some(split.backend) || self.staged.contains(&(value, split.backend)) {
                continue;
            }
            self.intact(split.start, value)?;
            if self.pending.contains(&value) {
                return Err(Hazard { reader: split.start, value, kind: HazardKind::Pending });
            }
            self.staged.insert((value, split.backend));
        }
        Ok(())
    }

    fn run(&mut self, node: &Node, tag: BackendTag) -> Result<(), Hazard> {
        if node.is_input() || !self.live[node.id] {
            return Ok(());
        }
        if self.done[node.id] || self.backend(node.id) != Some(tag) {
            return Err(Hazard { reader: node.id, value: node.id, kind: HazardKind::Misplaced });
        }
        for (i, &value) in node.src.iter().enumerate() {
            if !self.staged.contains(&(value, tag)) {
                self.read_here(node, i, value, tag)?;
            }
        }
        self.write(node);
        self.pending.insert(node.id);
        Ok(())
    }

    /// A source read from its own buffer.
    fn read_here(&self, node: &Node, i: usize, value: NodeId, tag: BackendTag) -> Result<(), Hazard> {
        let hazard = |kind| Err(Hazard { reader: node.id, value, kind });
        self.intact(node.id, value)?;
        if self.backend(value) != Some(tag) {
            return hazard(HazardKind::NotStaged);
        }
        if let (Some(read), Some(written)) = (self.bytes(value), self.bytes(node.id)) {
            let in_place = read == written && node.op.in_place_sources().contains(&i);
            if meet(read, written) && !in_place {
                return hazard(HazardKind::WritesOverSource);
            }
        }
        Ok(())
    }

    /// After the step: everything ran, and what the caller reads is whole.
    fn finish(&self) -> Result<(), Hazard> {
        let n = self.graph.nodes.len();
        for node in self.graph.nodes.iter().filter(|x| self.live[x.id]) {
            if !self.done[node.id] {
                return Err(Hazard { reader: node.id, value: node.id, kind: HazardKind::Misplaced });
            }
            if node.is_input() && node.dtype != DType::Kv {
                self.intact(n, node.id)?;
            }
        }
        self.graph.outputs.iter().try_for_each(|&o| self.intact(n, o))
    }
}
