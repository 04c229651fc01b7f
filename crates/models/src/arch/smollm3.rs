//! `smollm3`: as `llama`, but every fourth layer does not rotate.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits::plain("smollm3", RopeStyle::Interleaved);

/// One layer of this many has no rotation.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: TRAITS.name, families: "SmolLM3", reads: &[], read };

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    for layer in spec.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
        layer.attention.rope = None;
    }
    Ok(spec)
}
