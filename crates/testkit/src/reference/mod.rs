//! A naive interpreter of the graph's operations: the living definition of every [`Op`].
//!
//! It is synchronous, keeps weights as the file's bytes and dequantises them on use, takes activations
//! as they are, sums in f64 and rounds each output to f32 once. Results depend on values alone, never
//! on buffers, so that a run with shared buffers and one without agree bit for bit. Everything that a
//! caller can get wrong is an error: unknown ids, ranges of the wrong length, ranges that overlap
//! without being an allowed alias, indices outside their table.

mod experts;
pub mod kv;
mod memory;
pub mod ops;

use kv::Cache;
use memory::{Memory, overlap};
use minfer_graph::{
    Backend, BackendError, BackendTag, BufferId, BufferRules, BufferSlice, Capture, Gating, Graph, KvPair,
    KvShape, MemoryInfo, Node, NodeCall, NodeId, Norm, Op, QkvRopeStore, Rope, Unsupported, WeightId,
    WeightSpec,
};
use ops::{Weight, index};
use std::collections::{BTreeMap, HashMap};

/// Decides whether a backend takes a node.
type Filter = Box<dyn Fn(&Graph, &Node) -> Result<(), Unsupported> + Send>;

/// The reference interpreter as a device.
pub struct ReferenceBackend {
    tag: BackendTag,
    rules: BufferRules,
    refused: BTreeMap<&'static str, String>,
    filter: Option<Filter>,
    memory: Memory,
    weights: HashMap<String, Weight>,
    captures: Vec<Capture>,
}

impl ReferenceBackend {
    /// A device that takes every node and allows everything a memory plan may do.
    pub fn new(tag: BackendTag) -> Self {
        let rules = BufferRules {
            alignment: 4,
            max_binding: usize::MAX,
            read_write_one_buffer: true,
            in_place: true,
        };
        ReferenceBackend {
            tag,
            rules,
            refused: BTreeMap::new(),
            filter: None,
            memory: Memory::default(),
            weights: HashMap::new(),
            captures: Vec::new(),
        }
    }

    /// With other constraints on the memory plan. `in_place = false` also makes aliases an error.
    pub fn with_rules(mut self, rules: BufferRules) -> Self {
        self.rules = rules;
        self
    }

    /// Refuses all ops of a name ([`Op::name`]), giving a reason.
    pub fn refuse(mut self, op: &'static str, reason: &str) -> Self {
        self.refused.insert(op, reason.to_string());
        self
    }

    /// Refuses the nodes for which the function gives an error.
    pub fn with_filter(
        mut self,
        filter: impl Fn(&Graph, &Node) -> Result<(), Unsupported> + Send + 'static,
    ) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    fn weight(&self, graph: &Graph, id: WeightId) -> Result<&Weight, BackendError> {
        let no_spec = || BackendError::WeightMissing(format!("number {} of the graph", id.0));
        let spec = graph.weights.get(id.0).ok_or_else(no_spec)?;
        let weight =
            self.weights.get(&spec.name).ok_or_else(|| BackendError::WeightMissing(spec.name.clone()))?;
        if weight.spec != *spec {
            let reason = format!("loaded as {:?}, used as {spec:?}", weight.spec);
            return Err(BackendError::BadWeight { name: spec.name.clone(), reason });
        }
        Ok(weight)
    }

    /// An optional vector: bias, norm weight, rope factors.
    fn vector(&self, graph: &Graph, id: Option<WeightId>) -> Result<Option<Vec<f32>>, BackendError> {
        id.map(|id| self.weight(graph, id)?.row(0)).transpose()
    }

    /// Checks lengths and overlaps of a call's ranges.
    fn check(&self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let bad = |reason: String| Err(BackendError::BadBuffer(reason));
        let bytes = |n: &Node| n.shape.len(call.dims) * n.dtype.bytes();
        if call.inputs.len() != call.node.src.len() {
            return bad(format!("{} ranges for {} sources", call.inputs.len(), call.node.src.len()));
        }
        for (i, (slice, &src)) in call.inputs.iter().zip(&call.node.src).enumerate() {
            let expected = call.graph.nodes.get(src).map(bytes);
            if expected != Some(slice.len) {
                return bad(format!("source {i} has {} bytes, needs {expected:?}", slice.len));
            }
            self.memory.bytes(*slice)?;
            let aliased =
                self.rules.in_place && *slice == call.output && call.node.op.in_place_sources().contains(&i);
            if overlap(*slice, call.output) && !aliased {
                return bad(format!("output {:?} overlaps source {i} {slice:?}", call.output));
            }
        }
        if call.output.len != bytes(call.node) {
            return bad(format!("output has {} bytes, needs {}", call.output.len, bytes(call.node)));
        }
        let regions = call.kv.iter().flat_map(|kv| [kv.k, kv.v]);
        for region in regions {
            if call.inputs.iter().chain([&call.output]).any(|s| overlap(*s, region)) {
                return bad(format!("a range overlaps the KV region {region:?}"));
            }
        }
        Ok(())
    }

    fn project(
        &self,
        graph: &Graph,
        x: &[f32],
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Result<Vec<f32>, BackendError> {
        ops::matmul(x, self.weight(graph, weight)?, self.vector(graph, bias)?.as_deref())
    }

    fn rotate(
        &self,
        graph: &Graph,
        x: &[f32],
        cols: usize,
        positions: &[i32],
        rope: &Rope,
    ) -> Result<Vec<f32>, BackendError> {
        Ok(ops::rope(x, cols, positions, rope, self.vector(graph, rope.factors)?.as_deref()))
    }

    fn store(
        &mut self,
        call: &NodeCall<'_>,
        kv: &KvShape,
        k: &[f32],
        v: &[f32],
        rows: &[i32],
    ) -> Result<(), BackendError> {
        kv::store(&mut self.memory, &regions(call)?, kv, k, v, rows)
    }

    /// Rows, normalised if there is a norm.
    fn normed(
        &self,
        graph: &Graph,
        x: Vec<f32>,
        cols: usize,
        norm: Option<Norm>,
    ) -> Result<Vec<f32>, BackendError> {
        let Some(Norm { weight, eps, parts }) = norm else { return Ok(x) };
        Ok(ops::rms_norm(&x, cols / parts, self.vector(graph, weight)?.as_deref(), eps))
    }

    /// The fused op as its decomposition: norms, three matmuls, two rotations, a store.
    fn qkv(&mut self, call: &NodeCall<'_>, f: &QkvRopeStore) -> Result<Vec<f32>, BackendError> {
        let n_embd = call.graph.nodes[call.node.src[0]].shape.cols;
        let x = self.normed(call.graph, self.memory.f32(call.inputs[0])?, n_embd, f.norm)?;
        let (positions, rows) = (self.memory.i32(call.inputs[1])?, self.memory.i32(call.inputs[2])?);
        let q = self.project(call.graph, &x, f.wq, f.bq)?;
        let k = self.project(call.graph, &x, f.wk, f.bk)?;
        let v = self.project(call.graph, &x, f.wv, f.bv)?;
        let (q_cols, k_cols) = (call.node.shape.cols, f.kv.n_kv_head * f.kv.head_dim);
        let q = self.normed(call.graph, q, q_cols, f.q_norm)?;
        let k = self.normed(call.graph, k, k_cols, f.k_norm)?;
        let q = self.rotate(call.graph, &q, q_cols, &positions, &f.rope)?;
        let k = self.rotate(call.graph, &k, k_cols, &positions, &f.rope)?;
        self.store(call, &f.kv, &k, &v, &rows)?;
        Ok(q)
    }

    /// The node's output.
    fn compute(&mut self, call: &NodeCall<'_>) -> Result<Vec<f32>, BackendError> {
        let (graph, cols) = (call.graph, call.node.shape.cols);
        let f32 = |i: usize| self.memory.f32(call.inputs[i]);
        let i32 = |i: usize| self.memory.i32(call.inputs[i]);
        Ok(match &call.node.op {
            Op::Input(_) => return Err(BackendError::Device("an input is never executed".into())),
            Op::Embed { weight } => ops::embed(self.weight(graph, *weight)?, &i32(0)?)?,
            Op::MatMul { weight, bias, act: _ } => self.project(graph, &f32(0)?, *weight, *bias)?,
            Op::AddBias { bias } => ops::add_bias(&f32(0)?, &self.weight(graph, *bias)?.row(0)?),
            Op::RmsNorm { weight, eps, parts } => {
                ops::rms_norm(&f32(0)?, cols / parts, self.vector(graph, *weight)?.as_deref(), *eps)
            }
            Op::Add => ops::add(&f32(0)?, &f32(1)?),
            Op::Mul => ops::mul(&f32(0)?, &f32(1)?),
            Op::Silu => ops::silu(&f32(0)?),
            Op::SwiGlu => ops::mul(&ops::silu(&f32(0)?), &f32(1)?),
            Op::Gelu => ops::gelu(&f32(0)?),
            Op::GeGlu => ops::mul(&ops::gelu(&f32(0)?), &f32(1)?),
            Op::ClampedGlu { alpha, limit } => ops::clamped_glu(&f32(0)?, &f32(1)?, *alpha, *limit),
            Op::Scale { factor } => ops::each(&f32(0)?, |x| x * f64::from(*factor)),
            Op::SoftCap { cap } => {
                let cap = f64::from(*cap);
                ops::each(&f32(0)?, |x| cap * (x / cap).tanh())
            }
            Op::PositionScale { gain, interval } => {
                ops::position_scale(&f32(0)?, cols, &i32(1)?, *gain, *interval)
            }
            Op::Rope(rope) => self.rotate(graph, &f32(0)?, cols, &i32(1)?, rope)?,
            Op::KvStore(kv) => {
                let (k, v, rows) = (f32(0)?, f32(1)?, i32(2)?);
                self.store(call, kv, &k, &v, &rows)?;
                Vec::new()
            }
            Op::KvLoad(_) => Vec::new(),
            Op::Attention(a) => {
                let (pair, extents, table) = (regions(call)?, i32(2)?, i32(3)?);
                let max_pages = graph.nodes[call.node.src[3]].shape.cols;
                let sinks = self.vector(graph, a.sinks)?;
                let sinks = sinks.as_deref();
                let cache = Cache { pair: &pair, extents: &extents, table: &table, max_pages, sinks };
                kv::attention(&self.memory, a, &f32(0)?, &cache)?
            }
            Op::GatherRows => ops::gather(&f32(0)?, cols, &i32(1)?)?,
            Op::TopExperts { n_used } => {
                let n_expert = graph.nodes[call.node.src[0]].shape.cols;
                experts::top(&f32(0)?, n_expert, *n_used)
            }
            Op::ExpertShares { over_chosen, scale } => {
                let n_expert = graph.nodes[call.node.src[0]].shape.cols;
                experts::shares(&f32(0)?, n_expert, &i32(1)?, cols, *over_chosen, *scale)?
            }
            Op::ExpertMatMul(m) => {
                let n_used = graph.nodes[call.node.src[1]].shape.cols;
                let bias = m.bias.map(|b| self.weight(graph, b)).transpose()?;
                experts::matmul(&f32(0)?, &i32(1)?, n_used, self.weight(graph, m.weight)?, bias, m.n_expert)?
            }
            Op::ExpertSum => {
                let n_used = graph.nodes[call.node.src[1]].shape.cols;
                experts::sum(&f32(0)?, &f32(1)?, n_used)
            }
            Op::QkvRopeStore(f) => self.qkv(call, f)?,
            Op::GatedMatMul(f) => {
                let n_embd = graph.nodes[call.node.src[0]].shape.cols;
                let x = self.normed(graph, f32(0)?, n_embd, f.norm)?;
                let gate = self.project(graph, &x, f.gate, f.gate_bias)?;
                let up = self.project(graph, &x, f.up, f.up_bias)?;
                let activation = match f.gating {
                    Gating::Silu => ops::silu,
                    Gating::Gelu => ops::gelu,
                };
                ops::mul(&activation(&gate), &up)
            }
            Op::MatMulAdd { weight, bias, act: _ } => {
                ops::add(&self.project(graph, &f32(0)?, *weight, *bias)?, &f32(1)?)
            }
            Op::NormAdd(norm) => ops::add(&self.normed(graph, f32(0)?, cols, Some(*norm))?, &f32(1)?),
        })
    }
}

fn regions(call: &NodeCall<'_>) -> Result<KvPair, BackendError> {
    call.kv.ok_or_else(|| BackendError::BadBuffer(format!("{} got no KV regions", call.node.op.name())))
}

impl Backend for ReferenceBackend {
    fn tag(&self) -> BackendTag {
        self.tag
    }

    fn name(&self) -> String {
        "reference interpreter".into()
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), Unsupported> {
        if let Some(reason) = self.refused.get(node.op.name()) {
            return Err(Unsupported(reason.clone()));
        }
        for id in node.op.weights() {
            let spec = graph.weight(id);
            if !spec.ty.can_decode() {
                return Err(Unsupported(format!("weight `{}` has type {}", spec.name, spec.ty)));
            }
        }
        self.filter.as_ref().map_or(Ok(()), |filter| filter(graph, node))
    }

    fn buffer_rules(&self) -> BufferRules {
        self.rules
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo::default()
    }

    fn buffer_bytes(&self) -> usize {
        self.memory.total()
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        Ok(self.memory.alloc(bytes))
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        Ok(self.memory.alloc_fresh(bytes))
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.memory.free(buffer);
    }

    fn load_weight(&mut self, spec: &WeightSpec, data: &[u8]) -> Result<(), BackendError> {
        self.weights.insert(spec.name.clone(), Weight::new(spec, data)?);
        Ok(())
    }

    fn copy_pages(&mut self, kv: KvPair, pages: &[(usize, usize)]) -> Result<(), BackendError> {
        for region in [kv.k, kv.v] {
            let page = region.len / kv.n_pages.max(1);
            let bytes = self.memory.bytes_mut(region)?;
            for &(from, to) in pages {
                let check = |p: usize| index("page", i32::try_from(p).unwrap_or(i32::MAX), kv.n_pages);
                let (from, to) = (check(from)?, check(to)?);
                bytes.copy_within(from * page..(from + 1) * page, to * page);
            }
        }
        Ok(())
    }

    fn write_host(&mut self, dst: BufferSlice, data: &[u8]) -> Result<(), BackendError> {
        let bytes = self.memory.bytes_mut(dst)?;
        if bytes.len() != data.len() {
            return Err(BackendError::BadBuffer(format!("{} bytes into {dst:?}", data.len())));
        }
        bytes.copy_from_slice(data);
        Ok(())
    }

    fn read_host(&mut self, src: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        let bytes = self.memory.bytes(src)?;
        if bytes.len() != out.len() {
            return Err(BackendError::BadBuffer(format!("{} bytes from {src:?}", out.len())));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.check(call)?;
        let out = self.compute(call)?;
        self.memory.write_f32(call.output, &out)
    }

    fn capture(&mut self, node: NodeId, src: BufferSlice) -> Result<(), BackendError> {
        let bytes = self.memory.bytes(src)?.to_vec();
        self.captures.push(Capture { node, bytes });
        Ok(())
    }

    fn drain_captures(&mut self) -> Result<Vec<Capture>, BackendError> {
        Ok(std::mem::take(&mut self.captures))
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
