//! The compute graph of minfer: operations, passes (assign, fuse, lifetime, split), the allocator,
//! and the scheduler that runs a plan over the devices without reading a value before it was written.
//!
//! The stages are separate and ordered: [`GraphBuilder`] → assign → fuse → allocate → split → execute.
#![forbid(unsafe_code)]

mod alloc;
mod assign;
pub mod backend;
mod builder;
mod chaos;
mod check;
mod decompose;
mod dump;
mod error;
mod fuse;
mod fusion_report;
mod graph;
mod hazard;
mod infer;
mod kv;
mod kv_type;
mod lifetime;
mod memory;
mod memory_dump;
mod observe;
mod op;
mod plan;
mod progress;
pub mod room;
mod schedule;
mod scheduler;
mod shape;
mod split;
mod traffic;
mod verify;
mod weight_bytes;

pub use alloc::GraphAllocator;
pub use assign::{PlacementHint, Refusal, assign};
pub use backend::{
    Backend, BackendKind, BackendTag, Backends, BufferId, BufferRules, BufferSlice, Capture, KvPair,
    MemoryInfo, NodeCall, PAGE, ReplayKey, Unsupported,
};
pub use builder::GraphBuilder;
pub use chaos::{Chaos, ChaosHandle, ChaosStats, Fault, FaultKind, PendingRead};
pub use check::verify_schedule;
pub use decompose::{Decomposition, PlainOp, PlainSource, decompose, expand};
pub use dump::{dot_plan, dump_plan, json_plan, trace_plan};
pub use error::{BackendError, GraphError, NodeRef};
pub use fuse::{Fusion, FusionSwitches, fuse};
pub use fusion_report::{
    Fate, Fused, FusionGroup, FusionRefusal, FusionReport, Unfused, fusion_groups, fusions_json, fusions_text,
};
pub use graph::{Graph, Node, NodeId, TensorPart, WeightId, WeightSpec};
pub use hazard::{ByteRange, Hazard, HazardKind, Proof};
pub use infer::infer;
pub use kv::{KvRegion, KvStorage};
pub use kv_type::{KV_BLOCK, KvType, KvTypes, MAX_ROTATION};
pub use lifetime::{Lifetime, Lifetimes, lifetimes};
pub use memory::{Arena, Location, MemoryPlan, Placement, Staging, plan_memory};
pub use memory_dump::dump_memory;
pub use observe::{NodeObserver, NodeRun};
pub use op::{
    ActPrecision, Attention, ExpertMatMul, GatedMatMul, Gating, InputKind, KvShape, Norm, Op, QkvRopeStore,
    Rope, RopeStyle, Yarn,
};
pub use plan::{Plan, PlanOptions, plan};
pub use progress::Progress;
pub use schedule::{Action, copies, schedule};
pub use scheduler::{BackendScheduler, CaptureSink, Counters, SchedulerOptions, Step, TraceSink};
pub use shape::{DType, Dim, Shape, StepDims};
pub use split::{Split, split_graph};
pub use traffic::{CrossCopy, ONE_TOKEN, copied_bytes, cross_copies};
pub use verify::{topo_order, verify, verify_assigned};
pub use weight_bytes::{SharedBytes, WeightBytes};
