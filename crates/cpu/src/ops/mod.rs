//! The kernels of the ops: [`kernel`] is the one table that both `supports` and dispatch read.

pub mod attention;
pub(crate) mod elementwise;
mod experts;
pub mod kv;
mod matmul;
pub(crate) mod norm;
mod parallel;
mod qkv;
mod rope;
mod rows;
pub(crate) mod vector;
pub mod weights;

use crate::buffers::{BufferPool, Views};
use crate::matmul::{Activations, SharedMut};
use crate::pool::Pool;
use crate::simd::Isa;
use crate::team::Team;
use elementwise::Elementwise;
use minfer_graph::{BackendError, BufferSlice, Graph, NodeCall, Norm, Op, Unsupported};
use weights::Weights;

/// Memory that a member of a team reuses from call to call.
#[derive(Default)]
pub struct Scratch {
    /// Angles of the step's positions.
    pub rope: rope::RopeCache,
    /// Quantised activations.
    pub activations: Activations,
    /// Rows behind their norm, for weights that take them as they are.
    pub normed: Vec<f32>,
    /// Partial results of attention.
    pub attention: attention::AttentionScratch,
    /// Which rows go to which expert.
    pub experts: experts::ExpertLists,
}

/// What a kernel works with.
pub struct Ctx<'a> {
    /// The node and its buffers.
    pub call: &'a NodeCall<'a>,
    /// The backend's memory; see [`Ctx::views`].
    pub buffers: &'a BufferPool,
    /// Loaded weights.
    pub weights: &'a Weights,
    /// Those who run the node together, each with a context of its own.
    pub team: &'a Team<'a>,
    /// The pool they are from.
    pub pool: &'a Pool,
    /// Instruction set.
    pub isa: Isa,
    /// This member's memory.
    pub scratch: &'a mut Scratch,
    /// Memory of all members: at least [`Kernel::common`] values, which nobody uses between two nodes.
    pub common: SharedMut<'a, f32>,
}

impl<'a> Ctx<'a> {
    /// The bytes of ranges to read and of ranges to write, for all members. Reads may overlap each other; a write may overlap nothing.
    pub fn views<const R: usize, const W: usize>(
        &self,
        reads: [BufferSlice; R],
        writes: [BufferSlice; W],
    ) -> Result<Views<'a, R, W>, BackendError> {
        // SAFETY: all members run the same node and so ask for the same ranges; they begin the next node together
        // (`Kernel::run`).
        unsafe { self.buffers.share(reads, writes) }
    }

    /// The buffer of a source, whose length must be what the source's shape says.
    pub fn input(&self, i: usize) -> Result<BufferSlice, BackendError> {
        let source = self.call.node.src.get(i).and_then(|&s| self.call.graph.nodes.get(s));
        match (source, self.call.inputs.get(i)) {
            (Some(node), Some(&slice)) => {
                check_len(slice, node.shape.len(self.call.dims) * node.dtype.bytes(), "input")
            }
            _ => Err(BackendError::BadBuffer(format!("source {i} is missing"))),
        }
    }

    /// The buffer of the output.
    pub fn output(&self) -> Result<BufferSlice, BackendError> {
        let node = self.call.node;
        check_len(self.call.output, node.shape.len(self.call.dims) * node.dtype.bytes(), "output")
    }

    /// Whether the op works in place on a source: the output is the very range of it.
    pub fn in_place(&self, i: usize) -> bool {
        self.call.inputs.get(i) == Some(&self.call.output)
            && self.call.node.op.in_place_sources().contains(&i)
    }

    /// The buffer of a source that is read beside the output: empty if the op works in place on it.
    pub fn beside(&self, i: usize) -> Result<BufferSlice, BackendError> {
        let slice = self.input(i)?;
        Ok(if self.in_place(i) { BufferSlice { len: 0, ..slice } } else { slice })
    }
}

fn check_len(slice: BufferSlice, bytes: usize, what: &str) -> Result<BufferSlice, BackendError> {
    if slice.len == bytes {
        return Ok(slice);
    }
    Err(BackendError::BadBuffer(format!("{what} has {} bytes, the step needs {bytes}", slice.len)))
}

/// One op's kernel.
pub trait Kernel: Sync {
    /// Whether the kernel takes the op's types and sizes.
    fn check(&self, _graph: &Graph) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Values that the members share while they run a node, beside its output.
    fn common(&self, _call: &NodeCall<'_>) -> usize {
        0
    }

    /// Runs it, on each member of a team. All of them meet after the last write, so that a member may begin the next
    /// node when it returns.
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError>;
}

/// The kernel of an op.
pub fn kernel(op: &Op) -> Box<dyn Kernel> {
    match *op {
        Op::Input(_) => Box::new(Input),
        Op::Embed { weight } => Box::new(rows::Embed { weight }),
        Op::MatMul { weight, bias, act } => Box::new(matmul::MatMul { weight, bias, act, add: false }),
        Op::MatMulAdd { weight, bias, act } => Box::new(matmul::MatMul { weight, bias, act, add: true }),
        Op::GatedMatMul(fused) => Box::new(fused),
        Op::AddBias { bias } => Box::new(elementwise::AddBias { bias }),
        Op::RmsNorm { weight, eps, parts } => Box::new(norm::RmsNorm(Norm { weight, eps, parts })),
        Op::NormAdd(norm) => Box::new(norm::NormAdd(norm)),
        Op::Add => Box::new(Elementwise(elementwise::Add)),
        Op::Mul => Box::new(Elementwise(elementwise::Mul)),
        Op::SwiGlu => Box::new(Elementwise(elementwise::SwiGlu)),
        Op::Silu => Box::new(Elementwise(elementwise::Silu)),
        Op::Gelu => Box::new(Elementwise(elementwise::Gelu)),
        Op::GeGlu => Box::new(Elementwise(elementwise::GeGlu)),
        Op::ClampedGlu { alpha, limit } => Box::new(Elementwise(elementwise::ClampedGlu { alpha, limit })),
        Op::Scale { factor } => Box::new(Elementwise(elementwise::Scale { factor })),
        Op::SoftCap { cap } => Box::new(Elementwise(elementwise::SoftCap { cap })),
        Op::PositionScale { gain, interval } => Box::new(elementwise::PositionScale { gain, interval }),
        Op::Rope(rope) => Box::new(rope),
        Op::KvStore(shape) => Box::new(kv::KvStore(shape)),
        Op::KvLoad(shape) => Box::new(kv::KvLoad(shape)),
        Op::Attention(attention) => Box::new(attention),
        Op::GatherRows => Box::new(rows::GatherRows),
        Op::TopExperts { n_used } => Box::new(experts::TopExperts { n_used }),
        Op::ExpertShares { over_chosen, scale } => Box::new(experts::ExpertShares { over_chosen, scale }),
        Op::ExpertMatMul(product) => Box::new(product),
        Op::ExpertSum => Box::new(experts::ExpertSum),
        Op::QkvRopeStore(fused) => Box::new(fused),
    }
}

/// Host-filled data: any device holds it, none executes it.
struct Input;

impl Kernel for Input {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(format!("`{}` is an input", ctx.call.node.name)))
    }
}
