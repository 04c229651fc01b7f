//! `qwen3moe`: Qwen3 with experts, whose shares sum up to 1.

use super::Architecture;
use super::decoder::{DecoderTraits, QkNorm, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { qk_norm: QkNorm::Heads, ..DecoderTraits::plain("qwen3moe", RopeStyle::Halves) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Qwen3 (mixture of experts)",
    reads: &["expert_count"],
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
