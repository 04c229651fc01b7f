//! Speed of attention: `cargo run --release -p minfer-cpu --example attention_bench [-- THREADS [KV_TYPE [FILTER]]]`.
//!
//! `FILTER` is a part of the first columns of the lines to measure, like `qwen` or `4095      1`.
//! Prefill in 1e9 multiply-adds per second, counting the positions that queries see and no others. Decode cycles
//! through the caches of several layers, in microseconds per call and in GB of K and V per second. Best of many calls.

use minfer_cpu::{CpuBackend, CpuOptions, default_threads};
use minfer_graph::{
    Attention, Backend, BufferSlice, Dim, Graph, GraphBuilder, InputKind, KvPair, KvShape, KvType, KvTypes,
    NodeCall, NodeId, PAGE, Shape, StepDims,
};
use std::io::Write;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Name, query heads, KV heads, values per head, window.
const MODELS: [(&str, usize, usize, usize, Option<usize>); 5] = [
    ("smollm2 9/3 x 64", 9, 3, 64, None),
    ("qwen 14/2 x 64", 14, 2, 64, None),
    ("gemma3 4/1 x 256", 4, 1, 256, Some(512)),
    ("32/8 x 128", 32, 8, 128, None),
    ("16/16 x 64", 16, 16, 64, None),
];
/// First position and tokens of a step.
const STEPS: [(usize, usize); 9] =
    [(448, 64), (4032, 64), (0, 512), (3584, 512), (15, 1), (63, 1), (511, 1), (4095, 1), (4088, 8)];
/// Bytes of K and V to cycle through when there is one token.
const CACHE_BYTES: usize = 64 << 20;
/// How long each measurement goes on.
const TIME: Duration = Duration::from_millis(400);

const Q: NodeId = 0;
const EXTENTS: NodeId = 6;
const TABLE: NodeId = 7;
const ATTENTION: NodeId = 8;

struct Bench {
    backend: CpuBackend,
    graph: Graph,
    slices: Vec<BufferSlice>,
    layers: Vec<KvPair>,
    dims: StepDims,
}

fn graph(op: Attention, kv: KvShape, table: usize) -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let q = b.input_value("q", Shape::new(Dim::Tokens, op.n_head * op.head_dim));
    let k = b.input_value("k", Shape::new(Dim::Tokens, kv.n_kv_head * kv.head_dim));
    let v = b.input_value("v", Shape::new(Dim::Tokens, kv.n_kv_head * kv.v_dim));
    let rows = b.input("kv_rows", InputKind::KvRows { group: 0 }, 1);
    let load = b.kv_store_load("", kv, k, v, rows)?;
    let extents = b.input("extents", InputKind::Extents, 3);
    let table = b.input("table", InputKind::PageTable { group: 0 }, table);
    let out = b.attention("attention", op, q, load, extents, table)?;
    b.output(out);
    Ok(b.finish(0))
}

fn buffer(backend: &mut CpuBackend, len: usize) -> Result<BufferSlice> {
    Ok(BufferSlice { buffer: backend.alloc_buffer(len)?, offset: 0, len })
}

impl Bench {
    fn new(threads: usize, op: Attention, ty: KvTypes, start: usize, tokens: usize) -> Result<Bench> {
        let mut backend = CpuBackend::new(CpuOptions { threads: Some(threads), isa: None });
        let kv = KvShape { layer: 0, n_kv_head: op.n_kv_head, head_dim: op.head_dim, v_dim: op.v_dim };
        let n_pages = (start + tokens).div_ceil(PAGE);
        let graph = graph(op, kv, n_pages)?;
        let dims = StepDims { tokens, outputs: tokens, seqs: 1 };
        let mut slices = Vec::new();
        for node in &graph.nodes {
            slices.push(buffer(&mut backend, node.shape.len(dims) * node.dtype.bytes())?);
        }
        let q: Vec<f32> =
            (0..tokens * op.n_head * op.head_dim).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        backend.write_host(slices[Q], bytemuck::cast_slice(&q))?;
        backend.write_host(
            slices[EXTENTS],
            bytemuck::cast_slice(&[0, i32::try_from(tokens)?, i32::try_from(start)?]),
        )?;
        let table: Vec<i32> = (0..n_pages).map(i32::try_from).collect::<std::result::Result<_, _>>()?;
        backend.write_host(slices[TABLE], bytemuck::cast_slice(&table))?;
        let (k, v) = ty.page_bytes(&kv);
        let n_layers = if tokens > 8 { 1 } else { CACHE_BYTES.div_ceil((k + v) * n_pages).min(64) };
        let mut layers = Vec::new();
        for _ in 0..n_layers {
            let mut side = |bytes: usize| -> Result<BufferSlice> {
                let slice = buffer(&mut backend, bytes * n_pages)?;
                // Every pair of these bytes is a small number as f16, and every four as f32.
                let data: Vec<u8> = (0..slice.len).map(|i| 0x28 + (i * 7 % 13) as u8).collect();
                backend.write_host(slice, &data)?;
                Ok(slice)
            };
            layers.push(KvPair { k: side(k)?, v: side(v)?, ty, n_pages });
        }
        Ok(Bench { backend, graph, slices, layers, dims })
    }

    fn call(&mut self, layer: usize) -> Result<()> {
        let node = self.graph.node(ATTENTION);
        let inputs: Vec<BufferSlice> = node.src.iter().map(|&s| self.slices[s]).collect();
        let (output, kv) = (self.slices[ATTENTION], Some(self.layers[layer]));
        Ok(self.backend.execute_node(&NodeCall {
            graph: &self.graph,
            node,
            inputs: &inputs,
            output,
            kv,
            dims: self.dims,
        })?)
    }

    /// Seconds of a call: the best pass over all layers.
    fn seconds(&mut self) -> Result<f64> {
        let started = Instant::now();
        let mut best = f64::INFINITY;
        while started.elapsed() < TIME {
            let start = Instant::now();
            for layer in 0..self.layers.len() {
                self.call(layer)?;
            }
            best = best.min(start.elapsed().as_secs_f64() / self.layers.len() as f64);
        }
        Ok(best)
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(Ok(default_threads()), |a| a.parse())?;
    let name = args.next().unwrap_or_else(|| "f16".into());
    let ty = KvType::ALL.into_iter().find(|t| t.name() == name).ok_or("no such KV type")?;
    let filter = args.next().unwrap_or_default();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{threads} threads, {ty}")?;
    writeln!(out, "model              start tokens    us/call   GFMA/s     GB/s")?;
    for (name, n_head, n_kv_head, head_dim, window) in MODELS {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let op = Attention {
            layer: 0,
            n_head,
            n_kv_head,
            head_dim,
            v_dim: head_dim,
            scale,
            window,
            softcap: None,
            sinks: None,
        };
        for (start, tokens) in STEPS {
            let label = format!("{name:18} {start:5} {tokens:6}");
            if !label.contains(&filter) {
                continue;
            }
            let mut bench = Bench::new(threads, op, ty.into(), start, tokens)?;
            let seconds = bench.seconds()?;
            let seen: usize =
                (start..start + tokens).map(|p| (p + 1).min(window.unwrap_or(usize::MAX))).sum();
            let multiply_adds = (seen * n_head * 2 * head_dim) as f64;
            let pages = (start + tokens).div_ceil(PAGE)
                - (start + 1).saturating_sub(window.unwrap_or(usize::MAX)) / PAGE;
            let kv = KvShape { layer: 0, n_kv_head, head_dim, v_dim: head_dim };
            let (k, v) = KvTypes::from(ty).page_bytes(&kv);
            let rates = (multiply_adds / seconds / 1e9, ((k + v) * pages) as f64 / seconds / 1e9);
            writeln!(out, "{label} {:10.1} {:8.1} {:8.1}", seconds * 1e6, rates.0, rates.1)?;
        }
    }
    Ok(())
}
