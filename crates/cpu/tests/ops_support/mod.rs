//! What the op tests share: a bench that runs single nodes, random values, the page layout written out
//! once more, and the numeric contract as plain loops ([`contract`]).
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod attention;
pub mod cache;
pub mod contract;

use minfer_cpu::{CpuBackend, CpuOptions, Isa};
use minfer_gguf::TensorType;
use minfer_graph::{
    Backend, BackendError, BufferSlice, Graph, GraphBuilder, KvPair, NodeCall, NodeId, StepDims, WeightId,
    WeightSpec,
};

/// Values from a seed; the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// In [-1, 1).
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut list: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            list.swap(i, self.below(i + 1));
        }
        list
    }
}

/// Every instruction set and a few thread counts.
pub fn all_options() -> Vec<CpuOptions> {
    let isas = Isa::available();
    let with = |&isa: &Isa| [1, 2, 3].map(|threads| CpuOptions { threads: Some(threads), isa: Some(isa) });
    isas.iter().flat_map(with).collect()
}

pub fn f32_weight(b: &mut GraphBuilder, name: &str, rows: usize, cols: usize) -> WeightId {
    b.weight(WeightSpec::new(name, TensorType::F32, rows, cols))
}

/// A backend with a buffer per node.
pub struct Bench {
    pub backend: CpuBackend,
    pub graph: Graph,
    pub dims: StepDims,
    pub slices: Vec<BufferSlice>,
    pub kv: Option<KvPair>,
}

impl Bench {
    pub fn new(graph: Graph, dims: StepDims, options: CpuOptions) -> Bench {
        let mut backend = CpuBackend::new(options);
        let slices = slices(&mut backend, &graph, dims);
        Bench { backend, graph, dims, slices, kv: None }
    }

    /// New buffers for another step size; weights and KV regions stay.
    pub fn resize(&mut self, dims: StepDims) {
        self.slices = slices(&mut self.backend, &self.graph, dims);
        self.dims = dims;
    }

    pub fn load(&mut self, name: &str, values: &[f32]) {
        let spec = self.graph.weights.iter().find(|w| w.name == name).unwrap().clone();
        self.backend.load_weight(&spec, bytemuck::cast_slice(values)).unwrap();
    }

    pub fn set_f32(&mut self, node: NodeId, values: &[f32]) {
        self.backend.write_host(self.slices[node], bytemuck::cast_slice(values)).unwrap();
    }

    pub fn set_i32(&mut self, node: NodeId, values: &[i32]) {
        self.backend.write_host(self.slices[node], bytemuck::cast_slice(values)).unwrap();
    }

    /// Runs a node with its output anywhere.
    pub fn run_to(&mut self, id: NodeId, output: BufferSlice) -> Result<(), BackendError> {
        let node = self.graph.node(id);
        let inputs: Vec<BufferSlice> = node.src.iter().map(|&s| self.slices[s]).collect();
        let call =
            NodeCall { graph: &self.graph, node, inputs: &inputs, output, kv: self.kv, dims: self.dims };
        self.backend.execute_node(&call)
    }

    pub fn run(&mut self, id: NodeId) -> Result<(), BackendError> {
        self.run_to(id, self.slices[id])
    }

    /// Runs every node that is no input.
    pub fn run_all(&mut self) {
        for id in 0..self.graph.nodes.len() {
            if !self.graph.node(id).is_input() {
                self.run(id).unwrap();
            }
        }
    }

    pub fn get(&mut self, node: NodeId) -> Vec<f32> {
        self.read(self.slices[node])
    }

    pub fn read(&mut self, slice: BufferSlice) -> Vec<f32> {
        let mut values = vec![0f32; slice.len / 4];
        self.backend.read_host(slice, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }
}

fn slices(backend: &mut CpuBackend, graph: &Graph, dims: StepDims) -> Vec<BufferSlice> {
    let mut slice = |n: &minfer_graph::Node| {
        let len = n.shape.len(dims) * n.dtype.bytes();
        BufferSlice { buffer: backend.alloc_buffer(len).unwrap(), offset: 0, len }
    };
    graph.nodes.iter().map(&mut slice).collect()
}

pub fn dims(tokens: usize, seqs: usize) -> StepDims {
    StepDims { tokens, outputs: tokens, seqs }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Fails with the first difference.
#[track_caller]
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let differ = |(g, w): (&f32, &f32)| g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan());
    if let Some(i) = got.iter().zip(want).position(differ) {
        panic!("{what}: value {i} of {} is {} and should be {}", got.len(), got[i], want[i]);
    }
}

/// Fails if a value is off by more than `tolerance`.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= tolerance, "{what}: value {i} is {g} and should be {w}");
    }
}
