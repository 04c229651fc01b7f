//! A memory plan as text: who lies where, and from which node to which. It shows no uid, address or
//! time, so that a recorded plan can be compared.

use crate::graph::NodeId;
use crate::memory::{Arena, Location, Placement};
use crate::plan::Plan;
use std::fmt::Write;

/// Values by device, buffer, offset and time; then what stands for KV regions, the copies staged across
/// devices, and the totals.
///
/// `alive a..=b` counts nodes, both ends included; the number behind the last node means: until after
/// the step. `over n` is a value that overwrites node `n`'s chain of values in place.
pub fn dump_memory(plan: &Plan) -> String {
    let mut text = String::new();
    for arena in &plan.memory.arenas {
        arena_text(&mut text, plan, arena);
    }
    for (id, place) in places(plan) {
        if let Location::Kv { layer } = place.location {
            let _ = writeln!(
                text,
                "{}: {} stands for the KV cache of layer {layer}",
                place.backend,
                value(plan, id)
            );
        }
    }
    for staged in &plan.memory.staging {
        let from = plan.graph.node(staged.node).backend.map_or_else(|| "-".into(), |t| t.to_string());
        let (to, bytes) = (staged.backend, staged.bytes);
        let _ = writeln!(text, "{to}: {bytes} bytes for a copy of {} from {from}", value(plan, staged.node));
    }
    let _ = writeln!(text, "{}", plan.memory.totals());
    text
}

fn places(plan: &Plan) -> impl Iterator<Item = (NodeId, Placement)> {
    plan.memory.nodes.iter().enumerate().filter_map(|(id, p)| p.map(|p| (id, p)))
}

fn value(plan: &Plan, id: NodeId) -> String {
    let node = plan.graph.node(id);
    format!("{id} `{}` ({})", node.name, node.op.name())
}

fn arena_text(text: &mut String, plan: &Plan, arena: &Arena) {
    let _ = writeln!(text, "{}", arena.line(plan.graph.nodes.len()));
    for (slot, size) in arena.slots.iter().enumerate() {
        let _ = writeln!(text, "  buffer {slot}, {size} bytes");
        let _ = writeln!(text, "    {:>10} {:>10}  {:<11} value", "offset", "bytes", "alive");
        let mut rows: Vec<(usize, usize, NodeId, Placement)> = places(plan)
            .filter_map(|(id, p)| match p.location {
                Location::Arena { slot: at, offset, bytes } if p.backend == arena.backend && at == slot => {
                    Some((offset, bytes, id, p))
                }
                _ => None,
            })
            .collect();
        rows.sort_by_key(|&(offset, _, id, p)| (offset, p.lifetime.start, id));
        for (offset, bytes, id, p) in rows {
            let alive = format!("{}..={}", p.lifetime.start, p.lifetime.end);
            let over = p.alias_of.map_or_else(String::new, |root| format!(" over {root}"));
            let _ = writeln!(text, "    {offset:>10} {bytes:>10}  {alive:<11} {}{over}", value(plan, id));
        }
    }
}
