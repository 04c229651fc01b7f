//! The registry of architectures, one line each, and the reader shared by the plain decoders.

mod llama;
mod qwen2;

use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{AttentionSpec, FfnSpec, LayerSpec, Linear, ModelSpec, RopeSpec};
use crate::tensors::Tensors;
use minfer_gguf::Gguf;
use minfer_graph::RopeStyle;

/// One supported architecture.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Model families that use it, for documents.
    pub families: &'static str,
    read: fn(&Keys<'_>, &Tensors<'_>) -> Result<ModelSpec, ModelError>,
}

const REGISTRY: &[Architecture] = &[llama::ARCHITECTURE, qwen2::ARCHITECTURE];

/// All supported architectures.
pub fn architectures() -> &'static [Architecture] {
    REGISTRY
}

/// Reads the specification of a file's model.
///
/// # Errors
/// An unknown architecture, a missing or senseless key, a missing or misshapen tensor, or anything
/// in the file that would change the result and is not handled.
pub fn read_spec(gguf: &Gguf) -> Result<ModelSpec, ModelError> {
    let name = gguf.architecture()?;
    let arch = REGISTRY.iter().find(|a| a.name == name).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().map(|a| a.name).collect();
        ModelError::UnknownArchitecture { name: name.to_string(), known: known.join(", ") }
    })?;
    let (keys, tensors) = (Keys::new(gguf, name), Tensors::new(gguf));
    keys.check_refused()?;
    check_vocabulary(gguf, &keys, tensors.shape("token_embd.weight")?.0)?;
    let mut spec = (arch.read)(&keys, &tensors)?;
    spec.unread_tensors = tensors.finish()?;
    spec.unread_keys = keys.unread();
    Ok(spec)
}

/// The vocabulary that the file declares must be the rows of its embedding table.
fn check_vocabulary(gguf: &Gguf, keys: &Keys<'_>, rows: usize) -> Result<(), ModelError> {
    let declared = [
        (keys.name("vocab_size"), keys.optional_count("vocab_size")?),
        (
            "tokenizer.ggml.tokens".to_string(),
            gguf.metadata.strings("tokenizer.ggml.tokens")?.map(<[String]>::len),
        ),
    ];
    for (key, size) in declared {
        if size.is_some_and(|n| n != rows) {
            let reason = format!("{} entries, but token_embd has {rows} rows", size.unwrap_or(0));
            return Err(ModelError::key(&key, reason));
        }
    }
    Ok(())
}

/// What tells one plain pre-norm decoder (RMS norm, grouped attention, gated FFN) from another.
struct DecoderTraits {
    name: &'static str,
    rope: RopeStyle,
    /// Whether `rope_freqs.weight` may hold divisors of the frequencies.
    rope_freqs: bool,
}

/// Sizes that every layer of a plain decoder shares.
struct Sizes {
    n_embd: usize,
    n_head: usize,
    n_kv_head: usize,
    head_dim: usize,
    v_dim: usize,
    n_ff: usize,
}

fn read_decoder(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    traits: &DecoderTraits,
) -> Result<ModelSpec, ModelError> {
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
    let heads = keys.count_per_layer("attention.head_count", n_layer)?;
    let kv_heads = match keys.optional_count_per_layer("attention.head_count_kv", n_layer)? {
        Some(n) => n,
        None => heads.clone(),
    };
    let n_ff = keys.count_per_layer("feed_forward_length", n_layer)?;
    let key_length = keys.optional_count("attention.key_length")?;
    let value_length = keys.optional_count("attention.value_length")?;
    let mut layers = Vec::new();
    for i in 0..n_layer {
        let head_dim = match key_length {
            Some(n) => n,
            None if n_embd % heads[i] == 0 => n_embd / heads[i],
            None => {
                let reason = format!("{} heads do not divide {n_embd} values", heads[i]);
                return Err(ModelError::key(&keys.name("attention.head_count"), reason));
            }
        };
        if heads[i] % kv_heads[i] != 0 {
            let reason = format!("{} KV heads do not divide {} heads", kv_heads[i], heads[i]);
            return Err(ModelError::key(&keys.name("attention.head_count_kv"), reason));
        }
        let sizes = Sizes {
            n_embd,
            n_head: heads[i],
            n_kv_head: kv_heads[i],
            head_dim,
            v_dim: value_length.unwrap_or(head_dim),
            n_ff: n_ff[i],
        };
        let rope = read_rope(keys, tensors, traits, head_dim)?;
        layers.push(read_layer(tensors, i, &sizes, rope)?);
    }
    let output_norm = tensors.vector("output_norm.weight", n_embd)?;
    let output = if tensors.has("output.weight") {
        read_linear(tensors, "output", n_vocab, n_embd)?
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
        layers,
        output_norm,
        output,
        unread_keys: Vec::new(),
        unread_tensors: Vec::new(),
    })
}

fn read_rope(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    traits: &DecoderTraits,
    head_dim: usize,
) -> Result<RopeSpec, ModelError> {
    let n_rot = keys.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
    if n_rot % 2 != 0 || n_rot > head_dim {
        let reason = format!("is {n_rot}; must be even and at most the head's {head_dim}");
        return Err(ModelError::key(&keys.name("rope.dimension_count"), reason));
    }
    let scaling = keys.string("rope.scaling.type")?;
    let freq_scale = match scaling.as_deref() {
        None | Some("none") => 1.0,
        Some("linear") => 1.0 / keys.positive("rope.scaling.factor", Some(1.0))?,
        Some(other) => {
            let key = keys.name("rope.scaling.type");
            return Err(ModelError::Refused { what: format!("key `{key}` = {other}") });
        }
    };
    let factors = match traits.rope_freqs {
        true => tensors.optional_vector("rope_freqs.weight", n_rot / 2)?,
        false => None,
    };
    let base = keys.positive("rope.freq_base", Some(10_000.0))?;
    Ok(RopeSpec { style: traits.rope, n_rot, base, freq_scale, factors })
}

fn read_linear(t: &Tensors<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear, ModelError> {
    Ok(Linear {
        weight: t.matrix(&format!("{name}.weight"), rows, cols)?,
        bias: t.optional_vector(&format!("{name}.bias"), rows)?,
    })
}

fn read_layer(t: &Tensors<'_>, i: usize, s: &Sizes, rope: RopeSpec) -> Result<LayerSpec, ModelError> {
    let name = |part: &str| format!("blk.{i}.{part}");
    let attention = AttentionSpec {
        q: read_linear(t, &name("attn_q"), s.n_head * s.head_dim, s.n_embd)?,
        k: read_linear(t, &name("attn_k"), s.n_kv_head * s.head_dim, s.n_embd)?,
        v: read_linear(t, &name("attn_v"), s.n_kv_head * s.v_dim, s.n_embd)?,
        output: read_linear(t, &name("attn_output"), s.n_embd, s.n_head * s.v_dim)?,
        n_head: s.n_head,
        n_kv_head: s.n_kv_head,
        head_dim: s.head_dim,
        v_dim: s.v_dim,
        rope,
        scale: 1.0 / (s.head_dim as f32).sqrt(),
        window: None,
        kv_group: 0,
    };
    let ffn = FfnSpec {
        gate: read_linear(t, &name("ffn_gate"), s.n_ff, s.n_embd)?,
        up: read_linear(t, &name("ffn_up"), s.n_ff, s.n_embd)?,
        down: read_linear(t, &name("ffn_down"), s.n_embd, s.n_ff)?,
    };
    Ok(LayerSpec {
        attn_norm: t.vector(&name("attn_norm.weight"), s.n_embd)?,
        attention,
        ffn_norm: t.vector(&name("ffn_norm.weight"), s.n_embd)?,
        ffn,
    })
}
