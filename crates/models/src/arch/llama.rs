//! `llama`: Llama 2 and 3.x, Mistral, Mixtral, SmolLM2, TinyLlama and other files of that family. The converter
//! permutes q and k, so that RoPE rotates neighbours; Llama 3.x carries frequency divisors in `rope_freqs.weight`.

use super::Architecture;
use super::decoder::{DecoderTraits, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits =
    DecoderTraits { rope_freqs: true, ..DecoderTraits::plain("llama", RopeStyle::Interleaved) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Llama 2, Llama 3.x, Mistral, Mixtral, SmolLM2, TinyLlama",
    reads: &["expert_count"],
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
