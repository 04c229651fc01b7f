//! A plan as text, JSON and DOT. The text is stable: it shows no uid, address or time.

use crate::backend::BackendTag;
use crate::graph::Node;
use crate::memory::{Location, Placement};
use crate::plan::Plan;
use crate::split::Split;
use crate::traffic::{CrossCopy, ONE_TOKEN, copied_bytes, cross_copies};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The splits with what is copied into each, then node counts per op and backend (`MINFER_GRAPH_TRACE`).
pub fn trace_plan(plan: &Plan) -> String {
    let mut text = String::new();
    for line in schedule_text(plan).lines() {
        let _ = writeln!(text, "[graph] {line}");
    }
    let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for node in running(plan) {
        let backend = node.backend.map_or_else(|| "-".into(), |t| t.to_string());
        *counts.entry((node.op.name(), backend)).or_default() += 1;
    }
    for ((op, backend), n) in counts {
        let _ = writeln!(text, "[graph] {op:<14} {backend:<8} {n}");
    }
    text
}

/// Nodes that have a place in memory.
fn running(plan: &Plan) -> impl Iterator<Item = &Node> {
    plan.graph.nodes.iter().filter(|n| plan.memory.nodes[n.id].is_some())
}

/// One line per split, one per value copied into it, and the totals.
fn schedule_text(plan: &Plan) -> String {
    let copies = cross_copies(plan);
    let mut text = String::new();
    for (i, split) in plan.splits.iter().enumerate() {
        let _ = writeln!(text, "{}", split_line(i, split));
        for copy in copies.iter().filter(|c| c.split == i) {
            let name = &plan.graph.node(copy.node).name;
            let (least, most) = (copy.bytes(plan, ONE_TOKEN), copy.bytes(plan, plan.capacity));
            let _ =
                writeln!(text, "  copies in {name} from {}: {least} B, {most} B in a full step", copy.from);
        }
    }
    for ((op, backend, reason), names) in refused(plan) {
        let _ =
            writeln!(text, "not on {backend}: {} {op} nodes, `{}` first: {reason}", names.len(), names[0]);
    }
    let counted = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let _ = writeln!(
        text,
        "{}, {}: {} B for one token, {} B for {}",
        counted(plan.splits.len(), "split", "splits"),
        counted(copies.len(), "copy", "copies"),
        copied_bytes(plan, ONE_TOKEN),
        copied_bytes(plan, plan.capacity),
        counted(plan.capacity.tokens, "token", "tokens"),
    );
    text
}

/// Refused nodes by operation, device and reason.
fn refused(plan: &Plan) -> BTreeMap<(&'static str, BackendTag, &str), Vec<&str>> {
    let mut groups: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for r in &plan.refusals {
        let name = plan.graph.node(r.node).name.as_str();
        groups.entry((r.op, r.backend, r.reason.as_str())).or_default().push(name);
    }
    groups
}

fn split_line(i: usize, split: &Split) -> String {
    let Split { backend, start, end, inputs, outputs } = split;
    format!("split {i}: {backend} nodes {start}..{end} inputs {inputs:?} outputs {outputs:?}")
}

fn place_text(place: Option<Placement>) -> String {
    let Some(p) = place else { return "dead".into() };
    let life = format!("{}..={}", p.lifetime.start, p.lifetime.end);
    match p.location {
        Location::Kv { layer } => format!("kv layer {layer}"),
        Location::Arena { slot, offset, bytes } => {
            let alias = p.alias_of.map_or_else(String::new, |a| format!(" over {a}"));
            format!("slot {slot} +{offset} {bytes} B live {life}{alias}")
        }
    }
}

/// What the lines of nodes say.
const LEGEND: &str = "\
# A line per node: id, name, operation, shape (rows x columns), type, device, ids of its sources, place in memory.
# Places: `slot S +O B bytes` from byte O of the device's buffer S, `live A..=B` while nodes A to B run, `over N` in the
# bytes of node N in place; `kv layer L` stands for the KV cache of a layer; `dead` is not computed.
# A fused node takes the place of the last node that it stands for and the name of the value that it gives. The node that
# gave this value before is dead and has the other's name: `blk.0.kv_store Rope ... dead` once was `blk.0.q_rope`.
";

/// The whole plan as text.
pub fn dump_plan(plan: &Plan) -> String {
    let mut text = String::from(LEGEND);
    for node in &plan.graph.nodes {
        let backend = node.backend.map_or_else(|| "-".into(), |t| t.to_string());
        let _ = writeln!(
            text,
            "{:>4} {:<24} {:<14} {:<16} {} {:<7} {:?} {}",
            node.id,
            node.name,
            node.op.name(),
            node.shape.to_string(),
            node.dtype.name(),
            backend,
            node.src,
            place_text(plan.memory.nodes[node.id])
        );
    }
    let _ = writeln!(text, "outputs {:?}", plan.graph.outputs);
    text.push_str(&schedule_text(plan));
    let _ = writeln!(text, "{}", plan.memory);
    let _ = write!(text, "{}", plan.fusions);
    text
}

/// The whole plan as JSON.
pub fn json_plan(plan: &Plan) -> Value {
    let nodes: Vec<Value> = plan.graph.nodes.iter().map(|n| json_node(plan, n)).collect();
    let copies = cross_copies(plan);
    let splits: Vec<Value> =
        plan.splits.iter().enumerate().map(|(i, split)| json_split(plan, i, split, &copies)).collect();
    let arenas: Vec<Value> = plan
        .memory
        .arenas
        .iter()
        .map(|a| {
            json!({ "backend": a.backend.to_string(), "slots": a.slots, "bytes": a.bytes(),
                    "live_peak": a.live_peak, "unshared": a.unshared,
                    "usage": a.usage(), "mean_usage": a.mean_usage(plan.graph.nodes.len()) })
        })
        .collect();
    let staging: Vec<Value> = plan
        .memory
        .staging
        .iter()
        .map(|s| json!({ "node": s.node, "backend": s.backend.to_string(), "bytes": s.bytes }))
        .collect();
    let capacity = plan.capacity;
    json!({
        "capacity": { "tokens": capacity.tokens, "outputs": capacity.outputs, "seqs": capacity.seqs },
        "nodes": nodes,
        "outputs": plan.graph.outputs,
        "splits": splits,
        "refused": refused(plan).into_iter().map(|((op, backend, reason), names)| {
            json!({ "op": op, "device": backend.to_string(), "reason": reason, "nodes": names })
        }).collect::<Vec<_>>(),
        "totals": {
            "splits": plan.splits.len(), "copies": copies.len(),
            "bytes_per_token": copied_bytes(plan, ONE_TOKEN),
            "bytes_per_full_step": copied_bytes(plan, capacity),
        },
        "memory": { "total": plan.memory.total(), "peak": plan.memory.peak(), "usage": plan.memory.usage(),
                    "arenas": arenas, "staging": staging },
        "fusions": json_fusions(plan),
    })
}

fn json_node(plan: &Plan, node: &Node) -> Value {
    let weights: Vec<&str> = node.op.weights().map(|w| plan.graph.weight(w).name.as_str()).collect();
    json!({
        "id": node.id,
        "name": node.name,
        "op": node.op.name(),
        "shape": node.shape.to_string(),
        "dtype": node.dtype.name(),
        "block": node.block,
        "backend": node.backend.map(|t| t.to_string()),
        "src": node.src,
        "weights": weights,
        "memory": plan.memory.nodes[node.id].map(json_place),
    })
}

fn json_place(p: Placement) -> Value {
    match p.location {
        Location::Kv { layer } => json!({ "kv_layer": layer }),
        Location::Arena { slot, offset, bytes } => json!({
            "slot": slot, "offset": offset, "bytes": bytes,
            "from": p.lifetime.start, "to": p.lifetime.end, "alias_of": p.alias_of,
        }),
    }
}

fn json_split(plan: &Plan, i: usize, split: &Split, copies: &[CrossCopy]) -> Value {
    let copies = copies.iter().filter(|c| c.split == i).map(|c| {
        json!({ "node": c.node, "name": plan.graph.node(c.node).name, "from": c.from.to_string(),
                "bytes_per_token": c.bytes(plan, ONE_TOKEN), "bytes_per_full_step": c.bytes(plan, plan.capacity) })
    });
    json!({ "backend": split.backend.to_string(), "start": split.start, "end": split.end,
            "inputs": split.inputs, "outputs": split.outputs, "copies": copies.collect::<Vec<_>>() })
}

fn json_fusions(plan: &Plan) -> Value {
    let applied: Vec<Value> = plan
        .fusions
        .applied
        .iter()
        .map(|f| {
            let replaced: Vec<_> = f.replaced.iter().map(|r| r.id).collect();
            json!({ "fusion": f.fusion.name(), "node": f.node.id, "name": f.node.name, "replaced": replaced })
        })
        .collect();
    let refused: Vec<Value> = plan
        .fusions
        .refused
        .iter()
        .map(|r| {
            let reason = r.why.explain(&plan.graph);
            json!({ "fusion": r.fusion.name(), "node": r.node.id, "name": r.node.name, "reason": reason })
        })
        .collect();
    json!({ "applied": applied, "refused": refused })
}

/// The running nodes as a DOT graph, one cluster per split.
pub fn dot_plan(plan: &Plan) -> String {
    let mut text = String::from("digraph plan {\n  node [shape=box, fontname=\"monospace\"];\n");
    for (i, split) in plan.splits.iter().enumerate() {
        let _ = writeln!(text, "  subgraph cluster_{i} {{\n    label=\"split {i}: {}\";", split.backend);
        for node in running(plan).filter(|n| (split.start..split.end).contains(&n.id)) {
            let name = node.name.replace('\\', "\\\\").replace('"', "\\\"");
            let shape = if node.is_input() { "ellipse" } else { "box" };
            let label = format!("{} {name}\\n{} {}", node.id, node.op.name(), node.shape);
            let _ = writeln!(text, "    n{} [shape={shape}, label=\"{label}\"];", node.id);
        }
        text.push_str("  }\n");
    }
    for node in running(plan) {
        for &s in &node.src {
            let _ = writeln!(text, "  n{s} -> n{};", node.id);
        }
    }
    text.push_str("}\n");
    text
}
