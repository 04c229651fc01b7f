//! Op cases: small graphs at odd sizes with their data and a tolerance, to be run on any backend and
//! compared with the reference interpreter.
//!
//! [`all_cases`] gives the cases, [`check`] runs one on a backend and on a fresh
//! [`ReferenceBackend`](crate::ReferenceBackend) and compares. [`error_cases`] gives graphs whose data
//! hold an index outside its table: a backend that can tell must fail.

mod builder;
mod experts;
mod kv;
mod matmul;
mod rows;
mod run;

pub use builder::CaseBuilder;
pub use run::{CaseError, CaseRun, Report, check, run_case};

use minfer_graph::{Graph, KvShape, KvTypes, NodeId, StepDims, WeightSpec};

/// How close an output must come to the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Every bit (any NaN for a NaN).
    Bits,
    /// Normalised squared error at most this; NaN and infinities in the same places.
    Nmse(f64),
}

/// A layer's KV regions before the step.
#[derive(Clone, Debug, PartialEq)]
pub struct KvContent {
    /// What the layer keeps.
    pub shape: KvShape,
    /// Types.
    pub ty: KvTypes,
    /// Pages in each region.
    pub n_pages: usize,
    /// Bytes of K; slots never written hold NaN.
    pub k: Vec<u8>,
    /// Bytes of V; slots never written hold NaN.
    pub v: Vec<u8>,
}

/// A graph with everything that it needs to run.
#[derive(Clone, Debug)]
pub struct OpCase {
    /// Unique name.
    pub name: String,
    /// The graph; its outputs are compared.
    pub graph: Graph,
    /// Sizes of the step.
    pub dims: StepDims,
    /// Data of the input nodes.
    pub inputs: Vec<(NodeId, Vec<u8>)>,
    /// Weights. Names are unique among all cases.
    pub weights: Vec<(WeightSpec, Vec<u8>)>,
    /// KV regions; compared after the step.
    pub kv: Vec<KvContent>,
    /// Nodes whose output takes the range of this source.
    pub aliases: Vec<(NodeId, usize)>,
    /// Tolerance of all outputs.
    pub tolerance: Tolerance,
    /// Tolerance of KV elements that the step writes. The others must keep their bits.
    pub kv_tolerance: Tolerance,
}

/// Every case, for every op.
pub fn all_cases() -> Vec<OpCase> {
    let mut list = rows::cases();
    list.extend(matmul::cases());
    list.extend(experts::cases());
    list.extend(kv::cases());
    list
}

/// Cases whose data hold an index outside its table.
pub fn error_cases() -> Vec<OpCase> {
    let mut list = rows::error_cases();
    list.extend(experts::error_cases());
    list.extend(kv::error_cases());
    list
}
