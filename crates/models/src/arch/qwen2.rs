//! `qwen2`: Qwen2 and Qwen2.5 with their coder and math models. Biases on q, k and v; RoPE rotates halves.

use super::{Architecture, DecoderTraits, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits { name: "qwen2", rope: RopeStyle::Halves, rope_freqs: false };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Qwen2, Qwen2.5, Qwen2.5-Coder",
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
