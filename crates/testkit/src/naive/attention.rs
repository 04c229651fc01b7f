//! The attention half of a block.

use super::config::{Norms, QkNorm};
use super::{Fault, NaiveError, NaiveModel, Run};

/// Queries, keys and values of every position.
#[derive(Default)]
struct Projected {
    q: Vec<Vec<f64>>,
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

impl NaiveModel {
    pub(super) fn attention_part(
        &self,
        layer: usize,
        rows: &mut [Vec<f64>],
        run: &Run,
    ) -> Result<(), NaiveError> {
        let (c, name) = (&self.config, |part: &str| format!("blk.{layer}.{part}"));
        let projected = self.project_all(layer, rows, run)?;
        let out = self.tensors.matrix(&name("attn_output.weight"), c.n_embd, c.n_head * c.head_dim)?;
        for (position, row) in rows.iter_mut().enumerate() {
            let mixed = self.attend(layer, position, &projected, run)?;
            let mut y = out.times(&mixed);
            if !run.has(Fault::NoOutputBias) {
                self.tensors.add_bias(&name("attn_output.bias"), &mut y)?;
            }
            if c.arch.norms != Norms::Pre && !run.has(Fault::NoPostNorm) {
                y = self.norm(&name("post_attention_norm.weight"), &y)?;
            }
            self.add_to_residual(row, &y, run);
        }
        Ok(())
    }

    fn project_all(&self, layer: usize, rows: &[Vec<f64>], run: &Run) -> Result<Projected, NaiveError> {
        let (c, mut out) = (&self.config, Projected::default());
        let rotation = self.rotation(layer, run.context, run.fault)?;
        for (position, row) in rows.iter().enumerate() {
            let x = match c.arch.norms {
                Norms::Post => row.clone(),
                _ => self.norm(&format!("blk.{layer}.attn_norm.weight"), row)?,
            };
            let [mut q, mut k, v] = self.project(layer, &x, run)?;
            let late = run.has(Fault::QkNormAfterRope);
            if !late {
                self.norm_qk(layer, &mut q, &mut k, run)?;
            }
            if let Some(rotation) = &rotation {
                // A shift of all positions alone would change nothing, so that only q moves.
                let shift = if run.has(Fault::PositionOff) { 1.0 } else { 0.0 };
                rotation.apply(&mut q, c.head_dim, position as f64 - shift, false);
                let plain = run.has(Fault::MagnitudeOfQueriesOnly);
                rotation.apply(&mut k, c.head_dim, position as f64, plain);
            }
            if late {
                self.norm_qk(layer, &mut q, &mut k, run)?;
            }
            let heat = self.temperature(position, run);
            out.q.push(q.iter().map(|v| v * heat).collect());
            out.k.push(k);
            out.v.push(v);
        }
        Ok(out)
    }

    /// q, k and v of one position with their biases.
    fn project(&self, layer: usize, x: &[f64], run: &Run) -> Result<[Vec<f64>; 3], NaiveError> {
        let (c, name) = (&self.config, |part: &str| format!("blk.{layer}.{part}"));
        let (n_q, n_kv) = (c.n_head * c.head_dim, c.n_kv_head * c.head_dim);
        if self.tensors.has(&name("attn_qkv.weight")) {
            let all = self.tensors.matrix(&name("attn_qkv.weight"), n_q + 2 * n_kv, c.n_embd)?;
            let part = |first, n| all.part_times(first, n, x);
            return Ok([part(0, n_q), part(n_q, n_kv), part(n_q + n_kv, n_kv)]);
        }
        let one = |part: &str, n| -> Result<Vec<f64>, NaiveError> {
            let mut y = self.tensors.matrix(&name(&format!("{part}.weight")), n, c.n_embd)?.times(x);
            if !run.has(Fault::NoQkvBias) {
                self.tensors.add_bias(&name(&format!("{part}.bias")), &mut y)?;
            }
            Ok(y)
        };
        Ok([one("attn_q", n_q)?, one("attn_k", n_kv)?, one("attn_v", n_kv)?])
    }

    fn norm_qk(&self, layer: usize, q: &mut Vec<f64>, k: &mut Vec<f64>, run: &Run) -> Result<(), NaiveError> {
        if run.has(Fault::NoQkNorm) {
            return Ok(());
        }
        for (part, x) in [("attn_q_norm", q), ("attn_k_norm", k)] {
            let name = format!("blk.{layer}.{part}.weight");
            *x = match self.config.arch.qk_norm {
                QkNorm::None => return Ok(()),
                QkNorm::Row if run.has(Fault::QkNormByHead) => self.norm_by_head_with_row(&name, x)?,
                QkNorm::Row => self.norm(&name, x)?,
                QkNorm::Head => {
                    let heads = x.chunks(self.config.head_dim).map(|head| self.norm(&name, head));
                    heads.collect::<Result<Vec<_>, _>>()?.concat()
                }
            };
        }
        Ok(())
    }

    /// A mistake: a row's weight with each head's mean.
    fn norm_by_head_with_row(&self, name: &str, x: &[f64]) -> Result<Vec<f64>, NaiveError> {
        let weight = self.tensors.vector(name, x.len())?;
        let heads = x.chunks(self.config.head_dim).flat_map(|head| {
            let factor = self.rms_factor(head);
            head.iter().map(move |v| v * factor)
        });
        Ok(heads.zip(weight).map(|(v, &w)| v * f64::from(w)).collect())
    }

    fn temperature(&self, position: usize, run: &Run) -> f64 {
        let Some(t) = self.config.temperature.filter(|_| !run.has(Fault::NoTemperature)) else { return 1.0 };
        let early = if run.has(Fault::EarlyTemperature) { 1.0 } else { 0.0 };
        1.0 + t.scale * (1.0 + ((position as f64 + early) / t.length).floor()).ln()
    }

    /// The values that one position's heads draw from those it sees, head after head.
    fn attend(
        &self,
        layer: usize,
        position: usize,
        rows: &Projected,
        run: &Run,
    ) -> Result<Vec<f64>, NaiveError> {
        let (c, d) = (&self.config, self.config.head_dim);
        let seen = self.seen(layer, position, rows.k.len(), run);
        let (k, v) = (&rows.k[seen.clone()], &rows.v[seen]);
        let sinks_name = format!("blk.{layer}.attn_sinks.weight");
        let mut out = Vec::new();
        for h in 0..c.n_head {
            let mut kv_head = h / (c.n_head / c.n_kv_head);
            if run.has(Fault::SwappedKvHeads) {
                kv_head = c.n_kv_head - 1 - kv_head;
            }
            let (q, kv) = (&rows.q[position][h * d..(h + 1) * d], kv_head * d..(kv_head + 1) * d);
            let dot = |k: &Vec<f64>| q.iter().zip(&k[kv.clone()]).map(|(a, b)| a * b).sum::<f64>();
            let scores: Vec<f64> = k.iter().map(|k| self.score(dot(k), run)).collect();
            let sink = match self.tensors.has(&sinks_name) && !run.has(Fault::NoSinks) {
                true => Some(f64::from(self.tensors.vector(&sinks_name, c.n_head)?[h])),
                false => None,
            };
            let weights = softmax_with_sink(&scores, sink);
            out.extend(kv.map(|i| v.iter().zip(&weights).map(|(v, w)| v[i] * w).sum::<f64>()));
        }
        Ok(out)
    }

    /// The positions that one sees.
    fn seen(&self, layer: usize, position: usize, n: usize, run: &Run) -> std::ops::Range<usize> {
        let end = if run.has(Fault::NoMask) { n } else { position + 1 };
        let shift = usize::from(run.has(Fault::WindowLayers));
        let wider = usize::from(run.has(Fault::WiderWindow));
        match self.config.window {
            Some(window) if self.config.is_local(layer, shift) && !run.has(Fault::NoWindow) => {
                (position + 1).saturating_sub(window + wider)..end
            }
            _ => 0..end,
        }
    }

    /// The score of a product of query and key.
    fn score(&self, dot: f64, run: &Run) -> f64 {
        let c = &self.config;
        let mut scale = c.score_scale();
        if run.has(Fault::NoAttentionScale) {
            scale = 1.0 / (c.head_dim as f64).sqrt();
        }
        if run.has(Fault::ScaleOff) {
            scale *= 1.02;
        }
        match c.score_cap {
            Some(cap) if !run.has(Fault::NoScoreCap) => cap * (dot * scale / cap).tanh(),
            _ => dot * scale,
        }
    }
}

/// Softmax with one more score, whose share is dropped.
fn softmax_with_sink(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
    scores.iter().map(|s| (s - max).exp() / sum).collect()
}
