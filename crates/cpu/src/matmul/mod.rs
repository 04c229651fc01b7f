//! Matrix products with packed weights.
//!
//! [`PackedWeight`] holds a matrix, [`Activations`] quantised inputs, [`matmul`] and [`matmul_many`] multiply them. The
//! numbers are those of the numeric contract whatever the instruction set, the threads and the number of rows.

pub(crate) mod acts;
mod float;
mod format;
mod formats;
mod kernel;
mod memory;
mod panel;
mod planes;
mod run;
pub(crate) mod shared;
mod weight;

pub use acts::{ActRows, Activations};
pub(crate) use memory::{Arena, Region};
pub(crate) use run::{ExpertJob, ExpertRows, Pair, matmul_experts, matmul_together};
pub use run::{Input, Job, Then, Up, matmul, matmul_many};
pub use shared::SharedMut;
pub use weight::{GROUP, PackedWeight};
