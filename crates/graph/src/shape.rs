//! Shapes of node outputs: one or two dimensions, some of them known only per step.

use std::fmt;

/// One dimension. `Tokens`, `Outputs` and `Seqs` get their value from [`StepDims`] at each step,
/// so that one graph serves prefill and decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size fixed when the graph is built.
    Fixed(usize),
    /// Tokens of the batch.
    Tokens,
    /// Rows whose result the caller asked for.
    Outputs,
    /// Sequences of the batch.
    Seqs,
}

/// The sizes of one step, or the capacity a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepDims {
    /// Value of [`Dim::Tokens`].
    pub tokens: usize,
    /// Value of [`Dim::Outputs`]; zero is legal (a prompt chunk whose logits nobody wants).
    pub outputs: usize,
    /// Value of [`Dim::Seqs`].
    pub seqs: usize,
}

impl Dim {
    /// The size of this dimension in a step.
    pub fn resolve(self, dims: StepDims) -> usize {
        match self {
            Dim::Fixed(n) => n,
            Dim::Tokens => dims.tokens,
            Dim::Outputs => dims.outputs,
            Dim::Seqs => dims.seqs,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Tokens => f.write_str("Tokens"),
            Dim::Outputs => f.write_str("Outputs"),
            Dim::Seqs => f.write_str("Seqs"),
        }
    }
}

/// `[rows, cols]`, the last dimension contiguous. Vectors have one row per entry: `[n, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Number of rows.
    pub rows: Dim,
    /// Contiguous values per row.
    pub cols: usize,
}

impl Shape {
    /// A shape of `rows` rows with `cols` values each.
    pub const fn new(rows: Dim, cols: usize) -> Self {
        Shape { rows, cols }
    }

    /// Rows in a step.
    pub fn n_rows(self, dims: StepDims) -> usize {
        self.rows.resolve(dims)
    }

    /// Elements in a step.
    pub fn len(self, dims: StepDims) -> usize {
        self.n_rows(dims) * self.cols
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// Element type of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 32-bit integer (inputs: ids, positions, tables).
    I32,
    /// No bytes of its own: the output stands for the layer's KV region (store and load nodes).
    Kv,
}

impl DType {
    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::Kv => 0,
        }
    }

    /// Name used in dumps.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::I32 => "i32",
            DType::Kv => "kv",
        }
    }
}
