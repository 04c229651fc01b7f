//! The schedule verifier: carries out a plan's actions symbolically, as the scheduler would but
//! without data, and returns the first read of a value that is not there, not final, or written over.

use crate::backend::BackendTag;
use crate::graph::{Graph, Node, NodeId};
use crate::hazard::{ByteRange, Hazard, HazardKind, Proof};
use crate::memory::{Location, node_bytes};
use crate::plan::Plan;
use crate::schedule::Action;
use crate::shape::DType;
use std::collections::HashSet;

/// Proves a plan at its capacity.
///
/// # Errors
/// The first hazard, with the nodes at both ends and their bytes.
pub fn verify_schedule(plan: &Plan) -> Result<Proof, Hazard> {
    let mut sim = Simulation::new(plan);
    sim.check_memory()?;
    // The host fills all inputs before the first node runs.
    for node in plan.graph.nodes.iter().filter(|n| n.is_input()) {
        sim.write(node);
    }
    for &action in &plan.schedule {
        sim.act(action)?;
    }
    sim.finish()?;
    Ok(sim.proof)
}

/// The state of a step, without its data.
struct Simulation<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    live: Vec<bool>,
    done: Vec<bool>,
    /// Which node's value the bytes hold, for values that are still whole.
    contents: Vec<(ByteRange, NodeId)>,
    /// Who last wrote over a value.
    lost_to: Vec<Option<NodeId>>,
    /// Values whose device has not been waited for since they were queued.
    pending: HashSet<NodeId>,
    /// Devices with nodes queued since the last wait.
    open: HashSet<BackendTag>,
    /// Copies made in this step.
    staged: HashSet<(NodeId, BackendTag)>,
    proof: Proof,
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a Plan) -> Self {
        let n = plan.graph.nodes.len();
        Simulation {
            plan,
            graph: &plan.graph,
            live: plan.graph.live(),
            done: vec![false; n],
            contents: Vec::new(),
            lost_to: vec![None; n],
            pending: HashSet::new(),
            open: HashSet::new(),
            staged: HashSet::new(),
            proof: Proof { boundaries: plan.splits.len().saturating_sub(1), ..Proof::default() },
        }
    }

    fn bytes(&self, id: NodeId) -> Option<ByteRange> {
        let place = self.plan.memory.nodes.get(id).copied().flatten()?;
        match place.location {
            Location::Arena { slot, offset, bytes } => {
                Some(ByteRange { backend: place.backend, slot, from: offset, to: offset + bytes })
            }
            Location::Kv { .. } => None,
        }
    }

    fn backend(&self, id: NodeId) -> Option<BackendTag> {
        self.plan.memory.nodes.get(id).copied().flatten().map(|p| p.backend)
    }

    fn hazard(&self, reader: NodeId, value: NodeId, kind: HazardKind) -> Hazard {
        let written = match kind {
            HazardKind::Overwritten(by) => self.bytes(by),
            HazardKind::WritesOverSource | HazardKind::OneBuffer | HazardKind::SharedInput => {
                self.bytes(reader)
            }
            _ => None,
        };
        Hazard { reader, value, kind, read: self.bytes(value), written }
    }

    /// Before anything runs: live values have enough bytes inside their arenas, inputs bytes of their own.
    fn check_memory(&mut self) -> Result<(), Hazard> {
        for node in self.graph.nodes.iter().filter(|n| self.live[n.id]) {
            let misses = || self.hazard(node.id, node.id, HazardKind::NoMemory);
            let place = self.plan.memory.nodes.get(node.id).copied().flatten().ok_or_else(misses)?;
            match place.location {
                Location::Kv { .. } if node.dtype == DType::Kv => {}
                Location::Arena { slot, offset, bytes } if node.dtype != DType::Kv => {
                    let arena = self.plan.memory.arena(place.backend).ok_or_else(misses)?;
                    let inside = arena.slots.get(slot).is_some_and(|&size| offset + bytes <= size);
                    let aligned =
                        offset.is_multiple_of(arena.rules.alignment) && bytes <= arena.rules.max_binding;
                    if !inside || !aligned || bytes < node_bytes(node, self.plan.capacity) {
                        return Err(misses());
                    }
                }
                Location::Kv { .. } | Location::Arena { .. } => return Err(misses()),
            }
        }
        self.check_inputs()
    }

    fn check_inputs(&mut self) -> Result<(), Hazard> {
        for input in self.graph.nodes.iter().filter(|n| n.is_input() && self.live[n.id]) {
            let Some(own) = self.bytes(input.id) else { continue };
            let mut others = (0..self.graph.nodes.len()).filter(|&id| id != input.id && self.live[id]);
            if let Some(other) = others.find(|&id| self.bytes(id).is_some_and(|b| b.meets(own))) {
                return Err(self.hazard(other, input.id, HazardKind::SharedInput));
            }
            self.proof.inputs += 1;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Hazard> {
        match action {
            Action::Sync(tag) => {
                let memory = &self.plan.memory;
                self.pending.retain(|&id| memory.nodes[id].is_none_or(|p| p.backend != tag));
                self.open.remove(&tag);
                self.proof.syncs += 1;
                Ok(())
            }
            Action::Drain(tag) => self.host_access(tag, self.graph.nodes.len(), self.graph.nodes.len()),
            Action::Copy { value, to } => self.copy(value, to),
            Action::Run { split } => self.run_split(split),
        }
    }

    /// The host touches a device.
    fn host_access(&self, tag: BackendTag, reader: NodeId, value: NodeId) -> Result<(), Hazard> {
        match self.open.contains(&tag) {
            true => Err(self.hazard(reader, value, HazardKind::InsideWindow)),
            false => Ok(()),
        }
    }

    fn copy(&mut self, value: NodeId, to: BackendTag) -> Result<(), Hazard> {
        let Some(from) = self.backend(value).filter(|_| value < self.graph.nodes.len()) else {
            return Err(self.hazard(value, value, HazardKind::NoMemory));
        };
        if from == to {
            return Ok(());
        }
        let planned = self.plan.memory.staging.iter().find(|s| s.node == value && s.backend == to);
        let needed = node_bytes(self.graph.node(value), self.plan.capacity);
        if planned.is_none_or(|s| s.bytes < needed) {
            return Err(self.hazard(value, value, HazardKind::NoStaging));
        }
        self.intact(value, value)?;
        if self.pending.contains(&value) {
            return Err(self.hazard(value, value, HazardKind::Pending));
        }
        // What the host filled is copied from the host's own bytes.
        let node = self.graph.node(value);
        if !node.is_input() || node.pinned {
            self.host_access(from, value, value)?;
        }
        self.host_access(to, value, value)?;
        self.staged.insert((value, to));
        self.proof.copies += 1;
        Ok(())
    }

    fn run_split(&mut self, index: usize) -> Result<(), Hazard> {
        let n = self.graph.nodes.len();
        let Some(split) = self.plan.splits.get(index) else {
            return Err(self.hazard(n, n, HazardKind::Misplaced));
        };
        let nodes = self.graph.nodes.get(split.start..split.end);
        for node in nodes.ok_or_else(|| self.hazard(n, n, HazardKind::Misplaced))? {
            if !node.is_input() && self.live[node.id] {
                self.run(node, split.backend)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, node: &Node, tag: BackendTag) -> Result<(), Hazard> {
        if self.done[node.id] || self.backend(node.id) != Some(tag) {
            return Err(self.hazard(node.id, node.id, HazardKind::Misplaced));
        }
        let mut in_place = false;
        for (i, &value) in node.src.iter().enumerate() {
            match self.staged.contains(&(value, tag)) {
                true => self.proof.staged_reads += 1,
                false => in_place |= self.read_here(node, i, value, tag)?,
            }
            self.proof.reads += 1;
        }
        self.proof.in_place += usize::from(in_place);
        self.proof.nodes += 1;
        self.write(node);
        self.pending.insert(node.id);
        self.open.insert(tag);
        Ok(())
    }

    /// A source read from its own buffer; whether the node overwrites it in place.
    fn read_here(&self, node: &Node, i: usize, value: NodeId, tag: BackendTag) -> Result<bool, Hazard> {
        self.intact(node.id, value)?;
        if self.backend(value) != Some(tag) {
            return Err(self.hazard(node.id, value, HazardKind::NotStaged));
        }
        let (Some(read), Some(written)) = (self.bytes(value), self.bytes(node.id)) else { return Ok(false) };
        let rules = self.plan.memory.arena(tag).map(|a| a.rules);
        let over = read.meets(written);
        let allowed = rules.is_some_and(|r| r.in_place) && node.op.in_place_sources().contains(&i);
        if over && !(read == written && allowed) {
            return Err(self.hazard(node.id, value, HazardKind::WritesOverSource));
        }
        let empty = read.from == read.to || written.from == written.to;
        let one_buffer = (read.backend, read.slot) == (written.backend, written.slot) && !empty;
        if one_buffer && !over && !rules.is_some_and(|r| r.read_write_one_buffer) {
            return Err(self.hazard(node.id, value, HazardKind::OneBuffer));
        }
        Ok(over)
    }

    /// Whether a value is whole where it was made.
    fn intact(&self, reader: NodeId, value: NodeId) -> Result<(), Hazard> {
        if !self.done[value] {
            return Err(self.hazard(reader, value, HazardKind::NotWritten));
        }
        match self.lost_to[value] {
            Some(by) => Err(self.hazard(reader, value, HazardKind::Overwritten(by))),
            None => Ok(()),
        }
    }

    fn write(&mut self, node: &Node) {
        self.done[node.id] = true;
        let Some(bytes) = self.bytes(node.id) else { return };
        let before = self.contents.len();
        let lost_to = &mut self.lost_to;
        self.contents.retain(|&(held, value)| {
            let keep = !held.meets(bytes);
            if !keep {
                lost_to[value] = Some(node.id);
            }
            keep
        });
        self.proof.reused += usize::from(self.contents.len() < before);
        self.contents.push((bytes, node.id));
    }

    /// After the step: everything ran, every device was waited for, and what the caller reads is whole.
    fn finish(&self) -> Result<(), Hazard> {
        let n = self.graph.nodes.len();
        for node in self.graph.nodes.iter().filter(|x| self.live[x.id]) {
            if !self.done[node.id] {
                return Err(self.hazard(node.id, node.id, HazardKind::Misplaced));
            }
            if self.pending.contains(&node.id) {
                return Err(self.hazard(n, node.id, HazardKind::Pending));
            }
        }
        self.graph.outputs.iter().try_for_each(|&o| self.intact(n, o))
    }
}
