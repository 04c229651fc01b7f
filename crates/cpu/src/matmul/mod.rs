//! Matrix products with packed weights.
//!
//! [`PackedWeight`] holds a matrix, [`Activations`] quantised inputs, [`matmul`] and [`matmul_many`] multiply them. The
//! numbers are those of the numeric contract whatever the instruction set, the threads and the number of rows.

pub(crate) mod acts;
mod ahead;
mod float;
mod format;
mod formats;
mod job;
mod kernel;
mod memory;
mod outputs;
mod panel;
mod planes;
mod run;
pub(crate) mod shared;
mod weight;

pub(crate) use acts::{ALONE, Raw};
pub use acts::{ActRows, Activations};
pub(crate) use job::{ExpertJob, ExpertRows, Pair};
pub use job::{Input, Job, Then, Up};
pub(crate) use memory::{Arena, Region};
pub use run::{matmul, matmul_many};
pub(crate) use run::{matmul_experts, matmul_together};
pub use shared::SharedMut;
pub use weight::{GROUP, PackedWeight};
