//! Model architectures: one file each maps GGUF keys and tensors to a [`ModelSpec`]; shared blocks
//! turn the specification into a compute graph and never name an architecture.
#![forbid(unsafe_code)]

mod arch;
mod blocks;
mod build;
mod error;
mod keys;
mod spec;
mod tensors;

pub use arch::{Architecture, architectures, read_spec};
pub use build::{GraphParams, Stage, build_graph, node_names};
pub use error::{ModelError, ModelErrorKind};
pub use spec::{
    Activation, AttentionSpec, ExpertsSpec, FfnSpec, GatedSpec, LayerSpec, Linear, ModelSpec, RopeFactors,
    RopeSpec, Temperature,
};
