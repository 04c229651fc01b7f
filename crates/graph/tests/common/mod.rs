//! What the scheduler's tests share: devices, random graphs, inputs that depend only on a seed, and
//! a checker of memory plans that shares no code with the planner.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use minfer_gguf::TensorType;
use minfer_graph::{
    ActPrecision, Attention, Backend, BackendKind, BackendScheduler, BackendTag, Backends, BufferRules,
    Chaos, ChaosHandle, DType, Dim, Graph, GraphAllocator, GraphBuilder, GraphError, InputKind, KvShape,
    KvStorage, KvType, Location, NodeId, Op, PAGE, Plan, PlanOptions, Rope, RopeStyle, Shape, Step, StepDims,
    WeightId, WeightSpec, plan,
};
use minfer_testkit::ReferenceBackend;
use minfer_testkit::rng::Rng;
use std::collections::BTreeSet;

pub const CPU: BackendTag = BackendTag::CPU;
pub const GPU: BackendTag = BackendTag::new(BackendKind::Chaos, 0);
pub const GPU1: BackendTag = BackendTag::new(BackendKind::Chaos, 1);
pub const COLS: usize = 8;
pub const MAX_PAGES: usize = 2;
pub const VOCAB: usize = 16;

pub fn dims(tokens: usize, outputs: usize, seqs: usize) -> StepDims {
    StepDims { tokens, outputs, seqs }
}

pub fn reference(tag: BackendTag) -> ReferenceBackend {
    ReferenceBackend::new(tag)
}

/// A deferred device over the reference.
pub fn chaos(tag: BackendTag) -> Chaos<ReferenceBackend> {
    Chaos::new(reference(tag), tag)
}

pub fn devices(list: Vec<Box<dyn Backend>>) -> Backends {
    let mut backends = Backends::new();
    list.into_iter().for_each(|b| backends.push(b));
    backends
}

pub fn one() -> Backends {
    devices(vec![Box::new(reference(CPU))])
}

/// A synchronous host and a deferred device, with the device's statistics.
pub fn host_and_gpu(gpu: Chaos<ReferenceBackend>) -> (Backends, ChaosHandle) {
    let handle = gpu.handle();
    (devices(vec![Box::new(reference(CPU)), Box::new(gpu)]), handle)
}

/// Bytes of a weight; they depend on its name alone.
pub fn weight_bytes(spec: &WeightSpec) -> Vec<u8> {
    let mut rng = Rng::labelled(1, &spec.name);
    rng.normals(spec.rows * spec.cols, 0.5).iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn load_weights(graph: &Graph, backends: &mut Backends) {
    let tags: Vec<BackendTag> = backends.iter().map(|b| b.tag()).collect();
    for tag in tags {
        for spec in &graph.weights {
            backends.get_mut(tag).unwrap().load_weight(spec, &weight_bytes(spec)).unwrap();
        }
    }
}

/// A plan with everything it needs to run.
pub struct Rig {
    pub backends: Backends,
    pub plan: Plan,
    pub alloc: GraphAllocator,
    pub kv: KvStorage,
    pub scheduler: BackendScheduler,
}

impl Rig {
    pub fn new(graph: &Graph, mut backends: Backends, opts: &PlanOptions<'_>) -> Rig {
        load_weights(graph, &mut backends);
        let plan = plan(graph.clone(), &backends, opts).unwrap();
        let kv = KvStorage::new(&mut backends, &kv_layers(&plan.graph), MAX_PAGES, KvType::F32).unwrap();
        let alloc = GraphAllocator::new(&plan, &mut backends, Some(&kv)).unwrap();
        Rig { backends, plan, alloc, kv, scheduler: BackendScheduler::default() }
    }

    /// Fills every input with data that depends on the seed, the input's name and `past` alone.
    pub fn fill(&mut self, seed: u64, past: usize, step: StepDims) {
        for node in self.plan.graph.nodes.clone().iter().filter(|n| n.is_input()) {
            let Op::Input(kind) = node.op else { continue };
            let (plan, alloc, backends) = (&self.plan, &mut self.alloc, &mut self.backends);
            if kind == InputKind::Value {
                let values = Rng::labelled(seed, &node.name).normals(node.shape.len(step), 1.0);
                alloc.fill_input_f32(plan, backends, node.id, &values).unwrap();
            } else {
                let values = indices(kind, seed, past, step, node.shape.cols);
                alloc.fill_input_i32(plan, backends, node.id, &values).unwrap();
            }
        }
    }

    pub fn execute(&mut self, step: Step<'_>) -> Result<(), GraphError> {
        self.scheduler.execute(&self.plan, &mut self.alloc, &mut self.backends, step)
    }

    pub fn read(&mut self, node: NodeId, step: StepDims) -> Result<Vec<f32>, GraphError> {
        let shape = self.plan.graph.node(node).shape;
        let mut out = vec![0.0; shape.len(step)];
        self.alloc.read_f32(&self.plan, &mut self.backends, node, 0..shape.n_rows(step), &mut out)?;
        Ok(out)
    }

    /// Fills, executes, reads all outputs.
    pub fn run(&mut self, seed: u64, past: usize, step: StepDims) -> Result<Vec<Vec<f32>>, GraphError> {
        self.fill(seed, past, step);
        self.execute(Step::new(step))?;
        self.plan.graph.outputs.clone().into_iter().map(|o| self.read(o, step)).collect()
    }
}

fn kv_layers(graph: &Graph) -> Vec<(KvShape, BackendTag)> {
    let live = graph.live();
    let shape = |op: &Op| match op {
        Op::KvStore(kv) => Some(*kv),
        Op::QkvRopeStore(f) => Some(f.kv),
        _ => None,
    };
    graph.nodes.iter().filter(|n| live[n.id]).filter_map(|n| Some((shape(&n.op)?, n.backend?))).collect()
}

fn indices(kind: InputKind, seed: u64, past: usize, step: StepDims, width: usize) -> Vec<i32> {
    let mut rng = Rng::labelled(seed, &format!("{kind:?}"));
    let mut random = |n: usize, below: usize| (0..n).map(|_| rng.below(below) as i32).collect();
    match kind {
        InputKind::TokenIds => random(step.tokens, VOCAB),
        InputKind::OutputRows => random(step.outputs, step.tokens),
        // One sequence whose pages are stored in reverse.
        InputKind::Positions => (past..past + step.tokens).map(|p| p as i32).collect(),
        InputKind::KvRows { .. } => (past..past + step.tokens)
            .map(|p| ((MAX_PAGES - 1 - p / PAGE) * PAGE + p % PAGE) as i32)
            .collect(),
        InputKind::Extents => vec![0, step.tokens as i32, past as i32],
        InputKind::PageTable { .. } => (0..width).rev().map(|p| p as i32).collect(),
        InputKind::Value => Vec::new(),
    }
}

pub fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

pub fn finite(values: &[Vec<f32>]) -> bool {
    values.iter().flatten().all(|v| v.is_finite())
}

pub fn matrix(b: &mut GraphBuilder, name: &str, rows: usize, cols: usize) -> WeightId {
    b.weight(WeightSpec::new(name, TensorType::F32, rows, cols))
}

pub fn rope() -> Rope {
    Rope {
        style: RopeStyle::Halves,
        head_dim: 4,
        n_rot: 4,
        base: 100.0,
        freq_scale: 1.0,
        factors: None,
        yarn: None,
        magnitude: 1.0,
    }
}

pub fn kv_shape(layer: usize) -> KvShape {
    KvShape { layer, n_kv_head: 1, head_dim: 4, v_dim: 4 }
}

/// Inputs of attention, shared by all layers.
#[derive(Clone, Copy)]
pub struct AttentionInputs {
    pub positions: NodeId,
    pub rows: NodeId,
    pub extents: NodeId,
    pub table: NodeId,
}

pub fn attention_inputs(b: &mut GraphBuilder) -> AttentionInputs {
    AttentionInputs {
        positions: b.input("positions", InputKind::Positions, 1),
        rows: b.input("kv_rows", InputKind::KvRows { group: 0 }, 1),
        extents: b.input("extents", InputKind::Extents, 3),
        table: b.input("page_table", InputKind::PageTable { group: 0 }, MAX_PAGES),
    }
}

/// Projections (with biases if asked), rotation, store, load, attention: `[Tokens, COLS]` to the same.
pub fn attention_block(
    b: &mut GraphBuilder,
    i: AttentionInputs,
    layer: usize,
    bias: bool,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    let p = format!("blk.{layer}.");
    let project = |b: &mut GraphBuilder, what: &str, rows: usize| {
        let w = matrix(b, &format!("{p}{what}.weight"), rows, COLS);
        let y = b.matmul(&format!("{p}{what}"), w, ActPrecision::Int8, x)?;
        if !bias {
            return Ok(y);
        }
        let w = matrix(b, &format!("{p}{what}.bias"), 1, rows);
        b.add_bias(&format!("{p}{what}_bias"), w, y)
    };
    let q = project(b, "q", COLS)?;
    let k = project(b, "k", 4)?;
    let v = project(b, "v", 4)?;
    let q = b.rope(&format!("{p}q_rope"), rope(), q, i.positions)?;
    let k = b.rope(&format!("{p}k_rope"), rope(), k, i.positions)?;
    let load = b.kv_store_load(&p, kv_shape(layer), k, v, i.rows)?;
    let attention = Attention {
        layer,
        n_head: 2,
        n_kv_head: 1,
        head_dim: 4,
        v_dim: 4,
        scale: 0.5,
        window: None,
        softcap: None,
        sinks: None,
    };
    b.attention(&format!("{p}attn"), attention, q, load, i.extents, i.table)
}

/// `silu(x) + x` with x pinned to the host, as in the founding chapter.
pub fn seed_graph() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", InputKind::Value, COLS);
    b.pin(x, CPU);
    let s = b.silu("silu", x).unwrap();
    b.pin(s, GPU);
    let y = b.add("sum", s, x).unwrap();
    b.pin(y, CPU);
    b.output(y);
    b.finish(0)
}

/// A random graph of 20 to 50 nodes: in-place chains, values read far away, inputs in the middle,
/// dead nodes, patterns that fuse, up to two attention layers, and rows gathered at the end. Values
/// stay finite: products are normed.
pub fn random_graph(seed: u64) -> Graph {
    build_random(seed).unwrap()
}

fn build_random(seed: u64) -> Result<Graph, GraphError> {
    let mut rng = Rng::labelled(seed, "graph");
    let mut b = GraphBuilder::new();
    let inputs = attention_inputs(&mut b);
    let table = matrix(&mut b, "embed", VOCAB, COLS);
    let ids = b.input("ids", InputKind::TokenIds, 1);
    let mut values = vec![b.embed("tok", table, ids)?, b.input("x", InputKind::Value, COLS)];
    let mut layers = 0;
    for i in 0..12 + rng.below(12) {
        let pick = |rng: &mut Rng| values[values.len() - 1 - rng.below(values.len().min(6))];
        let (x, y) = (pick(&mut rng), pick(&mut rng));
        let value = match rng.below(12) {
            0 if layers < 2 => {
                layers += 1;
                let n = b.rms_norm("attn_norm", None, 1e-5, x)?;
                attention_block(&mut b, inputs, layers - 1, rng.below(2) == 0, n)?
            }
            1 => b.input(&format!("in.{i}"), InputKind::Value, COLS),
            n => random_op(&mut b, n, i, inputs, x, y)?,
        };
        values.push(value);
        if rng.below(12) == 0 {
            b.output(value);
        }
    }
    let rows = b.input("output_rows", InputKind::OutputRows, 1);
    let last = b.gather_rows("tail", values[values.len() - 1], rows)?;
    let residual = b.gather_rows("tail_residual", values[values.len() - 2], rows)?;
    let sum = b.add("tail_sum", last, residual)?;
    let w = matrix(&mut b, "head", 5, COLS);
    let logits = b.matmul("logits", w, ActPrecision::Int16, sum)?;
    b.output(logits);
    Ok(b.finish(seed))
}

fn random_op(
    b: &mut GraphBuilder,
    kind: usize,
    i: usize,
    inputs: AttentionInputs,
    x: NodeId,
    y: NodeId,
) -> Result<NodeId, GraphError> {
    let name = format!("op.{i}");
    let product = |b: &mut GraphBuilder, p: NodeId| b.rms_norm(&format!("norm.{i}"), None, 1e-5, p);
    match kind {
        0 | 2 => b.add(&name, x, y),
        3 => b.silu(&name, x),
        4 => {
            let p = b.mul(&name, x, y)?;
            product(b, p)
        }
        5 => {
            let s = b.silu(&format!("silu.{i}"), x)?;
            let p = b.mul(&name, y, s)?;
            product(b, p)
        }
        6 => {
            let w = matrix(b, &format!("w.{i}"), COLS, COLS);
            let m = b.matmul(&format!("mm.{i}"), w, ActPrecision::Int8, x)?;
            let bias = matrix(b, &format!("b.{i}"), 1, COLS);
            b.add_bias(&name, bias, m)
        }
        7 => {
            let w = matrix(b, &format!("n.{i}"), 1, COLS);
            b.rms_norm(&name, Some(w), 1e-5, x)
        }
        8 => b.rope(&name, rope(), x, inputs.positions),
        9 => {
            let p = b.push(&name, Op::SwiGlu, &[x, y])?;
            product(b, p)
        }
        10 => {
            let bias = matrix(b, &format!("b.{i}"), 1, COLS);
            b.add_bias(&name, bias, x)
        }
        _ => b.add(&name, y, x),
    }
}

pub fn value_input(b: &mut GraphBuilder, name: &str) -> NodeId {
    b.input_value(name, Shape::new(Dim::Tokens, COLS))
}

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
