//! `olmo2`: OLMo 2 and 3. Norms only after the parts, and of the whole row of queries and keys. OLMo 3 has a sliding window
//! in three layers of four, which keep the plain rotation.

use super::Architecture;
use super::decoder::{DecoderTraits, Norms, QkNorm, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::ModelSpec;
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits {
    qk_norm: QkNorm::Row,
    norms: Norms::After,
    ..DecoderTraits::plain("olmo2", RopeStyle::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "OLMo 2, OLMo 3",
    reads: &["attention.sliding_window"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let window = keys.nonzero("attention.sliding_window")?;
    let sliding = keys.sliding_layers(spec.layers.len(), 4)?;
    let base = keys.factor("rope.freq_base_swa")?;
    for (layer, sliding) in spec.layers.iter_mut().zip(sliding) {
        if !sliding || window.is_none() {
            continue;
        }
        layer.attention.window = window;
        if let Some(rope) = &mut layer.attention.rope {
            (rope.freq_scale, rope.yarn, rope.magnitude) = (1.0, None, 1.0);
            rope.base = base.unwrap_or(rope.base);
        }
    }
    Ok(spec)
}
