//! Small random models of every architecture, written by code, in which attention matters: peaked
//! scores, grouped heads, several layers. Keys and tensors are those of the real family.
//!
//! The same description gives the same bytes on every machine. A family is a row of a table.

pub mod broken;
pub mod vocab;

use crate::rng::Rng;
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

/// What sets a family apart from the plain llama shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// Name of the family here.
    pub name: &'static str,
    /// `general.architecture`.
    pub arch: &'static str,
    /// Base of the rotary frequencies.
    pub base: f32,
    /// Whether the file states `rope.dimension_count`.
    pub rope_dim_key: bool,
    /// Whether there is a `rope_freqs.weight`.
    pub rope_freqs: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
}

/// All families.
pub const FAMILIES: [Family; 3] = [
    Family {
        name: "llama",
        arch: "llama",
        base: 10_000.0,
        rope_dim_key: true,
        rope_freqs: false,
        qkv_bias: false,
    },
    Family {
        name: "llama3-rope",
        arch: "llama",
        base: 500_000.0,
        rope_dim_key: true,
        rope_freqs: true,
        qkv_bias: false,
    },
    Family {
        name: "qwen2",
        arch: "qwen2",
        base: 1_000_000.0,
        rope_dim_key: false,
        rope_freqs: false,
        qkv_bias: true,
    },
];

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
    /// Model width.
    pub n_embd: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Values per head.
    pub head_dim: usize,
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
    /// The usual sizes (width 96, 4 layers, 6 query heads over 2 KV heads of 16) in F32.
    pub const fn new(family: Family) -> Self {
        TinySpec {
            family,
            n_embd: 96,
            n_layer: 4,
            n_ff: 192,
            n_head: 6,
            n_kv_head: 2,
            head_dim: 16,
            n_ctx: 1024,
            types: Types::all(TensorType::F32),
            tied: false,
            tokenizer: Tokenizer::None,
            seed: 1,
        }
    }

    /// The family of a name of [`FAMILIES`].
    pub fn named(name: &str) -> Result<Self, TinyError> {
        let family = FAMILIES.iter().find(|f| f.name == name);
        family.map(|f| Self::new(*f)).ok_or_else(|| TinyError::Missing(name.into()))
    }

    /// Plain llama.
    pub const fn llama() -> Self {
        Self::new(FAMILIES[0])
    }

    /// Llama with `rope_freqs.weight`.
    pub const fn llama3_rope() -> Self {
        Self::new(FAMILIES[1])
    }

    /// Qwen 2: biases on q, k, v.
    pub const fn qwen2() -> Self {
        Self::new(FAMILIES[2])
    }

    /// Sizes that are multiples of 256, for K-quants: width 256, feed-forward 512, 8 over 2 heads of 32,
    /// 2 layers.
    pub const fn wide(self) -> Self {
        TinySpec { n_embd: 256, n_ff: 512, n_head: 8, n_kv_head: 2, head_dim: 32, n_layer: 2, ..self }
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
        for layer in 0..self.n_layer {
            self.add_block(&mut model, layer)?;
        }
        Ok(model)
    }

    /// The model's file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TinyError> {
        self.build()?.to_bytes()
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let number = |n: usize| Value::U32(n.try_into().unwrap_or(u32::MAX));
        let arch = self.family.arch;
        let mut meta: Vec<(String, Value)> = vec![
            ("general.architecture".into(), arch.into()),
            ("general.name".into(), format!("tiny random {}", self.family.name).into()),
        ];
        let mut add = |key: &str, value: Value| meta.push((format!("{arch}.{key}"), value));
        add("vocab_size", number(self.n_vocab()));
        add("context_length", number(self.n_ctx));
        add("embedding_length", number(self.n_embd));
        add("block_count", number(self.n_layer));
        add("feed_forward_length", number(self.n_ff));
        add("attention.head_count", number(self.n_head));
        add("attention.head_count_kv", number(self.n_kv_head));
        add("attention.layer_norm_rms_epsilon", 1e-6f32.into());
        add("rope.freq_base", self.family.base.into());
        add("attention.key_length", number(self.head_dim));
        add("attention.value_length", number(self.head_dim));
        if self.family.rope_dim_key {
            add("rope.dimension_count", number(self.head_dim));
        }
        match self.tokenizer {
            Tokenizer::None => meta.push(("tokenizer.ggml.model".into(), "none".into())),
            Tokenizer::Gpt2(pre) => meta.extend(vocab::metadata(pre)),
        }
        meta
    }

    fn add_tables(&self, model: &mut TinyModel) -> Result<(), TinyError> {
        let (rows, cols) = (self.n_vocab(), self.n_embd);
        // A tied table serves as the output head too, which wants the smaller values.
        let gain = if self.tied { 1.0 } else { (cols as f64).sqrt() };
        self.matrix(model, "token_embd.weight", self.types.embed, [rows, cols], gain)?;
        self.vector(model, "output_norm.weight", cols, 1.0, 0.2)?;
        if !self.tied {
            self.matrix(model, "output.weight", self.types.output, [rows, cols], 2.5)?;
        }
        if self.family.rope_freqs {
            let n = self.head_dim / 2;
            let values: Vec<f32> =
                (0..n).map(|i| 8f64.powf(i as f64 / (n - 1).max(1) as f64) as f32).collect();
            model.push("rope_freqs.weight", TensorType::F32, &[n], &values)?;
        }
        Ok(())
    }

    fn add_block(&self, model: &mut TinyModel, layer: usize) -> Result<(), TinyError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (embd, ff, attn, ffn) = (self.n_embd, self.n_ff, self.types.attn, self.types.ffn);
        let (q, kv) = (self.n_head * self.head_dim, self.n_kv_head * self.head_dim);
        self.vector(model, &name("attn_norm.weight"), embd, 1.0, 0.2)?;
        self.vector(model, &name("ffn_norm.weight"), embd, 1.0, 0.2)?;
        // A gain of 2 on q and k makes the scores peaked.
        self.matrix(model, &name("attn_q.weight"), attn, [q, embd], 2.0)?;
        self.matrix(model, &name("attn_k.weight"), attn, [kv, embd], 2.0)?;
        self.matrix(model, &name("attn_v.weight"), attn, [kv, embd], 1.0)?;
        self.matrix(model, &name("attn_output.weight"), attn, [embd, q], 1.0)?;
        if self.family.qkv_bias {
            for (part, n) in [("q", q), ("k", kv), ("v", kv)] {
                self.vector(model, &name(&format!("attn_{part}.bias")), n, 0.0, 0.5)?;
            }
        }
        self.matrix(model, &name("ffn_gate.weight"), ffn, [ff, embd], 1.0)?;
        self.matrix(model, &name("ffn_up.weight"), ffn, [ff, embd], 1.0)?;
        self.matrix(model, &name("ffn_down.weight"), ffn, [embd, ff], 1.0)
    }

    /// A random `[rows, cols]` matrix whose product with unit values has about the size of `gain`.
    fn matrix(
        &self,
        model: &mut TinyModel,
        name: &str,
        ty: TensorType,
        [rows, cols]: [usize; 2],
        gain: f64,
    ) -> Result<(), TinyError> {
        let values = Rng::labelled(self.seed, name).normals(rows * cols, gain / (cols as f64).sqrt());
        model.push(name, ty, &[cols, rows], &values)
    }

    fn vector(
        &self,
        model: &mut TinyModel,
        name: &str,
        n: usize,
        centre: f64,
        spread: f64,
    ) -> Result<(), TinyError> {
        let mut rng = Rng::labelled(self.seed, name);
        let values: Vec<f32> = (0..n).map(|_| (centre + spread * rng.normal()) as f32).collect();
        model.push(name, TensorType::F32, &[n], &values)
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
