//! `gemma3`: as Gemma 2 without its bounds, with a norm of each query and key head; five layers of six have a sliding
//! window and a rotation of their own.

use super::Architecture;
use super::decoder::{DecoderTraits, Norms, QkNorm, read_decoder, scale_by_width};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::spec::{Activation, ModelSpec};
use crate::tensors::Tensors;
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits {
    qk_norm: QkNorm::Heads,
    norms: Norms::Around,
    activation: Activation::Gelu,
    ..DecoderTraits::plain("gemma3", RopeStyle::Halves)
};

/// Base of the rotation in sliding layers, where the file does not state one.
const SLIDING_BASE: f32 = 10_000.0;
/// Blocks of the one size (27B) that scales scores by the width per head instead of the head's size.
const LAYERS_OF_27B: usize = 62;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Gemma 3 (text)",
    reads: &["attention.sliding_window", "final_logit_softcapping"],
    read,
};

fn read(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = read_decoder(keys, tensors, &TRAITS)?;
    let n_layer = spec.layers.len();
    let window = keys.nonzero("attention.sliding_window")?;
    let sliding = keys.sliding_layers(n_layer, 6)?;
    let base = keys.positive("rope.freq_base_swa", Some(SLIDING_BASE))?;
    for (layer, sliding) in spec.layers.iter_mut().zip(sliding) {
        let a = &mut layer.attention;
        if sliding && window.is_some() {
            a.window = window;
            if let Some(rope) = &mut a.rope {
                (rope.base, rope.freq_scale) = (base, 1.0);
            }
        }
    }
    if n_layer == LAYERS_OF_27B {
        scale_by_width(&mut spec);
    }
    spec.embedding_scale = (spec.n_embd as f32).sqrt();
    spec.logit_softcap = keys.factor("final_logit_softcapping")?;
    Ok(spec)
}
