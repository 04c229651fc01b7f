//! Elementwise ops, norms, rotation, row copies and the KV store: against the contract, in place and
//! not, on every instruction set and thread count.

mod ops_support;

use half::f16;
use minfer_cpu::{CpuBackend, CpuOptions};
use minfer_gguf::TensorType;
use minfer_graph::{
    Backend, BackendError, BufferSlice, Dim, GraphBuilder, InputKind, KvShape, NodeId, Op, PAGE, Rope,
    RopeStyle, Shape, WeightSpec,
};
use ops_support::cache::{TYPES, hadamard, read_regions, region, rounded};
use ops_support::{Bench, Random, all_options, assert_close, assert_same, contract, dims, f32_weight};

/// Row counts and lengths: single rows, tails of every kind, and enough to use all threads.
const SIZES: [(usize, usize); 8] =
    [(1, 1), (1, 896), (3, 7), (2, 63), (2, 64), (5, 65), (31, 130), (40, 896)];

/// A graph of one node over value inputs of one shape; runs it apart and in place on each source that
/// may be, with the sources distinct or (binary ops) the same.
fn check_elementwise(op: Op, reference: impl Fn(&[f32], &[f32]) -> Vec<f32>) {
    for options in all_options() {
        for (rows, cols) in SIZES {
            let mut b = GraphBuilder::new();
            let shape = Shape::new(Dim::Tokens, cols);
            let inputs: Vec<NodeId> =
                (0..op.arity()).map(|i| b.input_value(&format!("x{i}"), shape)).collect();
            let node = b.push("y", op, &inputs).unwrap();
            let mut bench = Bench::new(b.finish(0), dims(rows, 1), options);
            let mut random = Random::new((rows * cols) as u64);
            let mut values: Vec<Vec<f32>> =
                inputs.iter().map(|_| random.values(rows * cols).iter().map(|x| x * 8.0).collect()).collect();
            values[0][0] = f32::NAN;
            let last = |values: &[Vec<f32>]| values.last().unwrap().clone();
            let want = reference(&values[0], &last(&values));
            let what = format!("{op:?} {rows}x{cols} {options:?}");
            let fill = |bench: &mut Bench| inputs.iter().for_each(|&i| bench.set_f32(i, &values[i]));
            fill(&mut bench);
            bench.run(node).unwrap();
            assert_same(&bench.get(node), &want, &what);
            for &source in op.in_place_sources() {
                fill(&mut bench);
                let target = bench.slices[inputs[source]];
                bench.run_to(node, target).unwrap();
                assert_same(&bench.read(target), &want, &format!("{what}, in place on {source}"));
            }
            if inputs.len() == 2 {
                bench.slices[inputs[1]] = bench.slices[inputs[0]];
                bench.set_f32(inputs[0], &values[0]);
                let target = bench.slices[inputs[0]];
                bench.run_to(node, target).unwrap();
                let want = reference(&values[0], &values[0]);
                assert_same(&bench.read(target), &want, &format!("{what}, both"));
            }
        }
    }
}

fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// R88: against a definition in f64.
#[test]
fn elementwise() {
    check_elementwise(Op::Add, |a, b| zip(a, b, |a, b| a + b));
    check_elementwise(Op::Mul, |a, b| zip(a, b, |a, b| a * b));
    check_elementwise(Op::SwiGlu, |a, b| zip(a, b, |a, b| contract::silu(a) * b));
    check_elementwise(Op::Silu, |a, _| a.iter().map(|&a| contract::silu(a)).collect());
}

#[test]
fn swiglu_is_its_decomposition_and_close_to_f64() {
    let mut b = GraphBuilder::new();
    let shape = Shape::new(Dim::Tokens, 100);
    let (gate, up) = (b.input_value("gate", shape), b.input_value("up", shape));
    let fused = b.push("fused", Op::SwiGlu, &[gate, up]).unwrap();
    let silu = b.silu("silu", gate).unwrap();
    let product = b.mul("product", silu, up).unwrap();
    let mut bench = Bench::new(b.finish(0), dims(3, 1), CpuOptions::default());
    let mut random = Random::new(4);
    let x: Vec<f32> = random.values(300).iter().map(|x| x * 100.0).collect();
    let y = random.values(300);
    bench.set_f32(gate, &x);
    bench.set_f32(up, &y);
    bench.run_all();
    let got = bench.get(fused);
    assert_same(&got, &bench.get(product), "fused and apart");
    let exact = |(&x, &y): (&f32, &f32)| f64::from(x) / (1.0 + (-f64::from(x)).exp()) * f64::from(y);
    let want: Vec<f64> = x.iter().zip(&y).map(exact).collect();
    assert_close(&got, &want, 1e-5, "f64");
}

/// R86, R88: against a definition in f64.
#[test]
fn rms_norm_and_bias() {
    for options in all_options() {
        for (rows, cols) in SIZES {
            let mut b = GraphBuilder::new();
            let weight = f32_weight(&mut b, "w", 1, cols);
            let x = b.input_value("x", Shape::new(Dim::Tokens, cols));
            let nodes = [
                b.rms_norm("norm", Some(weight), 1e-6, x).unwrap(),
                b.rms_norm("plain", None, 1e-5, x).unwrap(),
                b.add_bias("bias", weight, x).unwrap(),
            ];
            let mut bench = Bench::new(b.finish(0), dims(rows, 1), options);
            let mut random = Random::new((rows + cols) as u64);
            let (w, values) = (random.values(cols), random.values(rows * cols));
            bench.load("w", &w);
            let by_row =
                |f: &dyn Fn(&[f32]) -> Vec<f32>| values.chunks(cols).flat_map(f).collect::<Vec<f32>>();
            let want = [
                by_row(&|x| contract::rms_norm(x, Some(&w), 1e-6)),
                by_row(&|x| contract::rms_norm(x, None, 1e-5)),
                by_row(&|x| zip(x, &w, |x, w| x + w)),
            ];
            for (node, want) in nodes.into_iter().zip(&want) {
                let what = format!("node {node} {rows}x{cols} {options:?}");
                bench.set_f32(x, &values);
                bench.run(node).unwrap();
                assert_same(&bench.get(node), want, &what);
                bench.run_to(node, bench.slices[x]).unwrap();
                assert_same(&bench.get(x), want, &format!("{what}, in place"));
            }
        }
    }
}

#[test]
fn vectors_load_from_every_float_type_and_keep_nan() {
    let values = [1.5f32, -2.0, f32::NAN, f32::INFINITY];
    let f16s: Vec<u8> = values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
    let f32s = bytemuck::cast_slice(&values).to_vec();
    for (ty, data) in [(TensorType::F32, f32s), (TensorType::F16, f16s), (TensorType::Bf16, bf16s)] {
        let mut b = GraphBuilder::new();
        let spec = WeightSpec::new("w", ty, 1, 4);
        let w = b.weight(spec.clone());
        let x = b.input_value("x", Shape::new(Dim::Tokens, 4));
        let y = b.add_bias("y", w, x).unwrap();
        let mut bench = Bench::new(b.finish(0), dims(1, 1), CpuOptions::default());
        bench.backend.load_weight(&spec, &data).unwrap();
        bench.set_f32(x, &[1.0; 4]);
        bench.run(y).unwrap();
        assert_same(&bench.get(y), &[2.5, -1.0, f32::NAN, f32::INFINITY], ty.name());
    }
}

/// The rotation in f64, pair by pair.
fn rotated(rope: &Rope, factors: Option<&[f32]>, x: &[f32], positions: &[i32], cols: usize) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..cols / rope.head_dim {
            for i in 0..rope.n_rot / 2 {
                let start = row * cols + head * rope.head_dim;
                let (a, b) = match rope.style {
                    RopeStyle::Interleaved => (start + 2 * i, start + 2 * i + 1),
                    RopeStyle::Halves => (start + i, start + i + rope.n_rot / 2),
                };
                let angle = f64::from(position)
                    * f64::from(rope.freq_scale)
                    * f64::from(rope.base).powf(-2.0 * i as f64 / rope.n_rot as f64)
                    / factors.map_or(1.0, |f| f64::from(f[i]));
                let (x, y) = (f64::from(x[a]), f64::from(x[b]));
                out[a] = x * angle.cos() - y * angle.sin();
                out[b] = x * angle.sin() + y * angle.cos();
            }
        }
    }
    out
}

#[test]
fn rope() {
    for (head_dim, n_rot) in [(64, 64), (80, 20), (16, 2), (128, 96)] {
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            for with_factors in [false, true] {
                check_rope(style, head_dim, n_rot, with_factors);
            }
        }
    }
}

fn check_rope(style: RopeStyle, head_dim: usize, n_rot: usize, with_factors: bool) {
    let (rows, cols) = (70, 2 * head_dim);
    let mut b = GraphBuilder::new();
    let factors = with_factors.then(|| f32_weight(&mut b, "factors", 1, n_rot / 2));
    let rope =
        Rope { style, head_dim, n_rot, base: 10000.0, freq_scale: 0.5, factors, yarn: None, magnitude: 1.0 };
    let x = b.input_value("x", Shape::new(Dim::Tokens, cols));
    let positions = b.input("positions", InputKind::Positions, 1);
    let y = b.rope("y", rope, x, positions).unwrap();
    let graph = b.finish(0);
    let mut random = Random::new(head_dim as u64);
    let values = random.values(rows * cols);
    let factor_values: Vec<f32> = (0..n_rot / 2).map(|i| 1.0 + i as f32).collect();
    let position_values: Vec<i32> = (0..rows).map(|i| (i * i * 7) as i32).collect();
    let factors = with_factors.then_some(&factor_values[..]);
    let exact = rotated(&rope, factors, &values, &position_values, cols);
    let mut first: Option<Vec<f32>> = None;
    for options in all_options() {
        let mut bench = Bench::new(graph.clone(), dims(rows, 1), options);
        if with_factors {
            bench.load("factors", &factor_values);
        }
        bench.set_f32(x, &values);
        bench.set_i32(positions, &position_values);
        bench.run(y).unwrap();
        let got = bench.get(y);
        assert_close(&got, &exact, 1e-6, "f64");
        assert_same(&got, first.get_or_insert(got.clone()), "options");
        bench.run_to(y, bench.slices[x]).unwrap();
        assert_same(&bench.get(x), &got, "in place");
        // Other positions, then the first ones again: the cache of angles follows.
        bench.set_i32(positions, &vec![0; rows]);
        bench.set_f32(x, &values);
        bench.run(y).unwrap();
        assert_same(&bench.get(y), &values, "position 0");
        bench.set_i32(positions, &position_values);
        bench.run(y).unwrap();
        assert_same(&bench.get(y), &got, "again");
    }
}

/// R48, R87: a weight that is missing, rows by index.
#[test]
fn embedding_and_row_choice() {
    let mut b = GraphBuilder::new();
    let table = f32_weight(&mut b, "table", 10, 33);
    let ids = b.input("ids", InputKind::TokenIds, 1);
    let rows = b.input("rows", InputKind::OutputRows, 1);
    let x = b.embed("x", table, ids).unwrap();
    let y = b.gather_rows("y", x, rows).unwrap();
    let sizes = minfer_graph::StepDims { tokens: 4, outputs: 2, seqs: 1 };
    let mut bench = Bench::new(b.finish(0), sizes, CpuOptions::default());
    let values = Random::new(1).values(330);
    assert!(matches!(bench.run(x), Err(BackendError::WeightMissing(name)) if name == "table"));
    bench.load("table", &values);
    bench.set_i32(ids, &[9, 0, 3, 3]);
    bench.set_i32(rows, &[2, 0]);
    bench.run_all();
    let row = |i: usize| values[i * 33..][..33].to_vec();
    assert_same(&bench.get(x), &[row(9), row(0), row(3), row(3)].concat(), "embedding");
    assert_same(&bench.get(y), &[row(3), row(9)].concat(), "rows");
    for (bad, limit) in [([0, 10, 0, 0], 10), ([0, -1, 0, 0], 10)] {
        bench.set_i32(ids, &bad);
        let want = BackendError::OutOfRange { what: "token id", value: bad[1].into(), limit };
        assert_eq!(bench.run(x), Err(want));
    }
    bench.set_i32(rows, &[0, 4]);
    assert_eq!(bench.run(y), Err(BackendError::OutOfRange { what: "output row", value: 4, limit: 4 }));
    bench.resize(minfer_graph::StepDims { outputs: 0, ..sizes });
    bench.run(y).unwrap();
    bench.resize(minfer_graph::StepDims { tokens: 0, outputs: 0, seqs: 0 });
    bench.run_all();
}

/// R57, R82: every type, two heads, rows in three pages; the rest stays.
#[test]
fn kv_store_places_rows() {
    let kv = KvShape { layer: 3, n_kv_head: 2, head_dim: 20, v_dim: 9 };
    let mut b = GraphBuilder::new();
    let k = b.input_value("k", Shape::new(Dim::Tokens, 40));
    let v = b.input_value("v", Shape::new(Dim::Tokens, 18));
    let rows = b.input("rows", InputKind::KvRows { group: 0 }, 1);
    let load = b.kv_store_load("", kv, k, v, rows).unwrap();
    let store = load - 1;
    let graph = b.finish(0);
    let row_values = [3 * PAGE as i32 + 5, 0, PAGE as i32 - 1];
    for options in all_options() {
        for ty in TYPES {
            let mut bench = Bench::new(graph.clone(), dims(3, 1), options);
            let mut random = Random::new(6);
            let (mut ks, mut vs) = (random.values(120), random.values(54));
            // Ties, overflow, subnormals.
            ks[..5].copy_from_slice(&[1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 70000.0, 1e-7, -0.0]);
            // A block of zeros.
            ks[20..40].fill(0.0);
            // Blocks without a finite scale, and one of subnormal ones.
            (vs[0], vs[9], vs[18]) = (f32::NAN, f32::INFINITY, -1e8);
            vs[27..36].iter_mut().for_each(|x| *x *= 1e-5);
            let (k_len, v_len) = (4 * 40 * PAGE, 4 * 18 * PAGE);
            let (mut k_want, mut v_want) = (vec![f32::NAN; k_len], vec![f32::NAN; v_len]);
            bench.kv = Some(region(&mut bench, &kv, ty, 4, &k_want, &v_want));
            let (k_kept, v_kept) =
                (rounded(ty.k, 20, &hadamard(ty.k, &ks, 20, false)), rounded(ty.v, 9, &vs));
            for (i, &row) in row_values.iter().enumerate() {
                let (page, slot) = (row as usize / PAGE, row as usize % PAGE);
                for (h, d) in (0..2).flat_map(|h| (0..20).map(move |d| (h, d))) {
                    k_want[((page * 2 + h) * 20 + d) * PAGE + slot] = k_kept[i * 40 + h * 20 + d];
                }
                for (h, d) in (0..2).flat_map(|h| (0..9).map(move |d| (h, d))) {
                    v_want[((page * 2 + h) * PAGE + slot) * 9 + d] = v_kept[i * 18 + h * 9 + d];
                }
            }
            bench.set_f32(k, &ks);
            bench.set_f32(v, &vs);
            bench.set_i32(rows, &row_values);
            bench.run(store).unwrap();
            bench.run(load).unwrap();
            let pair = bench.kv.unwrap();
            let got = read_regions(&mut bench, &kv);
            assert_same(&got[0], &k_want, "k");
            assert_same(&got[1], &v_want, "v");
            for bad in [-1, 4 * PAGE as i32] {
                bench.set_i32(rows, &[0, bad, 1]);
                let want = BackendError::OutOfRange { what: "KV row", value: bad.into(), limit: 4 * PAGE };
                assert_eq!(bench.run(store), Err(want));
            }
            assert_same(&read_regions(&mut bench, &kv)[0], &k_want, "a refused store writes nothing");
            bench.backend.copy_pages(pair, &[(3, 2), (2, 1), (0, 0)]).unwrap();
            let [copied, _] = read_regions(&mut bench, &kv);
            let page = 40 * PAGE;
            assert_same(&copied[page..2 * page], &k_want[3 * page..], "copied");
            assert!(matches!(
                bench.backend.copy_pages(pair, &[(0, 4)]),
                Err(BackendError::OutOfRange { .. })
            ));
        }
    }
}

/// R48, R83: buffers of another size, or over each other.
#[test]
fn overlaps_and_wrong_lengths_are_refused() {
    let mut b = GraphBuilder::new();
    let w = f32_weight(&mut b, "w", 8, 8);
    let x = b.input_value("x", Shape::new(Dim::Tokens, 8));
    let product = b.matmul("product", w, minfer_graph::ActPrecision::Int8, x).unwrap();
    let silu = b.silu("silu", x).unwrap();
    let mut bench = Bench::new(b.finish(0), dims(4, 1), CpuOptions::default());
    bench.load("w", &[1.0; 64]);
    let wide = bench.backend.alloc_buffer(4096).unwrap();
    let at = |offset, len| BufferSlice { buffer: wide, offset, len };
    bench.slices[x] = at(0, 128);
    bench.set_f32(x, &[1.0; 32]);
    let refused = |result| assert!(matches!(result, Err(BackendError::BadBuffer(_))), "{result:?}");
    refused(bench.run_to(product, at(0, 128)));
    refused(bench.run_to(product, at(64, 128)));
    refused(bench.run_to(silu, at(64, 128)));
    refused(bench.run_to(silu, at(128, 127)));
    refused(bench.run_to(silu, at(4000, 128)));
    refused(bench.run_to(silu, at(130, 128)));
    bench.run_to(product, at(128, 128)).unwrap();
    bench.run_to(silu, at(0, 128)).unwrap();
    let mut backend = CpuBackend::new(CpuOptions::default());
    let short = WeightSpec::new("s", TensorType::F32, 2, 8);
    assert!(matches!(backend.load_weight(&short, &[0; 63]), Err(BackendError::BadWeight { .. })));
    let unknown = WeightSpec::new("s", TensorType::Iq1S, 1, 256);
    assert!(matches!(backend.load_weight(&unknown, &[0; 50]), Err(BackendError::BadWeight { .. })));
}

#[test]
fn one_weight_of_one_row_is_a_vector_and_a_matrix() {
    let mut b = GraphBuilder::new();
    let w = f32_weight(&mut b, "w", 1, 40);
    let x = b.input_value("x", Shape::new(Dim::Tokens, 40));
    let product = b.matmul("product", w, minfer_graph::ActPrecision::Int8, x).unwrap();
    let sum = b.add_bias("sum", w, x).unwrap();
    let mut bench = Bench::new(b.finish(0), dims(2, 1), CpuOptions::default());
    let mut random = Random::new(5);
    let (weight, values) = (random.values(40), random.values(80));
    bench.load("w", &weight);
    bench.set_f32(x, &values);
    bench.run_all();
    let dot = |x: &[f32]| x.iter().zip(&weight).fold(0f32, |acc, (x, w)| w.mul_add(*x, acc));
    assert_same(&bench.get(product), &[dot(&values[..40]), dot(&values[40..])], "product");
    let want: Vec<f32> = values.iter().zip(weight.iter().cycle()).map(|(x, w)| x + w).collect();
    assert_same(&bench.get(sum), &want, "sum");
    let Bench { backend, graph, .. } = &mut bench;
    let other = WeightSpec { cols: 39, ..graph.weights[0].clone() };
    backend.load_weight(&other, &[0; 156]).unwrap();
    assert!(matches!(bench.run(sum), Err(BackendError::BadWeight { .. })));
}
