//! Speed of the matmuls: `cargo run --release -p minfer-cpu --example matmul_bench [-- THREADS [ROWS COLS]]`.
//!
//! Prefill is one matrix and 512 tokens (8 and 64 too), in 1e9 multiply-adds per second. Decode cycles through
//! matrices larger than the caches with one token, in GB of weights per second; the first line is how fast
//! the same memory can be read at all.

use minfer_cpu::matmul::{Activations, Input, PackedWeight, matmul};
use minfer_cpu::{Isa, Pool, default_threads};
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, WeightSpec};
use std::io::Write;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const DECODE_BYTES: usize = 300 << 20;

const TYPES: [TensorType; 15] = [
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
    TensorType::F32,
];

/// Best of the seconds of `n` runs.
fn time(n: usize, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..n {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[0])
}

/// Seconds to sum `data` as integers on all threads.
fn read(pool: &Pool, data: &[u64]) -> Result<f64> {
    time(5, || {
        pool.chunks(data.len(), 1 << 17, |r| {
            let sum = data[r]
                .chunks_exact(8)
                .fold([0u64; 8], |s, x| std::array::from_fn(|i| s[i].wrapping_add(x[i])));
            std::hint::black_box(sum);
        });
        Ok(())
    })
}

fn main() -> Result<()> {
    let args: Vec<usize> =
        std::env::args().skip(1).map(|a| a.parse()).collect::<std::result::Result<_, _>>()?;
    let pool = Pool::new(args.first().copied().unwrap_or_else(default_threads));
    let (rows, cols) = (args.get(1).copied().unwrap_or(4864), args.get(2).copied().unwrap_or(896));
    let isa = Isa::detect();
    let mut out = std::io::stdout().lock();
    let data = vec![1u64; DECODE_BYTES / 8];
    let gb = DECODE_BYTES as f64 / 1e9;
    writeln!(out, "{isa}, {} threads, memory {:.1} GB/s", pool.threads(), gb / read(&pool, &data)?)?;
    drop(data);
    writeln!(out, "type     pack GB/s  prefill 512   64    8 GMAC/s   decode GB/s  int16 GB/s  2 tokens")?;
    for ty in TYPES {
        let cols = cols / ty.block_len() * ty.block_len();
        let spec = WeightSpec::new("w", ty, rows, cols);
        let bytes = rows * ty.row_bytes(cols).unwrap_or_default();
        // Codes and scales of a small positive pattern.
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 % 31) as u8).collect();
        let copies = DECODE_BYTES.div_ceil(bytes);
        let start = Instant::now();
        let weights: Vec<PackedWeight> = (0..copies)
            .map(|_| PackedWeight::pack(&spec, &data, &pool))
            .collect::<std::result::Result<_, _>>()?;
        let packed = (copies * bytes) as f64 / 1e9 / start.elapsed().as_secs_f64();
        let x: Vec<f32> = (0..512 * cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut y = vec![0.0; 512 * rows];
        let mut acts = Activations::new();
        let mut run = |n: usize, act: ActPrecision, weights: &[PackedWeight]| -> Result<()> {
            let x = &x[..n * cols];
            acts.quantize(isa, &pool, x, n, cols - cols % 32, act)
                .or_else(|e| if ty.is_quantized() { Err(e) } else { Ok(()) })?;
            let quant = ty.is_quantized().then_some(&acts);
            for w in weights {
                matmul(isa, &pool, w, &Input { x, rows: n, cols, quant }, None, &mut y[..n * rows])?;
            }
            Ok(())
        };
        let mac = (rows * cols) as f64 / 1e9;
        let prefill = |t: f64, n: f64| n * mac / t;
        let p512 = prefill(time(9, || run(512, ActPrecision::Int8, &weights[..1]))?, 512.0);
        let p64 = prefill(time(41, || run(64, ActPrecision::Int8, &weights[..1]))?, 64.0);
        let p8 = prefill(time(101, || run(8, ActPrecision::Int8, &weights[..1]))?, 8.0);
        let total = (copies * bytes) as f64 / 1e9;
        let d8 = total / time(5, || run(1, ActPrecision::Int8, &weights))?;
        let d16 = total / time(5, || run(1, ActPrecision::Int16, &weights))?;
        let d2 = total / time(5, || run(2, ActPrecision::Int8, &weights))?;
        writeln!(
            out,
            "{:8} {packed:9.2} {p512:12.1} {p64:6.1} {p8:6.1} {d8:16.1} {d16:11.1} {d2:9.1}",
            ty.name()
        )?;
    }
    Ok(())
}
