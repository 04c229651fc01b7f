//! The families of models: what sets each apart, one row each.
//!
//! Keys and tensors are those that the conversion of a published model of the family writes. Values are
//! chosen so that mistakes show: windows, original contexts and temperature lengths shorter than the
//! usual test text, soft caps low enough to bend, and numbers other than the usual defaults.

/// An entry of a family's metadata, its key without the architecture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// A number.
    U32(u32),
    /// A number with a fraction.
    F32(f32),
    /// A text.
    Text(&'static str),
    /// A truth value for each layer, the list repeated as often as needed.
    Layers(&'static [bool]),
}

/// Usual sizes of a family's models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Model width.
    pub n_embd: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Width of an expert.
    pub n_ff_expert: usize,
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Fewest blocks that show all kinds of layers.
    pub min_layers: usize,
}

/// What the file says about the rotated part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeDim {
    /// Nothing: all of it.
    Unsaid,
    /// `rope.dimension_count` is the head's width.
    Whole,
    /// `rope.dimension_count` is three quarters of the head.
    Part,
}

/// Tensors of rope factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeFactors {
    /// None.
    None,
    /// `rope_freqs.weight`.
    Freqs,
    /// `rope_factors_long.weight` and `rope_factors_short.weight`.
    LongShort,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head.
    Head,
    /// Over the whole row.
    Row,
}

/// Norms of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// `attn_norm`, `ffn_norm`.
    Pre,
    /// `attn_norm`, `post_attention_norm`, `ffn_norm`, `post_ffw_norm`.
    PrePost,
    /// `post_attention_norm`, `post_ffw_norm`.
    Post,
    /// `attn_norm`, and `post_attention_norm` in the place of `ffn_norm`.
    PostAttentionForFfn,
}

/// Experts in the place of the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// `expert_count`.
    pub count: usize,
    /// `expert_used_count`.
    pub used: usize,
    /// Whether `expert_feed_forward_length` is stated; else an expert is as wide as `feed_forward_length`.
    pub width_key: bool,
    /// Whether the router and the experts have biases.
    pub biases: bool,
}

/// What sets a family apart from the plain llama shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// Name of the family here.
    pub name: &'static str,
    /// `general.architecture`.
    pub arch: &'static str,
    /// Usual sizes.
    pub shape: Shape,
    /// Whether `vocab_size` is stated even if there is a tokenizer.
    pub vocab_key: bool,
    /// Base of the rotary frequencies.
    pub base: f32,
    /// Whether the base is stated.
    pub base_key: bool,
    /// Whether `attention.key_length` and `attention.value_length` are stated.
    pub head_keys: bool,
    /// The rotated part.
    pub rope_dim: RopeDim,
    /// Tensors of rope factors.
    pub rope_factors: RopeFactors,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Whether q, k, v are one tensor, and gate and up are one tensor.
    pub fused: bool,
    /// Norms of q and k.
    pub qk_norm: QkNorm,
    /// Norms of a block.
    pub norms: Norms,
    /// Experts.
    pub experts: Option<Experts>,
    /// Whether there are `attn_sinks.weight`.
    pub sinks: bool,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Size of the values that enter the feed-forward part's activation.
    pub ff_gain: f64,
    /// More metadata.
    pub keys: &'static [(&'static str, Key)],
}

const SHAPE: Shape = Shape {
    n_embd: 96,
    n_layer: 4,
    n_ff: 192,
    n_ff_expert: 64,
    n_head: 6,
    n_kv_head: 2,
    head_dim: 16,
    min_layers: 2,
};

/// Plain llama.
pub const LLAMA: Family = Family {
    name: "llama",
    arch: "llama",
    shape: SHAPE,
    vocab_key: true,
    base: 10_000.0,
    base_key: true,
    head_keys: true,
    rope_dim: RopeDim::Whole,
    rope_factors: RopeFactors::None,
    qkv_bias: false,
    output_bias: false,
    fused: false,
    qk_norm: QkNorm::None,
    norms: Norms::Pre,
    experts: None,
    sinks: false,
    tied: false,
    ff_gain: 1.0,
    keys: &[],
};

/// Llama with `rope_freqs.weight`.
pub const LLAMA3_ROPE: Family =
    Family { name: "llama3-rope", base: 500_000.0, rope_factors: RopeFactors::Freqs, ..LLAMA };

/// Qwen 2: biases on q, k, v.
pub const QWEN2: Family = Family {
    name: "qwen2",
    arch: "qwen2",
    base: 1_000_000.0,
    rope_dim: RopeDim::Unsaid,
    qkv_bias: true,
    ..LLAMA
};

/// Qwen 3: norms of q and k, heads wider than the model.
pub const QWEN3: Family = Family {
    name: "qwen3",
    arch: "qwen3",
    shape: Shape { head_dim: 32, ..SHAPE },
    vocab_key: false,
    base: 1_000_000.0,
    rope_dim: RopeDim::Unsaid,
    qk_norm: QkNorm::Head,
    ..LLAMA
};

/// Qwen 3 with experts.
pub const QWEN3MOE: Family = Family {
    name: "qwen3moe",
    arch: "qwen3moe",
    shape: Shape { n_layer: 3, ..QWEN3.shape },
    experts: Some(Experts { count: 8, used: 2, width_key: true, biases: false }),
    ..QWEN3
};

/// Llama with experts.
pub const MIXTRAL: Family = Family {
    name: "mixtral",
    base: 1_000_000.0,
    shape: Shape { n_layer: 3, n_ff: 96, ..SHAPE },
    experts: Some(Experts { count: 4, used: 2, width_key: false, biases: false }),
    ..LLAMA
};

/// Gemma 3: a window in five of six layers, which have a rope base of their own.
pub const GEMMA3: Family = Family {
    name: "gemma3",
    arch: "gemma3",
    shape: Shape { n_layer: 7, n_head: 4, n_kv_head: 1, head_dim: 32, min_layers: 7, ..SHAPE },
    norms: Norms::PrePost,
    tied: true,
    keys: &[("attention.sliding_window", Key::U32(16))],
    ..QWEN3
};

/// Gemma 3 with a scaled rope in the layers without a window, and the base of the others stated.
pub const GEMMA3_LINEAR: Family = Family {
    name: "gemma3-linear",
    keys: &[
        ("rope.scaling.type", Key::Text("linear")),
        ("rope.scaling.factor", Key::F32(8.0)),
        ("rope.freq_base_swa", Key::F32(2_000.0)),
        ("attention.sliding_window", Key::U32(16)),
    ],
    ..GEMMA3
};

/// Gemma 2: soft caps, a window in every other layer, nothing said of the rope.
pub const GEMMA2: Family = Family {
    name: "gemma2",
    arch: "gemma2",
    shape: Shape { n_head: 4, n_kv_head: 2, head_dim: 32, ..SHAPE },
    vocab_key: false,
    base: 10_000.0,
    base_key: false,
    rope_dim: RopeDim::Unsaid,
    norms: Norms::PrePost,
    tied: true,
    keys: &[
        ("attn_logit_softcapping", Key::F32(5.0)),
        ("final_logit_softcapping", Key::F32(3.0)),
        ("attention.sliding_window", Key::U32(16)),
    ],
    ..LLAMA
};

/// Phi 3 with a long context: fused matrices, part of a head rotated, long factors beyond 32 positions,
/// a window that never ends.
pub const PHI3: Family = Family {
    name: "phi3",
    arch: "phi3",
    vocab_key: false,
    head_keys: false,
    rope_dim: RopeDim::Part,
    rope_factors: RopeFactors::LongShort,
    fused: true,
    keys: &[
        ("rope.scaling.original_context_length", Key::U32(32)),
        ("rope.scaling.attn_factor", Key::F32(std::f32::consts::SQRT_2)),
        ("attention.sliding_window", Key::U32(262_144)),
    ],
    ..LLAMA
};

/// Phi 3 in a text within its original context.
pub const PHI3_SHORT: Family = Family {
    name: "phi3-short",
    keys: &[
        ("rope.scaling.original_context_length", Key::U32(512)),
        ("rope.scaling.attn_factor", Key::F32(1.054_092_6)),
        ("attention.sliding_window", Key::U32(262_144)),
    ],
    ..PHI3
};

/// Phi 3 with a window in all layers, which llama.cpp ignores, and without rope factors.
pub const PHI3_WINDOW: Family = Family {
    name: "phi3-window",
    rope_factors: RopeFactors::None,
    rope_dim: RopeDim::Whole,
    keys: &[
        ("rope.scaling.original_context_length", Key::U32(1024)),
        ("attention.sliding_window", Key::U32(16)),
    ],
    ..PHI3
};

/// SmolLM 3: every fourth layer without rope.
pub const SMOLLM3: Family = Family {
    name: "smollm3",
    arch: "smollm3",
    shape: Shape { n_layer: 5, min_layers: 4, ..SHAPE },
    base: 5_000_000.0,
    head_keys: false,
    tied: true,
    ..LLAMA
};

/// Granite: four scales.
pub const GRANITE: Family = Family {
    name: "granite",
    arch: "granite",
    head_keys: false,
    tied: true,
    keys: &[
        ("attention.scale", Key::F32(0.35)),
        ("embedding_scale", Key::F32(3.0)),
        ("residual_scale", Key::F32(0.7)),
        ("logit_scale", Key::F32(8.0)),
    ],
    ..LLAMA
};

/// OLMo 2: norms after the parts only, q and k normalised by row.
pub const OLMO2: Family = Family {
    name: "olmo2",
    arch: "olmo2",
    vocab_key: false,
    base: 500_000.0,
    head_keys: false,
    rope_dim: RopeDim::Unsaid,
    qk_norm: QkNorm::Row,
    norms: Norms::Post,
    ..LLAMA
};

/// OLMo 3: a window in three of four layers, the rope scaled in the others.
pub const OLMO3: Family = Family {
    name: "olmo3",
    shape: Shape { min_layers: 4, ..SHAPE },
    base: 1_000.0,
    keys: &[
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::F32(8.0)),
        ("rope.scaling.original_context_length", Key::U32(24)),
        ("rope.scaling.yarn_attn_factor", Key::F32(1.207_944_2)),
        ("rope.scaling.yarn_beta_fast", Key::F32(32.0)),
        ("rope.scaling.yarn_beta_slow", Key::F32(1.0)),
        ("attention.sliding_window", Key::U32(16)),
        ("attention.sliding_window_pattern", Key::Layers(&[true, true, true, false])),
    ],
    ..OLMO2
};

/// Mistral 3: YaRN without a magnitude, and a temperature for long texts.
pub const MISTRAL3: Family = Family {
    name: "mistral3",
    arch: "mistral3",
    shape: Shape { head_dim: 32, ..SHAPE },
    keys: &[
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::F32(4.0)),
        ("rope.scaling.original_context_length", Key::U32(16)),
        ("rope.scaling.yarn_beta_fast", Key::F32(2.0)),
        ("rope.scaling.yarn_beta_slow", Key::F32(0.25)),
        ("rope.scaling.yarn_log_multiplier", Key::F32(1.0)),
        ("attention.temperature_scale", Key::F32(0.5)),
    ],
    ..LLAMA
};

/// gpt-oss: sinks, a window in every other layer, YaRN, experts with biases and a clamped activation.
///
/// The base puts the upper corner of YaRN's ramp on a whole number, nearly: llama.cpp rounds the corners,
/// the model's definition does not.
pub const GPT_OSS: Family = Family {
    name: "gpt-oss",
    arch: "gpt-oss",
    shape: Shape { n_ff: 64, head_dim: 32, ..SHAPE },
    vocab_key: false,
    base: 212.8783,
    rope_dim: RopeDim::Unsaid,
    qkv_bias: true,
    output_bias: true,
    norms: Norms::PostAttentionForFfn,
    experts: Some(Experts { count: 8, used: 4, width_key: true, biases: true }),
    sinks: true,
    ff_gain: 4.0,
    keys: &[
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::F32(32.0)),
        ("rope.scaling.original_context_length", Key::U32(24)),
        ("rope.scaling.yarn_beta_fast", Key::F32(32.0)),
        ("rope.scaling.yarn_beta_slow", Key::F32(1.0)),
        ("attention.sliding_window", Key::U32(16)),
    ],
    ..LLAMA
};

/// gpt-oss with corners of YaRN's ramp far from whole numbers.
pub const GPT_OSS_RAMP: Family = Family { name: "gpt-oss-ramp", base: 1_000.0, ..GPT_OSS };

/// Llama with a rope stretched evenly.
pub const LLAMA_LINEAR: Family = Family {
    name: "llama-linear",
    keys: &[("rope.scaling.type", Key::Text("linear")), ("rope.scaling.factor", Key::F32(4.0))],
    ..LLAMA
};

/// Llama with YaRN as it is unless more is said.
pub const LLAMA_YARN: Family = Family {
    name: "llama-yarn",
    base: 1_000.0,
    keys: &[
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::F32(4.0)),
        ("rope.scaling.original_context_length", Key::U32(24)),
    ],
    ..LLAMA
};

/// All families; tests of the other crates run over them.
pub const FAMILIES: [Family; 21] = [
    LLAMA,
    LLAMA3_ROPE,
    QWEN2,
    QWEN3,
    QWEN3MOE,
    MIXTRAL,
    GEMMA3,
    GEMMA3_LINEAR,
    GEMMA2,
    PHI3,
    PHI3_SHORT,
    PHI3_WINDOW,
    SMOLLM3,
    GRANITE,
    OLMO2,
    OLMO3,
    MISTRAL3,
    GPT_OSS,
    GPT_OSS_RAMP,
    LLAMA_LINEAR,
    LLAMA_YARN,
];
