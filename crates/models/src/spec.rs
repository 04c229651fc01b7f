//! What a model is, as data: the result of reading a file's keys and tensor table.

use minfer_graph::{KvShape, RopeStyle, WeightSpec, Yarn};
use std::collections::HashSet;

/// A linear map with an optional bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Weight `[n_out, n_in]`.
    pub weight: WeightSpec,
    /// Bias `[n_out]`.
    pub bias: Option<WeightSpec>,
}

/// Divisors of the rotation's frequencies, `[n_rot / 2]` each.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeFactors {
    /// None.
    None,
    /// The same for every context.
    Fixed(WeightSpec),
    /// One set for sessions within the original context and one for longer ones (LongRoPE).
    ByContext {
        /// Up to `n_ctx_orig` positions.
        short: WeightSpec,
        /// Beyond.
        long: WeightSpec,
        /// Context the model was trained for at first.
        n_ctx_orig: usize,
    },
}

/// Rotary embedding of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing.
    pub style: RopeStyle,
    /// Leading values of each head that rotate.
    pub n_rot: usize,
    /// Frequency base.
    pub base: f32,
    /// Linear position scale.
    pub freq_scale: f32,
    /// Divisors per frequency.
    pub factors: RopeFactors,
    /// Blend of interpolated and plain angles.
    pub yarn: Option<Yarn>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

/// Growth of the queries with their position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Growth per unit of the logarithm.
    pub gain: f32,
    /// Positions per step.
    pub interval: usize,
}

/// Self-attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query projection.
    pub q: Linear,
    /// Key projection.
    pub k: Linear,
    /// Value projection.
    pub v: Linear,
    /// Output projection.
    pub output: Linear,
    /// Norm of the queries before rotation: of each head, or of the whole row, as its length says.
    pub q_norm: Option<WeightSpec>,
    /// Norm of the keys before rotation.
    pub k_norm: Option<WeightSpec>,
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Values per query and key head.
    pub head_dim: usize,
    /// Values per value head.
    pub v_dim: usize,
    /// Rotation of q and k; without it the layer does not see positions.
    pub rope: Option<RopeSpec>,
    /// Growth of the queries with their position.
    pub temperature: Option<Temperature>,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Bound of the scores, by tanh.
    pub softcap: Option<f32>,
    /// Scores of nothing, one per query head, `[n_head]`.
    pub sinks: Option<WeightSpec>,
    /// Sliding window.
    pub window: Option<usize>,
    /// KV group: layers that keep the same positions share page tables.
    pub kv_group: usize,
}

/// What a feed-forward part does with its gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, GELU in its tanh form.
    Gelu,
    /// Clamped operands, a steeper sigmoid, and `up + 1`.
    ClampedSilu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of the operands.
        limit: f32,
    },
}

/// A gated feed-forward part: `down(activation(gate(x), up(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedSpec {
    /// Gate projection; of all experts one below the other.
    pub gate: Linear,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
    /// How gate and up meet.
    pub activation: Activation,
}

/// A mixture of experts in place of one feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Router `[n_expert, n_embd]`.
    pub router: Linear,
    /// Number of experts.
    pub n_expert: usize,
    /// Experts per token.
    pub n_used: usize,
    /// Whether the shares of the chosen experts sum up to 1.
    pub over_chosen: bool,
    /// Factor on the shares.
    pub scale: f32,
    /// The experts: weights `[n_expert * n_out, n_in]`, biases `[n_expert, n_out]`.
    pub experts: GatedSpec,
}

/// Feed-forward part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// One for all tokens.
    Dense(GatedSpec),
    /// Chosen per token.
    Experts(ExpertsSpec),
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: Option<WeightSpec>,
    /// Attention.
    pub attention: AttentionSpec,
    /// Norm of attention's result, before it joins the residual stream.
    pub attn_post_norm: Option<WeightSpec>,
    /// Norm before the feed-forward part.
    pub ffn_norm: Option<WeightSpec>,
    /// Feed-forward part.
    pub ffn: FfnSpec,
    /// Norm of the feed-forward part's result.
    pub ffn_post_norm: Option<WeightSpec>,
}

/// A decoder-only model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Name in the registry.
    pub arch: &'static str,
    /// Vocabulary size: rows of the embedding table.
    pub n_vocab: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Embedding table `[n_vocab, n_embd]`.
    pub token_embd: WeightSpec,
    /// Factor on the embeddings.
    pub embedding_scale: f32,
    /// Factor on what a block adds to the residual stream.
    pub residual_scale: f32,
    /// Blocks.
    pub layers: Vec<LayerSpec>,
    /// Last norm.
    pub output_norm: WeightSpec,
    /// Head `[n_vocab, n_embd]`; the embedding table itself when tied.
    pub output: Linear,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Bound of the logits, by tanh.
    pub logit_softcap: Option<f32>,
    /// Keys under the architecture's prefix that were not read; they change nothing.
    pub unread_keys: Vec<String>,
    /// Tensors that were not read; they change nothing.
    pub unread_tensors: Vec<String>,
}

impl Linear {
    fn weights(&self) -> impl Iterator<Item = &WeightSpec> {
        [&self.weight].into_iter().chain(&self.bias)
    }
}

impl RopeFactors {
    fn weights(&self) -> Vec<&WeightSpec> {
        match self {
            RopeFactors::None => Vec::new(),
            RopeFactors::Fixed(factors) => vec![factors],
            RopeFactors::ByContext { short, long, .. } => vec![short, long],
        }
    }

    /// The divisors for sessions of a context.
    pub fn for_context(&self, n_ctx: usize) -> Option<&WeightSpec> {
        match self {
            RopeFactors::None => None,
            RopeFactors::Fixed(factors) => Some(factors),
            RopeFactors::ByContext { short, long, n_ctx_orig } => {
                Some(if n_ctx > *n_ctx_orig { long } else { short })
            }
        }
    }
}

impl AttentionSpec {
    fn weights(&self) -> Vec<&WeightSpec> {
        let mut list: Vec<_> =
            [&self.q, &self.k, &self.v, &self.output].iter().flat_map(|l| l.weights()).collect();
        list.extend(self.q_norm.iter().chain(&self.k_norm).chain(&self.sinks));
        list.extend(self.rope.iter().flat_map(|r| r.factors.weights()));
        list
    }
}

impl FfnSpec {
    fn weights(&self) -> Vec<&WeightSpec> {
        let (router, g) = match self {
            FfnSpec::Dense(gated) => (None, gated),
            FfnSpec::Experts(e) => (Some(&e.router), &e.experts),
        };
        router.into_iter().chain([&g.gate, &g.up, &g.down]).flat_map(Linear::weights).collect()
    }

    /// Values that the last projection takes per token, over all experts that a token uses.
    pub fn n_hidden(&self) -> usize {
        match self {
            FfnSpec::Dense(gated) => gated.down.weight.cols,
            FfnSpec::Experts(e) => e.n_used * e.experts.down.weight.cols,
        }
    }
}

impl LayerSpec {
    fn weights(&self) -> Vec<&WeightSpec> {
        let mut list: Vec<_> = self.attn_norm.iter().collect();
        list.extend(self.attention.weights());
        list.extend(self.attn_post_norm.iter().chain(&self.ffn_norm));
        list.extend(self.ffn.weights());
        list.extend(&self.ffn_post_norm);
        list
    }
}

impl ModelSpec {
    /// Shape of each layer's KV region.
    pub fn kv_shapes(&self) -> impl Iterator<Item = KvShape> {
        self.layers.iter().enumerate().map(|(layer, l)| kv_shape(layer, &l.attention))
    }

    /// KV groups of the model.
    pub fn n_kv_groups(&self) -> usize {
        self.layers.iter().map(|l| l.attention.kv_group + 1).max().unwrap_or(1)
    }

    /// Every distinct weight the graph reads, in the order of execution.
    pub fn weights(&self) -> Vec<&WeightSpec> {
        let mut list = vec![&self.token_embd];
        list.extend(self.layers.iter().flat_map(LayerSpec::weights));
        list.push(&self.output_norm);
        list.extend(self.output.weights());
        let mut seen = HashSet::new();
        list.retain(|w| seen.insert(w.name.as_str()));
        list
    }

    /// Number of parameters of those weights.
    pub fn n_params(&self) -> usize {
        self.weights().iter().map(|w| w.rows * w.cols).sum()
    }

    /// Parameters that one token meets: of a mixture only the experts it uses.
    pub fn n_active_params(&self) -> usize {
        let idle = |l: &LayerSpec| match &l.ffn {
            FfnSpec::Dense(_) => 0,
            FfnSpec::Experts(e) => {
                let g = &e.experts;
                let all: usize =
                    [&g.gate, &g.up, &g.down].iter().map(|l| l.weight.rows * l.weight.cols).sum();
                all / e.n_expert * (e.n_expert - e.n_used)
            }
        };
        self.n_params() - self.layers.iter().map(idle).sum::<usize>()
    }
}

/// The KV region a layer's attention uses.
pub(crate) fn kv_shape(layer: usize, a: &AttentionSpec) -> KvShape {
    KvShape { layer, n_kv_head: a.n_kv_head, head_dim: a.head_dim, v_dim: a.v_dim }
}
