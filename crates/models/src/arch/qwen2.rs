//! `qwen2`: Qwen2 and Qwen2.5 with their coder and math models. Biases on q, k and v; RoPE rotates halves.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits::plain("qwen2", RopeStyle::Halves);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Qwen2, Qwen2.5, Qwen2.5-Coder",
    reads: &[],
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
