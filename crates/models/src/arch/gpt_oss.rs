//! `gpt-oss`: experts with biases and a clamped gate, a sliding window in every other layer, and a learned score of nothing
//! per head.

use super::Architecture;
use super::decoder::{DecoderTraits, Norms, read_decoder};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{Activation, ModelSpec};
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits {
    norms: Norms::BeforeRenamed,
    activation: Activation::ClampedSilu { alpha: 1.702, limit: 7.0 },
    ..DecoderTraits::plain("gpt-oss", RopeStyle::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "gpt-oss",
    reads: &["attention.sliding_window", "expert_count"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let window = keys.count("attention.sliding_window")?;
    let sliding = keys.sliding_layers(spec.layers.len(), 2)?;
    let base = keys.factor("rope.freq_base_swa")?;
    for (i, (layer, sliding)) in spec.layers.iter_mut().zip(sliding).enumerate() {
        let a = &mut layer.attention;
        a.sinks = Some(tensors.vector(&format!("blk.{i}.attn_sinks.weight"), a.n_head)?);
        a.window = sliding.then_some(window);
        if let Some(rope) = &mut a.rope {
            rope.base = base.filter(|_| sliding).unwrap_or(rope.base);
            if let Some(yarn) = &mut rope.yarn {
                yarn.whole_ends = false;
            }
        }
    }
    Ok(spec)
}
