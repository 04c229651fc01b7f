//! What the scheduler itself costs: decode steps of a model's plan on a device that does nothing.
//!
//! `cargo run --release -p minfer --example scheduler_cost -- MODEL.gguf [STEPS]`

#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use minfer::ModelFile;
use minfer_graph::{
    Backend, BackendError, BackendScheduler, BackendTag, Backends, BufferId, BufferRules, BufferSlice,
    Capture, Graph, GraphAllocator, GraphError, KvPair, KvStorage, KvType, MemoryInfo, Node, NodeCall, Op,
    PAGE, PlanOptions, Step, StepDims, Unsupported, WeightSpec, plan,
};
use minfer_models::{GraphParams, Stage, build_graph};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Takes everything and does nothing.
struct Nothing {
    buffers: usize,
}

impl Nothing {
    fn buffer(&mut self) -> Result<BufferId, BackendError> {
        self.buffers += 1;
        Ok(BufferId(self.buffers))
    }
}

impl Backend for Nothing {
    fn tag(&self) -> BackendTag {
        BackendTag::CPU
    }
    fn name(&self) -> String {
        "nothing".into()
    }
    fn supports(&self, _: &Graph, _: &Node) -> Result<(), Unsupported> {
        Ok(())
    }
    fn buffer_rules(&self) -> BufferRules {
        BufferRules { alignment: 64, max_binding: usize::MAX, read_write_one_buffer: true, in_place: true }
    }
    fn memory(&self) -> MemoryInfo {
        MemoryInfo::default()
    }
    fn buffer_bytes(&self) -> usize {
        0
    }
    fn alloc_buffer(&mut self, _: usize) -> Result<BufferId, BackendError> {
        self.buffer()
    }
    fn alloc_fresh(&mut self, _: usize) -> Result<BufferId, BackendError> {
        self.buffer()
    }
    fn free_buffer(&mut self, _: BufferId) {}
    fn load_weight(&mut self, _: &WeightSpec, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
    fn copy_pages(&mut self, _: KvPair, _: &[(usize, usize)]) -> Result<(), BackendError> {
        Ok(())
    }
    fn write_host(&mut self, _: BufferSlice, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
    fn read_host(&mut self, _: BufferSlice, _: &mut [u8]) -> Result<(), BackendError> {
        Ok(())
    }
    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        std::hint::black_box(call);
        Ok(())
    }
    fn capture(&mut self, _: usize, _: BufferSlice) -> Result<(), BackendError> {
        Ok(())
    }
    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        Ok(Vec::new())
    }
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which model file?")?;
    let steps: u32 = args.next().map_or(Ok(10_000), |n| n.parse())?;
    let file = ModelFile::open(Path::new(&path))?;
    let one = StepDims { tokens: 1, outputs: 1, seqs: 1 };
    let params = GraphParams { stage: Stage::Full, capacity: one, max_pages: 8192 / PAGE };
    let graph = build_graph(&file.spec()?, &params, 0)?;
    let mut backends = Backends::new();
    backends.push(Box::new(Nothing { buffers: 0 }));
    let plan = plan(graph, &backends, &PlanOptions::new(one))?;
    let loads = plan.graph.nodes.iter().filter_map(|n| match n.op {
        Op::KvLoad(shape) => n.backend.map(|tag| (shape, tag)),
        _ => None,
    });
    let kv = KvStorage::new(&mut backends, &loads.collect::<Vec<_>>(), 8192 / PAGE, KvType::F16)?;
    let mut alloc = GraphAllocator::new(&plan, &mut backends, Some(&kv))?;
    let mut scheduler = BackendScheduler::default();
    let mut step = || -> Result<(), GraphError> {
        for node in plan.graph.nodes.iter().filter(|n| n.is_input()) {
            let values = vec![0; node.shape.len(one)];
            alloc.fill_input_i32(&plan, &mut backends, node.id, &values)?;
        }
        scheduler.execute(&plan, &mut alloc, &mut backends, Step::new(one))
    };
    for _ in 0..steps / 10 {
        step()?;
    }
    let started = Instant::now();
    for _ in 0..steps {
        step()?;
    }
    let per_step = started.elapsed() / steps;
    let nodes = scheduler.counters.nodes / scheduler.counters.executes;
    println!("{per_step:.2?} per decode step of {nodes} nodes, inputs filled");
    Ok(())
}
