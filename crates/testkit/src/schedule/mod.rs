//! Proving schedules: random graphs on devices that punish early reads, mutations of valid plans, and
//! the properties that must hold for each of them.
//!
//! * [`random_graph`] and the blocks it is made of; inputs and weights that depend on a seed and a name alone.
//! * [`Rig`]: a plan with its devices, buffers and KV cache.
//! * [`check_memory`]: a second opinion on memory plans.
//! * [`Mutation`]: what can be broken in a plan. [`check_case`]: everything at once, for one seed.

mod memory;
mod mutate;
mod property;

mod random;
mod rig;

pub use memory::{check_memory, shared_ranges};

pub use mutate::Mutation;
pub use property::{CaseReport, MutantFate, check_case};
pub use random::{
    AttentionInputs, attention_block, attention_inputs, kv_shape, matrix, random_graph, rope, seed_graph,
    value_input,
};
pub use rig::{
    COLS, CPU, GPU, GPU1, MAX_PAGES, Rig, VOCAB, bits, chaos, devices, dims, finite, host_and_gpu,
    load_weights, one, reference, weight_bytes,
};
