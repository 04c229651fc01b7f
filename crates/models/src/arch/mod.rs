//! The registry of architectures, one line each.

mod decoder;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod llama;
mod mistral3;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3moe;
mod smollm3;

use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use minfer_gguf::Gguf;

/// One supported architecture.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Model families that use it, for documents.
    pub families: &'static str,
    /// Keys of the list of refused ones that it reads.
    pub reads: &'static [&'static str],
    read: fn(&Keys<'_>, &Tensors<'_>) -> Result<ModelSpec, ModelError>,
}

const REGISTRY: &[Architecture] = &[
    llama::ARCHITECTURE,
    mistral3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen3moe::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    phi3::ARCHITECTURE,
    smollm3::ARCHITECTURE,
    granite::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
];

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
    keys.check_refused(arch.reads)?;
    check_vocabulary(gguf, &keys, tensors.shape("token_embd.weight")?.0)?;
    let mut spec = (arch.read)(&keys, &tensors)?;
    spec.unread_tensors = tensors.finish()?;
    check_numbers(&keys, &spec)?;
    spec.unread_keys = keys.unread();
    Ok(spec)
}

/// Numbers that are fine one by one, and together make no rotation or no scores.
fn check_numbers(keys: &Keys<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    let refuse = |key: &str, reason: String| Err(ModelError::key(&keys.name(key), reason));
    let usable = |x: f32| x.is_finite() && x > 0.0;
    for attention in spec.layers.iter().map(|l| &l.attention) {
        if !usable(attention.scale) {
            return refuse("attention.head_count", format!("makes {} the scale of scores", attention.scale));
        }
        let Some(rope) = &attention.rope else { continue };
        if !usable(rope.magnitude) {
            return refuse(
                "rope.scaling.attn_factor",
                format!("lengthens rotated values by {}", rope.magnitude),
            );
        }
        if rope.yarn.is_some() && rope.base <= 1.0 {
            return refuse("rope.freq_base", format!("is {}; YaRN needs more than 1", rope.base));
        }
    }
    Ok(())
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
