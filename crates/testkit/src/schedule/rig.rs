//! Devices, and a plan with everything that it needs to run on them.

use crate::ReferenceBackend;
use crate::rng::Rng;
use minfer_graph::{
    Backend, BackendKind, BackendScheduler, BackendTag, Backends, Chaos, ChaosHandle, Graph, GraphAllocator,
    GraphError, InputKind, KvShape, KvStorage, KvType, NodeId, Op, PAGE, Plan, PlanOptions, Step, StepDims,
    WeightSpec, plan,
};

/// The host.
pub const CPU: BackendTag = BackendTag::CPU;
/// A device that queues.
pub const GPU: BackendTag = BackendTag::new(BackendKind::Chaos, 0);
/// A second one.
pub const GPU1: BackendTag = BackendTag::new(BackendKind::Chaos, 1);
/// Width of the values of these graphs.
pub const COLS: usize = 8;
/// KV pages of a sequence.
pub const MAX_PAGES: usize = 2;
/// Rows of the embedding.
pub const VOCAB: usize = 16;

/// Sizes of a step.
pub fn dims(tokens: usize, outputs: usize, seqs: usize) -> StepDims {
    StepDims { tokens, outputs, seqs }
}

/// A device that computes at once.
pub fn reference(tag: BackendTag) -> ReferenceBackend {
    ReferenceBackend::new(tag)
}

/// A deferred device over the reference.
pub fn chaos(tag: BackendTag) -> Chaos<ReferenceBackend> {
    Chaos::new(reference(tag), tag)
}

/// Devices in order of priority.
pub fn devices(list: Vec<Box<dyn Backend>>) -> Backends {
    let mut backends = Backends::new();
    list.into_iter().for_each(|b| backends.push(b));
    backends
}

/// The host alone.
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

/// Loads every weight on every device.
///
/// # Errors
/// What a device says.
pub fn load_weights(graph: &Graph, backends: &mut Backends) -> Result<(), GraphError> {
    let tags: Vec<BackendTag> = backends.iter().map(|b| b.tag()).collect();
    for spec in &graph.weights {
        let bytes = weight_bytes(spec);
        for &tag in &tags {
            backends.get_mut(tag)?.load_weight(spec, &bytes).map_err(|e| e.on(tag))?;
        }
    }
    Ok(())
}

/// A plan with everything it needs to run.
pub struct Rig {
    /// The devices.
    pub backends: Backends,
    /// The plan.
    pub plan: Plan,
    /// Its buffers.
    pub alloc: GraphAllocator,
    /// The KV cache.
    pub kv: KvStorage,
    /// What runs it.
    pub scheduler: BackendScheduler,
}

impl Rig {
    /// Plans a graph, loads its weights everywhere and allocates.
    ///
    /// # Errors
    /// What planning or a device says.
    pub fn new(graph: &Graph, backends: Backends, opts: &PlanOptions<'_>) -> Result<Rig, GraphError> {
        let plan = plan(graph.clone(), &backends, opts)?;
        Rig::of_plan(plan, backends)
    }

    /// Loads the weights of a plan that was made for these devices, and allocates.
    ///
    /// # Errors
    /// What a device says.
    pub fn of_plan(plan: Plan, mut backends: Backends) -> Result<Rig, GraphError> {
        load_weights(&plan.graph, &mut backends)?;
        let kv = KvStorage::new(&mut backends, &kv_layers(&plan.graph), MAX_PAGES, KvType::F32)?;
        let alloc = GraphAllocator::new(&plan, &mut backends, Some(&kv))?;
        Ok(Rig { backends, plan, alloc, kv, scheduler: BackendScheduler::default() })
    }

    /// Fills every input with data that depends on the seed, the input's name and `past` alone.
    ///
    /// # Errors
    /// What a device says.
    pub fn fill(&mut self, seed: u64, past: usize, step: StepDims) -> Result<(), GraphError> {
        let Rig { plan, alloc, backends, .. } = self;
        for node in &plan.graph.nodes {
            match node.op {
                Op::Input(InputKind::Value) => {
                    let values = Rng::labelled(seed, &node.name).normals(node.shape.len(step), 1.0);
                    alloc.fill_input_f32(plan, backends, node.id, &values)?;
                }
                Op::Input(kind) => {
                    let values = indices(kind, seed, past, step, node.shape.cols);
                    alloc.fill_input_i32(plan, backends, node.id, &values)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs a step.
    ///
    /// # Errors
    /// As [`BackendScheduler::execute`].
    pub fn execute(&mut self, step: Step<'_>) -> Result<(), GraphError> {
        self.scheduler.execute(&self.plan, &mut self.alloc, &mut self.backends, step)
    }

    /// A value after a step.
    ///
    /// # Errors
    /// As [`GraphAllocator::read_f32`].
    pub fn read(&mut self, node: NodeId, step: StepDims) -> Result<Vec<f32>, GraphError> {
        let shape = self.plan.graph.node(node).shape;
        let mut out = vec![0.0; shape.len(step)];
        self.alloc.read_f32(&self.plan, &mut self.backends, node, 0..shape.n_rows(step), &mut out)?;
        Ok(out)
    }

    /// Fills, executes, reads all outputs.
    ///
    /// # Errors
    /// What filling, executing or reading says.
    pub fn run(&mut self, seed: u64, past: usize, step: StepDims) -> Result<Vec<Vec<f32>>, GraphError> {
        self.fill(seed, past, step)?;
        self.execute(Step::new(step))?;
        self.read_outputs(step)
    }

    /// All outputs of a step.
    ///
    /// # Errors
    /// As [`GraphAllocator::read_f32`].
    pub fn read_outputs(&mut self, step: StepDims) -> Result<Vec<Vec<f32>>, GraphError> {
        self.plan.graph.outputs.clone().into_iter().map(|o| self.read(o, step)).collect()
    }
}

fn kv_layers(graph: &Graph) -> Vec<(KvShape, BackendTag)> {
    let live = graph.live();
    let writers = graph.nodes.iter().filter(|n| live[n.id] && n.op.writes_kv());
    writers.filter_map(|n| Some((n.op.kv_shape()?, n.backend?))).collect()
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

/// Values as bits, for comparisons in which a NaN equals itself.
pub fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Whether no value is NaN or infinite.
pub fn finite(values: &[Vec<f32>]) -> bool {
    values.iter().flatten().all(|v| v.is_finite())
}
