//! The memory plan: where each value lives, decided before anything is allocated. Data only.

use crate::backend::{BackendTag, Backends, BufferRules};
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId};
use crate::lifetime::{Lifetime, Lifetimes, lifetimes};
use crate::shape::{DType, StepDims};
use crate::split::Split;
use std::collections::BTreeMap;
use std::fmt;

/// Where a node's output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A range of one of a backend's buffers.
    Arena {
        /// Which of the arena's buffers.
        slot: usize,
        /// First byte.
        offset: usize,
        /// Bytes at capacity.
        bytes: usize,
    },
    /// No bytes: stands for the KV region of a layer.
    Kv {
        /// The model layer.
        layer: usize,
    },
}

/// A node's place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Backend that owns it.
    pub backend: BackendTag,
    /// Where.
    pub location: Location,
    /// When its value is alive.
    pub lifetime: Lifetime,
    /// The node whose buffer it took over in place, if any.
    pub alias_of: Option<NodeId>,
}

/// The buffers of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The backend.
    pub backend: BackendTag,
    /// What it asks of places in it.
    pub rules: BufferRules,
    /// Bytes of each buffer. More than one where a kernel may not read and write the same buffer.
    pub slots: Vec<usize>,
    /// Most bytes alive at one node: no plan can do with less.
    pub live_peak: usize,
    /// Bytes with a buffer per value.
    pub unshared: usize,
    /// Bytes of each value times the nodes during which it is alive, summed.
    pub byte_nodes: usize,
}

impl Arena {
    /// Bytes to allocate.
    pub fn bytes(&self) -> usize {
        self.slots.iter().sum()
    }

    /// Its figures in words, for a step of `nodes` nodes.
    pub(crate) fn line(&self, nodes: usize) -> String {
        let Arena { backend, slots, live_peak, unshared, .. } = self;
        let (n, many) = (slots.len(), if slots.len() == 1 { "buffer" } else { "buffers" });
        format!(
            "{backend}: {} bytes in {n} {many} (live peak {live_peak}, unshared {unshared}), usage {}, {} on average",
            self.bytes(),
            percent(self.usage()),
            percent(self.mean_usage(nodes)),
        )
    }

    /// How much of it is alive at the fullest node: at 1 no plan can do with less. Below that, gaps
    /// between values, or values that a device wants in separate buffers.
    pub fn usage(&self) -> f64 {
        ratio(self.live_peak, self.bytes())
    }

    /// How much of it is alive at a node, on average over a step of `nodes` nodes. Inputs and outputs are
    /// alive throughout; what one wide value needs lies idle for the rest of the step.
    pub fn mean_usage(&self, nodes: usize) -> f64 {
        // The last moment is the one behind the step, at which the outputs are read.
        ratio(self.byte_nodes, self.bytes() * (nodes + 1))
    }
}

/// `part / whole`; 1 for nothing of nothing.
fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// A copy of a value kept on another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// The value.
    pub node: NodeId,
    /// Where its copy lives.
    pub backend: BackendTag,
    /// Bytes at capacity.
    pub bytes: usize,
}

/// Places of all values at capacity sizes, without KV regions and weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Per node; `None` for dead nodes.
    pub nodes: Vec<Option<Placement>>,
    /// Per backend, in tag order.
    pub arenas: Vec<Arena>,
    /// Copies across backends, one per value and destination.
    pub staging: Vec<Staging>,
}

impl MemoryPlan {
    /// The backend's arena.
    pub fn arena(&self, tag: BackendTag) -> Option<&Arena> {
        self.arenas.iter().find(|a| a.backend == tag)
    }

    /// Bytes to allocate on a backend: its arena and the copies staged there.
    pub fn bytes_on(&self, tag: BackendTag) -> usize {
        let staged: usize = self.staging.iter().filter(|s| s.backend == tag).map(|s| s.bytes).sum();
        self.arena(tag).map_or(0, Arena::bytes) + staged
    }

    /// Bytes to allocate in all.
    pub fn total(&self) -> usize {
        let staged: usize = self.staging.iter().map(|s| s.bytes).sum();
        self.arenas.iter().map(Arena::bytes).sum::<usize>() + staged
    }

    /// Sum of each arena's most bytes alive at one node: a lower bound of [`MemoryPlan::total`].
    pub fn peak(&self) -> usize {
        self.arenas.iter().map(|a| a.live_peak).sum()
    }

    /// [`MemoryPlan::peak`] over [`MemoryPlan::total`]. Copies staged across devices count as loss:
    /// each has a buffer of its own.
    pub fn usage(&self) -> f64 {
        ratio(self.peak(), self.total())
    }

    /// Total, peak and usage in words.
    pub(crate) fn totals(&self) -> String {
        format!("total {} bytes, peak {}, usage {}", self.total(), self.peak(), percent(self.usage()))
    }

    /// Whether the value is still intact after the step.
    pub fn survives(&self, node: NodeId) -> bool {
        let end = self.nodes.len();
        self.nodes.get(node).copied().flatten().is_some_and(|p| p.lifetime.end == end)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for a in &self.arenas {
            writeln!(f, "{}", a.line(self.nodes.len()))?;
        }
        for s in &self.staging {
            writeln!(f, "staged: node {} on {}, {} bytes", s.node, s.backend, s.bytes)?;
        }
        f.write_str(&self.totals())
    }
}

/// A share in per cent, rounded down: only what is full says 100.
fn percent(share: f64) -> String {
    format!("{} %", (share * 100.0).floor())
}

/// Bytes of a node's output.
pub(crate) fn node_bytes(node: &Node, dims: StepDims) -> usize {
    node.shape.len(dims) * node.dtype.bytes()
}

/// A buffer to place: a chain's root with everything that constrains it.
struct Item {
    root: NodeId,
    bytes: usize,
    lifetime: Lifetime,
    slot: usize,
    offset: usize,
}

/// Plans an assigned graph at `capacity`. `share` false gives every value a buffer of its own.
///
/// # Errors
/// [`GraphError::Capacity`] if a value is larger than its backend can bind.
pub fn plan_memory(
    graph: &Graph,
    backends: &Backends,
    capacity: StepDims,
    share: bool,
) -> Result<MemoryPlan, GraphError> {
    let mut rules: BTreeMap<BackendTag, BufferRules> = BTreeMap::new();
    for backend in backends.iter() {
        rules.insert(backend.tag(), backend.buffer_rules());
    }
    let strict = BufferRules { alignment: 4, max_binding: 0, read_write_one_buffer: false, in_place: false };
    let times = lifetimes(graph, &|tag| rules.get(&tag).copied().unwrap_or(strict), share);
    let mut plan = MemoryPlan { nodes: vec![None; graph.nodes.len()], arenas: vec![], staging: vec![] };
    let mut used: Vec<BackendTag> =
        graph.nodes.iter().filter(|n| times.roots[n.id].is_some()).filter_map(|n| n.backend).collect();
    used.sort_unstable();
    used.dedup();
    for tag in used {
        let rules = rules.get(&tag).copied().ok_or(GraphError::NoBackend(tag))?;
        plan_arena(graph, &times, tag, rules, capacity, share, &mut plan)?;
    }
    place_kv(graph, &mut plan);
    Ok(plan)
}

/// Adds the copies that the splits need.
pub(crate) fn plan_staging(
    plan: &mut MemoryPlan,
    graph: &Graph,
    splits: &[Split],
    backends: &Backends,
    capacity: StepDims,
) -> Result<(), GraphError> {
    for split in splits {
        let rules = backends.get(split.backend)?.buffer_rules();
        for &id in &split.inputs {
            let node = graph.node(id);
            let staged = plan.staging.iter().any(|s| s.node == id && s.backend == split.backend);
            if node.backend == Some(split.backend) || staged {
                continue;
            }
            let bytes = node_bytes(node, capacity);
            check_binding(node, bytes, split.backend, rules)?;
            plan.staging.push(Staging { node: id, backend: split.backend, bytes });
        }
    }
    Ok(())
}

fn check_binding(node: &Node, bytes: usize, tag: BackendTag, rules: BufferRules) -> Result<(), GraphError> {
    if bytes <= rules.max_binding {
        return Ok(());
    }
    let node = node.reference();
    let most = rules.max_binding;
    Err(GraphError::Capacity(format!("{node} needs {bytes} bytes, {tag} binds at most {most}")))
}

fn plan_arena(
    graph: &Graph,
    times: &Lifetimes,
    tag: BackendTag,
    rules: BufferRules,
    capacity: StepDims,
    share: bool,
    plan: &mut MemoryPlan,
) -> Result<(), GraphError> {
    let alignment = rules.alignment.max(4);
    let mut items = Vec::new();
    for (root, lifetime) in times.buffers.iter().enumerate() {
        let node = graph.node(root);
        let Some(lifetime) = lifetime.filter(|_| node.backend == Some(tag)) else { continue };
        let bytes = node_bytes(node, capacity);
        check_binding(node, bytes, tag, rules)?;
        let bytes = bytes.next_multiple_of(alignment);
        items.push(Item { root, bytes, lifetime, slot: 0, offset: 0 });
    }
    let unshared = items.iter().map(|i| i.bytes).sum();
    let live_peak = live_peak(&items, graph.nodes.len());
    let byte_nodes = items.iter().map(|i| i.bytes * (i.lifetime.end + 1 - i.lifetime.start)).sum();
    if !share {
        items.iter_mut().enumerate().for_each(|(slot, item)| item.slot = slot);
    } else if !rules.read_write_one_buffer {
        color_slots(graph, times, &mut items);
    }
    let slots = place(&mut items);
    for item in &items {
        write_chain(graph, times, tag, capacity, item, plan);
    }
    plan.arenas.push(Arena { backend: tag, rules, slots, live_peak, unshared, byte_nodes });
    Ok(())
}

/// Most bytes alive at one node.
fn live_peak(items: &[Item], n: usize) -> usize {
    let mut change = vec![0isize; n + 2];
    for item in items {
        change[item.lifetime.start] += item.bytes as isize;
        change[item.lifetime.end + 1] -= item.bytes as isize;
    }
    let mut now = 0isize;
    change
        .iter()
        .map(|c| {
            now += c;
            now
        })
        .max()
        .unwrap_or(0)
        .max(0) as usize
}

/// Gives buffers that meet in a node, one read and one written, different slots. Constraints only
/// reach back to earlier buffers, so that taking the first free slot needs few of them.
fn color_slots(graph: &Graph, times: &Lifetimes, items: &mut [Item]) {
    let index: BTreeMap<NodeId, usize> = items.iter().enumerate().map(|(i, x)| (x.root, i)).collect();
    let mut meets: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    for node in &graph.nodes {
        let slot_of = |id: NodeId| times.roots[id].and_then(|r| index.get(&r).copied());
        let Some(written) = slot_of(node.id) else { continue };
        for read in node.src.iter().filter_map(|&s| slot_of(s)).filter(|&r| r != written) {
            meets[written].push(read);
            meets[read].push(written);
        }
    }
    let mut done = vec![false; items.len()];
    for i in 0..items.len() {
        let taken: Vec<usize> = meets[i].iter().filter(|&&j| done[j]).map(|&j| items[j].slot).collect();
        items[i].slot = (0..).find(|s| !taken.contains(s)).unwrap_or(0);
        done[i] = true;
    }
}

/// Offsets: the largest first, each into the smallest gap between buffers of its slot that are
/// alive at the same time. Returns the size of each slot.
fn place(items: &mut [Item]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(items[i].bytes), items[i].root));
    let mut placed: Vec<usize> = Vec::new();
    let mut slots = vec![0; items.iter().map(|i| i.slot + 1).max().unwrap_or(0)];
    for i in order {
        let near =
            |&&j: &&usize| items[j].slot == items[i].slot && items[j].lifetime.overlaps(items[i].lifetime);
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(near)
            .map(|&j| (items[j].offset, items[j].offset + items[j].bytes))
            .collect();
        busy.sort_unstable();
        items[i].offset = best_gap(&busy, items[i].bytes);
        slots[items[i].slot] = slots[items[i].slot].max(items[i].offset + items[i].bytes);
        placed.push(i);
    }
    slots
}

/// Start of the smallest gap that holds `bytes`, else the end of the last busy range.
fn best_gap(busy: &[(usize, usize)], bytes: usize) -> usize {
    let (mut best, mut end): (Option<(usize, usize)>, usize) = (None, 0);
    for &(from, to) in busy {
        if from >= end + bytes && best.is_none_or(|(size, _)| from - end < size) {
            best = Some((from - end, end));
        }
        end = end.max(to);
    }
    best.map_or(end, |(_, offset)| offset)
}

fn write_chain(
    graph: &Graph,
    times: &Lifetimes,
    tag: BackendTag,
    capacity: StepDims,
    item: &Item,
    plan: &mut MemoryPlan,
) {
    for node in graph.nodes.iter().filter(|n| times.roots[n.id] == Some(item.root)) {
        let Some(lifetime) = times.values[node.id] else { continue };
        let bytes = node_bytes(node, capacity);
        plan.nodes[node.id] = Some(Placement {
            backend: tag,
            location: Location::Arena { slot: item.slot, offset: item.offset, bytes },
            lifetime,
            alias_of: (node.id != item.root).then_some(item.root),
        });
    }
}

fn place_kv(graph: &Graph, plan: &mut MemoryPlan) {
    let live = graph.live();
    let lifetime = |id| Lifetime { start: id, end: graph.nodes.len() };
    for node in graph.nodes.iter().filter(|n| live[n.id] && n.dtype == DType::Kv) {
        let (Some(layer), Some(backend)) = (node.op.kv_layer(), node.backend) else { continue };
        let location = Location::Kv { layer };
        plan.nodes[node.id] =
            Some(Placement { backend, location, lifetime: lifetime(node.id), alias_of: None });
    }
}
