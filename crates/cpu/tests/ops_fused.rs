//! Products that do something to their results themselves, against their parts.

mod ops_support;

use minfer_cpu::CpuOptions;
use minfer_gguf::{TensorType, encode_row};
use minfer_graph::{
    ActPrecision, Backend, Dim, GatedMatMul, Gating, GraphBuilder, NodeId, Norm, Op, Shape, WeightId,
    WeightSpec,
};
use ops_support::{Bench, Random, all_options, assert_same, dims};

/// Types of the two weights, outputs and inputs. The last group may be short; columns may fill several panels; the
/// numbers of plain weights need no whole blocks.
const SIZES: [(TensorType, TensorType, usize, usize); 6] = [
    (TensorType::Q4K, TensorType::Q4K, 40, 256),
    (TensorType::Q4_1, TensorType::Q4_1, 21, 1344),
    (TensorType::Q6K, TensorType::Q5K, 7, 1536),
    (TensorType::Q8_0, TensorType::F32, 67, 96),
    (TensorType::F16, TensorType::Q5_0, 64, 32),
    (TensorType::F32, TensorType::Bf16, 13, 37),
];
/// Steps of one token, of few, and of so many that weights are expanded.
const TOKENS: [usize; 5] = [1, 2, 7, 16, 37];

/// A fused node and the last of its parts.
struct Pair {
    bench: Bench,
    x: NodeId,
    r: NodeId,
    fused: NodeId,
    apart: NodeId,
}

impl Pair {
    /// `build` gets the inputs x and r, and a function that makes a weight.
    fn new(
        (cols, n_out): (usize, usize),
        options: CpuOptions,
        build: impl FnOnce(&mut GraphBuilder, NodeId, NodeId) -> [NodeId; 2],
    ) -> Pair {
        let mut b = GraphBuilder::new();
        let x = b.input_value("x", Shape::new(Dim::Tokens, cols));
        let r = b.input_value("r", Shape::new(Dim::Tokens, n_out));
        let [fused, apart] = build(&mut b, x, r);
        let mut bench = Bench::new(b.finish(0), dims(1, 1), options);
        let mut random = Random::new((cols * n_out) as u64);
        for spec in bench.graph.weights.clone() {
            let mut data = Vec::new();
            let values = random.values(spec.rows * spec.cols);
            values.chunks(spec.cols).for_each(|row| encode_row(spec.ty, row, &mut data).unwrap());
            bench.backend.load_weight(&spec, &data).unwrap();
        }
        Pair { bench, x, r, fused, apart }
    }

    fn check(mut self, what: &str) {
        for tokens in TOKENS {
            self.bench.resize(dims(tokens, 1));
            let mut random = Random::new(tokens as u64);
            for node in [self.x, self.r] {
                let n = tokens * self.bench.graph.node(node).shape.cols;
                let values = random.values(n);
                self.bench.set_f32(node, &values);
            }
            self.bench.run_all();
            let (got, want) = (self.bench.get(self.fused), self.bench.get(self.apart));
            assert!(want.iter().any(|v| *v != 0.0) && want.iter().all(|v| v.is_finite()), "{what}");
            assert_same(&got, &want, &format!("{what}, {tokens} tokens"));
        }
    }
}

fn weight(b: &mut GraphBuilder, name: &str, ty: TensorType, rows: usize, cols: usize) -> WeightId {
    b.weight(WeightSpec::new(name, ty, rows, cols))
}

/// R85, R131: the gated product against two products, the activation and the multiplication.
#[test]
fn gated_products_equal_their_parts() {
    let act = ActPrecision::Int8;
    for (i, (gate_ty, up_ty, n_out, cols)) in SIZES.into_iter().enumerate() {
        for options in all_options() {
            let biased = i % 2 == 0;
            let gating = [Gating::Silu, Gating::Gelu][i / 2 % 2];
            let build = |b: &mut GraphBuilder, x: NodeId, _: NodeId| {
                let (gate, up) =
                    (weight(b, "gate", gate_ty, n_out, cols), weight(b, "up", up_ty, n_out, cols));
                let mut bias = |name| biased.then(|| weight(b, name, TensorType::F32, 1, n_out));
                let (gate_bias, up_bias) = (bias("gate.b"), bias("up.b"));
                // Long rows, so that members share the work of the norm too.
                let norm = (cols > 256).then(|| weight(b, "norm", TensorType::F32, 1, cols));
                let norm = norm.map(|w| Norm { weight: Some(w), eps: 1e-5, parts: 1 });
                let op = Op::GatedMatMul(GatedMatMul { norm, gate, up, gate_bias, up_bias, gating, act });
                let fused = b.push("fused", op, &[x]).unwrap();
                let x = norm.map_or(x, |norm| b.push("normed", norm.op(), &[x]).unwrap());
                let gate = b.push("g", Op::MatMul { weight: gate, bias: gate_bias, act }, &[x]).unwrap();
                let up = b.push("u", Op::MatMul { weight: up, bias: up_bias, act }, &[x]).unwrap();
                let gate = b.push("a", gating.activation(), &[gate]).unwrap();
                [fused, b.mul("apart", gate, up).unwrap()]
            };
            Pair::new((cols, n_out), options, build).check(&format!("{gate_ty} {up_ty} {options:?}"));
        }
    }
}

/// R85, R131: a product that adds itself to a residual against the product and the sum.
#[test]
fn added_products_equal_their_parts() {
    for (i, (ty, _, n_out, cols)) in SIZES.into_iter().enumerate() {
        for options in all_options() {
            let act = [ActPrecision::Int8, ActPrecision::Int16][i % 2];
            let build = |b: &mut GraphBuilder, x: NodeId, r: NodeId| {
                let w = weight(b, "w", ty, n_out, cols);
                let bias = (i % 3 != 0).then(|| weight(b, "b", TensorType::F32, 1, n_out));
                let fused = b.push("fused", Op::MatMulAdd { weight: w, bias, act }, &[x, r]).unwrap();
                let product = b.push("p", Op::MatMul { weight: w, bias, act }, &[x]).unwrap();
                [fused, b.add("apart", r, product).unwrap()]
            };
            Pair::new((cols, n_out), options, build).check(&format!("{ty} {options:?}"));
        }
    }
}

/// R131: a norm that adds itself to a residual against the norm and the sum.
#[test]
fn added_norms_equal_their_parts() {
    for (cols, parts) in [(640, 1), (1344, 1), (37, 1), (96, 6)] {
        for options in all_options() {
            let build = |b: &mut GraphBuilder, x: NodeId, r: NodeId| {
                let weight = (parts == 1).then(|| weight(b, "w", TensorType::F32, 1, cols));
                let norm = Norm { weight, eps: 1e-6, parts };
                let fused = b.push("fused", Op::NormAdd(norm), &[x, r]).unwrap();
                let normed = b.push("n", norm.op(), &[x]).unwrap();
                [fused, b.add("apart", r, normed).unwrap()]
            };
            Pair::new((cols, cols), options, build).check(&format!("{cols} in {parts} {options:?}"));
        }
    }
}
