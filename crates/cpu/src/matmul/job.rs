//! What is to be multiplied, and whether it fits together.

use super::acts::ActRows;
use super::shared::SharedMut;
use super::weight::PackedWeight;
use minfer_graph::{BackendError, Gating};

/// The input of a product: `[rows, cols]` f32, and the same rows quantised if a weight needs that.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The values, row by row.
    pub x: &'a [f32],
    /// Rows (tokens).
    pub rows: usize,
    /// Values per row.
    pub cols: usize,
    /// The rows quantised; needed for quantised weights.
    pub quant: Option<ActRows<'a>>,
}

/// One product: `out[t, o] = sum_k weight[o, k] * x[t, k] + bias[o]`, and what is done to it.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The weight `[n_out, cols]`.
    pub weight: &'a PackedWeight,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, n_out]`.
    pub out: SharedMut<'a, f32>,
    /// What is done to a finished output.
    pub then: Then<'a>,
}

/// What is done to a finished output, by the thread that has computed it.
#[derive(Clone, Copy, Debug, Default)]
pub enum Then<'a> {
    /// Nothing.
    #[default]
    Keep,
    /// This is added, `[rows, n_out]`.
    Add(&'a [f32]),
    /// It is the gate of a second product of the input.
    Gate(Gating, Up<'a>),
}

/// The second product of a gated one.
#[derive(Clone, Copy, Debug)]
pub struct Up<'a> {
    /// The weight, of the first one's shape.
    pub weight: &'a PackedWeight,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
}

impl<'a> Job<'a> {
    /// The product and nothing else.
    pub fn new(weight: &'a PackedWeight, bias: Option<&'a [f32]>, out: SharedMut<'a, f32>) -> Self {
        Job { weight, bias, out, then: Then::Keep }
    }

    /// Whether a weight wants quantised activations.
    pub fn is_quantized(&self) -> bool {
        self.weights().any(PackedWeight::is_quantized)
    }

    /// Whether a weight wants activations as they are.
    pub fn is_plain(&self) -> bool {
        self.weights().any(|weight| !weight.is_quantized())
    }

    fn weights(&self) -> impl Iterator<Item = &'a PackedWeight> {
        let up = match self.then {
            Then::Gate(_, up) => Some(up.weight),
            Then::Add(_) | Then::Keep => None,
        };
        std::iter::once(self.weight).chain(up)
    }
}

/// A row of the input and the row of the output that its product goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Row of the input.
    pub input: usize,
    /// Row of the output.
    pub output: usize,
}

/// Products with some of the weights that a matrix holds one below the other.
#[derive(Debug)]
pub struct ExpertJob<'a> {
    /// `[n_expert * n_out, cols]`; `n_out` is a multiple of [`GROUP`](super::weight::GROUP).
    pub weight: &'a PackedWeight,
    /// Outputs of one expert.
    pub n_out: usize,
    /// Experts with rows to do, their biases and their rows. No row of the output occurs twice.
    pub experts: Vec<ExpertRows<'a>>,
    /// `[_, n_out]`.
    pub out: SharedMut<'a, f32>,
}

/// The rows of one expert.
#[derive(Debug)]
pub struct ExpertRows<'a> {
    /// The expert.
    pub expert: usize,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    /// What it is to multiply.
    pub rows: &'a [Pair],
}

fn misfit(input: &Input<'_>, weight: &PackedWeight, what: &str, len: usize) -> BackendError {
    let shape = format!("{} x {} with [{}, {}]", input.rows, input.cols, weight.rows(), weight.cols());
    BackendError::BadBuffer(format!("product {shape}: {what} of {len}"))
}

/// Whether lengths fit, and a weight that needs quantised input finds it.
pub fn check(input: &Input<'_>, job: &Job<'_>) -> Result<(), BackendError> {
    let n = job.weight.rows();
    check_input(input, job.weight)?;
    if input.rows.checked_mul(n) != Some(job.out.len()) {
        return Err(misfit(input, job.weight, "output", job.out.len()));
    }
    check_bias(input, job.weight, job.bias)?;
    match job.then {
        Then::Add(r) if r.len() != job.out.len() => Err(misfit(input, job.weight, "residual", r.len())),
        Then::Gate(_, up) => {
            check_input(input, up.weight)?;
            check_bias(input, up.weight, up.bias)?;
            let fits = up.weight.rows() == n;
            if fits { Ok(()) } else { Err(misfit(input, up.weight, "gate", n)) }
        }
        Then::Add(_) | Then::Keep => Ok(()),
    }
}

fn check_bias(input: &Input<'_>, weight: &PackedWeight, bias: Option<&[f32]>) -> Result<(), BackendError> {
    match bias {
        Some(bias) if bias.len() != weight.rows() => Err(misfit(input, weight, "bias", bias.len())),
        _ => Ok(()),
    }
}

/// As [`check`], of the input and a weight.
pub fn check_input(input: &Input<'_>, weight: &PackedWeight) -> Result<(), BackendError> {
    let bad = |what, len| Err(misfit(input, weight, what, len));
    if input.cols != weight.cols() || input.rows.checked_mul(input.cols) != Some(input.x.len()) {
        return bad("input", input.x.len());
    }
    match input.quant {
        Some(q) if (q.rows(), q.cols()) != (input.rows, input.cols) => bad("quantised rows", q.rows()),
        None if weight.is_quantized() => bad("quantised rows", 0),
        _ => Ok(()),
    }
}
