//! `gemma2`: scaled embeddings, norms around both parts, GELU, scores and logits bounded by tanh, a sliding window in every
//! other layer. The converter adds the 1 to the norms' weights.

use super::Architecture;
use super::decoder::{DecoderTraits, Norms, read_decoder, scale_by_width};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{Activation, ModelSpec};
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits {
    norms: Norms::Around,
    activation: Activation::Gelu,
    ..DecoderTraits::plain("gemma2", RopeStyle::Halves)
};

/// Window where the file does not state one.
const WINDOW: usize = 4096;
/// Blocks of the one size (27B) that scales scores by the width per head instead of the head's size.
const LAYERS_OF_27B: usize = 46;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Gemma 2",
    reads: &["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let n_layer = spec.layers.len();
    let window = keys.nonzero("attention.sliding_window")?.unwrap_or(WINDOW);
    let sliding = keys.sliding_layers(n_layer, 2)?;
    let softcap = keys.factor("attn_logit_softcapping")?;
    for (layer, sliding) in spec.layers.iter_mut().zip(sliding) {
        let a = &mut layer.attention;
        a.window = sliding.then_some(window);
        a.softcap = softcap;
    }
    if n_layer == LAYERS_OF_27B {
        scale_by_width(&mut spec);
    }
    spec.embedding_scale = (spec.n_embd as f32).sqrt();
    spec.logit_softcap = keys.factor("final_logit_softcapping")?;
    Ok(spec)
}
