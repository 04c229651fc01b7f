//! The compute graph of minfer: operations, passes (assign, fuse, lifetime, split), the allocator,
//! and the scheduler that runs a plan over the devices without reading a value before it was written.
//!
//! The stages are separate and ordered: [`GraphBuilder`] → assign → fuse → allocate → split → execute.
#![forbid(unsafe_code)]

pub mod backend;
mod builder;
mod error;
mod graph;
mod infer;
mod op;
mod shape;

pub use backend::{
    Backend, BackendKind, BackendTag, Backends, BufferId, BufferRules, BufferSlice, Capture, KvPair, KvType,
    MemoryInfo, NodeCall, PAGE, ReplayKey, Unsupported,
};
pub use builder::GraphBuilder;
pub use error::{BackendError, GraphError, NodeRef};
pub use graph::{Graph, Node, NodeId, WeightId, WeightSpec};
pub use infer::infer;
pub use op::{ActPrecision, Attention, InputKind, KvShape, Op, QkvRopeStore, Rope, RopeStyle};
pub use shape::{DType, Dim, Shape, StepDims};
