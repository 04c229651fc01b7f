//! The closed set of operations. Parameters are typed; every `match` on [`Op`] is exhaustive.

use crate::graph::WeightId;

/// What a step's input carries. All of them are host data, filled before `execute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// `[Tokens, 1]` i32: vocabulary ids.
    TokenIds,
    /// `[Tokens, 1]` i32: absolute position of each token in its sequence.
    Positions,
    /// `[Tokens, 1]` i32: the KV row (`page * PAGE + slot`) that each token writes, per KV group.
    KvRows {
        /// Index of the KV group (layers that keep the same positions).
        group: usize,
    },
    /// `[Seqs, 3]` i32: first token in the batch, number of tokens, position of the first token.
    /// A sequence's tokens are contiguous in a batch.
    Extents,
    /// `[Seqs, max_pages]` i32: physical page of each logical page, per KV group.
    PageTable {
        /// Index of the KV group.
        group: usize,
    },
    /// `[Outputs, 1]` i32: batch rows whose result is wanted.
    OutputRows,
    /// `[Rows, cols]` f32: a value computed elsewhere (the head graph's hidden rows; tests).
    Value,
}

/// How activations enter a matmul with quantised weights. F32, F16 and BF16 weights always take
/// f32 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActPrecision {
    /// One int8 plane: 8 bits per value, a scale per 32.
    Int8,
    /// Two int8 planes (value and residual): 16 bits per value. The output head uses it.
    Int16,
}

/// Which pairs of a head RoPE rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours `(2i, 2i + 1)`: the llama family.
    Interleaved,
    /// Halves `(i, i + n_rot / 2)`: the NeoX family.
    Halves,
}

/// Rotary position embedding, <https://arxiv.org/abs/2104.09864>:
/// `angle(pos, i) = pos * freq_scale * base^(-2i / n_rot) / factors[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairing.
    pub style: RopeStyle,
    /// Values per head.
    pub head_dim: usize,
    /// Leading values of each head that rotate; even, at most `head_dim`.
    pub n_rot: usize,
    /// Frequency base.
    pub base: f32,
    /// Linear position scale (1 when absent).
    pub freq_scale: f32,
    /// Per-frequency divisors, `[n_rot / 2]` f32 (Llama 3's `rope_freqs`).
    pub factors: Option<WeightId>,
}

/// Grouped-query attention over a paged KV cache, causal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Model layer whose KV region is read.
    pub layer: usize,
    /// Query heads; a multiple of `n_kv_head`.
    pub n_head: usize,
    /// KV heads. Query head `h` reads KV head `h / (n_head / n_kv_head)`.
    pub n_kv_head: usize,
    /// Values per query and key head.
    pub head_dim: usize,
    /// Values per value head.
    pub v_dim: usize,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys at positions > p - window.
    pub window: Option<usize>,
    /// Bound on the scores, applied before masking: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Attention sinks `[n_head]` f32: one more score per query head that takes part in the softmax's
    /// maximum and sum and has no value.
    pub sinks: Option<WeightId>,
}

/// Where a KV store or load points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Model layer.
    pub layer: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Values per key head.
    pub head_dim: usize,
    /// Values per value head.
    pub v_dim: usize,
}

/// The three projections of attention with their optional biases, fused with RoPE and the KV store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkvRopeStore {
    /// Query weight `[n_head * head_dim, n_embd]`.
    pub wq: WeightId,
    /// Key weight `[n_kv_head * head_dim, n_embd]`.
    pub wk: WeightId,
    /// Value weight `[n_kv_head * v_dim, n_embd]`.
    pub wv: WeightId,
    /// Query bias.
    pub bq: Option<WeightId>,
    /// Key bias.
    pub bk: Option<WeightId>,
    /// Value bias.
    pub bv: Option<WeightId>,
    /// Rotation of q and k.
    pub rope: Rope,
    /// Where k and v go.
    pub kv: KvShape,
    /// Activation precision of the three matmuls.
    pub act: ActPrecision,
}

/// One operation. Source order is part of the contract and stated on each variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Host-filled data; never executed.
    Input(InputKind),
    /// Rows of an embedding table as f32. Sources: `[token_ids]`. A token id outside the table is an error.
    Embed {
        /// Table `[n_vocab, n_embd]`.
        weight: WeightId,
    },
    /// `out[t, o] = sum_k w[o, k] * x[t, k] (+ bias[o])`. Sources: `[x]`.
    MatMul {
        /// Weight `[n_out, n_in]`.
        weight: WeightId,
        /// Bias `[n_out]` f32, added last.
        bias: Option<WeightId>,
        /// Activation precision for quantised weights.
        act: ActPrecision,
    },
    /// `x + bias` on each row. Sources: `[x]`.
    AddBias {
        /// Bias `[cols]` f32.
        bias: WeightId,
    },
    /// `x / sqrt(mean(x^2) + eps) * weight`. Sources: `[x]`.
    RmsNorm {
        /// Weight `[cols]` f32; absent means a factor of one.
        weight: Option<WeightId>,
        /// Added to the mean square.
        eps: f32,
    },
    /// `a + b`. Sources: `[a, b]`.
    Add,
    /// `a * b`. Sources: `[a, b]`.
    Mul,
    /// `x / (1 + exp(-x))`. Sources: `[x]`.
    Silu,
    /// `silu(gate) * up`, the fused form of `Mul(Silu(gate), up)`. Sources: `[gate, up]`.
    SwiGlu,
    /// Rotates each head by its row's position. Sources: `[x, positions]`.
    Rope(Rope),
    /// Writes rows of k and v to the layer's KV region. Sources: `[k, v, kv_rows]`.
    KvStore(KvShape),
    /// Makes the layer's KV region available to attention. Sources: `[store]`.
    KvLoad(KvShape),
    /// Attention of the batch's queries. Sources: `[q, kv_load, extents, page_table]`.
    Attention(Attention),
    /// Rows of `x` picked by index. Sources: `[x, rows]`.
    GatherRows,
    /// Projections, biases, rotation and KV store in one; the output is the rotated q.
    /// Sources: `[x, positions, kv_rows]`.
    QkvRopeStore(QkvRopeStore),
}

impl Op {
    /// Bare name, as shown in dumps, traces and errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "Input",
            Op::Embed { .. } => "Embed",
            Op::MatMul { .. } => "MatMul",
            Op::AddBias { .. } => "AddBias",
            Op::RmsNorm { .. } => "RmsNorm",
            Op::Add => "Add",
            Op::Mul => "Mul",
            Op::Silu => "Silu",
            Op::SwiGlu => "SwiGlu",
            Op::Rope(_) => "Rope",
            Op::KvStore(_) => "KvStore",
            Op::KvLoad(_) => "KvLoad",
            Op::Attention(_) => "Attention",
            Op::GatherRows => "GatherRows",
            Op::QkvRopeStore(_) => "QkvRopeStore",
        }
    }

    /// Number of sources.
    pub const fn arity(&self) -> usize {
        match self {
            Op::Input(_) => 0,
            Op::Embed { .. }
            | Op::MatMul { .. }
            | Op::AddBias { .. }
            | Op::RmsNorm { .. }
            | Op::Silu
            | Op::KvLoad(_) => 1,
            Op::Add | Op::Mul | Op::SwiGlu | Op::Rope(_) | Op::GatherRows => 2,
            Op::KvStore(_) | Op::QkvRopeStore(_) => 3,
            Op::Attention(_) => 4,
        }
    }

    /// Sources whose buffer the output may take over when this node is their last reader:
    /// element `i` of the output depends on no other element of that source that is read later.
    pub const fn in_place_sources(&self) -> &'static [usize] {
        match self {
            Op::AddBias { .. } | Op::RmsNorm { .. } | Op::Silu | Op::Rope(_) => &[0],
            Op::Add | Op::Mul | Op::SwiGlu => &[0, 1],
            Op::Input(_)
            | Op::Embed { .. }
            | Op::MatMul { .. }
            | Op::KvStore(_)
            | Op::KvLoad(_)
            | Op::Attention(_)
            | Op::GatherRows
            | Op::QkvRopeStore(_) => &[],
        }
    }

    /// The KV region the op touches, if any.
    pub const fn kv_shape(&self) -> Option<KvShape> {
        match self {
            Op::KvStore(kv) | Op::KvLoad(kv) => Some(*kv),
            Op::QkvRopeStore(f) => Some(f.kv),
            Op::Attention(a) => {
                Some(KvShape { layer: a.layer, n_kv_head: a.n_kv_head, head_dim: a.head_dim, v_dim: a.v_dim })
            }
            Op::Input(_)
            | Op::Embed { .. }
            | Op::MatMul { .. }
            | Op::AddBias { .. }
            | Op::RmsNorm { .. }
            | Op::Add
            | Op::Mul
            | Op::Silu
            | Op::SwiGlu
            | Op::Rope(_)
            | Op::GatherRows => None,
        }
    }

    /// The model layer whose KV region the op touches, if any.
    pub fn kv_layer(&self) -> Option<usize> {
        self.kv_shape().map(|kv| kv.layer)
    }

    /// Whether the op changes the layer's KV region, so that it must run even if nobody reads its output.
    pub const fn writes_kv(&self) -> bool {
        matches!(self, Op::KvStore(_) | Op::QkvRopeStore(_))
    }

    /// Weights the op reads, in a fixed order.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> {
        let list: [Option<WeightId>; 7] = match *self {
            Op::Embed { weight } => [Some(weight), None, None, None, None, None, None],
            Op::MatMul { weight, bias, .. } => [Some(weight), bias, None, None, None, None, None],
            Op::AddBias { bias } => [Some(bias), None, None, None, None, None, None],
            Op::RmsNorm { weight, .. } => [weight, None, None, None, None, None, None],
            Op::Rope(rope) => [rope.factors, None, None, None, None, None, None],
            Op::Attention(a) => [a.sinks, None, None, None, None, None, None],
            Op::QkvRopeStore(f) => [Some(f.wq), Some(f.wk), Some(f.wv), f.bq, f.bk, f.bv, f.rope.factors],
            Op::Input(_)
            | Op::Add
            | Op::Mul
            | Op::Silu
            | Op::SwiGlu
            | Op::KvStore(_)
            | Op::KvLoad(_)
            | Op::GatherRows => [None; 7],
        };
        list.into_iter().flatten()
    }
}
