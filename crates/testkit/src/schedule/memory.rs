//! A checker of memory plans that shares no code with the planner: it looks at the graph and the places.

use minfer_graph::{BackendTag, BufferRules, DType, Location, NodeId, Plan};
use std::collections::BTreeSet;

/// A value's bytes, and the first and last node at which they matter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    buffer: (BackendTag, usize),
    range: (usize, usize),
    first: NodeId,
    last: NodeId,
}

type Rules<'a> = &'a dyn Fn(BackendTag) -> BufferRules;

/// Checks a memory plan against the graph alone: every value that shares a byte with another must be
/// dead while the other lives, except that a node may write over a source it reads last.
///
/// # Errors
/// The first two values that must not share their bytes, or the first that has none.
pub fn check_memory(plan: &Plan, rules: Rules<'_>) -> Result<(), String> {
    let values = values_of(plan, rules)?;
    for (b, y) in values.iter().enumerate() {
        for (a, x) in values.iter().enumerate().take(b) {
            let (Some(x), Some(y)) = (x, y) else { continue };
            let bytes_meet = x.buffer == y.buffer && x.range.0 < y.range.1 && y.range.0 < x.range.1;
            let lives_meet = x.first <= y.last && y.first <= x.last;
            if bytes_meet && lives_meet && !written_over(plan, rules, (a, *x), (b, *y)) {
                return Err(format!("nodes {a} and {b} share bytes: {x:?} {y:?}"));
            }
        }
    }
    check_buffers(plan, rules, &values)
}

/// Whether node `b` may write over value `a`.
fn written_over(plan: &Plan, rules: Rules<'_>, (a, x): (NodeId, Value), (b, y): (NodeId, Value)) -> bool {
    let node = plan.graph.node(b);
    let at = node.src.iter().position(|&s| s == a);
    at.is_some_and(|i| node.op.in_place_sources().contains(&i))
        && x.last == b
        && x.range == y.range
        && rules(x.buffer.0).in_place
        && !plan.graph.node(a).is_input()
}

fn values_of(plan: &Plan, rules: Rules<'_>) -> Result<Vec<Option<Value>>, String> {
    let graph = &plan.graph;
    let live = graph.live();
    let mut values = vec![None; graph.nodes.len()];
    for node in &graph.nodes {
        let place = plan.memory.nodes[node.id];
        if live[node.id] != place.is_some() {
            return Err(format!("node {}: live {} but {place:?}", node.id, live[node.id]));
        }
        let Some(place) = place.filter(|_| node.dtype != DType::Kv) else { continue };
        let Location::Arena { slot, offset, bytes } = place.location else {
            return Err(format!("node {} has bytes and {:?}", node.id, place.location));
        };
        let needed = node.shape.len(plan.capacity) * 4;
        let arena = plan.memory.arena(place.backend).ok_or("no arena")?;
        let aligned = offset.is_multiple_of(rules(place.backend).alignment);
        if bytes != needed || offset + bytes > arena.slots[slot] || !aligned {
            return Err(format!("node {}: {place:?}, needs {needed} bytes", node.id));
        }
        let readers = graph.nodes.iter().filter(|r| live[r.id] && r.src.contains(&node.id)).map(|r| r.id);
        let whole_step = graph.outputs.contains(&node.id) || node.is_input();
        let last = if whole_step { graph.nodes.len() } else { readers.max().unwrap_or(node.id) };
        let first = if node.is_input() { 0 } else { node.id };
        let buffer = (place.backend, slot);
        values[node.id] = Some(Value { buffer, range: (offset, offset + bytes), first, last });
    }
    Ok(values)
}

/// Where a kernel may not read and write one buffer, no node does, except in place.
fn check_buffers(plan: &Plan, rules: Rules<'_>, values: &[Option<Value>]) -> Result<(), String> {
    for node in plan.graph.nodes.iter().filter(|n| !n.is_input()) {
        let Some(out) = values[node.id].filter(|v| !rules(v.buffer.0).read_write_one_buffer) else {
            continue;
        };
        for source in node.src.iter().filter_map(|&s| values[s]) {
            if source.buffer == out.buffer && source.range != out.range {
                return Err(format!("node {} reads and writes buffer {:?}", node.id, out.buffer));
            }
        }
    }
    Ok(())
}

/// Ranges that are shared by at least two values, to show that a test covers sharing at all.
pub fn shared_ranges(plan: &Plan) -> usize {
    let mut seen = BTreeSet::new();
    let places = plan.memory.nodes.iter().flatten();
    places
        .filter(|p| match p.location {
            Location::Arena { slot, offset, .. } => !seen.insert((p.backend, slot, offset)),
            Location::Kv { .. } => false,
        })
        .count()
}
