//! What tests of the other crates are made of. Nothing here is fast, and nothing here is shipped.
//!
//! * [`reference`](mod@reference): a naive interpreter of the graph's operations, their living definition.
//! * [`cases`]: one list of op cases at odd sizes that every backend must pass.
//! * [`tiny`]: writes small random models, whole or deliberately broken.
//! * [`naive`]: an independent forward pass straight from a model file, in f64, without the graph.
//! * [`compare`]: error measures and reports.
//! * [`safetensors`], [`golden`]: readers for recorded results.
//! * [`rng`]: the random numbers of all of these, the same on every machine.
#![forbid(unsafe_code)]

pub mod cases;
pub mod compare;
pub mod golden;
pub mod naive;
pub mod reference;
pub mod rng;
pub mod safetensors;
pub mod schedule;
pub mod tiny;

pub use cases::{OpCase, all_cases, check, error_cases, run_case};
pub use reference::ReferenceBackend;
