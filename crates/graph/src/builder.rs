//! Fluent construction of a graph. Every source exists before its consumer, so that build order is
//! a topological order.

use crate::backend::BackendTag;
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, WeightId, WeightSpec};
use crate::infer::infer;
use crate::op::{ActPrecision, Attention, InputKind, KvShape, Op, Rope};
use crate::shape::{DType, Dim, Shape};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Builds a [`Graph`] node by node; shapes are inferred and checked at once.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    nodes: Vec<Node>,
    weights: Vec<WeightSpec>,
    weight_ids: HashMap<String, WeightId>,
    names: HashMap<String, NodeId>,
    outputs: Vec<NodeId>,
    /// Block of the nodes that are added now.
    block: Option<usize>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a weight; the same name gives the same id.
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        if let Some(&id) = self.weight_ids.get(&spec.name) {
            return id;
        }
        let id = WeightId(self.weights.len());
        self.weight_ids.insert(spec.name.clone(), id);
        self.weights.push(spec);
        id
    }

    /// Says which of the model's blocks the nodes added from now on belong to.
    pub fn enter_block(&mut self, block: Option<usize>) {
        self.block = block;
    }

    /// Adds a node. Its name gets a numeric suffix if taken.
    pub fn push(&mut self, name: &str, op: Op, src: &[NodeId]) -> Result<NodeId, GraphError> {
        let (shape, dtype) =
            infer(&op, src, &self.nodes, &self.weights).map_err(|reason| self.invalid(name, &op, reason))?;
        Ok(self.insert(name, op, src, shape, dtype))
    }

    fn invalid(&self, name: &str, op: &Op, reason: String) -> GraphError {
        let node = crate::error::NodeRef { id: self.nodes.len(), name: name.to_string(), op: op.name() };
        GraphError::Invalid { node, reason }
    }

    fn insert(&mut self, name: &str, op: Op, src: &[NodeId], shape: Shape, dtype: DType) -> NodeId {
        let id = self.nodes.len();
        let mut unique = name.to_string();
        let mut n = 1;
        while self.names.contains_key(&unique) {
            n += 1;
            unique = format!("{name}.{n}");
        }
        self.names.insert(unique.clone(), id);
        let (src, block) = (src.to_vec(), self.block);
        let node = Node { id, name: unique, op, src, shape, dtype, block, backend: None, pinned: false };
        self.nodes.push(node);
        id
    }

    /// A step input; its shape follows from its kind (`width` is the page-table capacity).
    pub fn input(&mut self, name: &str, kind: InputKind, width: usize) -> NodeId {
        let (rows, cols, dtype) = match kind {
            InputKind::TokenIds | InputKind::Positions | InputKind::KvRows { .. } => {
                (Dim::Tokens, 1, DType::I32)
            }
            InputKind::Extents => (Dim::Seqs, 3, DType::I32),
            InputKind::PageTable { .. } => (Dim::Seqs, width, DType::I32),
            InputKind::OutputRows => (Dim::Outputs, 1, DType::I32),
            InputKind::Value => (Dim::Tokens, width, DType::F32),
        };
        self.insert(name, Op::Input(kind), &[], Shape::new(rows, cols), dtype)
    }

    /// An f32 input of any shape.
    pub fn input_value(&mut self, name: &str, shape: Shape) -> NodeId {
        self.insert(name, Op::Input(InputKind::Value), &[], shape, DType::F32)
    }

    /// Fixes where a node runs, before assignment.
    pub fn pin(&mut self, node: NodeId, tag: BackendTag) {
        self.nodes[node].backend = Some(tag);
        self.nodes[node].pinned = true;
    }

    /// Marks a node as read by the caller.
    pub fn output(&mut self, node: NodeId) {
        self.outputs.push(node);
    }

    /// `[Tokens, n_embd]` rows of a table.
    pub fn embed(&mut self, name: &str, weight: WeightId, ids: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::Embed { weight }, &[ids])
    }

    /// `[rows, n_out]` product with a weight.
    pub fn matmul(
        &mut self,
        name: &str,
        weight: WeightId,
        act: ActPrecision,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.push(name, Op::MatMul { weight, bias: None, act }, &[x])
    }

    /// Adds a bias to each row.
    pub fn add_bias(&mut self, name: &str, bias: WeightId, x: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::AddBias { bias }, &[x])
    }

    /// Root-mean-square norm of each row.
    pub fn rms_norm(
        &mut self,
        name: &str,
        weight: Option<WeightId>,
        eps: f32,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.push(name, Op::RmsNorm { weight, eps, parts: 1 }, &[x])
    }

    /// Root-mean-square norm of each of a row's equal parts.
    pub fn rms_norm_parts(
        &mut self,
        name: &str,
        weight: WeightId,
        eps: f32,
        parts: usize,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.push(name, Op::RmsNorm { weight: Some(weight), eps, parts }, &[x])
    }

    /// Elementwise sum.
    pub fn add(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::Add, &[a, b])
    }

    /// Elementwise product.
    pub fn mul(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::Mul, &[a, b])
    }

    /// Elementwise SiLU.
    pub fn silu(&mut self, name: &str, x: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::Silu, &[x])
    }

    /// Rotary embedding.
    pub fn rope(
        &mut self,
        name: &str,
        rope: Rope,
        x: NodeId,
        positions: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.push(name, Op::Rope(rope), &[x, positions])
    }

    /// Stores k and v, then loads the layer's region: returns the load node.
    pub fn kv_store_load(
        &mut self,
        prefix: &str,
        kv: KvShape,
        k: NodeId,
        v: NodeId,
        kv_rows: NodeId,
    ) -> Result<NodeId, GraphError> {
        let store = self.push(&format!("{prefix}kv_store"), Op::KvStore(kv), &[k, v, kv_rows])?;
        self.push(&format!("{prefix}kv_load"), Op::KvLoad(kv), &[store])
    }

    /// Attention over the paged cache.
    pub fn attention(
        &mut self,
        name: &str,
        attention: Attention,
        q: NodeId,
        kv_load: NodeId,
        extents: NodeId,
        page_table: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.push(name, Op::Attention(attention), &[q, kv_load, extents, page_table])
    }

    /// Rows picked by index.
    pub fn gather_rows(&mut self, name: &str, x: NodeId, rows: NodeId) -> Result<NodeId, GraphError> {
        self.push(name, Op::GatherRows, &[x, rows])
    }

    /// The finished graph. `seed` goes into the uid (a hash of the model and the parameters).
    pub fn finish(self, seed: u64) -> Graph {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        for n in &self.nodes {
            (n.op.name(), &n.name, &n.src, n.shape).hash(&mut hasher);
        }
        Graph { uid: hasher.finish(), nodes: self.nodes, weights: self.weights, outputs: self.outputs }
    }
}
