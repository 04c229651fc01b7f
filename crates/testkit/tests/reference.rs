//! The reference interpreter: its memory as a device, and a whole model through a graph against the
//! naive forward pass, which shares no code with it.

use minfer_gguf::Gguf;
use minfer_graph::{
    ActPrecision, Attention, Backend, BackendError, BackendTag, BufferSlice, Dim, Graph, GraphBuilder,
    GraphError, InputKind, KvPair, KvShape, KvType, NodeCall, NodeId, PAGE, Rope, RopeStyle, Shape, StepDims,
    WeightId, WeightSpec,
};
use minfer_testkit::ReferenceBackend;
use minfer_testkit::compare::{centred_nmse, log_softmax};
use minfer_testkit::naive::NaiveModel;
use minfer_testkit::rng::Rng;
use minfer_testkit::tiny::{TinySpec, family};
use std::collections::HashMap;

fn backend() -> ReferenceBackend {
    ReferenceBackend::new(BackendTag::CPU)
}

fn whole(b: &mut ReferenceBackend, bytes: usize) -> BufferSlice {
    BufferSlice { buffer: b.alloc_buffer(bytes).unwrap(), offset: 0, len: bytes }
}

fn read(b: &mut ReferenceBackend, slice: BufferSlice) -> Vec<u8> {
    let mut out = vec![0; slice.len];
    b.read_host(slice, &mut out).unwrap();
    out
}

#[test]
fn buffers_are_recycled_poisoned_and_checked() {
    let mut b = backend();
    let a = whole(&mut b, 8);
    b.write_host(a, &[1; 8]).unwrap();
    b.free_buffer(a.buffer);
    assert!(matches!(b.write_host(a, &[1; 8]), Err(BackendError::BadBuffer(_))));
    let c = whole(&mut b, 4);
    assert_ne!(c.buffer, a.buffer);
    assert_eq!(read(&mut b, c), [0xff; 4]);
    let outside = BufferSlice { offset: usize::MAX, len: 4, ..c };
    assert!(matches!(b.read_host(outside, &mut [0; 4]), Err(BackendError::BadBuffer(_))));
    b.capture(3, c).unwrap();
    b.write_host(c, &[7; 4]).unwrap();
    let captures = b.drain_captures().unwrap();
    assert_eq!((captures[0].node, &captures[0].bytes[..]), (3, &[0xff; 4][..]));
    assert!(b.drain_captures().unwrap().is_empty());
}

#[test]
fn pages_are_copied() {
    let mut b = backend();
    let (k, v) = (whole(&mut b, 24), whole(&mut b, 12));
    b.write_host(k, &(0..24).collect::<Vec<u8>>()).unwrap();
    b.write_host(v, &(0..12).collect::<Vec<u8>>()).unwrap();
    let kv = KvPair { k, v, ty: KvType::F16.into(), n_pages: 3 };
    b.copy_pages(kv, &[(0, 2), (1, 0)]).unwrap();
    assert_eq!(read(&mut b, v), [4, 5, 6, 7, 4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(read(&mut b, k)[16..], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(b.copy_pages(kv, &[(0, 3)]), Err(BackendError::OutOfRange { .. })));
}

#[test]
fn bad_calls_are_errors() {
    let mut g = GraphBuilder::new();
    let x = g.input_value("x", Shape::new(Dim::Tokens, 4));
    let w = g.weight(WeightSpec::new("w", minfer_gguf::TensorType::F32, 4, 4));
    let y = g.matmul("y", w, ActPrecision::Int8, x).unwrap();
    let z = g.silu("z", y).unwrap();
    g.output(z);
    let graph = g.finish(0);
    let mut b = backend();
    let buffer = whole(&mut b, 64);
    let at = |offset, len| BufferSlice { offset, len, ..buffer };
    let dims = StepDims { tokens: 1, outputs: 0, seqs: 1 };
    let run = |b: &mut ReferenceBackend, node: NodeId, input, output| {
        let (node, inputs) = (graph.node(node), [input]);
        b.execute_node(&NodeCall { graph: &graph, node, inputs: &inputs, output, kv: None, dims })
    };
    assert_eq!(run(&mut b, y, at(0, 16), at(16, 16)), Err(BackendError::WeightMissing("w".into())));
    let spec = graph.weight(w);
    assert!(matches!(b.load_weight(spec, &[0; 63]), Err(BackendError::BadWeight { .. })));
    b.load_weight(&WeightSpec { rows: 2, ..spec.clone() }, &[0; 32]).unwrap();
    assert!(matches!(run(&mut b, y, at(0, 16), at(16, 16)), Err(BackendError::BadWeight { .. })));
    b.load_weight(spec, &[0; 64]).unwrap();
    assert_eq!(run(&mut b, y, at(0, 16), at(16, 16)), Ok(()));
    // A matmul may not write over its source; Silu may, but only exactly.
    let bad = |r| matches!(r, Err(BackendError::BadBuffer(_)));
    assert!(bad(run(&mut b, y, at(0, 16), at(0, 16))));
    assert!(bad(run(&mut b, z, at(0, 16), at(4, 16))));
    assert!(bad(run(&mut b, z, at(0, 12), at(16, 16))));
    assert!(bad(run(&mut b, z, at(0, 16), at(56, 16))));
    assert_eq!(run(&mut b, z, at(0, 16), at(0, 16)), Ok(()));
}

/// A model's graph, built here from the spec.
struct Model {
    spec: TinySpec,
    graph: Graph,
    weights: HashMap<String, Vec<u8>>,
}

fn model(spec: TinySpec) -> Model {
    let bytes = spec.to_bytes().unwrap();
    let file = Gguf::read(&bytes[..], bytes.len() as u64).unwrap();
    let mut g = GraphBuilder::new();
    let mut ids = HashMap::new();
    let mut weights = HashMap::new();
    for t in &file.tensors {
        let (rows, cols) = (t.rows() as usize, t.row_len() as usize);
        ids.insert(t.name.clone(), g.weight(WeightSpec::new(t.name.clone(), t.ty, rows, cols)));
        let start = t.offset as usize;
        weights.insert(t.name.clone(), bytes[start..start + t.bytes as usize].to_vec());
    }
    let logits = build(&mut g, &spec, &ids).unwrap();
    g.output(logits);
    Model { spec, graph: g.finish(0), weights }
}

fn build(g: &mut GraphBuilder, spec: &TinySpec, w: &HashMap<String, WeightId>) -> Result<NodeId, GraphError> {
    let act = ActPrecision::Int8;
    let tokens = g.input("ids", InputKind::TokenIds, 1);
    let positions = g.input("positions", InputKind::Positions, 1);
    let rows = g.input("kv_rows", InputKind::KvRows { group: 0 }, 1);
    let extents = g.input("extents", InputKind::Extents, 1);
    let table = g.input("table", InputKind::PageTable { group: 0 }, 4);
    let rope = Rope {
        style: if spec.family.arch == "llama" { RopeStyle::Interleaved } else { RopeStyle::Halves },
        head_dim: spec.shape.head_dim,
        n_rot: spec.shape.head_dim,
        base: spec.family.base,
        freq_scale: 1.0,
        factors: w.get("rope_freqs.weight").copied(),
        yarn: None,
        magnitude: 1.0,
    };
    let (n_head, n_kv_head, d) = (spec.shape.n_head, spec.shape.n_kv_head, spec.shape.head_dim);
    let mut x = g.embed("embed", w["token_embd.weight"], tokens)?;
    for layer in 0..spec.shape.n_layer {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let weight = |part: &str| w[&name(&format!("{part}.weight"))];
        let project = |g: &mut GraphBuilder, part: &str, x| {
            let y = g.matmul(&name(part), weight(part), act, x)?;
            let bias = w.get(&name(&format!("{part}.bias")));
            bias.map_or(Ok(y), |&b| g.add_bias(&name(part), b, y))
        };
        let h = g.rms_norm("norm", Some(weight("attn_norm")), 1e-6, x)?;
        let (q, k, v) = (project(g, "attn_q", h)?, project(g, "attn_k", h)?, project(g, "attn_v", h)?);
        let (q, k) = (g.rope("q", rope, q, positions)?, g.rope("k", rope, k, positions)?);
        let load = g.kv_store_load("", KvShape { layer, n_kv_head, head_dim: d, v_dim: d }, k, v, rows)?;
        let scale = 1.0 / (d as f32).sqrt();
        let a = Attention {
            layer,
            n_head,
            n_kv_head,
            head_dim: d,
            v_dim: d,
            scale,
            window: None,
            softcap: None,
            sinks: None,
        };
        let a = g.attention("attention", a, q, load, extents, table)?;
        let a = project(g, "attn_output", a)?;
        x = g.add("x", x, a)?;
        let h = g.rms_norm("norm", Some(weight("ffn_norm")), 1e-6, x)?;
        let gate = project(g, "ffn_gate", h)?;
        let gate = g.silu("silu", gate)?;
        let up = project(g, "ffn_up", h)?;
        let h = g.mul("hidden", gate, up)?;
        let down = project(g, "ffn_down", h)?;
        x = g.add("x", x, down)?;
    }
    let h = g.rms_norm("norm", Some(w["output_norm.weight"]), 1e-6, x)?;
    g.matmul("logits", w["output.weight"], ActPrecision::Int16, h)
}

/// Runs one sequence in chunks through the graph on the reference; all logits.
fn run(m: &Model, ids: &[u32], chunks: &[usize], pages: &[i32; 4]) -> Vec<f32> {
    let mut b = backend();
    for spec in &m.graph.weights {
        b.load_weight(spec, &m.weights[&spec.name]).unwrap();
    }
    let region = 4 * m.spec.shape.n_kv_head * m.spec.shape.head_dim * PAGE * 4;
    let kv: Vec<KvPair> = (0..m.spec.shape.n_layer)
        .map(|_| {
            let (k, v) = (whole(&mut b, region), whole(&mut b, region));
            KvPair { k, v, ty: KvType::F32.into(), n_pages: 4 }
        })
        .collect();
    let (mut out, mut past) = (Vec::new(), 0);
    for &n in chunks {
        let dims = StepDims { tokens: n, outputs: 0, seqs: 1 };
        let input = |kind| -> Vec<i32> {
            match kind {
                InputKind::TokenIds => ids[past..past + n].iter().map(|&v| v as i32).collect(),
                InputKind::Positions => (past..past + n).map(|p| p as i32).collect(),
                InputKind::KvRows { .. } => {
                    (past..past + n).map(|p| pages[p / PAGE] * PAGE as i32 + (p % PAGE) as i32).collect()
                }
                InputKind::Extents => vec![0, n as i32, past as i32],
                _ => pages.to_vec(),
            }
        };
        let mut slices: Vec<BufferSlice> = Vec::new();
        for node in &m.graph.nodes {
            let slice = whole(&mut b, node.shape.len(dims) * node.dtype.bytes());
            slices.push(slice);
            if let minfer_graph::Op::Input(kind) = node.op {
                let bytes: Vec<u8> = input(kind).iter().flat_map(|v| v.to_le_bytes()).collect();
                b.write_host(slice, &bytes).unwrap();
                continue;
            }
            let inputs: Vec<BufferSlice> = node.src.iter().map(|&s| slices[s]).collect();
            let kv = node.op.kv_layer().map(|l| kv[l]);
            b.execute_node(&NodeCall { graph: &m.graph, node, inputs: &inputs, output: slice, kv, dims })
                .unwrap();
        }
        let logits = read(&mut b, slices[m.graph.outputs[0]]);
        out.extend(logits.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)));
        slices.iter().for_each(|s| b.free_buffer(s.buffer));
        past += n;
    }
    out
}

/// R84: the graph with weights by name against a pass without graph.
#[test]
fn a_model_on_the_reference_agrees_with_the_naive_pass() {
    let mut rng = Rng::new(3);
    let ids: Vec<u32> = (0..90).map(|_| rng.below(256) as u32).collect();
    for family in [family::LLAMA, family::LLAMA3_ROPE, family::QWEN2] {
        let m = model(TinySpec::new(family).with_layers(2));
        let logits = run(&m, &ids, &[90], &[0, 1, 2, 3]);
        let naive = NaiveModel::parse(&m.spec.to_bytes().unwrap()).unwrap().log_probs(&ids, None).unwrap();
        let actual: Vec<f64> = logits.chunks(256).flat_map(log_softmax).collect();
        let error = centred_nmse(&naive, &actual, 256);
        assert!(error < 1e-10, "{}: {error:e}", family.name);
        // Chunks and pages make no difference at all.
        let pieces = run(&m, &ids, &[50, 1, 30, 9], &[2, 0, 3, 1]);
        assert!(logits.iter().zip(&pieces).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", family.name);
    }
}
