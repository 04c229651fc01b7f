//! What a file's metadata and its architecture's definition say about the forward pass.

use super::NaiveError;
use super::rope::Rope;
use minfer_gguf::{Gguf, Metadata};

/// Where the norms of a block stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// Before attention and before the feed-forward part.
    Pre,
    /// Before and after both.
    PrePost,
    /// After both.
    Post,
}

/// How q and k are normalised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorm {
    None,
    Head,
    Row,
}

/// The feed-forward part's activation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, in the tanh form.
    Gelu,
    /// gpt-oss: `gate * sigmoid(1.702 gate) * (up + 1)`, clamped at 7.
    Clamped,
}

/// Which layers have a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowLayers {
    /// None, even if the file names a window.
    None,
    /// All of them.
    All,
    /// All but every n-th.
    AllButEvery(usize),
}

/// An architecture's definition.
#[derive(Clone, Copy)]
pub(super) struct Arch {
    pub name: &'static str,
    /// Whether neighbours are rotated together, else the halves of the rotated part.
    pub interleaved: bool,
    pub norms: Norms,
    /// Name of the norm before the feed-forward part.
    pub ffn_norm: &'static str,
    pub qk_norm: QkNorm,
    pub activation: Activation,
    pub window: WindowLayers,
    /// The rope base of layers with a window, where it is one of their own unless stated.
    pub local_base: Option<f64>,
    /// Whether layers with a window keep clear of the rope's scaling.
    pub local_unscaled: bool,
    /// Every n-th layer is not rotated.
    pub unrotated_every: Option<usize>,
    /// Whether the embedding is scaled by the root of the width.
    pub embedding_root: bool,
    /// The number of layers at which the scores are scaled by the width over the heads, not by the head's width.
    pub scale_by_width_at: Option<usize>,
    /// Whether the corners of YaRN's ramp are whole numbers.
    pub whole_yarn: bool,
}

const LLAMA: Arch = Arch {
    name: "llama",
    interleaved: true,
    norms: Norms::Pre,
    ffn_norm: "ffn_norm",
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    window: WindowLayers::None,
    local_base: None,
    local_unscaled: false,
    unrotated_every: None,
    embedding_root: false,
    scale_by_width_at: None,
    whole_yarn: true,
};

const QWEN2: Arch = Arch { name: "qwen2", interleaved: false, ..LLAMA };

const QWEN3: Arch = Arch { name: "qwen3", qk_norm: QkNorm::Head, ..QWEN2 };

const GEMMA2: Arch = Arch {
    name: "gemma2",
    norms: Norms::PrePost,
    activation: Activation::Gelu,
    window: WindowLayers::AllButEvery(2),
    embedding_root: true,
    scale_by_width_at: Some(46),
    ..QWEN2
};

const ARCHS: [Arch; 12] = [
    LLAMA,
    QWEN2,
    QWEN3,
    Arch { name: "qwen3moe", ..QWEN3 },
    GEMMA2,
    Arch {
        name: "gemma3",
        qk_norm: QkNorm::Head,
        window: WindowLayers::AllButEvery(6),
        local_base: Some(10_000.0),
        local_unscaled: true,
        scale_by_width_at: Some(62),
        ..GEMMA2
    },
    Arch { name: "phi3", window: WindowLayers::All, ..QWEN2 },
    Arch { name: "smollm3", unrotated_every: Some(4), ..LLAMA },
    Arch { name: "granite", ..LLAMA },
    Arch {
        name: "olmo2",
        norms: Norms::Post,
        qk_norm: QkNorm::Row,
        window: WindowLayers::AllButEvery(4),
        local_unscaled: true,
        ..QWEN2
    },
    Arch { name: "mistral3", ..LLAMA },
    Arch {
        name: "gpt-oss",
        ffn_norm: "post_attention_norm",
        activation: Activation::Clamped,
        window: WindowLayers::AllButEvery(2),
        whole_yarn: false,
        ..QWEN2
    },
];

/// A temperature of long texts: queries are scaled by `1 + scale * ln(1 + floor(position / length))`.
#[derive(Clone, Copy)]
pub(super) struct Temperature {
    pub scale: f64,
    pub length: f64,
}

/// A model's numbers.
pub(super) struct Config {
    pub arch: Arch,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_kv_head: usize,
    pub head_dim: usize,
    pub eps: f64,
    pub rope: Rope,
    pub window: Option<usize>,
    /// Which layers have the window, if the file says so.
    pub window_pattern: Option<Vec<bool>>,
    pub embedding_scale: f64,
    pub residual_scale: f64,
    /// Logits are divided by it.
    pub logit_scale: f64,
    pub attention_scale: Option<f64>,
    pub score_cap: Option<f64>,
    pub logit_cap: Option<f64>,
    pub temperature: Option<Temperature>,
    pub experts: usize,
    pub experts_used: usize,
}

/// Entries below an architecture's prefix.
pub(super) struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    pub fn count(&self, key: &str) -> Result<Option<usize>, NaiveError> {
        Ok(self.meta.u32(&format!("{}.{key}", self.arch))?.map(|v| v as usize))
    }

    fn needed(&self, key: &str) -> Result<usize, NaiveError> {
        Ok(self.meta.require_u32(&format!("{}.{key}", self.arch))? as usize)
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, NaiveError> {
        Ok(self.meta.f32(&format!("{}.{key}", self.arch))?.map(f64::from))
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, NaiveError> {
        Ok(self.meta.str(&format!("{}.{key}", self.arch))?)
    }
}

impl Config {
    pub fn read(file: &Gguf) -> Result<Self, NaiveError> {
        let name = file.architecture()?;
        let arch =
            *ARCHS.iter().find(|a| a.name == name).ok_or_else(|| NaiveError::Architecture(name.into()))?;
        let keys = Keys { meta: &file.metadata, arch: name };
        let (n_embd, n_head) = (keys.needed("embedding_length")?, keys.needed("attention.head_count")?);
        let head_dim = keys.count("attention.key_length")?.unwrap_or(n_embd / n_head.max(1));
        let eps = file.metadata.require_f32(&format!("{name}.attention.layer_norm_rms_epsilon"))?;
        let scale = |key: &str| keys.number(key);
        let root = if arch.embedding_root { (n_embd as f64).sqrt() } else { 1.0 };
        let rope = Rope::read(&keys, &arch, head_dim)?;
        let length = rope.original_context;
        let temperature = scale("attention.temperature_scale")?.map(|scale| Temperature { scale, length });
        Ok(Config {
            arch,
            n_embd,
            n_layer: keys.needed("block_count")?,
            n_head,
            n_kv_head: keys.count("attention.head_count_kv")?.unwrap_or(n_head),
            head_dim,
            eps: eps.into(),
            rope,
            window: keys.count("attention.sliding_window")?.filter(|&w| w > 0),
            window_pattern: file
                .metadata
                .bools(&format!("{name}.attention.sliding_window_pattern"))?
                .map(|list| list.to_vec()),
            embedding_scale: scale("embedding_scale")?.unwrap_or(root),
            residual_scale: scale("residual_scale")?.unwrap_or(1.0),
            logit_scale: scale("logit_scale")?.unwrap_or(1.0),
            attention_scale: scale("attention.scale")?,
            score_cap: scale("attn_logit_softcapping")?,
            logit_cap: scale("final_logit_softcapping")?,
            temperature,
            experts: keys.count("expert_count")?.unwrap_or(0),
            experts_used: keys.count("expert_used_count")?.unwrap_or(0),
        })
    }

    /// What the scores are multiplied by.
    pub fn score_scale(&self) -> f64 {
        let width = match self.arch.scale_by_width_at {
            Some(layers) if layers == self.n_layer => self.n_embd / self.n_head.max(1),
            _ => self.head_dim,
        };
        self.attention_scale.unwrap_or(1.0 / (width as f64).sqrt())
    }

    /// Whether a layer has a window. The pattern is `shift` layers late.
    pub fn is_local(&self, layer: usize, shift: usize) -> bool {
        if self.window.is_none() {
            return false;
        }
        if let Some(pattern) = &self.window_pattern {
            let n = pattern.len().max(1);
            return pattern.get((layer + n - shift) % n).copied().unwrap_or(false);
        }
        match self.arch.window {
            WindowLayers::None => false,
            WindowLayers::All => true,
            WindowLayers::AllButEvery(n) => (layer + n - shift) % n != n - 1,
        }
    }
}
