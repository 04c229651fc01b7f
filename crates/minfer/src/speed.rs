//! How fast a model will run, before it is loaded: what a token reads and multiplies, over what this machine's threads
//! were just measured to read and multiply.
//!
//! Only products, the KV cache and attention's scores are counted; norms, rotations and the like are not, nor the time
//! between operations. A forecast of a small model is therefore too high.

use crate::devices::cpu_backend;
use crate::error::{Error, ErrorKind};
use crate::file::ModelFile;
use crate::session::SessionOptions;
use minfer_cpu::CpuBackend;
use minfer_cpu::measure::{Products, product_rate, read_rate};
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, BackendError, KvTypes, WeightSpec};
use minfer_models::{FfnSpec, LayerSpec, ModelSpec};
use std::collections::BTreeMap;

/// A forecast of speed, and the measurements that it rests on.
#[derive(Clone, Copy, Debug)]
pub struct SpeedForecast {
    /// What a token takes.
    pub work: TokenWork,
    /// What the machine does.
    pub machine: MachineRates,
    /// Tokens per second, one after another, at half the context.
    pub decode: f64,
    /// Tokens per second of a prompt, on average over a full context.
    pub prefill: f64,
}

/// What one token of a model reads and multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenWork {
    /// Bytes of the blocks' matrices; of a mixture those of the experts that a token uses.
    pub block_bytes: f64,
    /// Bytes of the output head.
    pub head_bytes: f64,
    /// Bytes of the KV cache.
    pub kv_bytes: f64,
    /// Multiply-adds of the blocks' products.
    pub block_products: f64,
    /// Multiply-adds of the output head.
    pub head_products: f64,
    /// Multiply-adds of attention.
    pub attention: f64,
}

impl TokenWork {
    /// The work of a token that sees `positions` of its sequence, fewer where a layer has a window.
    pub fn of(spec: &ModelSpec, kv: KvTypes, positions: usize) -> TokenWork {
        let head = &spec.output.weight;
        let mut work = TokenWork {
            head_bytes: bytes(head),
            head_products: head.rows as f64 * head.cols as f64,
            ..TokenWork::default()
        };
        for layer in &spec.layers {
            for (weight, share) in matrices(layer) {
                work.block_bytes += share * bytes(weight);
                work.block_products += share * weight.rows as f64 * weight.cols as f64;
            }
            let a = &layer.attention;
            let seen = positions.min(a.window.unwrap_or(usize::MAX)) as f64;
            let position = a.n_kv_head * (kv.k.head_bytes(a.head_dim) + kv.v.head_bytes(a.v_dim));
            work.kv_bytes += seen * position as f64;
            work.attention += seen * (a.n_head * (a.head_dim + a.v_dim)) as f64;
        }
        work
    }
}

/// Medians, measured on all threads within about a second.
#[derive(Clone, Copy, Debug)]
pub struct MachineRates {
    /// Threads.
    pub threads: usize,
    /// Type that most bytes of the blocks have; the products below are with weights of it.
    pub block_type: TensorType,
    /// Type of the output head.
    pub head_type: TensorType,
    /// Bytes per second that are read from memory.
    pub read: f64,
    /// Bytes per second of the blocks' weights in products with one token.
    pub blocks: f64,
    /// Bytes per second of the head's weight in products with one token.
    pub head: f64,
    /// Multiply-adds per second in products with a batch of tokens.
    pub batch: f64,
    /// Multiply-adds per second in products of f32, which stand for attention.
    pub float: f64,
}

/// Measures the machine and forecasts a session's speed on the CPU alone. Takes about a second; the model is not
/// loaded.
///
/// # Errors
/// Not a model that can be run, or no memory for the measurement.
pub fn forecast_speed(
    file: &ModelFile,
    options: &SessionOptions,
    threads: Option<usize>,
) -> Result<SpeedForecast, Error> {
    let spec = file.spec()?;
    options.check(&spec)?;
    let cpu = cpu_backend(threads)?;
    let work = TokenWork::of(&spec, options.kv_types, options.n_ctx / 2);
    let machine = measure(&cpu, &spec, options, &work)
        .map_err(|e| Error::new(kind(&e), format!("measuring the machine: {e}")))?;
    Ok(estimate(work, machine))
}

fn kind(e: &BackendError) -> ErrorKind {
    if matches!(e, BackendError::OutOfMemory(_)) { ErrorKind::Memory } else { ErrorKind::Device }
}

/// Time is work over rate, part by part; nothing is read faster than memory is.
fn estimate(work: TokenWork, machine: MachineRates) -> SpeedForecast {
    let m = &machine;
    let decode = work.block_bytes / m.blocks.min(m.read)
        + work.head_bytes / m.head.min(m.read)
        + work.kv_bytes / m.read;
    let prefill = work.block_products / m.batch + work.attention / m.float;
    SpeedForecast { work, machine, decode: 1.0 / decode, prefill: 1.0 / prefill }
}

fn measure(
    cpu: &CpuBackend,
    spec: &ModelSpec,
    options: &SessionOptions,
    work: &TokenWork,
) -> Result<MachineRates, BackendError> {
    let (isa, pool) = (cpu.isa(), cpu.pool());
    let (ty, cols) = commonest(spec);
    // A step reads all weights in turn, so that what one leaves in the caches the next displaces.
    let bytes = (work.block_bytes + work.head_bytes) as usize;
    let blocks = Products { ty, cols, bytes, tokens: 1, precision: ActPrecision::Int8 };
    let output = &spec.output.weight;
    let head =
        Products { ty: output.ty, cols: output.cols, bytes, tokens: 1, precision: ActPrecision::Int16 };
    let tokens = options.n_batch.min(options.n_ctx);
    let float = Products { ty: TensorType::F32, cols: 256, bytes: 1 << 20, tokens, ..blocks };
    Ok(MachineRates {
        threads: pool.threads(),
        block_type: ty,
        head_type: output.ty,
        read: read_rate(isa, pool, bytes)?,
        blocks: product_rate(isa, pool, &blocks)?.bytes,
        head: product_rate(isa, pool, &head)?.bytes,
        batch: product_rate(isa, pool, &Products { tokens, ..blocks })?.multiply_adds,
        float: product_rate(isa, pool, &float)?.multiply_adds,
    })
}

/// A block's matrices, with the share of each that a token meets.
fn matrices(layer: &LayerSpec) -> Vec<(&WeightSpec, f64)> {
    let a = &layer.attention;
    let mut list: Vec<_> = [&a.q, &a.k, &a.v, &a.output].map(|l| (&l.weight, 1.0)).into();
    let (gated, share) = match &layer.ffn {
        FfnSpec::Dense(gated) => (gated, 1.0),
        FfnSpec::Experts(e) => {
            list.push((&e.router.weight, 1.0));
            (&e.experts, e.n_used as f64 / e.n_expert as f64)
        }
    };
    list.extend([&gated.gate, &gated.up, &gated.down].map(|l| (&l.weight, share)));
    list
}

fn bytes(weight: &WeightSpec) -> f64 {
    weight.bytes().unwrap_or(0) as f64
}

/// Type and row length of most bytes that a token reads in the blocks.
fn commonest(spec: &ModelSpec) -> (TensorType, usize) {
    let mut sums: BTreeMap<(&str, usize), (TensorType, f64)> = BTreeMap::new();
    for (weight, share) in spec.layers.iter().flat_map(matrices) {
        let entry = sums.entry((weight.ty.name(), weight.cols)).or_insert((weight.ty, 0.0));
        entry.1 += share * bytes(weight);
    }
    let most = sums.into_iter().max_by(|a, b| a.1.1.total_cmp(&b.1.1));
    most.map_or((TensorType::F32, spec.n_embd), |((_, cols), (ty, _))| (ty, cols))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_work_become_times() {
        let work = TokenWork {
            block_bytes: 8e9,
            head_bytes: 1e9,
            kv_bytes: 2e9,
            block_products: 10e9,
            head_products: 0.0,
            attention: 5e9,
        };
        let machine = MachineRates {
            threads: 2,
            block_type: TensorType::Q4_0,
            head_type: TensorType::Q6K,
            read: 10e9,
            blocks: 8e9,
            head: 20e9,
            batch: 100e9,
            float: 50e9,
        };
        let speed = estimate(work, machine);
        // 1 s of blocks, 0.1 s of a head no faster than memory, 0.2 s of KV.
        assert!((speed.decode - 1.0 / 1.3).abs() < 1e-12);
        assert!((speed.prefill - 1.0 / 0.2).abs() < 1e-12);
    }
}
