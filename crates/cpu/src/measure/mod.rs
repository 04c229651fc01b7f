//! Short measurements of the machine: how fast its threads read memory, and how fast they multiply. What a forecast
//! of a model's speed starts from, and what a benchmark is held against.

mod ceiling;
mod read;

pub use ceiling::multiply_add_ceiling;
pub use read::{ReadProbe, read_rate};

use crate::matmul::{Activations, Input, PackedWeight, matmul};
use crate::pool::Pool;
use crate::simd::Isa;
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, BackendError, WeightSpec};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each measurement goes on, once it is warm.
const TIME: Duration = Duration::from_millis(150);
/// Runs that a median needs at least.
const LEAST_RUNS: usize = 3;
/// Most bytes to read over and over.
const MOST_BYTES: usize = 128 << 20;
/// Fewest: what is smaller measures the start of a job.
const LEAST_BYTES: usize = 1 << 20;
/// Most rows of an input, and most bytes of the weight it meets if it has more than one: the rate no longer grows.
const MOST_TOKENS: usize = 128;
const SHARED_BYTES: usize = 4 << 20;

/// Products to measure.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    /// Type of the weights.
    pub ty: TensorType,
    /// Values per row.
    pub cols: usize,
    /// Bytes of all these weights in the model: what fits the caches stays there from step to step.
    pub bytes: usize,
    /// Rows of the input.
    pub tokens: usize,
    /// How the input is quantised.
    pub precision: ActPrecision,
}

/// What the threads of a pool do together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRate {
    /// Bytes of weights per second.
    pub bytes: f64,
    /// Multiply-adds per second.
    pub multiply_adds: f64,
}

/// The rate of products, quantising their input included; takes a fraction of a second.
///
/// # Errors
/// A type without kernels, rows that are no whole blocks, or no memory.
pub fn product_rate(isa: Isa, pool: &Pool, products: &Products) -> Result<ProductRate, BackendError> {
    let Products { ty, cols, bytes, precision, .. } = *products;
    let tokens = products.tokens.clamp(1, MOST_TOKENS);
    let most = if tokens == 1 { MOST_BYTES } else { SHARED_BYTES };
    let weight = weight(ty, cols, bytes.clamp(LEAST_BYTES, most), pool)?;
    let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut out = vec![0.0; tokens * weight.rows()];
    let mut quant = Activations::new();
    let seconds = median_seconds(|| {
        if ty.is_quantized() {
            quant.quantize(isa, pool, &x, tokens, cols, precision)?;
        }
        let quant = ty.is_quantized().then(|| quant.rows());
        matmul(isa, pool, &weight, &Input { x: &x, rows: tokens, cols, quant }, None, black_box(&mut out))
    })?;
    let multiply_adds = (tokens * weight.rows() * cols) as f64;
    Ok(ProductRate { bytes: weight.bytes() as f64 / seconds, multiply_adds: multiply_adds / seconds })
}

/// A weight of zeros of about that many bytes. Products take as long whatever the values are.
fn weight(ty: TensorType, cols: usize, bytes: usize, pool: &Pool) -> Result<PackedWeight, BackendError> {
    let row = ty.row_bytes(cols).filter(|&n| n > 0).ok_or_else(|| {
        BackendError::Unsupported(format!("rows of {cols} values are no whole number of {ty} blocks"))
    })?;
    let spec = WeightSpec::new("measured", ty, (bytes / row).max(1), cols);
    PackedWeight::pack(&spec, &vec![0; spec.rows * row], pool)
}

/// The median time of a run, over [`TIME`] after a run to warm up.
fn median_seconds(mut run: impl FnMut() -> Result<(), BackendError>) -> Result<f64, BackendError> {
    run()?;
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < LEAST_RUNS || started.elapsed() < TIME {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::{Products, product_rate};
    use crate::Isa;
    use crate::pool::Pool;
    use minfer_gguf::TensorType;
    use minfer_graph::ActPrecision;

    #[test]
    fn rates_are_those_of_a_computer() {
        let pool = Pool::new(2);
        let plausible = |rate: f64| assert!((1e6..1e14).contains(&rate), "{rate}");
        let precision = ActPrecision::Int8;
        for (ty, tokens) in [(TensorType::F32, 1), (TensorType::Q4K, 1), (TensorType::Q4K, 8)] {
            let products = Products { ty, cols: 256, bytes: 1 << 20, tokens, precision };
            let rate = product_rate(Isa::detect(), &pool, &products).unwrap();
            plausible(rate.bytes);
            plausible(rate.multiply_adds);
        }
        let odd = Products { ty: TensorType::Q4K, cols: 100, bytes: 1, tokens: 1, precision };
        assert!(product_rate(Isa::detect(), &pool, &odd).is_err());
    }
}
