//! What can be broken in a valid plan, one thing at a time. The verifier must notice each of them.

use crate::rng::Rng;
use minfer_graph::{Action, BackendTag, Location, Node, NodeId, Plan};

/// A kind of fault. Each changes one thing in a plan, or reports that the plan has no place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// A wait is left out.
    DropSync,
    /// The waits are there, one of them for another device.
    SyncAnother,
    /// Captures are taken before the wait.
    DrainEarly,
    /// A copy and its staging buffer are left out.
    DropCopy,
    /// A copy is left out, so that its reader finds that of an earlier run.
    ReuseStaleCopy,
    /// A copy is made at the start, before its value is.
    CopyFirst,
    /// A copy and the wait before it change places.
    CopyBeforeSync,
    /// A copy goes to another device than the reader's.
    CopyElsewhere,
    /// A copy is made, but no buffer was planned for it.
    DropStaging,
    /// A copy's buffer is too small.
    ShrinkStaging,
    /// A split is left out.
    DropRun,
    /// A split runs twice.
    RunTwice,
    /// Two splits change places.
    SwapRuns,
    /// A split runs on another device.
    MoveSplit,
    /// Two nodes, one of which reads the other, change places.
    SwapDependent,
    /// Any two nodes of a split change places.
    SwapAny,
    /// A value is put over another one that somebody still reads.
    ShortenLifetime,
    /// A value is put over an output of the graph that was made before.
    OverwriteOutput,
    /// A value is put over an input.
    ShareInput,
    /// Two inputs are put in one place.
    ShareInputs,
    /// A node is put over a part of one of its sources.
    OverwriteSource,
    /// A node is put into the buffer of one of its sources, where its device does not read and write one buffer.
    ShareBuffer,
    /// A value does not begin where its device wants it to.
    Misalign,
    /// A value's buffer is too small.
    ShrinkBuffer,
    /// A value lies behind the end of its arena.
    LeaveArena,
    /// A value has no buffer.
    DropBuffer,
    /// A value lies on another device than its node runs on.
    MoveBuffer,
}

impl Mutation {
    /// All kinds.
    pub const ALL: [Mutation; 27] = [
        Mutation::DropSync,
        Mutation::SyncAnother,
        Mutation::DrainEarly,
        Mutation::DropCopy,
        Mutation::ReuseStaleCopy,
        Mutation::CopyFirst,
        Mutation::CopyBeforeSync,
        Mutation::CopyElsewhere,
        Mutation::DropStaging,
        Mutation::ShrinkStaging,
        Mutation::DropRun,
        Mutation::RunTwice,
        Mutation::SwapRuns,
        Mutation::MoveSplit,
        Mutation::SwapDependent,
        Mutation::SwapAny,
        Mutation::ShortenLifetime,
        Mutation::OverwriteOutput,
        Mutation::ShareInput,
        Mutation::ShareInputs,
        Mutation::OverwriteSource,
        Mutation::ShareBuffer,
        Mutation::Misalign,
        Mutation::ShrinkBuffer,
        Mutation::LeaveArena,
        Mutation::DropBuffer,
        Mutation::MoveBuffer,
    ];

    /// Breaks a copy of the plan; `None` if it has no place for this kind.
    pub fn apply(self, plan: &Plan, rng: &mut Rng) -> Option<Plan> {
        let mut broken = plan.clone();
        let sites = Sites::of(plan);
        match self {
            Mutation::DropSync
            | Mutation::SyncAnother
            | Mutation::DrainEarly
            | Mutation::DropCopy
            | Mutation::ReuseStaleCopy
            | Mutation::CopyFirst
            | Mutation::CopyBeforeSync
            | Mutation::CopyElsewhere
            | Mutation::DropRun
            | Mutation::RunTwice
            | Mutation::SwapRuns => self.change_schedule(&mut broken, &sites, rng)?,
            Mutation::DropStaging => {
                let at = index(rng, broken.memory.staging.len())?;
                broken.memory.staging.remove(at);
            }
            Mutation::ShrinkStaging => {
                let at = index(rng, broken.memory.staging.len())?;
                let bytes = &mut broken.memory.staging[at].bytes;
                *bytes = bytes.checked_sub(4)?;
            }
            Mutation::MoveSplit => {
                let &at = pick(rng, &sites.running_splits)?;
                broken.splits[at].backend = other_device(plan, broken.splits[at].backend, rng)?;
            }
            Mutation::SwapDependent => {
                let &(a, b) = pick(rng, &sites.edges)?;
                swap_nodes(&mut broken, a, b);
            }
            Mutation::SwapAny => {
                let &at = pick(rng, &sites.running_splits)?;
                let nodes: Vec<NodeId> = sites.running_in(plan, at).collect();
                let (&a, &b) = (pick(rng, &nodes)?, pick(rng, &nodes)?);
                (a != b).then(|| swap_nodes(&mut broken, a, b))?;
            }
            Mutation::ShortenLifetime
            | Mutation::OverwriteOutput
            | Mutation::ShareInput
            | Mutation::ShareInputs => {
                let &(kept, over) = pick(rng, &self.overlays(plan, &sites))?;
                put_over(&mut broken, kept, over)?;
            }
            Mutation::OverwriteSource => {
                let &(source, node) = pick(rng, &sites.edges)?;
                put_over(&mut broken, source, node)?;
                // Not in place: off by one value.
                let slots = plan.memory.arena(plan.memory.nodes[node]?.backend)?.slots.clone();
                let (slot, offset, bytes) = arena_place(&mut broken, node)?;
                (*offset + *bytes + 4 <= slots[*slot] && *bytes > 4).then(|| *offset += 4)?;
            }
            Mutation::ShareBuffer => {
                let &(source, node) = pick(rng, &sites.edges)?;
                let arena = plan.memory.arena(plan.memory.nodes[node]?.backend)?;
                let (kept, _, _) = arena_place(&mut broken, source).map(|(s, o, b)| (*s, *o, *b))?;
                let (slot, offset, bytes) = arena_place(&mut broken, node)?;
                // Behind everything else there, so that nothing but the buffer is shared.
                let wanted = !arena.rules.read_write_one_buffer && *slot != kept && *bytes > 0;
                wanted.then(|| {
                    (*slot, *offset) = (kept, arena.slots[kept].next_multiple_of(arena.rules.alignment))
                })?;
                let size = *offset + *bytes;
                broken.memory.arenas.iter_mut().find(|a| a.backend == arena.backend)?.slots[kept] = size;
            }
            Mutation::Misalign => {
                let &id = pick(rng, &sites.values)?;
                let arena = plan.memory.arena(plan.memory.nodes[id]?.backend)?;
                let (slot, offset, bytes) = arena_place(&mut broken, id)?;
                let wanted = arena.rules.alignment > 4 && *bytes > 0;
                wanted.then(|| *offset = arena.slots[*slot] + 4)?;
                let (slot, size) = (*slot, *offset + *bytes);
                broken.memory.arenas.iter_mut().find(|a| a.backend == arena.backend)?.slots[slot] = size;
            }
            Mutation::ShrinkBuffer => {
                let &id = pick(rng, &sites.values)?;
                let (_, _, bytes) = arena_place(&mut broken, id)?;
                *bytes = bytes.checked_sub(4)?;
            }
            Mutation::LeaveArena => {
                let &id = pick(rng, &sites.values)?;
                let backend = plan.memory.nodes[id]?.backend;
                let slots = plan.memory.arena(backend)?.slots.clone();
                let (slot, offset, _) = arena_place(&mut broken, id)?;
                *offset = slots[*slot];
            }
            Mutation::DropBuffer => {
                let &id = pick(rng, &sites.values)?;
                broken.memory.nodes[id] = None;
            }
            Mutation::MoveBuffer => {
                let &id = pick(rng, &sites.running)?;
                let place = broken.memory.nodes[id].as_mut()?;
                place.backend = other_device(plan, place.backend, rng)?;
            }
        }
        Some(broken)
    }

    fn change_schedule(self, broken: &mut Plan, sites: &Sites, rng: &mut Rng) -> Option<()> {
        let list = &mut broken.schedule;
        match self {
            Mutation::DropSync => drop(list.remove(*pick(rng, &sites.syncs)?)),
            Mutation::SyncAnother => {
                let at = *pick(rng, &sites.syncs)?;
                let Action::Sync(tag) = list[at] else { return None };
                let others: Vec<BackendTag> =
                    broken.memory.arenas.iter().map(|a| a.backend).filter(|&t| t != tag).collect();
                list[at] = Action::Sync(*pick(rng, &others)?);
            }
            Mutation::DrainEarly => {
                let at = *pick(rng, &sites.syncs)?;
                list.swap(at, at + 1);
            }
            Mutation::DropCopy => {
                let Action::Copy { value, to } = list.remove(*pick(rng, &sites.copies)?) else { return None };
                broken.memory.staging.retain(|s| (s.node, s.backend) != (value, to));
            }
            Mutation::ReuseStaleCopy => drop(list.remove(*pick(rng, &sites.copies)?)),
            Mutation::CopyFirst => {
                let copy = list.remove(*pick(rng, &sites.copies)?);
                list.insert(0, copy);
            }
            Mutation::CopyBeforeSync => {
                let at = *pick(rng, &sites.copies)?;
                let sync = list[..at].iter().rposition(|a| matches!(a, Action::Sync(_)))?;
                let copy = list.remove(at);
                list.insert(sync, copy);
            }
            Mutation::CopyElsewhere => {
                let at = *pick(rng, &sites.copies)?;
                let Action::Copy { value, to } = list[at] else { return None };
                let others: Vec<BackendTag> =
                    broken.memory.arenas.iter().map(|a| a.backend).filter(|&t| t != to).collect();
                list[at] = Action::Copy { value, to: *pick(rng, &others)? };
            }
            Mutation::DropRun => drop(list.remove(*pick(rng, &sites.runs)?)),
            Mutation::RunTwice => {
                let at = *pick(rng, &sites.runs)?;
                list.insert(at, list[at]);
            }
            Mutation::SwapRuns => {
                let (a, b) = (*pick(rng, &sites.runs)?, *pick(rng, &sites.runs)?);
                (a != b).then(|| list.swap(a, b))?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Pairs of values, of which the second may be put where the first is.
    fn overlays(self, plan: &Plan, sites: &Sites) -> Vec<(NodeId, NodeId)> {
        let nodes = &plan.graph.nodes;
        let mut pairs = Vec::new();
        for &kept in &sites.values {
            for &over in sites.values.iter().filter(|&&over| over != kept) {
                let wanted = match self {
                    // Written between the value and its last reader, and no reader itself.
                    Mutation::ShortenLifetime => {
                        !nodes[kept].is_input()
                            && !nodes[over].is_input()
                            && over > kept
                            && sites.last_read[kept].is_some_and(|last| last > over)
                    }
                    Mutation::OverwriteOutput => {
                        plan.graph.outputs.contains(&kept) && over > kept && !nodes[over].is_input()
                    }
                    Mutation::ShareInput => nodes[kept].is_input() && !nodes[over].is_input(),
                    Mutation::ShareInputs => nodes[kept].is_input() && nodes[over].is_input(),
                    _ => false,
                };
                if wanted {
                    pairs.push((kept, over));
                }
            }
        }
        pairs
    }
}

/// Where mutations can be made.
struct Sites {
    syncs: Vec<usize>,
    copies: Vec<usize>,
    /// `Run`s of splits in which something runs.
    runs: Vec<usize>,
    running_splits: Vec<usize>,
    /// Nodes that run and own bytes.
    running: Vec<NodeId>,
    /// Nodes with bytes, inputs too.
    values: Vec<NodeId>,
    /// A value and a node behind it in the same split that reads it, both running.
    edges: Vec<(NodeId, NodeId)>,
    /// The last node that reads a value.
    last_read: Vec<Option<NodeId>>,
}

impl Sites {
    fn of(plan: &Plan) -> Self {
        let nodes = &plan.graph.nodes;
        let live = plan.graph.live();
        let runs = |n: &Node| live[n.id] && !n.is_input();
        let has_bytes = |n: &&Node| {
            let place = plan.memory.nodes[n.id];
            place.is_some_and(|p| matches!(p.location, Location::Arena { .. }))
        };
        let mut last_read = vec![None; nodes.len()];
        for node in nodes.iter().filter(|n| live[n.id]) {
            node.src.iter().for_each(|&s| last_read[s] = Some(node.id));
        }
        let split_of = |id: NodeId| plan.splits.iter().position(|s| (s.start..s.end).contains(&id));
        let mut edges = Vec::new();
        for node in nodes.iter().filter(|n| runs(n) && has_bytes(n)) {
            for &s in &node.src {
                if runs(&nodes[s]) && has_bytes(&&nodes[s]) && split_of(s) == split_of(node.id) {
                    edges.push((s, node.id));
                }
            }
        }
        let busy = |split: usize| nodes[plan.splits[split].start..plan.splits[split].end].iter().any(runs);
        let at = |wanted: &dyn Fn(Action) -> bool| -> Vec<usize> {
            (0..plan.schedule.len()).filter(|&i| wanted(plan.schedule[i])).collect()
        };
        Sites {
            syncs: at(&|a| matches!(a, Action::Sync(_))),
            copies: at(&|a| matches!(a, Action::Copy { .. })),
            runs: at(&|a| matches!(a, Action::Run { split } if busy(split))),
            running_splits: (0..plan.splits.len()).filter(|&i| busy(i)).collect(),
            running: nodes.iter().filter(|n| runs(n)).filter(has_bytes).map(|n| n.id).collect(),
            values: nodes.iter().filter(|n| live[n.id]).filter(has_bytes).map(|n| n.id).collect(),
            edges,
            last_read,
        }
    }

    fn running_in<'a>(&'a self, plan: &'a Plan, split: usize) -> impl Iterator<Item = NodeId> + 'a {
        let range = plan.splits[split].start..plan.splits[split].end;
        self.running.iter().copied().filter(move |id| range.contains(id))
    }
}

fn index(rng: &mut Rng, n: usize) -> Option<usize> {
    (n > 0).then(|| rng.below(n))
}

fn pick<'a, T>(rng: &mut Rng, list: &'a [T]) -> Option<&'a T> {
    index(rng, list.len()).map(|i| &list[i])
}

fn other_device(plan: &Plan, not: BackendTag, rng: &mut Rng) -> Option<BackendTag> {
    let others: Vec<BackendTag> =
        plan.memory.arenas.iter().map(|a| a.backend).filter(|&t| t != not).collect();
    pick(rng, &others).copied()
}

fn arena_place(plan: &mut Plan, id: NodeId) -> Option<(&mut usize, &mut usize, &mut usize)> {
    match &mut plan.memory.nodes[id].as_mut()?.location {
        Location::Arena { slot, offset, bytes } => Some((slot, offset, bytes)),
        Location::Kv { .. } => None,
    }
}

/// Puts `over` where `kept` is, if both are on one device and it fits there.
fn put_over(plan: &mut Plan, kept: NodeId, over: NodeId) -> Option<()> {
    let (a, b) = (plan.memory.nodes[kept]?, plan.memory.nodes[over]?);
    let Location::Arena { slot: to_slot, offset: to, bytes: room } = a.location else { return None };
    let size = *plan.memory.arena(a.backend)?.slots.get(to_slot)?;
    let (slot, offset, bytes) = arena_place(plan, over)?;
    // Two places that met before (in place, or one behind the other) are no change.
    let met = *slot == to_slot && *offset < to + room && to < *offset + *bytes;
    if a.backend != b.backend || to + *bytes > size || met || *bytes == 0 || room == 0 {
        return None;
    }
    (*slot, *offset) = (to_slot, to);
    Some(())
}

/// Exchanges two nodes in the list with everything that speaks of them.
fn swap_nodes(plan: &mut Plan, a: NodeId, b: NodeId) {
    let renamed = |id: &mut NodeId| {
        *id = match *id {
            x if x == a => b,
            x if x == b => a,
            x => x,
        }
    };
    plan.graph.nodes.swap(a, b);
    plan.memory.nodes.swap(a, b);
    for node in &mut plan.graph.nodes {
        renamed(&mut node.id);
        node.src.iter_mut().for_each(renamed);
    }
    plan.graph.outputs.iter_mut().for_each(renamed);
    plan.memory.staging.iter_mut().for_each(|s| renamed(&mut s.node));
    for split in &mut plan.splits {
        split.inputs.iter_mut().chain(&mut split.outputs).for_each(renamed);
    }
    for action in &mut plan.schedule {
        if let Action::Copy { value, .. } = action {
            renamed(value);
        }
    }
}
