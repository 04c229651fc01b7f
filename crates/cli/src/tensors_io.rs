//! Files of the golden format: per position the best ids and their log-probabilities.
//!
//! Tensors: `tokens` i32 `[n]`, `top_ids` i32 `[n, k]`, `top_logprobs` f32 `[n, k]` (best first, of the token
//! after the position), `greedy` i32 `[m]` (the greedy continuation of the whole text; may be absent).
//! Metadata, all of which may be absent: `source`, `n_vocab`, `model_sha256`.

use anyhow::{Context, Result, bail, ensure};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

/// The contents of such a file.
pub struct TopLogProbs {
    pub tokens: Vec<u32>,
    /// Ids per position.
    pub k: usize,
    /// `[n, k]`, best first.
    pub ids: Vec<u32>,
    /// `[n, k]`.
    pub logprobs: Vec<f32>,
    pub greedy: Vec<u32>,
}

/// What a file says of the model that it was recorded from.
#[derive(Default)]
pub struct Origin {
    /// Size of its vocabulary.
    pub n_vocab: Option<usize>,
    /// Hash of its file, in hexadecimal digits.
    pub model_sha256: Option<String>,
}

impl TopLogProbs {
    /// Positions that have log-probabilities.
    pub fn len(&self) -> usize {
        self.ids.len() / self.k.max(1)
    }

    /// Ids and log-probabilities of a position.
    pub fn row(&self, i: usize) -> (&[u32], &[f32]) {
        let range = i * self.k..(i + 1) * self.k;
        (&self.ids[range.clone()], &self.logprobs[range])
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<(Self, Origin)> {
        crate::inputs::check_regular(path)?;
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        Self::parse(&bytes).with_context(|| path.display().to_string())
    }

    fn parse(bytes: &[u8]) -> Result<(Self, Origin)> {
        let file = SafeTensors::deserialize(bytes).context("not a safetensors file")?;
        let (_, header) = SafeTensors::read_metadata(bytes).context("not a safetensors file")?;
        let said = |key: &str| header.metadata().as_ref().and_then(|m| m.get(key).cloned());
        let n_vocab = said("n_vocab").map(|n| n.parse().with_context(|| format!("metadata n_vocab `{n}`")));
        let origin = Origin { n_vocab: n_vocab.transpose()?, model_sha256: said("model_sha256") };
        let ids = file.tensor("top_ids")?;
        let &[n, k] = ids.shape() else { bail!("top_ids has shape {:?}", ids.shape()) };
        let logprobs = file.tensor("top_logprobs")?;
        ensure!(logprobs.shape() == [n, k], "top_logprobs has shape {:?}", logprobs.shape());
        ensure!(logprobs.dtype() == Dtype::F32, "top_logprobs has type {:?}", logprobs.dtype());
        let tokens = as_ids(&file.tensor("tokens")?)?;
        ensure!(tokens.len() == n, "{} tokens and {n} rows", tokens.len());
        let floats = logprobs.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let greedy = file.tensor("greedy").ok().map(|t| as_ids(&t)).transpose()?.unwrap_or_default();
        let top = TopLogProbs { tokens, k, ids: as_ids(&ids)?, logprobs: floats.collect(), greedy };
        Ok((top, origin))
    }

    /// Writes a file with its metadata.
    pub fn write(&self, path: &Path, metadata: HashMap<String, String>) -> Result<()> {
        let i32_bytes =
            |list: &[u32]| list.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect::<Vec<u8>>();
        let (tokens, ids, greedy) = (i32_bytes(&self.tokens), i32_bytes(&self.ids), i32_bytes(&self.greedy));
        let logprobs: Vec<u8> = self.logprobs.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (n, k) = (self.len(), self.k);
        let views = [
            ("tokens", TensorView::new(Dtype::I32, vec![self.tokens.len()], &tokens)?),
            ("top_ids", TensorView::new(Dtype::I32, vec![n, k], &ids)?),
            ("top_logprobs", TensorView::new(Dtype::F32, vec![n, k], &logprobs)?),
            ("greedy", TensorView::new(Dtype::I32, vec![self.greedy.len()], &greedy)?),
        ];
        let bytes = safetensors::serialize(views, Some(metadata))?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}

fn as_ids(view: &TensorView<'_>) -> Result<Vec<u32>> {
    ensure!(view.dtype() == Dtype::I32, "ids have type {:?}", view.dtype());
    let ids = view.data().chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    ids.map(|id| u32::try_from(id).with_context(|| format!("id {id}"))).collect()
}
