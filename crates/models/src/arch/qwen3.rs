//! `qwen3`: Qwen3 without experts. A norm of each query and key head before rotation, no biases.

use super::Architecture;
use super::decoder::{DecoderTraits, QkNorm, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { qk_norm: QkNorm::Heads, ..DecoderTraits::plain("qwen3", RopeStyle::Halves) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Qwen3",
    reads: &[],
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
