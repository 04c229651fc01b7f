//! `llama`: Llama 2 and 3.x, SmolLM2, TinyLlama and other files of that family. The converter permutes
//! q and k, so that RoPE rotates neighbours; Llama 3.x carries frequency divisors in `rope_freqs.weight`.

use super::{Architecture, DecoderTraits, read_decoder};
use minfer_graph::RopeStyle;

const TRAITS: DecoderTraits = DecoderTraits { name: "llama", rope: RopeStyle::Interleaved, rope_freqs: true };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: TRAITS.name,
    families: "Llama 2, Llama 3.x, SmolLM2, TinyLlama",
    read: |keys, tensors| read_decoder(keys, tensors, &TRAITS),
};
