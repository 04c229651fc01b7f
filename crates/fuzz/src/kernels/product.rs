//! Products of one input with one weight or several.

use super::contract::{self, Rng, TYPES, spec};
use super::data::{Weights, activations, below, one_in};
use super::{Coverage, same};
use minfer_cpu::matmul::{Activations, Input, Job, PackedWeight, SharedMut, matmul_many};
use minfer_cpu::{Isa, Pool};
use minfer_gguf::TensorType;
use minfer_graph::{ActPrecision, BackendError, SharedBytes};
use std::sync::Arc;

/// A weight of a case.
#[derive(Debug)]
struct Shape {
    ty: TensorType,
    rows: usize,
    weights: Weights,
    bias: bool,
    /// Whether the file's own rows are read.
    native: bool,
}

/// All of a case but its numbers.
#[derive(Debug)]
struct Case {
    isa: Isa,
    pool: usize,
    tokens: usize,
    cols: usize,
    act: ActPrecision,
    shapes: Vec<Shape>,
}

impl Case {
    fn any(rng: &mut Rng) -> Case {
        let isas = Isa::available();
        let isa = isas[below(rng, isas.len())];
        // Several weights have the longest block of all.
        let types: Vec<_> =
            (0..[1, 1, 1, 2, 3][below(rng, 5)]).map(|_| TYPES[below(rng, TYPES.len())]).collect();
        let unit = types.iter().map(|ty| ty.block_len()).max().unwrap_or(1);
        let cols = match (unit, one_in(rng, 8)) {
            (1, _) => 1 + below(rng, 300),
            (_, true) => unit * (1 + below(rng, 4096 / unit)),
            (_, false) => unit * (1 + below(rng, 1024 / unit)),
        };
        // Many rows make several pieces of work.
        let rows = if one_in(rng, 16) { 400 } else { 41 };
        let shape = |ty| Shape {
            ty,
            rows: 1 + below(rng, rows),
            weights: Weights::any(rng),
            bias: one_in(rng, 3),
            native: one_in(rng, 4),
        };
        let shapes = types.into_iter().map(shape).collect();
        let most = if one_in(rng, 3) { 2 } else { 40 };
        let tokens = 1 + below(rng, most);
        let act = [ActPrecision::Int8, ActPrecision::Int16][below(rng, 2)];
        Case { isa, pool: below(rng, 4), tokens, cols, act, shapes }
    }
}

/// A weight with what goes with it.
struct Made {
    data: Vec<u8>,
    bias: Option<Vec<f32>>,
    weight: PackedWeight,
}

fn make(rng: &mut Rng, shape: &Shape, cols: usize, pool: &Pool) -> Result<Made, BackendError> {
    let Shape { ty, rows, weights, .. } = *shape;
    let data = weights.bytes(rng, ty, rows, cols);
    let bias = shape.bias.then(|| rng.floats(rows));
    let spec = spec(ty, rows, cols);
    let weight = if shape.native {
        // Not at the start of what is mapped, and nothing behind.
        let mapped = Arc::new([&[1, 2, 3][..], &data].concat());
        let shared = SharedBytes::new(mapped, 3..3 + data.len());
        PackedWeight::native(&spec, shared.ok_or(BackendError::OutOfMemory(data.len()))?)?
    } else {
        PackedWeight::pack(&spec, &data, pool)?
    };
    Ok(Made { data, bias, weight })
}

/// Runs a case.
///
/// # Errors
/// What is wrong, in words.
pub fn check(coverage: &mut Coverage, seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let case = Case::any(&mut rng);
    for shape in &case.shapes {
        coverage.count(shape.ty, shape.native);
    }
    *coverage.isas.entry(case.isa.name()).or_default() += 1;
    let pool = coverage.pool(case.pool);
    let weights = case.shapes.iter().map(|shape| make(&mut rng, shape, case.cols, pool));
    let weights: Vec<Made> = weights.collect::<Result<_, _>>().map_err(|e| format!("{e}: {case:?}"))?;
    let x = activations(&mut rng, case.tokens, case.cols);
    let outs = products(&case, pool, &weights, &x).map_err(|e| format!("{e}: {case:?}"))?;
    let planes = if case.act == ActPrecision::Int8 { 1 } else { 2 };
    for ((shape, made), got) in case.shapes.iter().zip(&weights).zip(&outs) {
        let want = contract::matmul(shape.ty, &made.data, &x, case.cols, planes, made.bias.as_deref());
        same(got, &want, (&case, shape))?;
        coverage.outputs += want.len() as u64;
    }
    Ok(())
}

/// All products of a case, from one input.
fn products(case: &Case, pool: &Pool, weights: &[Made], x: &[f32]) -> Result<Vec<Vec<f32>>, BackendError> {
    let Case { isa, tokens: rows, cols, act, .. } = *case;
    let mut acts = Activations::new();
    let quantised = weights.iter().any(|made| made.weight.is_quantized());
    if quantised {
        acts.quantize(isa, pool, x, rows, cols, act)?;
    }
    let mut outs: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.weight.rows()]).collect();
    let jobs: Vec<_> = weights
        .iter()
        .zip(&mut outs)
        .map(|(made, out)| Job::new(&made.weight, made.bias.as_deref(), SharedMut::new(out)))
        .collect();
    let input = Input { x, rows, cols, quant: quantised.then(|| acts.rows()) };
    matmul_many(isa, pool, &input, &jobs)?;
    Ok(outs)
}
