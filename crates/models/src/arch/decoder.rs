//! The reader that the decoders share: sizes, norms, projections, rotation, feed-forward parts. What sets an
//! architecture apart is in its [`DecoderTraits`], or is changed in the specification afterwards.

use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{
    Activation, AttentionSpec, ExpertsSpec, FfnSpec, GatedSpec, LayerSpec, Linear, ModelSpec, RopeFactors,
    RopeSpec,
};
use crate::tensors::Tensors;
use minfer_graph::{RopeStyle, WeightSpec, Yarn};

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorm {
    /// None.
    None,
    /// One weight for all heads, `[head_dim]`.
    Heads,
    /// A norm of the whole row.
    Row,
}

/// Where a block has norms, and what they are called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// `attn_norm` and `ffn_norm` before the parts.
    Before,
    /// Those, and `post_attention_norm` and `post_ffw_norm` after them.
    Around,
    /// Only after them.
    After,
    /// Before the parts; the second one is called `post_attention_norm`.
    BeforeRenamed,
}

/// What tells one decoder (RMS norms, grouped attention, gated feed-forward parts) from another.
#[derive(Clone, Copy)]
pub(super) struct DecoderTraits {
    pub name: &'static str,
    pub rope: RopeStyle,
    /// Whether `rope_freqs.weight` may hold divisors of the frequencies.
    pub rope_freqs: bool,
    /// Whether `rope_factors_long.weight` and `rope_factors_short.weight` may.
    pub long_rope: bool,
    pub qk_norm: QkNorm,
    pub norms: Norms,
    /// Whether q, k and v are one tensor, and gate and up another.
    pub fused: bool,
    pub activation: Activation,
    /// Whether the shares of chosen experts sum up to 1.
    pub over_chosen: bool,
}

impl DecoderTraits {
    /// Norms before the parts, SiLU, nothing else.
    pub const fn plain(name: &'static str, rope: RopeStyle) -> Self {
        DecoderTraits {
            name,
            rope,
            rope_freqs: false,
            long_rope: false,
            qk_norm: QkNorm::None,
            norms: Norms::Before,
            fused: false,
            activation: Activation::Silu,
            over_chosen: true,
        }
    }
}

/// Sizes of a layer.
struct Sizes {
    n_embd: usize,
    n_head: usize,
    n_kv_head: usize,
    head_dim: usize,
    v_dim: usize,
    n_ff: usize,
}

/// A file's keys and tensors, read for an architecture.
struct Reader<'a> {
    keys: &'a Keys<'a>,
    tensors: &'a Tensors<'a>,
    traits: &'a DecoderTraits,
}

/// Reads a decoder.
pub(super) fn read_decoder(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    traits: &DecoderTraits,
) -> Result<ModelSpec, ModelError> {
    let r = Reader { keys, tensors, traits };
    let n_embd = keys.count("embedding_length")?;
    let n_layer = keys.count("block_count")?;
    if n_layer > tensors.len() {
        let reason = format!("{n_layer} blocks, but the file has {} tensors", tensors.len());
        return Err(ModelError::key(&keys.name("block_count"), reason));
    }
    let n_ctx_train = keys.count("context_length")?;
    let norm_eps = keys.positive("attention.layer_norm_rms_epsilon", None)?;
    let (n_vocab, _) = tensors.shape("token_embd.weight")?;
    let token_embd = tensors.matrix("token_embd.weight", n_vocab, n_embd)?;
    let layers = r.layers(n_layer, n_embd, n_ctx_train)?;
    let output_norm = tensors.vector("output_norm.weight", n_embd)?;
    let output = if tensors.has("output.weight") {
        r.linear("output", n_vocab, n_embd)?
    } else {
        Linear { weight: token_embd.clone(), bias: tensors.optional_vector("output.bias", n_vocab)? }
    };
    Ok(ModelSpec {
        arch: traits.name,
        n_vocab,
        n_embd,
        n_ctx_train,
        norm_eps,
        token_embd,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        layers,
        output_norm,
        output,
        logit_scale: 1.0,
        logit_softcap: None,
        unread_keys: Vec::new(),
        unread_tensors: Vec::new(),
    })
}

/// Scales scores by the model's width per query head, whatever the size of its heads.
pub(super) fn scale_by_width(spec: &mut ModelSpec) {
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        a.scale = 1.0 / ((spec.n_embd / a.n_head) as f32).sqrt();
    }
}

impl Reader<'_> {
    fn layers(
        &self,
        n_layer: usize,
        n_embd: usize,
        n_ctx_train: usize,
    ) -> Result<Vec<LayerSpec>, ModelError> {
        let keys = self.keys;
        let heads = keys.count_per_layer("attention.head_count", n_layer)?;
        let kv_heads = match keys.optional_count_per_layer("attention.head_count_kv", n_layer)? {
            Some(n) => n,
            None => heads.clone(),
        };
        // Of a mixture without a length of its own for experts this is the experts' length.
        let n_ff = match keys.nonzero("expert_count")? {
            Some(_) => {
                keys.optional_count_per_layer("feed_forward_length", n_layer)?.unwrap_or(vec![0; n_layer])
            }
            None => keys.count_per_layer("feed_forward_length", n_layer)?,
        };
        let key_length = keys.optional_count("attention.key_length")?;
        let value_length = keys.optional_count("attention.value_length")?;
        let mut layers = Vec::new();
        for i in 0..n_layer {
            let (n_head, n_kv_head) = (heads[i], kv_heads[i]);
            let head_dim = match key_length {
                Some(n) => n,
                None if n_embd.is_multiple_of(n_head) => n_embd / n_head,
                None => {
                    let reason = format!("{n_head} heads do not divide {n_embd} values");
                    return Err(ModelError::key(&keys.name("attention.head_count"), reason));
                }
            };
            if n_head % n_kv_head != 0 {
                let reason = format!("{n_kv_head} KV heads do not divide {n_head} heads");
                return Err(ModelError::key(&keys.name("attention.head_count_kv"), reason));
            }
            let v_dim = value_length.unwrap_or(head_dim);
            let sizes = Sizes { n_embd, n_head, n_kv_head, head_dim, v_dim, n_ff: n_ff[i] };
            let rope = self.rope(head_dim, n_ctx_train)?;
            layers.push(self.layer(i, &sizes, rope)?);
        }
        Ok(layers)
    }

    fn rope(&self, head_dim: usize, n_ctx_train: usize) -> Result<RopeSpec, ModelError> {
        let keys = self.keys;
        let n_rot = keys.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
        if n_rot % 2 != 0 || n_rot > head_dim {
            let reason = format!("is {n_rot}; must be even and at most the head's {head_dim}");
            return Err(ModelError::key(&keys.name("rope.dimension_count"), reason));
        }
        let base = keys.positive("rope.freq_base", Some(10_000.0))?;
        let n_ctx_orig = keys.optional_count("rope.scaling.original_context_length")?.unwrap_or(n_ctx_train);
        let (factors, own_scale) = self.rope_factors(n_rot, n_ctx_orig)?;
        let factor = match keys.factor("rope.scaling.factor")? {
            Some(factor) => factor,
            None => keys.factor("rope.scale_linear")?.unwrap_or(1.0),
        };
        let mut rope = RopeSpec {
            style: self.traits.rope,
            n_rot,
            base,
            freq_scale: 1.0,
            factors,
            yarn: None,
            magnitude: keys.factor("rope.scaling.attn_factor")?.unwrap_or(1.0),
        };
        match keys.string("rope.scaling.type")?.as_deref() {
            Some("none") => {}
            // The divisors are the scaling.
            Some("longrope" | "llama3") if own_scale => {}
            None | Some("linear") => rope.freq_scale = 1.0 / factor,
            Some("yarn") => {
                let factor = keys.positive("rope.scaling.factor", None)?;
                let turns = |key, default| keys.positive(key, Some(default));
                rope.freq_scale = 1.0 / factor;
                rope.yarn = Some(Yarn {
                    n_ctx_orig,
                    ext_factor: 1.0,
                    beta_fast: turns("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: turns("rope.scaling.yarn_beta_slow", 1.0)?,
                    whole_ends: true,
                });
                rope.magnitude *= match keys.factor("rope.scaling.yarn_attn_factor")? {
                    Some(stated) => stated,
                    None => self.yarn_magnitude(factor)?,
                };
            }
            Some(other) => {
                let key = keys.name("rope.scaling.type");
                return Err(ModelError::Refused { what: format!("key `{key}` = {other}") });
            }
        }
        Ok(rope)
    }

    /// The factor that keeps attention as peaked over a stretched context, <https://arxiv.org/abs/2309.00071> (22);
    /// a file may state by how much the model itself undoes it.
    fn yarn_magnitude(&self, factor: f32) -> Result<f32, ModelError> {
        let growth = |gain: f32| if factor <= 1.0 { 1.0 } else { 0.1 * gain * factor.ln() + 1.0 };
        let undone = self.keys.factor("rope.scaling.yarn_log_multiplier")?;
        Ok(growth(1.0) / undone.map_or(1.0, growth))
    }

    /// Divisors of the frequencies, and whether the file has any.
    fn rope_factors(&self, n_rot: usize, n_ctx_orig: usize) -> Result<(RopeFactors, bool), ModelError> {
        const LONG: &str = "rope_factors_long.weight";
        const SHORT: &str = "rope_factors_short.weight";
        let t = self.tensors;
        if self.traits.rope_freqs && t.has("rope_freqs.weight") {
            return Ok((RopeFactors::Fixed(t.vector("rope_freqs.weight", n_rot / 2)?), true));
        }
        if self.traits.long_rope && t.has(LONG) {
            let (short, long) = (t.vector(SHORT, n_rot / 2)?, t.vector(LONG, n_rot / 2)?);
            return Ok((RopeFactors::ByContext { short, long, n_ctx_orig }, true));
        }
        Ok((RopeFactors::None, false))
    }

    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, ModelError> {
        Ok(Linear {
            weight: self.tensors.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: self.tensors.optional_vector(&format!("{name}.bias"), rows)?,
        })
    }

    fn layer(&self, i: usize, s: &Sizes, rope: RopeSpec) -> Result<LayerSpec, ModelError> {
        let norm = |wanted: bool, part: &str| {
            let name = format!("blk.{i}.{part}.weight");
            wanted.then(|| self.tensors.vector(&name, s.n_embd)).transpose()
        };
        let norms = self.traits.norms;
        let (before, after) = (norms != Norms::After, matches!(norms, Norms::Around | Norms::After));
        let second = if norms == Norms::BeforeRenamed { "post_attention_norm" } else { "ffn_norm" };
        Ok(LayerSpec {
            attn_norm: norm(before, "attn_norm")?,
            attention: self.attention(i, s, rope)?,
            attn_post_norm: norm(after, "post_attention_norm")?,
            ffn_norm: norm(before, second)?,
            ffn: self.ffn(i, s)?,
            ffn_post_norm: norm(after, "post_ffw_norm")?,
        })
    }

    fn attention(&self, i: usize, s: &Sizes, rope: RopeSpec) -> Result<AttentionSpec, ModelError> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let (n_q, n_k, n_v) = (s.n_head * s.head_dim, s.n_kv_head * s.head_dim, s.n_kv_head * s.v_dim);
        let [q, k, v] = if self.traits.fused {
            self.stacked(&name("attn_qkv"), s.n_embd, [n_q, n_k, n_v])?
        } else {
            let linear = |part, rows| self.linear(&name(part), rows, s.n_embd);
            [linear("attn_q", n_q)?, linear("attn_k", n_k)?, linear("attn_v", n_v)?]
        };
        let qk_norm = |part: &str, row: usize| -> Result<Option<WeightSpec>, ModelError> {
            let len = match self.traits.qk_norm {
                QkNorm::None => return Ok(None),
                QkNorm::Heads => s.head_dim,
                QkNorm::Row => row,
            };
            self.tensors.vector(&name(part), len).map(Some)
        };
        Ok(AttentionSpec {
            q,
            k,
            v,
            output: self.linear(&name("attn_output"), s.n_embd, s.n_head * s.v_dim)?,
            q_norm: qk_norm("attn_q_norm.weight", n_q)?,
            k_norm: qk_norm("attn_k_norm.weight", n_k)?,
            n_head: s.n_head,
            n_kv_head: s.n_kv_head,
            head_dim: s.head_dim,
            v_dim: s.v_dim,
            rope: Some(rope),
            temperature: None,
            scale: 1.0 / (s.head_dim as f32).sqrt(),
            softcap: None,
            sinks: None,
            window: None,
            kv_group: 0,
        })
    }

    /// Maps whose weights are one tensor, one below the other.
    fn stacked<const N: usize>(
        &self,
        name: &str,
        cols: usize,
        rows: [usize; N],
    ) -> Result<[Linear; N], ModelError> {
        let total = rows.iter().sum();
        let bias = format!("{name}.bias");
        if self.tensors.has(&bias) {
            return Err(ModelError::Refused { what: format!("tensor `{bias}`") });
        }
        let mut first = 0;
        let mut list = Vec::new();
        for n in rows {
            let weight = self.tensors.rows(&format!("{name}.weight"), total, cols, first..first + n)?;
            list.push(Linear { weight, bias: None });
            first += n;
        }
        list.try_into().map_err(|_| ModelError::MissingTensor(name.to_string()))
    }

    fn ffn(&self, i: usize, s: &Sizes) -> Result<FfnSpec, ModelError> {
        if let Some(n_expert) = self.keys.nonzero("expert_count")? {
            return self.experts(i, s, n_expert).map(FfnSpec::Experts);
        }
        let name = |part: &str| format!("blk.{i}.{part}");
        let [gate, up] = if self.traits.fused {
            self.stacked(&name("ffn_up"), s.n_embd, [s.n_ff, s.n_ff])?
        } else {
            [
                self.linear(&name("ffn_gate"), s.n_ff, s.n_embd)?,
                self.linear(&name("ffn_up"), s.n_ff, s.n_embd)?,
            ]
        };
        let down = self.linear(&name("ffn_down"), s.n_embd, s.n_ff)?;
        Ok(FfnSpec::Dense(GatedSpec { gate, up, down, activation: self.traits.activation }))
    }

    fn experts(&self, i: usize, s: &Sizes, n_expert: usize) -> Result<ExpertsSpec, ModelError> {
        let keys = self.keys;
        let n_used = keys.count("expert_used_count")?;
        if n_used > n_expert {
            let reason = format!("{n_used} of {n_expert} experts");
            return Err(ModelError::key(&keys.name("expert_used_count"), reason));
        }
        let n_ff = keys.optional_count("expert_feed_forward_length")?.unwrap_or(s.n_ff);
        let linear = |part: &str, rows: usize, cols: usize| -> Result<Linear, ModelError> {
            let name = format!("blk.{i}.{part}");
            let bias = format!("{name}.bias");
            let has_bias = self.tensors.has(&bias);
            Ok(Linear {
                weight: self.tensors.experts(&format!("{name}.weight"), n_expert, rows, cols)?,
                bias: has_bias.then(|| self.tensors.matrix(&bias, n_expert, rows)).transpose()?,
            })
        };
        Ok(ExpertsSpec {
            router: self.linear(&format!("blk.{i}.ffn_gate_inp"), n_expert, s.n_embd)?,
            n_expert,
            n_used,
            over_chosen: self.traits.over_chosen,
            scale: 1.0,
            experts: GatedSpec {
                gate: linear("ffn_gate_exps", n_ff, s.n_embd)?,
                up: linear("ffn_up_exps", n_ff, s.n_embd)?,
                down: linear("ffn_down_exps", s.n_embd, n_ff)?,
                activation: self.traits.activation,
            },
        })
    }
}
