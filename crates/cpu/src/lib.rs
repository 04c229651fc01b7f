//! The CPU backend: kernels written once over an instruction set token ([`simd`]), one persistent
//! thread pool ([`pool`]), and weights repacked at load ([`matmul`]).
//!
//! Every result follows the numeric contract (`docs/numerics.md`) to the bit, whatever the
//! instruction set, the number of threads and the batch.

pub mod backend;
pub mod buffers;
pub mod matmul;
pub mod measure;
mod memory;
mod ops;
mod patience;
pub mod pool;
pub mod simd;
mod team;
pub mod threads;

pub use backend::{CpuBackend, CpuOptions};
pub use memory::{AddressSpace, spare_address_space};
pub use pool::Pool;
pub use simd::Isa;
pub use team::Team;
pub use threads::default_threads;
