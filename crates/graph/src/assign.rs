//! Assignment: which device runs which node. A choice is made once, before execution, and a node
//! that no device takes is an error with every device's reason.

use crate::backend::{BackendTag, Backends};
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId};
use std::collections::BTreeMap;

/// A preference per node (placement by layer): the tag is asked before the priority order.
pub type PlacementHint<'a> = &'a dyn Fn(&Node) -> Option<BackendTag>;

/// A device was asked for a node and did not take it; another one did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The node; of those that stay together the one that was refused.
    pub node: NodeId,
    /// Its operation, before anything was fused.
    pub op: &'static str,
    /// The device.
    pub backend: BackendTag,
    /// Why.
    pub reason: String,
}

/// Sets `backend` on every live node. Returns which devices refused nodes before others took them.
///
/// Backends are asked in priority order, the hinted one first; the first that supports the node gets
/// it. The store, load and attention of a KV layer go to one backend together, because the layer's
/// region lives there. An input follows its first live consumer. Pinned nodes stay where they are.
///
/// # Errors
/// [`GraphError::Unassignable`] with all reasons; [`GraphError::NoBackend`] for a pin or hint that
/// names a device that is not there.
pub fn assign(
    graph: &mut Graph,
    backends: &Backends,
    hint: Option<PlacementHint<'_>>,
) -> Result<Vec<Refusal>, GraphError> {
    let mut refusals = Vec::new();
    for unit in units(graph) {
        let tag = choose(graph, backends, &unit, hint, &mut refusals)?;
        for id in unit {
            graph.nodes[id].backend = Some(tag);
        }
    }
    assign_inputs(graph, backends)?;
    Ok(refusals)
}

/// Live nodes that must stay together, in node order: one per ordinary node, one per KV layer.
fn units(graph: &Graph) -> Vec<Vec<NodeId>> {
    let live = graph.live();
    let mut single = Vec::new();
    let mut layers: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|n| live[n.id] && !n.is_input()) {
        match node.op.kv_layer() {
            Some(layer) => layers.entry(layer).or_default().push(node.id),
            None => single.push(vec![node.id]),
        }
    }
    single.extend(layers.into_values());
    single.sort_by_key(|unit| unit[0]);
    single
}

fn choose(
    graph: &Graph,
    backends: &Backends,
    unit: &[NodeId],
    hint: Option<PlacementHint<'_>>,
    refusals: &mut Vec<Refusal>,
) -> Result<BackendTag, GraphError> {
    let nodes = || unit.iter().map(|&id| graph.node(id));
    let mut pins = nodes().filter(|n| n.pinned).filter_map(|n| n.backend);
    let candidates: Vec<BackendTag> = match pins.next() {
        Some(pin) => {
            if let Some(other) = pins.find(|&p| p != pin) {
                let reasons = format!("its KV layer is pinned to both {pin} and {other}");
                return Err(GraphError::Unassignable { node: graph.node(unit[0]).reference(), reasons });
            }
            vec![pin]
        }
        None => {
            let first = hint.and_then(|h| nodes().find_map(h));
            first.into_iter().chain(backends.iter().map(|b| b.tag()).filter(|&t| Some(t) != first)).collect()
        }
    };
    let earlier = refusals.len();
    for tag in candidates {
        let backend = backends.get(tag)?;
        let refusal = nodes().find_map(|n| backend.supports(graph, n).err().map(|why| (n, why)));
        let Some((node, why)) = refusal else { return Ok(tag) };
        refusals.push(Refusal { node: node.id, op: node.op.name(), backend: tag, reason: why.0 });
    }
    let mine = &refusals[earlier..];
    let text = |r: &Refusal| match unit.len() {
        1 => format!("{}: {}", r.backend, r.reason),
        _ => format!("{}: `{}` {}: {}", r.backend, graph.node(r.node).name, r.op, r.reason),
    };
    let reasons: Vec<String> = mine.iter().map(text).collect();
    let reasons = if reasons.is_empty() { "there is no device".into() } else { reasons.join("; ") };
    let node = graph.node(mine.first().map_or(unit[0], |r| r.node)).reference();
    Err(GraphError::Unassignable { node, reasons })
}

/// Unpinned inputs take the backend of their first live consumer, so that the common one-device step
/// stages nothing. An input that is only an output goes to the first backend.
fn assign_inputs(graph: &mut Graph, backends: &Backends) -> Result<(), GraphError> {
    let live = graph.live();
    let mut adopted: Vec<Option<BackendTag>> = vec![None; graph.nodes.len()];
    for node in graph.nodes.iter().filter(|n| live[n.id]) {
        for &s in &node.src {
            adopted[s] = adopted[s].or(node.backend);
        }
    }
    let fallback = backends.iter().next().map(|b| b.tag());
    for node in graph.nodes.iter_mut().filter(|n| live[n.id] && n.is_input()) {
        if node.pinned {
            if let Some(tag) = node.backend {
                backends.get(tag)?;
            }
            continue;
        }
        node.backend = adopted[node.id].or(fallback);
        if node.backend.is_none() {
            let reasons = "there is no device".into();
            return Err(GraphError::Unassignable { node: node.reference(), reasons });
        }
    }
    Ok(())
}
