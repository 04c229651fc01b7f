//! `mistral3`: Ministral 3 and Mistral Small 3.x. As `llama`, with YaRN and, beyond the original context, queries that
//! grow with the logarithm of their position.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{ModelSpec, Temperature};
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { rope_freqs: true, ..DecoderTraits::plain("mistral3", RopeStyle::Interleaved) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Ministral 3, Mistral Small 3",
    reads: &["attention.temperature_scale", "expert_count"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let original = keys.optional_count("rope.scaling.original_context_length")?;
    if let Some(gain) = keys.factor("attention.temperature_scale")? {
        let interval = original.unwrap_or(spec.n_ctx_train);
        for layer in &mut spec.layers {
            layer.attention.temperature = Some(Temperature { gain, interval });
        }
    }
    Ok(spec)
}
