//! Checks that run after every pass in debug builds and tests: a violated rule is a bug of the engine.

use crate::backend::BackendTag;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId};
use crate::infer::infer;
use crate::shape::DType;
use std::collections::{HashMap, HashSet};

fn broken(reason: String) -> GraphError {
    GraphError::Internal { pass: "verify", reason }
}

/// Structure of a graph: ids, unique names, sources before consumers, shapes as inferred, valid
/// outputs, and at most one live writer per KV layer (so that a load cannot see a half-written region).
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let mut names = HashSet::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if node.id != i {
            return Err(broken(format!("node {i} says its id is {}", node.id)));
        }
        if !names.insert(node.name.as_str()) {
            return Err(broken(format!("two nodes are called `{}`", node.name)));
        }
        if node.is_input() {
            continue;
        }
        let found = infer(&node.op, &node.src, &graph.nodes[..i], &graph.weights)
            .map_err(|reason| broken(format!("{}: {reason}", node.reference())))?;
        if found != (node.shape, node.dtype) {
            return Err(broken(format!(
                "{} claims {} {}, its op gives {} {}",
                node.reference(),
                node.shape,
                node.dtype.name(),
                found.0,
                found.1.name()
            )));
        }
    }
    verify_outputs(graph)?;
    verify_kv_writers(graph)
}

fn verify_outputs(graph: &Graph) -> Result<(), GraphError> {
    for &o in &graph.outputs {
        match graph.nodes.get(o) {
            None => return Err(broken(format!("output {o} does not exist"))),
            Some(n) if n.dtype == DType::Kv => {
                return Err(broken(format!("output {} has no value", n.reference())));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn verify_kv_writers(graph: &Graph) -> Result<(), GraphError> {
    let live = graph.live();
    let mut writers: HashMap<usize, NodeId> = HashMap::new();
    for node in graph.nodes.iter().filter(|n| live[n.id] && n.op.writes_kv()) {
        if let Some(first) = node.op.kv_layer().and_then(|layer| writers.insert(layer, node.id)) {
            let first = graph.node(first).reference();
            return Err(broken(format!("{first} and {} write one KV layer", node.reference())));
        }
    }
    Ok(())
}

/// [`verify`], and every live node has a backend, and the nodes of one KV layer have the same.
pub fn verify_assigned(graph: &Graph) -> Result<(), GraphError> {
    verify(graph)?;
    let live = graph.live();
    let mut layers: HashMap<usize, BackendTag> = HashMap::new();
    for node in graph.nodes.iter().filter(|n| live[n.id]) {
        let Some(tag) = node.backend else {
            return Err(broken(format!("{} has no backend", node.reference())));
        };
        let Some(layer) = node.op.kv_layer() else { continue };
        if *layers.entry(layer).or_insert(tag) != tag {
            return Err(broken(format!("{} is on {tag}, away from its KV region", node.reference())));
        }
    }
    Ok(())
}

/// A Kahn sort, as a check that the graph has no cycle. Nothing is ever executed or freed in this
/// order: execution, liveness and freeing all use node order, and mixing the two is the classic fault.
pub fn topo_order(graph: &Graph) -> Result<Vec<NodeId>, GraphError> {
    let n = graph.nodes.len();
    let mut missing = vec![0usize; n];
    let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); n];
    for (id, node) in graph.nodes.iter().enumerate() {
        missing[id] = node.src.len();
        for &s in &node.src {
            let list = consumers.get_mut(s).ok_or_else(|| broken(format!("source {s} does not exist")))?;
            list.push(id);
        }
    }
    let mut order: Vec<NodeId> = (0..n).filter(|&i| missing[i] == 0).collect();
    let mut next = 0;
    while let Some(&id) = order.get(next) {
        next += 1;
        for &c in &consumers[id] {
            missing[c] -= 1;
            if missing[c] == 0 {
                order.push(c);
            }
        }
    }
    if order.len() == n {
        return Ok(order);
    }
    let stuck = missing.iter().position(|&m| m > 0).unwrap_or(0);
    Err(broken(format!("cycle through {}", graph.node(stuck).reference())))
}
