//! The fused projection against its parts, and whole layers in chunks.

mod ops_support;

use minfer_cpu::CpuOptions;
use minfer_gguf::{TensorType, encode_row};
use minfer_graph::{
    ActPrecision, Backend, BackendError, BufferSlice, Dim, Graph, GraphBuilder, InputKind, KvPair, KvShape,
    KvType, KvTypes, NodeId, Norm, Op, PAGE, QkvRopeStore, Rope, RopeStyle, Shape, WeightSpec,
};
use ops_support::cache::{TYPES, read_regions};
use ops_support::{Bench, Random, all_options, assert_same, dims};

const EMBD: usize = 64;
const HEAD_DIM: usize = 16;
const HEADS: usize = 4;
const KV: KvShape = KvShape { layer: 0, n_kv_head: 2, head_dim: HEAD_DIM, v_dim: HEAD_DIM };
const WIDTH: usize = 4;

struct Layer {
    graph: Graph,
    x: NodeId,
    positions: NodeId,
    rows: NodeId,
    extents: NodeId,
    table: NodeId,
    q: NodeId,
    out: NodeId,
}

/// Projections, rotation, store and attention, fused or not, with norms of the input, q and k or without.
fn layer(fused: bool, normed: bool, ty: TensorType) -> Layer {
    let mut b = GraphBuilder::new();
    let x = b.input_value("x", Shape::new(Dim::Tokens, EMBD));
    let positions = b.input("positions", InputKind::Positions, 1);
    let rows = b.input("rows", InputKind::KvRows { group: 0 }, 1);
    let extents = b.input("extents", InputKind::Extents, 3);
    let table = b.input("table", InputKind::PageTable { group: 0 }, WIDTH);
    let mut weight = |name: &str, ty, rows, cols| b.weight(WeightSpec::new(name, ty, rows, cols));
    let (q_cols, kv_cols) = (HEADS * HEAD_DIM, KV.n_kv_head * HEAD_DIM);
    let f32 = TensorType::F32;
    let mut norm = |name: &str, cols: usize, parts: usize| {
        let weight = Some(weight(name, TensorType::F32, 1, cols / parts));
        Some(Norm { weight, eps: 1e-5, parts }).filter(|_| normed)
    };
    let [norm, q_norm, k_norm] =
        [norm("norm", EMBD, 1), norm("q_norm", q_cols, HEADS), norm("k_norm", kv_cols, 1)];
    let f = QkvRopeStore {
        norm,
        q_norm,
        k_norm,
        wq: weight("wq", ty, q_cols, EMBD),
        wk: weight("wk", ty, kv_cols, EMBD),
        wv: weight("wv", f32, kv_cols, EMBD),
        bq: Some(weight("bq", f32, 1, q_cols)),
        bk: Some(weight("bk", f32, 1, kv_cols)),
        bv: None,
        rope: Rope {
            style: RopeStyle::Halves,
            head_dim: HEAD_DIM,
            n_rot: 12,
            base: 10000.0,
            freq_scale: 1.0,
            factors: Some(weight("factors", f32, 1, 6)),
            yarn: None,
            magnitude: 1.0,
        },
        kv: KV,
        act: ActPrecision::Int8,
    };
    let (q, store) = if fused {
        let q = b.push("qkv", Op::QkvRopeStore(f), &[x, positions, rows]).unwrap();
        (q, q)
    } else {
        let act = f.act;
        let apply = |b: &mut GraphBuilder, name: &str, norm: Option<Norm>, x: NodeId| {
            norm.map_or(x, |norm| b.push(name, norm.op(), &[x]).unwrap())
        };
        let x = apply(&mut b, "normed", f.norm, x);
        let q = b.push("q", Op::MatMul { weight: f.wq, bias: f.bq, act }, &[x]).unwrap();
        let k = b.matmul("k", f.wk, act, x).unwrap();
        let k = b.add_bias("k_bias", f.bk.unwrap(), k).unwrap();
        let v = b.matmul("v", f.wv, act, x).unwrap();
        let q = apply(&mut b, "q_normed", f.q_norm, q);
        let k = apply(&mut b, "k_normed", f.k_norm, k);
        let q = b.rope("q_rope", f.rope, q, positions).unwrap();
        let k = b.rope("k_rope", f.rope, k, positions).unwrap();
        (q, b.push("store", Op::KvStore(KV), &[k, v, rows]).unwrap())
    };
    let load = b.push("load", Op::KvLoad(KV), &[store]).unwrap();
    let attention = minfer_graph::Attention {
        layer: 0,
        n_head: HEADS,
        n_kv_head: KV.n_kv_head,
        head_dim: HEAD_DIM,
        v_dim: HEAD_DIM,
        scale: 0.25,
        window: None,
        softcap: None,
        sinks: None,
    };
    let out = b.attention("out", attention, q, load, extents, table).unwrap();
    b.output(out);
    Layer { graph: b.finish(0), x, positions, rows, extents, table, q, out }
}

/// A layer with weights and an empty, poisoned cache.
fn start(layer: &Layer, ty: KvTypes, options: CpuOptions) -> Bench {
    let mut bench = Bench::new(layer.graph.clone(), dims(0, 1), options);
    let mut random = Random::new(99);
    let mut specs = layer.graph.weights.clone();
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    for spec in specs {
        let values: Vec<f32> = random.values(spec.rows * spec.cols).iter().map(|x| x.abs() + 0.1).collect();
        let mut data = Vec::new();
        values.chunks(spec.cols).for_each(|row| encode_row(spec.ty, row, &mut data).unwrap());
        bench.backend.load_weight(&spec, &data).unwrap();
    }
    let mut slice = |page: usize| {
        let len = PAGES * page;
        let slice = BufferSlice { buffer: bench.backend.alloc_buffer(len).unwrap(), offset: 0, len };
        bench.backend.write_host(slice, &vec![0xff; len]).unwrap();
        slice
    };
    let (k, v) = ty.page_bytes(&KV);
    bench.kv = Some(KvPair { k: slice(k), v: slice(v), ty, n_pages: PAGES });
    bench
}

const PAGES: usize = 6;
/// Physical pages of the one sequence.
const TABLE: [i32; WIDTH] = [4, 1, 5, 0];

/// Runs tokens `from..to` of the sequence; returns rotated q and the layer's output.
fn step(layer: &Layer, bench: &mut Bench, x: &[f32], from: usize, to: usize) -> (Vec<f32>, Vec<f32>) {
    bench.resize(dims(to - from, 1));
    let row = |p: usize| TABLE[p / PAGE] * PAGE as i32 + (p % PAGE) as i32;
    bench.set_f32(layer.x, &x[from * EMBD..to * EMBD]);
    bench.set_i32(layer.positions, &(from..to).map(|p| p as i32).collect::<Vec<_>>());
    bench.set_i32(layer.rows, &(from..to).map(row).collect::<Vec<_>>());
    bench.set_i32(layer.extents, &[0, (to - from) as i32, from as i32]);
    bench.set_i32(layer.table, &TABLE);
    bench.run_all();
    (bench.get(layer.q), bench.get(layer.out))
}

/// R85: the fused op against its parts, also in the cache.
#[test]
fn fused_equals_apart() {
    let x = Random::new(8).values(150 * EMBD);
    for (i, ty) in TYPES.into_iter().enumerate() {
        let (weights, normed) = ([TensorType::F32, TensorType::Q8_0][i % 2], i % 4 < 2);
        for options in all_options() {
            let [fused, apart] = [true, false].map(|f| layer(f, normed, weights));
            let (mut a, mut b) = (start(&fused, ty, options), start(&apart, ty, options));
            for (from, to) in [(0, 1), (1, 131), (131, 141), (141, 142)] {
                let (got, want) = (step(&fused, &mut a, &x, from, to), step(&apart, &mut b, &x, from, to));
                assert_same(&got.0, &want.0, "q");
                assert_same(&got.1, &want.1, "attention");
            }
            let (got, want) = (read_regions(&mut a, &KV), read_regions(&mut b, &KV));
            assert_same(&got[0], &want[0], "k");
            assert_same(&got[1], &want[1], "v");
        }
    }
}

#[test]
fn chunks_equal_the_whole() {
    let x = Random::new(9).values(200 * EMBD);
    for (i, ty) in TYPES.into_iter().enumerate() {
        let weights = [TensorType::F32, TensorType::Q8_0, TensorType::F16][i % 3];
        let fused = layer(true, i % 2 == 0, weights);
        let options = CpuOptions { threads: Some(2), isa: None };
        let whole = step(&fused, &mut start(&fused, ty, options), &x, 0, 200).1;
        assert!(whole.iter().all(|x| x.is_finite()));
        for chunks in [&[1, 7, 64, 64, 64][..], &[64, 64, 64, 8], &[199, 1], &[63, 2, 135], &[1; 200]] {
            let mut bench = start(&fused, ty, CpuOptions { threads: Some(3), isa: None });
            let mut from = 0;
            for &n in chunks {
                let got = step(&fused, &mut bench, &x, from, from + n).1;
                let cols = HEADS * HEAD_DIM;
                assert_same(&got, &whole[from * cols..][..n * cols], &format!("{n} tokens from {from}"));
                from += n;
            }
        }
    }
}

/// R48, R89: rows outside the region.
#[test]
fn bad_rows_are_refused_before_anything_is_written() {
    let fused = layer(true, true, TensorType::F32);
    let x = Random::new(1).values(EMBD);
    let mut bench = start(&fused, KvType::F32.into(), CpuOptions::default());
    step(&fused, &mut bench, &x, 0, 1);
    let before = read_regions(&mut bench, &KV);
    for bad in [-1, (PAGES * PAGE) as i32] {
        bench.set_i32(fused.rows, &[bad]);
        let want = BackendError::OutOfRange { what: "KV row", value: bad.into(), limit: PAGES * PAGE };
        assert_eq!(bench.run(fused.q), Err(want));
    }
    let after = read_regions(&mut bench, &KV);
    assert_same(&after[0], &before[0], "k");
    bench.kv = None;
    assert!(matches!(bench.run(fused.q), Err(BackendError::BadBuffer(_))));
}
