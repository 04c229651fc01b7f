//! What a model is, as data: the result of reading a file's keys and tensor table.

use minfer_graph::{KvShape, RopeStyle, WeightSpec};

/// A linear map with an optional bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Weight `[n_out, n_in]`.
    pub weight: WeightSpec,
    /// Bias `[n_out]`.
    pub bias: Option<WeightSpec>,
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
    pub factors: Option<WeightSpec>,
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
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Values per query and key head.
    pub head_dim: usize,
    /// Values per value head.
    pub v_dim: usize,
    /// Rotation of q and k.
    pub rope: RopeSpec,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Sliding window.
    pub window: Option<usize>,
    /// KV group: layers that keep the same positions share page tables.
    pub kv_group: usize,
}

/// Gated feed-forward part of a layer: `down(silu(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct FfnSpec {
    /// Gate projection.
    pub gate: Linear,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: WeightSpec,
    /// Attention.
    pub attention: AttentionSpec,
    /// Norm before the feed-forward part.
    pub ffn_norm: WeightSpec,
    /// Feed-forward part.
    pub ffn: FfnSpec,
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
    /// Blocks.
    pub layers: Vec<LayerSpec>,
    /// Last norm.
    pub output_norm: WeightSpec,
    /// Head `[n_vocab, n_embd]`; the embedding table itself when tied.
    pub output: Linear,
    /// Keys under the architecture's prefix that were not read; they change nothing.
    pub unread_keys: Vec<String>,
    /// Tensors that were not read; they change nothing.
    pub unread_tensors: Vec<String>,
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
        for layer in &self.layers {
            let a = &layer.attention;
            list.push(&layer.attn_norm);
            for linear in [&a.q, &a.k, &a.v, &a.output] {
                list.push(&linear.weight);
                list.extend(&linear.bias);
            }
            list.extend(&a.rope.factors);
            list.push(&layer.ffn_norm);
            for linear in [&layer.ffn.gate, &layer.ffn.up, &layer.ffn.down] {
                list.push(&linear.weight);
                list.extend(&linear.bias);
            }
        }
        list.push(&self.output_norm);
        list.push(&self.output.weight);
        list.extend(&self.output.bias);
        let mut seen = std::collections::HashSet::new();
        list.retain(|w| seen.insert(w.name.as_str()));
        list
    }

    /// Number of parameters of those weights.
    pub fn n_params(&self) -> usize {
        self.weights().iter().map(|w| w.rows * w.cols).sum()
    }
}

/// The KV region a layer's attention uses.
pub(crate) fn kv_shape(layer: usize, a: &AttentionSpec) -> KvShape {
    KvShape { layer, n_kv_head: a.n_kv_head, head_dim: a.head_dim, v_dim: a.v_dim }
}
