//! Building a case: random data from a seed that depends on the case's name alone.

use super::{KvContent, OpCase, Tolerance};
use crate::rng::Rng;
use minfer_gguf::{TensorType, encode_row};
use minfer_graph::{
    Dim, GraphBuilder, InputKind, KvShape, KvTypes, NodeId, Op, Shape, StepDims, WeightId, WeightSpec,
};

/// Collects a case. A malformed graph is a mistake in the case, so that it panics.
#[derive(Debug)]
pub struct CaseBuilder {
    name: String,
    dims: StepDims,
    graph: GraphBuilder,
    rng: Rng,
    inputs: Vec<(NodeId, Vec<u8>)>,
    weights: Vec<(WeightSpec, Vec<u8>)>,
    kv: Vec<KvContent>,
    aliases: Vec<(NodeId, usize)>,
    kv_tolerance: Tolerance,
}

impl CaseBuilder {
    /// An empty case with the sizes of its step.
    pub fn new(name: impl Into<String>, tokens: usize, outputs: usize, seqs: usize) -> Self {
        let name = name.into();
        CaseBuilder {
            rng: Rng::labelled(0, &name),
            name,
            dims: StepDims { tokens, outputs, seqs },
            graph: GraphBuilder::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            kv: Vec::new(),
            aliases: Vec::new(),
            kv_tolerance: Tolerance::Bits,
        }
    }

    /// The case's random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// A random `[Tokens, cols]` f32 input.
    pub fn rows(&mut self, name: &str, cols: usize) -> NodeId {
        self.rows_scaled(name, cols, 1.0)
    }

    /// A random `[Tokens, cols]` f32 input of a given size.
    pub fn rows_scaled(&mut self, name: &str, cols: usize, gain: f64) -> NodeId {
        let values = self.rng.normals(self.dims.tokens * cols, gain);
        self.values(name, cols, &values)
    }

    /// A `[Tokens, cols]` f32 input with these values.
    pub fn values(&mut self, name: &str, cols: usize, values: &[f32]) -> NodeId {
        assert_eq!(values.len(), self.dims.tokens * cols, "{}: size of {name}", self.name);
        let node = self.graph.input_value(name, Shape::new(Dim::Tokens, cols));
        self.inputs.push((node, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
        node
    }

    /// An i32 input; `width` is the number of columns of a page table.
    pub fn ints(&mut self, name: &str, kind: InputKind, width: usize, values: &[i32]) -> NodeId {
        let node = self.graph.input(name, kind, width);
        self.inputs.push((node, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
        node
    }

    /// A random weight with unit gain per row.
    pub fn weight(&mut self, name: &str, ty: TensorType, rows: usize, cols: usize) -> WeightId {
        let values = self.rng.normals(rows * cols, 1.0 / (cols as f64).sqrt());
        self.weight_values(name, ty, rows, cols, &values)
    }

    /// A random f32 vector around a centre.
    pub fn vector(&mut self, name: &str, n: usize, centre: f32) -> WeightId {
        let values: Vec<f32> = self.rng.normals(n, 0.3).iter().map(|v| v + centre).collect();
        self.weight_values(name, TensorType::F32, 1, n, &values)
    }

    /// A weight with these values, encoded.
    pub fn weight_values(
        &mut self,
        name: &str,
        ty: TensorType,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> WeightId {
        let mut bytes = Vec::new();
        for row in values.chunks(cols) {
            encode_row(ty, row, &mut bytes).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.name));
        }
        let spec = WeightSpec::new(format!("{}/{name}", self.name), ty, rows, cols);
        self.weights.push((spec.clone(), bytes));
        self.graph.weight(spec)
    }

    /// A layer's KV regions, every element NaN.
    pub fn kv(&mut self, shape: KvShape, ty: KvTypes, n_pages: usize) -> &mut KvContent {
        let (k, v) = ty.page_bytes(&shape);
        // 0xFF bytes are a NaN in every type.
        let [k, v] = [k, v].map(|page| vec![0xff; page * n_pages]);
        self.kv.push(KvContent { shape, ty, n_pages, k, v });
        let last = self.kv.len() - 1;
        &mut self.kv[last]
    }

    /// The random numbers and the last KV content together, to fill the one from the other.
    pub fn kv_and_rng(&mut self) -> (&mut [KvContent], &mut Rng) {
        (&mut self.kv, &mut self.rng)
    }

    /// Lets elements that the step stores differ from the reference.
    pub fn kv_tolerance(&mut self, tolerance: Tolerance) {
        self.kv_tolerance = tolerance;
    }

    /// Adds a node.
    pub fn push(&mut self, name: &str, op: Op, src: &[NodeId]) -> NodeId {
        self.graph.push(name, op, src).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// Lets a node's output take the range of one of its sources.
    pub fn alias(&mut self, node: NodeId, source: usize) {
        self.aliases.push((node, source));
    }

    /// The case.
    pub fn finish(mut self, outputs: &[NodeId], tolerance: Tolerance) -> OpCase {
        for &node in outputs {
            self.graph.output(node);
        }
        OpCase {
            name: self.name,
            graph: self.graph.finish(0),
            dims: self.dims,
            inputs: self.inputs,
            weights: self.weights,
            kv: self.kv,
            aliases: self.aliases,
            tolerance,
            kv_tolerance: self.kv_tolerance,
        }
    }
}
