//! `phi3`: Phi-3, Phi-3.5 and Phi-4 (mini). q, k and v are one tensor, gate and up another; long-context files carry divisors
//! of the frequencies for both sides of the original context.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { long_rope: true, fused: true, ..DecoderTraits::plain("phi3", RopeStyle::Halves) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Phi-3, Phi-3.5, Phi-4",
    reads: &["attention.sliding_window"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let window = keys.nonzero("attention.sliding_window")?;
    for layer in &mut spec.layers {
        layer.attention.window = window;
    }
    Ok(spec)
}
