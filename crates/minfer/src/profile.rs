//! Where the time of steps goes: nodes that do the same with weights of the same types and sizes, added up.

use minfer_graph::{Attention, Graph, KvTypes, NodeId, NodeRun, Op, WeightSpec};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// What nodes of one kind took and did.
#[derive(Clone, Debug, PartialEq)]
pub struct OpCost {
    /// The operation.
    pub op: &'static str,
    /// Types and sizes of what it reads: `q5_0 896 x 4864` (values per row, rows), heads of attention, or nothing.
    pub of: String,
    /// Nodes that ran.
    pub calls: usize,
    /// Their time together.
    pub took: Duration,
    /// Bytes of weights and of the KV cache that they read, each once per node. Of experts, those that the tokens use
    /// if no two use the same.
    pub bytes: f64,
    /// Multiply-adds of their products.
    pub multiply_adds: f64,
}

/// Adds up the nodes of steps. Its [`OpProfile::observe`] is for [`Control::observe`](crate::Control::observe).
#[derive(Debug)]
pub struct OpProfile {
    kv: KvTypes,
    table: RefCell<Table>,
}

#[derive(Debug, Default)]
struct Table {
    costs: Vec<OpCost>,
    /// Where in `costs` a node of a graph is added.
    places: HashMap<(u64, NodeId), usize>,
}

impl OpProfile {
    /// An empty one, for a session with a cache of these types.
    pub fn new(kv: KvTypes) -> OpProfile {
        OpProfile { kv, table: RefCell::default() }
    }

    /// Adds a node; `extents` as [`StepObserver`](crate::StepObserver) has them.
    pub fn observe(&self, run: &NodeRun<'_>, extents: &[i32]) {
        let (bytes, multiply_adds) = work(run, extents, self.kv);
        let mut table = self.table.borrow_mut();
        let table = &mut *table;
        let place = *table.places.entry((run.graph.uid, run.node.id)).or_insert_with(|| {
            place(&mut table.costs, run.node.op.name(), describe(run.graph, &run.node.op))
        });
        let cost = &mut table.costs[place];
        cost.calls += 1;
        cost.took += run.took;
        cost.bytes += bytes;
        cost.multiply_adds += multiply_adds;
    }

    /// What was added, most time first.
    pub fn costs(&self) -> Vec<OpCost> {
        let mut costs = self.table.borrow().costs.clone();
        costs.sort_by_key(|cost| std::cmp::Reverse(cost.took));
        costs
    }
}

/// Where in the list the nodes of a kind are added.
fn place(costs: &mut Vec<OpCost>, op: &'static str, of: String) -> usize {
    let known = costs.iter().position(|cost| cost.op == op && cost.of == of);
    known.unwrap_or_else(|| {
        costs.push(OpCost { op, of, calls: 0, took: Duration::ZERO, bytes: 0.0, multiply_adds: 0.0 });
        costs.len() - 1
    })
}

/// The op's matrices; vectors of norms, biases and factors are no part of the account.
fn matrices<'a>(graph: &'a Graph, op: &Op) -> impl Iterator<Item = &'a WeightSpec> {
    let bias = if let Op::ExpertMatMul(product) = op { product.bias } else { None };
    op.weights()
        .filter(move |&id| Some(id) != bias)
        .map(|id| graph.weight(id))
        .filter(|weight| weight.rows > 1)
}

fn describe(graph: &Graph, op: &Op) -> String {
    if let Op::Attention(a) = op {
        let window = a.window.map_or(String::new(), |n| format!(", window {n}"));
        return format!("{} heads of {}, {} of KV{window}", a.n_head, a.head_dim, a.n_kv_head);
    }
    let sizes = |w: &WeightSpec| format!("{} {} x {}", w.ty, w.cols, w.rows);
    matrices(graph, op).map(sizes).collect::<Vec<_>>().join(" + ")
}

/// Bytes that a node read and multiply-adds that it did.
fn work(run: &NodeRun<'_>, extents: &[i32], kv: KvTypes) -> (f64, f64) {
    let NodeRun { graph, node, dims, .. } = *run;
    let bytes = |w: &WeightSpec| w.bytes().unwrap_or(0) as f64;
    let size = |w: &WeightSpec| w.rows as f64 * w.cols as f64;
    let rows = node.src.first().map_or(0, |&x| graph.node(x).shape.n_rows(dims)) as f64;
    match &node.op {
        Op::Attention(a) => attention(a, extents, kv),
        // Rows of a table, not the table.
        Op::Embed { weight } => {
            let table = graph.weight(*weight);
            (rows * bytes(table) / table.rows.max(1) as f64, 0.0)
        }
        Op::ExpertMatMul(product) => {
            let all = graph.weight(product.weight);
            let expert = 1.0 / product.n_expert.max(1) as f64;
            let out = (all.rows as f64 * expert).max(1.0);
            let pairs = rows * node.shape.cols as f64 / out;
            (bytes(all) * (pairs * expert).min(1.0), size(all) * pairs * expert)
        }
        op => {
            let all = || matrices(graph, op);
            (all().map(bytes).sum(), rows * all().map(size).sum::<f64>())
        }
    }
}

/// Of attention: every position that some token sees is read once, and every token meets those that it sees.
fn attention(a: &Attention, extents: &[i32], kv: KvTypes) -> (f64, f64) {
    let window = a.window.unwrap_or(usize::MAX);
    let (mut read, mut met) = (0, 0);
    for &[_, count, start] in extents.as_chunks::<3>().0 {
        let (count, start) = (count.max(0) as usize, start.max(0) as usize);
        read += (start + count).min(window.saturating_add(count - count.min(1)));
        met += (1..=count).map(|i| (start + i).min(window)).sum::<usize>();
    }
    let position = a.n_kv_head * (kv.k.head_bytes(a.head_dim) + kv.v.head_bytes(a.v_dim));
    ((read * position) as f64, (met * a.n_head * (a.head_dim + a.v_dim)) as f64)
}
