//! Speed of the kernels: `cargo bench -p minfer-cpu [-- FILTER]`, for example `-- q4_k/512` or `-- attention`.
//!
//! Products with one token cycle through matrices larger than the caches, as decode does, and their throughput is that of
//! the weights' bytes; those with more tokens use one matrix, and theirs is in multiply-adds (elements).

#[path = "../tests/ops_support/mod.rs"]
mod ops_support;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use minfer_cpu::matmul::{Activations, Input, PackedWeight, matmul};
use minfer_cpu::{CpuOptions, Isa, Pool, default_threads};
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, Dim, GraphBuilder, KvType, Shape, WeightSpec};
use ops_support::attention::{ATTENTION, Case, Setup};
use ops_support::{Bench, Random, dims};
use std::hint::black_box;
use std::time::Duration;

/// Shape of the matrices: the FFN of a model of half a billion parameters, but for a whole number of blocks of 256.
const ROWS: usize = 4864;
const COLS: usize = 1024;
/// Bytes of weights that one token cycles through.
const BEYOND_CACHES: usize = 256 << 20;

const TYPES: [TensorType; 16] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2K,
    TensorType::Q3K,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
    TensorType::Iq4Nl,
    TensorType::Iq4Xs,
    TensorType::Mxfp4,
    TensorType::F16,
    TensorType::Bf16,
    TensorType::F32,
];

/// Matrices of a type, all alike: products take as long whatever the values are.
fn weights(ty: TensorType, pool: &Pool, bytes: usize) -> Vec<PackedWeight> {
    let spec = WeightSpec::new("w", ty, ROWS, COLS);
    let data = vec![0; spec.bytes().unwrap() as usize];
    (0..bytes.div_ceil(data.len())).map(|_| PackedWeight::pack(&spec, &data, pool).unwrap()).collect()
}

fn products(c: &mut Criterion) {
    let (isa, pool) = (Isa::detect(), Pool::new(default_threads()));
    let x = Random::new(1).values(512 * COLS);
    let mut out = vec![0.0; 512 * ROWS];
    for ty in TYPES {
        let mut group = c.benchmark_group(ty.name().to_lowercase());
        for tokens in [1, 8, 512] {
            let weights = weights(ty, &pool, if tokens == 1 { BEYOND_CACHES } else { 1 });
            group.throughput(match tokens {
                1 => Throughput::Bytes(weights[0].bytes() as u64),
                n => Throughput::Elements((n * ROWS * COLS) as u64),
            });
            let x = &x[..tokens * COLS];
            let mut acts = Activations::new();
            acts.quantize(isa, &pool, x, tokens, COLS, ActPrecision::Int8).unwrap();
            let input = Input { x, rows: tokens, cols: COLS, quant: ty.is_quantized().then(|| acts.rows()) };
            let mut turn = weights.iter().cycle();
            group.bench_function(BenchmarkId::from_parameter(tokens), |b| {
                b.iter(|| {
                    let weight = turn.next().unwrap();
                    matmul(isa, &pool, weight, &input, None, black_box(&mut out[..tokens * ROWS])).unwrap();
                });
            });
        }
    }
}

fn quantise(c: &mut Criterion) {
    let (isa, pool) = (Isa::detect(), Pool::new(default_threads()));
    let mut group = c.benchmark_group("quantise");
    for tokens in [1, 512] {
        let x = Random::new(2).values(tokens * COLS);
        let mut acts = Activations::new();
        group.throughput(Throughput::Elements(x.len() as u64));
        for (name, precision) in [("int8", ActPrecision::Int8), ("int16", ActPrecision::Int16)] {
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| acts.quantize(isa, &pool, black_box(&x), tokens, COLS, precision).unwrap());
            });
        }
    }
}

fn norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("norm");
    for tokens in [1, 512] {
        let mut b = GraphBuilder::new();
        let x = b.input_value("x", Shape::new(Dim::Tokens, COLS));
        let weight = ops_support::f32_weight(&mut b, "w", 1, COLS);
        let norm = b.rms_norm("norm", Some(weight), 1e-6, x).unwrap();
        b.output(norm);
        let mut bench = Bench::new(b.finish(0), dims(tokens, 1), CpuOptions::default());
        let mut random = Random::new(3);
        bench.load("w", &random.values(COLS));
        bench.set_f32(x, &random.values(tokens * COLS));
        group.throughput(Throughput::Elements((tokens * COLS) as u64));
        group.bench_function(BenchmarkId::from_parameter(tokens), |b| b.iter(|| bench.run(norm).unwrap()));
    }
}

/// Heads of Qwen2.5 0.5B: a token behind others, and a prompt.
fn attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    for (start, tokens) in [(512, 1), (4096, 1), (0, 512), (4096, 64)] {
        for ty in [KvType::F16, KvType::Q8_0] {
            let case = Case {
                n_head: 14,
                n_kv_head: 2,
                head_dim: 64,
                v_dim: 64,
                window: None,
                softcap: None,
                sinks: false,
                ty: ty.into(),
                sequences: vec![(start, tokens)],
            };
            let seen: usize = (1..=tokens).map(|i| start + i).sum();
            let mut setup = Setup::new(&case, 4, CpuOptions::default());
            group.throughput(Throughput::Elements((seen * case.n_head * 2 * case.head_dim) as u64));
            let name = format!("{}/{tokens} after {start}", ty.name());
            group.bench_function(name, |b| b.iter(|| setup.bench.run(ATTENTION).unwrap()));
        }
    }
}

/// Short, so that all of them take a few minutes.
fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
}

criterion_group! { name = kernels; config = short(); targets = products, quantise, norm, attention }
criterion_main!(kernels);
