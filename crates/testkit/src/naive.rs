//! An independent forward pass of tiny models: straight from the file, token by token, in f64, with
//! none of the engine's graph code. It is the oracle for whole models, and checked itself against
//! recordings of llama.cpp.
//!
//! Built-in mistakes ([`Fault`]) show that a comparison would see them.

use crate::compare::log_softmax;
use minfer_gguf::{FormatError, Gguf, GgufError, decode_row};
use std::collections::HashMap;

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

/// A mistake that an engine could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other pairing of rotated values.
    OtherRopeStyle,
    /// Query heads read the KV heads in reverse order.
    SwappedKvHeads,
    /// Every position sees the whole text.
    NoMask,
    /// `rope_freqs.weight` is ignored.
    NoRopeFactors,
    /// Biases of q, k and v are ignored.
    NoQkvBias,
    /// The scale of the scores is 2 % too large.
    ScaleOff,
    /// Every position counts one less.
    PositionOff,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 7] = [
        Fault::OtherRopeStyle,
        Fault::SwappedKvHeads,
        Fault::NoMask,
        Fault::NoRopeFactors,
        Fault::NoQkvBias,
        Fault::ScaleOff,
        Fault::PositionOff,
    ];
}

struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.cols..(i + 1) * self.cols]
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        let dot = |i| self.row(i).iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        (0..self.rows).map(dot).collect()
    }
}

/// A model in memory, its weights dequantised.
pub struct NaiveModel {
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_kv_head: usize,
    head_dim: usize,
    n_rot: usize,
    eps: f64,
    base: f64,
    interleaved: bool,
    tensors: HashMap<String, Matrix>,
}

impl NaiveModel {
    /// Reads a file's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, NaiveError> {
        let file = Gguf::read(bytes, bytes.len() as u64)?;
        let arch = file.architecture()?.to_string();
        let interleaved = match arch.as_str() {
            "llama" => true,
            "qwen2" => false,
            _ => return Err(NaiveError::Architecture(arch)),
        };
        let meta = &file.metadata;
        let number = |key: &str| -> Result<Option<usize>, NaiveError> {
            Ok(meta.u32(&format!("{arch}.{key}"))?.map(|v| v as usize))
        };
        let needed = |key: &str| -> Result<usize, NaiveError> {
            Ok(meta.require_u32(&format!("{arch}.{key}"))? as usize)
        };
        let (n_embd, n_head) = (needed("embedding_length")?, needed("attention.head_count")?);
        let head_dim = number("attention.key_length")?.unwrap_or(n_embd / n_head.max(1));
        Ok(NaiveModel {
            n_embd,
            n_layer: needed("block_count")?,
            n_head,
            n_kv_head: number("attention.head_count_kv")?.unwrap_or(n_head),
            head_dim,
            n_rot: number("rope.dimension_count")?.unwrap_or(head_dim),
            eps: meta.require_f32(&format!("{arch}.attention.layer_norm_rms_epsilon"))?.into(),
            base: meta.f32(&format!("{arch}.rope.freq_base"))?.unwrap_or(10_000.0).into(),
            interleaved,
            tensors: read_tensors(&file, bytes)?,
        })
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.tensors.get("token_embd.weight").map_or(0, |t| t.rows)
    }

    /// Log-probabilities `[ids, n_vocab]` of the token after each position, with a mistake if asked.
    pub fn log_probs(&self, ids: &[u32], fault: Option<Fault>) -> Result<Vec<f64>, NaiveError> {
        let n_vocab = self.n_vocab();
        Ok(self.logits(ids, fault)?.chunks(n_vocab.max(1)).flat_map(log_softmax).collect())
    }

    /// Logits `[ids, n_vocab]` after each position.
    pub fn logits(&self, ids: &[u32], fault: Option<Fault>) -> Result<Vec<f64>, NaiveError> {
        let table = self.matrix("token_embd.weight", self.n_vocab(), self.n_embd)?;
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for &id in ids {
            if id as usize >= table.rows {
                return Err(NaiveError::Token(id));
            }
            rows.push(table.row(id as usize).iter().map(|&v| v.into()).collect());
        }
        for layer in 0..self.n_layer {
            self.attention_part(layer, &mut rows, fault)?;
            self.feed_forward_part(layer, &mut rows)?;
        }
        // Without a head of its own a model uses the embedding.
        let name =
            if self.tensors.contains_key("output.weight") { "output.weight" } else { "token_embd.weight" };
        let head = self.matrix(name, self.n_vocab(), self.n_embd)?;
        let mut out = Vec::new();
        for row in &rows {
            out.extend(head.times(&self.norm("output_norm.weight", row)?));
        }
        Ok(out)
    }

    fn attention_part(
        &self,
        layer: usize,
        rows: &mut [Vec<f64>],
        fault: Option<Fault>,
    ) -> Result<(), NaiveError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (position, row) in rows.iter().enumerate() {
            let x = self.norm(&name("attn_norm.weight"), row)?;
            let mut q_row = self.project(layer, "attn_q", self.n_head, &x, fault)?;
            let mut k_row = self.project(layer, "attn_k", self.n_kv_head, &x, fault)?;
            // A shift of all positions alone would change nothing, so that only q moves.
            let shift = if fault == Some(Fault::PositionOff) { 1.0 } else { 0.0 };
            self.rotate(&mut q_row, position as f64 - shift, fault)?;
            self.rotate(&mut k_row, position as f64, fault)?;
            q.push(q_row);
            k.push(k_row);
            v.push(self.project(layer, "attn_v", self.n_kv_head, &x, fault)?);
        }
        let out = self.matrix(&name("attn_output.weight"), self.n_embd, self.n_head * self.head_dim)?;
        for (position, row) in rows.iter_mut().enumerate() {
            let visible = if fault == Some(Fault::NoMask) { k.len() } else { position + 1 };
            let mixed = self.attend(&q[position], &k[..visible], &v[..visible], fault);
            for (x, y) in row.iter_mut().zip(out.times(&mixed)) {
                *x += y;
            }
        }
        Ok(())
    }

    fn feed_forward_part(&self, layer: usize, rows: &mut [Vec<f64>]) -> Result<(), NaiveError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let n_ff = self.tensors.get(&name("ffn_gate")).map_or(0, |t| t.rows);
        let gate = self.matrix(&name("ffn_gate"), n_ff, self.n_embd)?;
        let up = self.matrix(&name("ffn_up"), n_ff, self.n_embd)?;
        let down = self.matrix(&name("ffn_down"), self.n_embd, n_ff)?;
        for row in rows {
            let x = self.norm(&name("ffn_norm"), row)?;
            let silu = |g: f64| g / (1.0 + (-g).exp());
            let hidden: Vec<f64> =
                gate.times(&x).into_iter().zip(up.times(&x)).map(|(g, u)| silu(g) * u).collect();
            for (x, y) in row.iter_mut().zip(down.times(&hidden)) {
                *x += y;
            }
        }
        Ok(())
    }

    /// A projection to heads, with its bias if there is one.
    fn project(
        &self,
        layer: usize,
        part: &str,
        heads: usize,
        x: &[f64],
        fault: Option<Fault>,
    ) -> Result<Vec<f64>, NaiveError> {
        let rows = heads * self.head_dim;
        let mut y = self.matrix(&format!("blk.{layer}.{part}.weight"), rows, self.n_embd)?.times(x);
        let bias = format!("blk.{layer}.{part}.bias");
        if self.tensors.contains_key(&bias) && fault != Some(Fault::NoQkvBias) {
            for (y, &b) in y.iter_mut().zip(self.matrix(&bias, 1, rows)?.row(0)) {
                *y += f64::from(b);
            }
        }
        Ok(y)
    }

    fn rotate(&self, x: &mut [f64], position: f64, fault: Option<Fault>) -> Result<(), NaiveError> {
        let half = self.n_rot / 2;
        let factors = match self.tensors.contains_key("rope_freqs.weight") {
            true if fault != Some(Fault::NoRopeFactors) => {
                self.matrix("rope_freqs.weight", 1, half)?.values.clone()
            }
            _ => vec![1.0; half],
        };
        let interleaved = self.interleaved != (fault == Some(Fault::OtherRopeStyle));
        for head in x.chunks_exact_mut(self.head_dim) {
            for (i, &factor) in factors.iter().enumerate() {
                let frequency = self.base.powf(-((2 * i) as f64) / self.n_rot as f64) / f64::from(factor);
                let angle = position * frequency;
                let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (u, v) = (head[a], head[b]);
                head[a] = u * angle.cos() - v * angle.sin();
                head[b] = u * angle.sin() + v * angle.cos();
            }
        }
        Ok(())
    }

    /// One query row over key and value rows.
    fn attend(&self, q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>], fault: Option<Fault>) -> Vec<f64> {
        let d = self.head_dim;
        let scale = if fault == Some(Fault::ScaleOff) { 1.02 } else { 1.0 } / (d as f64).sqrt();
        let mut out = Vec::new();
        for h in 0..self.n_head {
            let mut kv_head = h / (self.n_head / self.n_kv_head);
            if fault == Some(Fault::SwappedKvHeads) {
                kv_head = self.n_kv_head - 1 - kv_head;
            }
            let (q, kv) = (&q[h * d..(h + 1) * d], kv_head * d..(kv_head + 1) * d);
            let dot = |k: &Vec<f64>| q.iter().zip(&k[kv.clone()]).map(|(a, b)| a * b).sum::<f64>();
            let weights: Vec<f64> = log_softmax(&k.iter().map(|k| scale * dot(k)).collect::<Vec<f64>>())
                .iter()
                .map(|p| p.exp())
                .collect();
            out.extend(kv.map(|i| v.iter().zip(&weights).map(|(v, w)| v[i] * w).sum::<f64>()));
        }
        out
    }

    fn norm(&self, name: &str, x: &[f64]) -> Result<Vec<f64>, NaiveError> {
        let weight = self.matrix(name, 1, x.len())?.row(0);
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + self.eps).sqrt();
        Ok(x.iter().zip(weight).map(|(v, &w)| v * factor * f64::from(w)).collect())
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<&Matrix, NaiveError> {
        let found = self.tensors.get(name).filter(|t| t.rows == rows && t.cols == cols);
        found.ok_or_else(|| NaiveError::Tensor(name.into()))
    }
}

fn read_tensors(file: &Gguf, bytes: &[u8]) -> Result<HashMap<String, Matrix>, NaiveError> {
    let mut tensors = HashMap::new();
    for t in &file.tensors {
        let bad = || NaiveError::Tensor(t.name.clone());
        let size = |n: u64| usize::try_from(n).map_err(|_| bad());
        let (rows, cols) = (size(t.rows())?, size(t.row_len())?);
        let (start, len) = (size(t.offset)?, size(t.bytes)?);
        let data = bytes.get(start..start + len).ok_or_else(bad)?;
        let mut values = vec![0.0; rows * cols];
        let row_bytes = t.ty.row_bytes(cols).ok_or_else(bad)?;
        for (out, row) in values.chunks_exact_mut(cols).zip(data.chunks_exact(row_bytes)) {
            decode_row(t.ty, row, out).map_err(|e| NaiveError::Decode(t.name.clone(), e))?;
        }
        tensors.insert(t.name.clone(), Matrix { rows, cols, values });
    }
    Ok(tensors)
}
