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

/// YaRN, <https://arxiv.org/abs/2309.00071>: fast frequencies keep their angles, slow ones are
/// interpolated by [`Rope::freq_scale`], and a ramp over the pairs blends between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context the model was trained for before it was extended.
    pub n_ctx_orig: usize,
    /// Weight of the ramp: 1, or 0 for plain interpolation.
    pub ext_factor: f32,
    /// Turns over the original context above which a pair keeps its angle.
    pub beta_fast: f32,
    /// Turns below which a pair is fully interpolated.
    pub beta_slow: f32,
    /// Whether the ramp's ends are rounded outwards to whole pairs.
    pub whole_ends: bool,
}

/// Rotary position embedding, <https://arxiv.org/abs/2104.09864>:
/// `angle(pos, i) = pos * freq_scale * base^(-2i / n_rot) / factors[i]`, by YaRN's blend of it if there is
/// one; cosine and sine are multiplied by `magnitude`.
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
    /// Blend of interpolated and plain angles.
    pub yarn: Option<Yarn>,
    /// Factor on both cosine and sine (1 when absent).
    pub magnitude: f32,
}

impl Rope {
    /// Angle per position of pair `i`, given its divisor.
    pub fn frequency(&self, i: usize, divisor: f32) -> f64 {
        let plain = f64::from(self.base).powf(-2.0 * i as f64 / self.n_rot as f64) / f64::from(divisor);
        let scale = f64::from(self.freq_scale);
        match self.yarn {
            None => plain * scale,
            Some(yarn) => {
                let keep = f64::from(yarn.ext_factor) * self.keeps(&yarn, i);
                plain * (scale * (1.0 - keep) + keep)
            }
        }
    }

    /// YaRN's ramp: 1 for pairs that turn more than `beta_fast` times over the original context, 0 below
    /// `beta_slow` turns.
    fn keeps(&self, yarn: &Yarn, i: usize) -> f64 {
        let n_rot = self.n_rot as f64;
        let pair_of = |turns: f32| {
            let wavelength = yarn.n_ctx_orig as f64 / (f64::from(turns) * std::f64::consts::TAU);
            n_rot * wavelength.ln() / (2.0 * f64::from(self.base).ln())
        };
        let (mut low, mut high) = (pair_of(yarn.beta_fast), pair_of(yarn.beta_slow));
        if yarn.whole_ends {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(n_rot - 1.0));
        1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
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

/// A root-mean-square norm within another op: [`Op::RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Weight `[cols / parts]` f32; absent means a factor of one.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
    /// Parts of a row that are normalised by themselves.
    pub parts: usize,
}

impl Norm {
    /// The norm by itself.
    pub const fn op(self) -> Op {
        Op::RmsNorm { weight: self.weight, eps: self.eps, parts: self.parts }
    }

    /// The norm that an op is, if it is one.
    pub const fn of(op: &Op) -> Option<Norm> {
        match *op {
            Op::RmsNorm { weight, eps, parts } => Some(Norm { weight, eps, parts }),
            _ => None,
        }
    }
}

/// The three projections of attention with their optional biases, fused with RoPE and the KV store, and with the norms
/// around them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkvRopeStore {
    /// Norm of the input.
    pub norm: Option<Norm>,
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
    /// Norm of the projected queries, before they are rotated.
    pub q_norm: Option<Norm>,
    /// Norm of the projected keys, before they are rotated.
    pub k_norm: Option<Norm>,
    /// Rotation of q and k.
    pub rope: Rope,
    /// Where k and v go.
    pub kv: KvShape,
    /// Activation precision of the three matmuls.
    pub act: ActPrecision,
}

/// What the gate of a feed-forward block passes through before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gating {
    /// [`Op::SwiGlu`].
    Silu,
    /// [`Op::GeGlu`].
    Gelu,
}

impl Gating {
    /// The activation by itself.
    pub const fn activation(self) -> Op {
        match self {
            Gating::Silu => Op::Silu,
            Gating::Gelu => Op::Gelu,
        }
    }

    /// The activation and the product, in one op.
    pub const fn op(self) -> Op {
        match self {
            Gating::Silu => Op::SwiGlu,
            Gating::Gelu => Op::GeGlu,
        }
    }
}

/// The gate and the up projection of one x with their optional biases, fused with what multiplies them, and with the
/// norm of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedMatMul {
    /// Norm of the input.
    pub norm: Option<Norm>,
    /// Gate weight `[n_out, n_in]`.
    pub gate: WeightId,
    /// Up weight `[n_out, n_in]`.
    pub up: WeightId,
    /// Gate bias `[n_out]` f32.
    pub gate_bias: Option<WeightId>,
    /// Up bias `[n_out]` f32.
    pub up_bias: Option<WeightId>,
    /// What the gate passes through.
    pub gating: Gating,
    /// Activation precision of both products.
    pub act: ActPrecision,
}

/// Products with the weights of chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertMatMul {
    /// The experts' weights, one below the other: `[n_expert * n_out, n_in]`.
    pub weight: WeightId,
    /// Their biases, `[n_expert, n_out]` f32.
    pub bias: Option<WeightId>,
    /// Number of experts.
    pub n_expert: usize,
    /// Activation precision for quantised weights.
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
    /// `x / sqrt(mean(x^2) + eps) * weight`, on each of the row's equal parts by itself. Sources: `[x]`.
    RmsNorm {
        /// Weight `[cols / parts]` f32, the same for all parts; absent means a factor of one.
        weight: Option<WeightId>,
        /// Added to the mean square.
        eps: f32,
        /// Parts per row: 1, or the heads of a query or key.
        parts: usize,
    },
    /// `a + b`. Sources: `[a, b]`.
    Add,
    /// `a * b`. Sources: `[a, b]`.
    Mul,
    /// `x / (1 + exp(-x))`. Sources: `[x]`.
    Silu,
    /// `x / (1 + exp(-2u))`, `u = sqrt(2 / pi) (x + 0.044715 x^3)`: GELU in its tanh form,
    /// <https://arxiv.org/abs/1606.08415>, with x and the result rounded to f16; 0 below -10, x above 10.
    /// Sources: `[x]`.
    Gelu,
    /// `x * factor`. Sources: `[x]`.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// `cap * tanh(x / cap)`. Sources: `[x]`.
    SoftCap {
        /// Bound on the result.
        cap: f32,
    },
    /// `x * (1 + gain * ln(1 + floor(position / interval)))`, per row: the attention temperature of long
    /// positions. Sources: `[x, positions]`.
    PositionScale {
        /// Growth per unit of the logarithm.
        gain: f32,
        /// Positions per step.
        interval: usize,
    },
    /// `silu(gate) * up`, the fused form of `Mul(Silu(gate), up)`. Sources: `[gate, up]`.
    SwiGlu,
    /// `gelu(gate) * up`, the fused form of `Mul(Gelu(gate), up)`. Sources: `[gate, up]`.
    GeGlu,
    /// `g / (1 + exp(-alpha g)) * (u + 1)` with `g = min(gate, limit)` and `u = up` clamped to `±limit`.
    /// Sources: `[gate, up]`.
    ClampedGlu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound.
        limit: f32,
    },
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
    /// Indices of each row's largest values, best first, the lower index among equals:
    /// `[rows, n_used]` i32. A NaN counts as larger than any number. Sources: `[router logits]`.
    TopExperts {
        /// Experts per token.
        n_used: usize,
    },
    /// Shares of the chosen experts, `[rows, n_used]`: a softmax of the router's logits over all experts, or over the
    /// chosen alone, times `scale`. Sources: `[router logits, experts]`.
    ExpertShares {
        /// Whether the shares of the chosen sum up to 1.
        over_chosen: bool,
        /// Factor on the shares.
        scale: f32,
    },
    /// A product with the weights of each row's chosen experts, `[rows, n_used * n_out]` in rank order. `x` has one part
    /// for all of them, `[rows, n_in]`, or one for each, `[rows, n_used * n_in]`. Sources: `[x, experts]`.
    ExpertMatMul(ExpertMatMul),
    /// `out[t] = sum_r shares[t, r] * x[t, r]` in rank order: `[rows, n]` from `[rows, n_used * n]`.
    /// Sources: `[x, shares]`.
    ExpertSum,
    /// Projections, biases, rotation and KV store in one; the output is the rotated q.
    /// Sources: `[x, positions, kv_rows]`.
    QkvRopeStore(QkvRopeStore),
    /// Two projections, their biases, the activation of the first and the product of both in one.
    /// Sources: `[x]`.
    GatedMatMul(GatedMatMul),
    /// A product, its bias, and then a sum: the fused form of `Add(MatMul(x), r)`. Sources: `[x, r]`.
    MatMulAdd {
        /// Weight `[n_out, n_in]`.
        weight: WeightId,
        /// Bias `[n_out]` f32, added before `r`.
        bias: Option<WeightId>,
        /// Activation precision for quantised weights.
        act: ActPrecision,
    },
    /// `norm(x) + r`, the fused form of `Add(RmsNorm(x), r)`. Sources: `[x, r]`.
    NormAdd(Norm),
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
            Op::Gelu => "Gelu",
            Op::Scale { .. } => "Scale",
            Op::SoftCap { .. } => "SoftCap",
            Op::PositionScale { .. } => "PositionScale",
            Op::SwiGlu => "SwiGlu",
            Op::GeGlu => "GeGlu",
            Op::ClampedGlu { .. } => "ClampedGlu",
            Op::Rope(_) => "Rope",
            Op::KvStore(_) => "KvStore",
            Op::KvLoad(_) => "KvLoad",
            Op::Attention(_) => "Attention",
            Op::GatherRows => "GatherRows",
            Op::TopExperts { .. } => "TopExperts",
            Op::ExpertShares { .. } => "ExpertShares",
            Op::ExpertMatMul(_) => "ExpertMatMul",
            Op::ExpertSum => "ExpertSum",
            Op::QkvRopeStore(_) => "QkvRopeStore",
            Op::GatedMatMul(_) => "GatedMatMul",
            Op::MatMulAdd { .. } => "MatMulAdd",
            Op::NormAdd(_) => "NormAdd",
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
            | Op::Gelu
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::TopExperts { .. }
            | Op::KvLoad(_)
            | Op::GatedMatMul(_) => 1,
            Op::Add
            | Op::Mul
            | Op::PositionScale { .. }
            | Op::SwiGlu
            | Op::GeGlu
            | Op::ClampedGlu { .. }
            | Op::Rope(_)
            | Op::GatherRows
            | Op::ExpertShares { .. }
            | Op::ExpertMatMul(_)
            | Op::ExpertSum
            | Op::MatMulAdd { .. }
            | Op::NormAdd(_) => 2,
            Op::KvStore(_) | Op::QkvRopeStore(_) => 3,
            Op::Attention(_) => 4,
        }
    }

    /// Sources whose buffer the output may take over when this node is their last reader:
    /// element `i` of the output depends on no other element of that source that is read later.
    pub const fn in_place_sources(&self) -> &'static [usize] {
        match self {
            Op::AddBias { .. }
            | Op::RmsNorm { .. }
            | Op::Silu
            | Op::Gelu
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::PositionScale { .. }
            | Op::Rope(_) => &[0],
            Op::Add | Op::Mul | Op::SwiGlu | Op::GeGlu | Op::ClampedGlu { .. } | Op::NormAdd(_) => &[0, 1],
            Op::Input(_)
            | Op::Embed { .. }
            | Op::MatMul { .. }
            | Op::KvStore(_)
            | Op::KvLoad(_)
            | Op::Attention(_)
            | Op::GatherRows
            | Op::TopExperts { .. }
            | Op::ExpertShares { .. }
            | Op::ExpertMatMul(_)
            | Op::ExpertSum
            | Op::QkvRopeStore(_)
            | Op::GatedMatMul(_)
            | Op::MatMulAdd { .. } => &[],
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
            | Op::Gelu
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::PositionScale { .. }
            | Op::SwiGlu
            | Op::GeGlu
            | Op::ClampedGlu { .. }
            | Op::Rope(_)
            | Op::GatherRows
            | Op::TopExperts { .. }
            | Op::ExpertShares { .. }
            | Op::ExpertMatMul(_)
            | Op::ExpertSum
            | Op::GatedMatMul(_)
            | Op::MatMulAdd { .. }
            | Op::NormAdd(_) => None,
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
        let of_norm = |norm: Option<Norm>| norm.and_then(|n| n.weight);
        let list = match *self {
            Op::Embed { weight } => some([Some(weight)]),
            Op::MatMul { weight, bias, .. } | Op::MatMulAdd { weight, bias, .. } => {
                some([Some(weight), bias])
            }
            Op::AddBias { bias } => some([Some(bias)]),
            Op::RmsNorm { weight, .. } => some([weight]),
            Op::NormAdd(norm) => some([norm.weight]),
            Op::Rope(rope) => some([rope.factors]),
            Op::Attention(a) => some([a.sinks]),
            Op::QkvRopeStore(f) => {
                let [n, nq, nk] = [f.norm, f.q_norm, f.k_norm].map(of_norm);
                some([Some(f.wq), Some(f.wk), Some(f.wv), f.bq, f.bk, f.bv, f.rope.factors, n, nq, nk])
            }
            Op::GatedMatMul(f) => some([Some(f.gate), Some(f.up), f.gate_bias, f.up_bias, of_norm(f.norm)]),
            Op::ExpertMatMul(m) => some([Some(m.weight), m.bias]),
            Op::Input(_)
            | Op::Add
            | Op::Mul
            | Op::Silu
            | Op::Gelu
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::PositionScale { .. }
            | Op::SwiGlu
            | Op::GeGlu
            | Op::ClampedGlu { .. }
            | Op::KvStore(_)
            | Op::KvLoad(_)
            | Op::GatherRows
            | Op::TopExperts { .. }
            | Op::ExpertShares { .. }
            | Op::ExpertSum => some([]),
        };
        list.into_iter().flatten()
    }
}

/// Most weights that an op reads.
const MAX_WEIGHTS: usize = 10;

/// A list of weights in the length of the longest one.
fn some<const N: usize>(weights: [Option<WeightId>; N]) -> [Option<WeightId>; MAX_WEIGHTS] {
    const { assert!(N <= MAX_WEIGHTS) };
    let mut list = [None; MAX_WEIGHTS];
    list[..N].copy_from_slice(&weights);
    list
}
