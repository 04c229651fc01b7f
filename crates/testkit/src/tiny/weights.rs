//! Metadata and random tensors of a model. Values depend on the seed and the tensor's name alone.

use super::family::{Experts, Key, Norms, QkNorm, RopeDim, RopeFactors};
use super::{TinyError, TinyModel, TinySpec, Tokenizer, vocab};
use crate::rng::Rng;
use minfer_gguf::{TensorType, Value};

impl TinySpec {
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let number = |n: usize| Value::U32(n.try_into().unwrap_or(u32::MAX));
        let (arch, family) = (self.family.arch, &self.family);
        // llama.cpp takes a model that is named phi3 for one with that family's own vocabulary.
        let name = family.name.replace("phi3", "phi");
        let mut meta: Vec<(String, Value)> = vec![
            ("general.architecture".into(), arch.into()),
            ("general.name".into(), format!("tiny random {name}").into()),
        ];
        let mut add = |key: &str, value: Value| meta.push((format!("{arch}.{key}"), value));
        if family.vocab_key || self.tokenizer == Tokenizer::None {
            add("vocab_size", number(self.n_vocab()));
        }
        add("context_length", number(self.n_ctx));
        add("embedding_length", number(self.shape.n_embd));
        add("block_count", number(self.shape.n_layer));
        add("feed_forward_length", number(self.shape.n_ff));
        add("attention.head_count", number(self.shape.n_head));
        add("attention.head_count_kv", number(self.shape.n_kv_head));
        add("attention.layer_norm_rms_epsilon", 1e-6f32.into());
        if family.base_key {
            add("rope.freq_base", family.base.into());
        }
        if family.head_keys {
            add("attention.key_length", number(self.shape.head_dim));
            add("attention.value_length", number(self.shape.head_dim));
        }
        if family.rope_dim != RopeDim::Unsaid {
            add("rope.dimension_count", number(self.n_rot()));
        }
        if let Some(experts) = family.experts {
            add("expert_count", number(experts.count));
            add("expert_used_count", number(experts.used));
            if experts.width_key {
                add("expert_feed_forward_length", number(self.shape.n_ff_expert));
            }
        }
        for (key, value) in family.keys {
            let value = match *value {
                Key::U32(v) => v.into(),
                Key::F32(v) => v.into(),
                Key::Text(v) => v.into(),
                Key::Layers(pattern) => {
                    let list: Vec<bool> = pattern.iter().copied().cycle().take(self.shape.n_layer).collect();
                    list.into()
                }
            };
            add(key, value);
        }
        match self.tokenizer {
            Tokenizer::None => meta.push(("tokenizer.ggml.model".into(), "none".into())),
            Tokenizer::Gpt2(pre) => meta.extend(vocab::metadata(pre)),
        }
        meta
    }

    /// Rotated values of a head.
    fn n_rot(&self) -> usize {
        if self.family.rope_dim == RopeDim::Part { self.shape.head_dim * 3 / 4 } else { self.shape.head_dim }
    }

    pub(super) fn add_tables(&self, model: &mut TinyModel) -> Result<(), TinyError> {
        let (rows, cols) = (self.n_vocab(), self.shape.n_embd);
        // A tied table serves as the output head too, which wants the smaller values.
        let gain = if self.tied { 1.0 } else { (cols as f64).sqrt() };
        self.matrix(model, "token_embd.weight", self.types.embed, [rows, cols], gain)?;
        self.vector(model, "output_norm.weight", cols, 1.0, 0.2)?;
        if !self.tied {
            self.matrix(model, "output.weight", self.types.output, [rows, cols], 2.5)?;
        }
        match self.family.rope_factors {
            RopeFactors::None => Ok(()),
            RopeFactors::Freqs => self.factors(model, "rope_freqs.weight", 8.0),
            RopeFactors::LongShort => {
                self.factors(model, "rope_factors_long.weight", 8.0)?;
                self.factors(model, "rope_factors_short.weight", 1.5)
            }
        }
    }

    /// Factors from 1 to `last`, each the same multiple of the one before.
    fn factors(&self, model: &mut TinyModel, name: &str, last: f64) -> Result<(), TinyError> {
        let n = self.n_rot() / 2;
        let values: Vec<f32> = (0..n).map(|i| last.powf(i as f64 / (n - 1).max(1) as f64) as f32).collect();
        model.push(name, TensorType::F32, &[n], &values)
    }

    pub(super) fn add_block(&self, model: &mut TinyModel, layer: usize) -> Result<(), TinyError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let norms: &[&str] = match self.family.norms {
            Norms::Pre => &["attn_norm", "ffn_norm"],
            Norms::PrePost => &["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"],
            Norms::Post => &["post_attention_norm", "post_ffw_norm"],
            Norms::PostAttentionForFfn => &["attn_norm", "post_attention_norm"],
        };
        for norm in norms {
            self.vector(model, &name(norm), self.shape.n_embd, 1.0, 0.2)?;
        }
        self.add_attention(model, layer)?;
        match self.family.experts {
            Some(experts) => self.add_experts(model, layer, experts),
            None => self.add_feed_forward(model, layer),
        }
    }

    fn add_attention(&self, model: &mut TinyModel, layer: usize) -> Result<(), TinyError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (family, ty, embd) = (&self.family, self.types.attn, self.shape.n_embd);
        let (q, kv) = (self.shape.n_head * self.shape.head_dim, self.shape.n_kv_head * self.shape.head_dim);
        // Large values of q and k make the scores peaked; where they are normalised, the norms do.
        let gain = if family.qk_norm == QkNorm::None { 2.0 } else { 1.0 };
        if family.fused {
            self.matrix(model, &name("attn_qkv.weight"), ty, [q + 2 * kv, embd], gain)?;
        } else {
            self.matrix(model, &name("attn_q.weight"), ty, [q, embd], gain)?;
            self.matrix(model, &name("attn_k.weight"), ty, [kv, embd], gain)?;
            self.matrix(model, &name("attn_v.weight"), ty, [kv, embd], 1.0)?;
        }
        self.matrix(model, &name("attn_output.weight"), ty, [embd, q], 1.0)?;
        if family.qkv_bias {
            for (part, n) in [("q", q), ("k", kv), ("v", kv)] {
                self.vector(model, &name(&format!("attn_{part}.bias")), n, 0.0, 0.5)?;
            }
        }
        if family.output_bias {
            self.vector(model, &name("attn_output.bias"), embd, 0.0, 0.5)?;
        }
        let (q_norm, k_norm) = match family.qk_norm {
            QkNorm::None => (0, 0),
            QkNorm::Head => (self.shape.head_dim, self.shape.head_dim),
            QkNorm::Row => (q, kv),
        };
        if family.qk_norm != QkNorm::None {
            self.vector(model, &name("attn_q_norm.weight"), q_norm, 1.8, 0.3)?;
            self.vector(model, &name("attn_k_norm.weight"), k_norm, 1.8, 0.3)?;
        }
        if family.sinks {
            self.vector(model, &name("attn_sinks.weight"), self.shape.n_head, 4.0, 2.0)?;
        }
        Ok(())
    }

    fn add_feed_forward(&self, model: &mut TinyModel, layer: usize) -> Result<(), TinyError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (embd, ff, ty, gain) = (self.shape.n_embd, self.shape.n_ff, self.types.ffn, self.family.ff_gain);
        if self.family.fused {
            self.matrix(model, &name("ffn_up"), ty, [2 * ff, embd], gain)?;
        } else {
            self.matrix(model, &name("ffn_gate"), ty, [ff, embd], gain)?;
            self.matrix(model, &name("ffn_up"), ty, [ff, embd], gain)?;
        }
        self.matrix(model, &name("ffn_down"), ty, [embd, ff], 1.0 / gain)
    }

    fn add_experts(&self, model: &mut TinyModel, layer: usize, experts: Experts) -> Result<(), TinyError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (embd, count, gain) = (self.shape.n_embd, experts.count, self.family.ff_gain);
        let ff = if experts.width_key { self.shape.n_ff_expert } else { self.shape.n_ff };
        self.matrix(model, &name("ffn_gate_inp.weight"), TensorType::F32, [count, embd], 2.0)?;
        let parts = [
            ("ffn_gate_exps", ff, embd, gain),
            ("ffn_up_exps", ff, embd, gain),
            ("ffn_down_exps", embd, ff, 1.0 / gain),
        ];
        for (part, rows, cols, gain) in parts {
            let label = name(&format!("{part}.weight"));
            let values = self.normals(&label, count * rows, cols, gain);
            model.push(&label, self.types.ffn, &[cols, rows, count], &values)?;
        }
        if experts.biases {
            self.vector(model, &name("ffn_gate_inp.bias"), count, 0.0, 1.0)?;
            for (part, rows, _, _) in parts {
                let label = name(&format!("{part}.bias"));
                let values = Rng::labelled(self.seed, &label).normals(rows * count, 0.5);
                model.push(&label, TensorType::F32, &[rows, count], &values)?;
            }
        }
        Ok(())
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
        model.push(name, ty, &[cols, rows], &self.normals(name, rows, cols, gain))
    }

    fn normals(&self, name: &str, rows: usize, cols: usize, gain: f64) -> Vec<f32> {
        Rng::labelled(self.seed, name).normals(rows * cols, gain / (cols as f64).sqrt())
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
