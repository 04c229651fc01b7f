//! Recorded results of llama.cpp for tiny models.
//!
//! [`fixtures`] are small and part of the repository: recordings for models that
//! [`tiny`](crate::tiny) writes. The large ones live outside the repository: in the folder that the environment variable
//! `MINFER_GOLDEN` names, else in `../shared/golden` next to the workspace. Tests that use them say
//! loudly that they were skipped where the folder is missing.

use crate::safetensors::{Safetensors, SafetensorsError};
use crate::tiny::{TinySpec, Types};
use minfer_gguf::TensorType;
use std::path::{Path, PathBuf};

/// The folder of large recorded results, if there is one.
pub fn folder() -> Option<PathBuf> {
    let path = match std::env::var_os("MINFER_GOLDEN") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"),
    };
    path.is_dir().then_some(path)
}

/// What was recorded for one model: a text and the log-probabilities after each of its tokens.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Token ids of the text.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// `[tokens, n_vocab]` log-probabilities of the next token.
    pub log_probs: Vec<f32>,
    /// Greedy continuation of the text.
    pub greedy: Vec<u32>,
}

impl Golden {
    /// Reads a recording that lists every id of the vocabulary at each position.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let st = Safetensors::parse(bytes)?;
        let bad =
            |name: &str, reason: &str| SafetensorsError::Tensor { name: name.into(), reason: reason.into() };
        let ids = |name: &str| -> Result<Vec<u32>, SafetensorsError> {
            let list = st.i32(name)?.1;
            list.iter().map(|&v| u32::try_from(v).map_err(|_| bad(name, "has negative ids"))).collect()
        };
        let (shape, values) = st.f32("top_logprobs")?;
        let top = ids("top_ids")?;
        let tokens = ids("tokens")?;
        let [rows, n_vocab] = shape[..] else { return Err(bad("top_logprobs", "is no matrix")) };
        if rows != tokens.len() || top.len() != values.len() {
            return Err(bad("top_ids", "does not fit the other tensors"));
        }
        let mut log_probs = vec![f32::NAN; values.len()];
        for (i, (&id, &value)) in top.iter().zip(&values).enumerate() {
            if id as usize >= n_vocab {
                return Err(bad("top_ids", "has ids outside the vocabulary"));
            }
            log_probs[i / n_vocab * n_vocab + id as usize] = value;
        }
        if log_probs.iter().any(|v| v.is_nan()) {
            return Err(bad("top_ids", "does not list every id"));
        }
        Ok(Golden { tokens, n_vocab, log_probs, greedy: ids("greedy")? })
    }
}

/// A model that [`tiny`](crate::tiny) writes, with llama.cpp's results for it.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Name of the recording.
    pub name: &'static str,
    /// The model.
    pub spec: TinySpec,
    /// [`fingerprint`](crate::rng::fingerprint) of the file that was recorded, in hexadecimal.
    pub fingerprint: String,
    /// The results.
    pub golden: Golden,
}

/// Recordings that are part of the repository: each family in F32 with the small vocabulary, and a tied
/// model in Q4_K, which llama.cpp runs with quantised activations.
pub fn fixtures() -> Result<Vec<Fixture>, SafetensorsError> {
    let q4_k = TinySpec::qwen2().wide().with_tied_output().with_types(Types::all(TensorType::Q4K));
    let list: [(&str, TinySpec, &[u8]); 4] = [
        ("llama", TinySpec::llama(), include_bytes!("../fixtures/llama.safetensors")),
        ("llama3-rope", TinySpec::llama3_rope(), include_bytes!("../fixtures/llama3-rope.safetensors")),
        ("qwen2", TinySpec::qwen2(), include_bytes!("../fixtures/qwen2.safetensors")),
        ("qwen2-tied-q4_k", q4_k, include_bytes!("../fixtures/qwen2-tied-q4_k.safetensors")),
    ];
    let load = |(name, spec, bytes): (&'static str, TinySpec, &[u8])| {
        let fingerprint = Safetensors::parse(bytes)?.metadata("model_fingerprint").unwrap_or_default().into();
        Ok(Fixture { name, spec: spec.with_vocab(), fingerprint, golden: Golden::parse(bytes)? })
    };
    list.into_iter().map(load).collect()
}
