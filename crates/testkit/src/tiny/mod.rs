//! Small random models of every architecture, written by code, in which attention matters: peaked
//! scores, grouped heads, several layers. Keys and tensors are those of the real family.
//!
//! The same description gives the same bytes on every machine. A family is a row of a table.

pub mod broken;
pub mod family;
pub mod mutate;
mod parts;
pub mod vocab;
mod weights;

pub use family::{FAMILIES, Family, Shape};
pub use mutate::mutate;

use minfer_gguf::{FormatError, GgufError, TensorType, Value, Writer, encode_row};
use std::path::Path;

/// Why a model can't be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TinyError {
    /// The values don't fit the tensor type (row length, usually).
    #[error("tensor `{0}`: {1}")]
    Encode(String, FormatError),
    /// No such family, tensor or key.
    #[error("no `{0}`")]
    Missing(String),
    /// The container refuses.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file can't be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Tensor types by kind; norms, biases and frequencies are always F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// `token_embd`.
    pub embed: TensorType,
    /// `attn_q`, `attn_k`, `attn_v`, `attn_output`.
    pub attn: TensorType,
    /// `ffn_gate`, `ffn_up`, `ffn_down`.
    pub ffn: TensorType,
    /// `output`.
    pub output: TensorType,
}

impl Types {
    /// One type everywhere.
    pub const fn all(ty: TensorType) -> Self {
        Types { embed: ty, attn: ty, ffn: ty, output: ty }
    }
}

/// The model's tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// `tokenizer.ggml.model = "none"`, a vocabulary of 256 ids.
    None,
    /// The vocabulary of [`vocab`] with this pre-tokenizer.
    Gpt2(&'static str),
}

/// Description of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TinySpec {
    /// The family.
    pub family: Family,
    /// Sizes.
    pub shape: Shape,
    /// `context_length`.
    pub n_ctx: usize,
    /// Tensor types.
    pub types: Types,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Seed of the weights.
    pub seed: u64,
}

impl TinySpec {
    /// The family's usual sizes in F32.
    pub const fn new(family: Family) -> Self {
        TinySpec {
            family,
            shape: family.shape,
            n_ctx: 1024,
            types: Types::all(TensorType::F32),
            tied: family.tied,
            tokenizer: Tokenizer::None,
            seed: 1,
        }
    }

    /// The family of a name of [`FAMILIES`].
    pub fn named(name: &str) -> Result<Self, TinyError> {
        let family = FAMILIES.into_iter().find(|f| f.name == name);
        family.map(Self::new).ok_or_else(|| TinyError::Missing(name.into()))
    }

    /// Plain llama.
    pub const fn llama() -> Self {
        Self::new(family::LLAMA)
    }

    /// Llama with `rope_freqs.weight`.
    pub const fn llama3_rope() -> Self {
        Self::new(family::LLAMA3_ROPE)
    }

    /// Qwen 2: biases on q, k, v.
    pub const fn qwen2() -> Self {
        Self::new(family::QWEN2)
    }

    /// Sizes that are multiples of 256, for K-quants: width 256, feed-forward 512, experts 256, 8 over 2
    /// heads of 32, as few blocks as show all kinds of layers (2 in most families).
    pub const fn wide(self) -> Self {
        let shape = Shape {
            n_embd: 256,
            n_ff: 512,
            n_ff_expert: 256,
            n_head: 8,
            n_kv_head: 2,
            head_dim: 32,
            n_layer: self.shape.min_layers,
            ..self.shape
        };
        TinySpec { shape, ..self }
    }

    /// With this number of blocks.
    pub const fn with_layers(self, n_layer: usize) -> Self {
        TinySpec { shape: Shape { n_layer, ..self.shape }, ..self }
    }

    /// With these tensor types.
    pub const fn with_types(self, types: Types) -> Self {
        TinySpec { types, ..self }
    }

    /// With the small byte-level vocabulary.
    pub const fn with_vocab(self) -> Self {
        TinySpec { tokenizer: Tokenizer::Gpt2("smollm"), ..self }
    }

    /// Without an output head of its own.
    pub const fn with_tied_output(self) -> Self {
        TinySpec { tied: true, ..self }
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        match self.tokenizer {
            Tokenizer::None => 256,
            Tokenizer::Gpt2(_) => vocab::tokens().len(),
        }
    }

    /// Makes the model.
    pub fn build(&self) -> Result<TinyModel, TinyError> {
        let mut model = TinyModel { metadata: self.metadata(), tensors: Vec::new() };
        self.add_tables(&mut model)?;
        for layer in 0..self.shape.n_layer {
            self.add_block(&mut model, layer)?;
        }
        Ok(model)
    }

    /// The model's file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TinyError> {
        self.build()?.to_bytes()
    }
}

/// A tensor of a model in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TinyTensor {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Sizes, the contiguous one first.
    pub dims: Vec<u64>,
    /// Encoded rows.
    pub bytes: Vec<u8>,
}

/// A model in memory: what goes into the file, open to changes.
#[derive(Clone, Debug, PartialEq)]
pub struct TinyModel {
    /// Metadata in the file's order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in the file's order.
    pub tensors: Vec<TinyTensor>,
}

impl TinyModel {
    /// Adds a tensor of `dims` (the contiguous size first), encoded as `ty`.
    pub fn push(
        &mut self,
        name: &str,
        ty: TensorType,
        dims: &[usize],
        values: &[f32],
    ) -> Result<(), TinyError> {
        let mut bytes = Vec::new();
        for row in values.chunks(dims[0].max(1)) {
            encode_row(ty, row, &mut bytes).map_err(|e| TinyError::Encode(name.into(), e))?;
        }
        let dims = dims.iter().map(|&d| d as u64).collect();
        self.tensors.push(TinyTensor { name: name.into(), ty, dims, bytes });
        Ok(())
    }

    /// The tensor of a name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut TinyTensor, TinyError> {
        let found = self.tensors.iter_mut().find(|t| t.name == name);
        found.ok_or_else(|| TinyError::Missing(name.into()))
    }

    /// The file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TinyError> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.add_meta(key.as_str(), value.clone());
        }
        for t in &self.tensors {
            writer.add_tensor(t.name.as_str(), t.dims.clone(), t.ty, t.bytes.clone());
        }
        Ok(writer.to_bytes()?)
    }

    /// Writes the file.
    pub fn write_to(&self, path: &Path) -> Result<(), TinyError> {
        Ok(std::fs::write(path, self.to_bytes()?)?)
    }
}
