//! An independent forward pass of tiny models: straight from the file, token by token, in f64, with
//! none of the engine's graph code. It is the oracle for whole models, and checked itself against
//! recordings of llama.cpp.
//!
//! Where llama.cpp deviates from an architecture's published definition, the definition counts. Built-in
//! mistakes ([`Fault`]) show that a comparison would see them.

mod attention;
mod config;
mod fault;
mod feed_forward;
mod rope;
mod tensors;

pub use fault::Fault;

use crate::compare::log_softmax;
use config::Config;
use minfer_gguf::{FormatError, Gguf, GgufError};
use tensors::Tensors;

/// Why a model can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NaiveError {
    /// The container is bad or lacks a key.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor can't be decoded.
    #[error("tensor `{0}`: {1}")]
    Decode(String, FormatError),
    /// The oracle does not know the architecture.
    #[error("unknown architecture `{0}`")]
    Architecture(String),
    /// A tensor is missing or has another shape than its use.
    #[error("tensor `{0}` is missing or has the wrong shape")]
    Tensor(String),
    /// A token id outside the vocabulary.
    #[error("token {0} is outside the vocabulary")]
    Token(u32),
}

/// A model in memory, its weights dequantised.
pub struct NaiveModel {
    config: Config,
    tensors: Tensors,
    context: Option<usize>,
}

/// What holds for one pass.
struct Run {
    /// Positions that the context has room for.
    context: usize,
    fault: Option<Fault>,
}

impl Run {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl NaiveModel {
    /// Reads a file's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, NaiveError> {
        let file = Gguf::read(bytes, bytes.len() as u64)?;
        Ok(NaiveModel { config: Config::read(&file)?, tensors: Tensors::read(&file, bytes)?, context: None })
    }

    /// Sets the context that the text is thought to stand in; it decides between long and short rope
    /// factors. Unless set it is the text's own length.
    pub fn with_context(mut self, positions: usize) -> Self {
        self.context = Some(positions);
        self
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.tensors.rows("token_embd.weight")
    }

    /// Log-probabilities `[ids, n_vocab]` of the token after each position, with a mistake if asked.
    pub fn log_probs(&self, ids: &[u32], fault: Option<Fault>) -> Result<Vec<f64>, NaiveError> {
        let n_vocab = self.n_vocab();
        Ok(self.logits(ids, fault)?.chunks(n_vocab.max(1)).flat_map(log_softmax).collect())
    }

    /// Logits `[ids, n_vocab]` after each position.
    pub fn logits(&self, ids: &[u32], fault: Option<Fault>) -> Result<Vec<f64>, NaiveError> {
        let run = Run { context: self.context.unwrap_or(ids.len()), fault };
        let mut rows = ids.iter().map(|&id| self.embed(id, &run)).collect::<Result<Vec<_>, _>>()?;
        for layer in 0..self.config.n_layer {
            self.attention_part(layer, &mut rows, &run)?;
            self.feed_forward_part(layer, &mut rows, &run)?;
        }
        let mut out = Vec::new();
        for row in &rows {
            out.extend(self.head(row, &run)?);
        }
        Ok(out)
    }

    fn embed(&self, id: u32, run: &Run) -> Result<Vec<f64>, NaiveError> {
        let table = self.tensors.matrix("token_embd.weight", self.n_vocab(), self.config.n_embd)?;
        if id as usize >= table.rows {
            return Err(NaiveError::Token(id));
        }
        let scale = if run.has(Fault::NoEmbeddingScale) { 1.0 } else { self.config.embedding_scale };
        Ok(table.row(id as usize).iter().map(|&v| f64::from(v) * scale).collect())
    }

    /// Logits of one position.
    fn head(&self, row: &[f64], run: &Run) -> Result<Vec<f64>, NaiveError> {
        // Without a head of its own a model uses the embedding.
        let own = self.tensors.has("output.weight");
        let name = if own { "output.weight" } else { "token_embd.weight" };
        let head = self.tensors.matrix(name, self.n_vocab(), self.config.n_embd)?;
        let scale = if run.has(Fault::NoLogitScale) { 1.0 } else { self.config.logit_scale };
        let logits = head.times(&self.norm("output_norm.weight", row)?).into_iter().map(|v| v / scale);
        Ok(match self.config.logit_cap {
            Some(cap) if !run.has(Fault::NoLogitCap) => logits.map(|v| cap * (v / cap).tanh()).collect(),
            _ => logits.collect(),
        })
    }

    fn add_to_residual(&self, row: &mut [f64], part: &[f64], run: &Run) {
        let scale = if run.has(Fault::NoResidualScale) { 1.0 } else { self.config.residual_scale };
        row.iter_mut().zip(part).for_each(|(x, y)| *x += scale * y);
    }

    fn norm(&self, name: &str, x: &[f64]) -> Result<Vec<f64>, NaiveError> {
        let (weight, factor) = (self.tensors.vector(name, x.len())?, self.rms_factor(x));
        Ok(x.iter().zip(weight).map(|(v, &w)| v * factor * f64::from(w)).collect())
    }

    /// One over the root of the mean square.
    fn rms_factor(&self, x: &[f64]) -> f64 {
        1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + self.config.eps).sqrt()
    }
}
