//! Recorded results of llama.cpp for tiny models.
//!
//! [`fixtures`] are small and part of the repository: recordings for models that
//! [`tiny`](crate::tiny) writes. The large ones live outside the repository: in the folder that the environment variable
//! `MINFER_GOLDEN` names, else in `../shared/golden` next to the workspace. Tests that use them say
//! loudly that they were skipped where the folder is missing.

use crate::naive::Fault;
use crate::safetensors::{Safetensors, SafetensorsError};
use crate::tiny::{TinyError, TinySpec, Types};
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
    /// Reads a recording of every id of the vocabulary at each position: either `log_probs` in the order
    /// of the ids, or `top_logprobs` in an order that `top_ids` gives.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let st = Safetensors::parse(bytes)?;
        let (tokens, greedy) = (ids(&st, "tokens")?, ids(&st, "greedy")?);
        let sorted = st.names().any(|name| name == "top_ids");
        let name = if sorted { "top_logprobs" } else { "log_probs" };
        let (shape, values) = st.f32(name)?;
        let [rows, n_vocab] = shape[..] else { return Err(bad(name, "is no matrix")) };
        if rows != tokens.len() {
            return Err(bad(name, "does not fit the tokens"));
        }
        let log_probs = if sorted { by_id(&ids(&st, "top_ids")?, &values, n_vocab)? } else { values };
        Ok(Golden { tokens, n_vocab, log_probs, greedy })
    }
}

fn bad(name: &str, reason: &str) -> SafetensorsError {
    SafetensorsError::Tensor { name: name.into(), reason: reason.into() }
}

fn ids(st: &Safetensors, name: &str) -> Result<Vec<u32>, SafetensorsError> {
    let list = st.i32(name)?.1;
    list.iter().map(|&v| u32::try_from(v).map_err(|_| bad(name, "has negative ids"))).collect()
}

/// Rows of values in the order of the ids.
fn by_id(top: &[u32], values: &[f32], n_vocab: usize) -> Result<Vec<f32>, SafetensorsError> {
    if top.len() != values.len() {
        return Err(bad("top_ids", "does not fit the other tensors"));
    }
    let mut log_probs = vec![f32::NAN; values.len()];
    for (i, (&id, &value)) in top.iter().zip(values).enumerate() {
        if id as usize >= n_vocab {
            return Err(bad("top_ids", "has ids outside the vocabulary"));
        }
        log_probs[i / n_vocab * n_vocab + id as usize] = value;
    }
    match log_probs.iter().any(|v| v.is_nan()) {
        true => Err(bad("top_ids", "does not list every id")),
        false => Ok(log_probs),
    }
}

/// Why a recording of the repository can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FixtureError {
    /// The file is bad.
    #[error(transparent)]
    File(#[from] SafetensorsError),
    /// Its family is unknown.
    #[error(transparent)]
    Family(#[from] TinyError),
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
    /// Where llama.cpp's arithmetic is not the architecture's definition: the mistake that makes the
    /// naive pass agree with the recording.
    pub deviation: Option<Fault>,
    /// Bound on the centred error of the definition; `None` where it can't be compared.
    pub tolerance: Option<f64>,
}

/// Bound on the centred error where everything is computed in floats of 32 bits or more; mistakes lie
/// orders of magnitude above it.
pub const TOLERANCE: f64 = 1e-7;

impl Fixture {
    fn load(name: &'static str, spec: TinySpec, bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let fingerprint = Safetensors::parse(bytes)?.metadata("model_fingerprint").unwrap_or_default().into();
        let deviation = match name {
            "gemma2" | "gemma3" | "gemma3-linear" => Some(Fault::HalfGelu),
            "phi3-window" => Some(Fault::NoWindow),
            "gpt-oss-ramp" => Some(Fault::RoundedYarnCorners),
            _ => None,
        };
        let tolerance = match deviation {
            // llama.cpp rounds activations to 8 bits where weights are quantised.
            None if spec.types.attn.is_quantized() => Some(2e-3),
            None => Some(TOLERANCE),
            Some(Fault::HalfGelu) => Some(1e-5),
            Some(_) => None,
        };
        let (spec, golden) = (spec.with_vocab(), Golden::parse(bytes)?);
        Ok(Fixture { name, spec, fingerprint, golden, deviation, tolerance })
    }
}

/// A recording of the repository.
macro_rules! recording {
    ($name:literal, $spec:expr) => {
        ($name, $spec, include_bytes!(concat!("../fixtures/", $name, ".safetensors")) as &[u8])
    };
    ($name:literal) => {
        recording!($name, TinySpec::named($name)?)
    };
}

/// Recordings that are part of the repository: each family in F32 with the small vocabulary, and a tied
/// model in Q4_K, which llama.cpp runs with quantised activations.
///
/// `oracle/record.py` makes them.
pub fn fixtures() -> Result<Vec<Fixture>, FixtureError> {
    let q4_k = TinySpec::qwen2().wide().with_tied_output().with_types(Types::all(TensorType::Q4K));
    let list = [
        recording!("llama"),
        recording!("llama3-rope"),
        recording!("qwen2"),
        recording!("qwen2-tied-q4_k", q4_k),
        recording!("qwen3"),
        recording!("qwen3moe"),
        recording!("mixtral"),
        recording!("gemma3"),
        recording!("gemma3-linear"),
        recording!("gemma2"),
        recording!("phi3"),
        recording!("phi3-short"),
        recording!("phi3-window"),
        recording!("smollm3"),
        recording!("granite"),
        recording!("olmo2"),
        recording!("olmo3"),
        recording!("mistral3"),
        recording!("gpt-oss"),
        recording!("gpt-oss-ramp"),
        recording!("llama-linear"),
        recording!("llama-yarn"),
    ];
    Ok(list
        .into_iter()
        .map(|(name, spec, bytes)| Fixture::load(name, spec, bytes))
        .collect::<Result<_, _>>()?)
}
