//! `granite`: as `llama`, with factors on embeddings, scores, residuals and logits.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { rope_freqs: true, ..DecoderTraits::plain("granite", RopeStyle::Interleaved) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Granite 3, Granite 4 (dense)",
    reads: &["attention.scale", "embedding_scale", "logit_scale", "residual_scale"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let scale = keys.factor("attention.scale")?;
    // Says whether the model rotates at all.
    let rotates = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        a.scale = scale.unwrap_or(a.scale);
        a.rope = a.rope.take().filter(|_| rotates);
    }
    spec.embedding_scale = keys.factor("embedding_scale")?.unwrap_or(1.0);
    spec.residual_scale = keys.factor("residual_scale")?.unwrap_or(1.0);
    // The file states a divisor.
    spec.logit_scale = 1.0 / keys.positive("logit_scale", None)?;
    Ok(spec)
}
