//! Random tests that run as long as one likes: `minfer-fuzz schedule` for graphs, schedules and devices,
//! `minfer-fuzz kernels` for products and attention, `minfer-fuzz gguf` for damaged model files. A case depends on its
//! seed alone, so that a failure is repeated with `--seed N --cases 1`. Tests run a fixed number of cases of each.
#![forbid(unsafe_code)]

pub mod gguf;
pub mod kernels;
pub mod schedule;
mod workers;

pub use workers::{Limits, until_done};
