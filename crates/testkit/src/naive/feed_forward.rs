//! The feed-forward half of a block.

use super::config::{Activation, Norms};
use super::{Fault, NaiveError, NaiveModel, Run};

impl NaiveModel {
    pub(super) fn feed_forward_part(
        &self,
        layer: usize,
        rows: &mut [Vec<f64>],
        run: &Run,
    ) -> Result<(), NaiveError> {
        let arch = &self.config.arch;
        for row in rows {
            let x = match arch.norms {
                Norms::Post => row.clone(),
                _ => self.norm(&format!("blk.{layer}.{}.weight", arch.ffn_norm), row)?,
            };
            let mut y = match self.config.experts {
                0 => self.dense(layer, &x, run)?,
                _ => self.experts(layer, &x, run)?,
            };
            if arch.norms != Norms::Pre && !run.has(Fault::NoPostNorm) {
                y = self.norm(&format!("blk.{layer}.post_ffw_norm.weight"), &y)?;
            }
            self.add_to_residual(row, &y, run);
        }
        Ok(())
    }

    fn dense(&self, layer: usize, x: &[f64], run: &Run) -> Result<Vec<f64>, NaiveError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let n_embd = self.config.n_embd;
        let up_rows = self.tensors.rows(&name("ffn_up"));
        let up = self.tensors.matrix(&name("ffn_up"), up_rows, n_embd)?;
        // Without a gate of its own the first half of `ffn_up` is the gate.
        let (gate, up, n_ff) = match self.tensors.has(&name("ffn_gate")) {
            true => {
                let gate = self.tensors.matrix(&name("ffn_gate"), up_rows, n_embd)?;
                (gate.times(x), up.times(x), up_rows)
            }
            false => {
                let half = up_rows / 2;
                (up.part_times(0, half, x), up.part_times(half, half, x), half)
            }
        };
        let hidden = self.activate(gate, up, run);
        Ok(self.tensors.matrix(&name("ffn_down"), n_embd, n_ff)?.times(&hidden))
    }

    /// The chosen experts' outputs, weighted.
    fn experts(&self, layer: usize, x: &[f64], run: &Run) -> Result<Vec<f64>, NaiveError> {
        let mut y = vec![0.0; self.config.n_embd];
        for (expert, weight) in self.route(layer, x, run)? {
            for (y, v) in y.iter_mut().zip(self.expert(layer, expert, x, run)?) {
                *y += weight * v;
            }
        }
        Ok(y)
    }

    /// The chosen experts and their weights, best first.
    fn route(&self, layer: usize, x: &[f64], run: &Run) -> Result<Vec<(usize, f64)>, NaiveError> {
        let (c, name) = (&self.config, |part: &str| format!("blk.{layer}.ffn_gate_inp.{part}"));
        let mut logits = self.tensors.matrix(&name("weight"), c.experts, c.n_embd)?.times(x);
        if !run.has(Fault::NoRouterBias) {
            self.tensors.add_bias(&name("bias"), &mut logits)?;
        }
        let mut order: Vec<usize> = (0..c.experts).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(c.experts_used - usize::from(run.has(Fault::FewerExperts)));
        // Softmax over all, then divided by the sum of the chosen, is softmax over the chosen.
        let counted = if run.has(Fault::ExpertSum) { (0..c.experts).collect() } else { order.clone() };
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = counted.iter().map(|&e| (logits[e] - max).exp()).sum();
        let mut weights: Vec<f64> = order.iter().map(|&e| (logits[e] - max).exp() / sum).collect();
        if run.has(Fault::ExpertOrder) {
            weights.reverse();
        }
        Ok(order.into_iter().zip(weights).collect())
    }

    fn expert(&self, layer: usize, expert: usize, x: &[f64], run: &Run) -> Result<Vec<f64>, NaiveError> {
        let (c, name) = (&self.config, |part: &str| format!("blk.{layer}.ffn_{part}_exps"));
        let n_ff = self.tensors.rows(&format!("{}.weight", name("up"))) / c.experts.max(1);
        let project = |part: &str, rows: usize, x: &[f64]| -> Result<Vec<f64>, NaiveError> {
            let matrix = self.tensors.matrix(&format!("{}.weight", name(part)), rows * c.experts, x.len())?;
            let mut y = matrix.part_times(expert * rows, rows, x);
            let bias = format!("{}.bias", name(part));
            if self.tensors.has(&bias) && !run.has(Fault::NoExpertBias) {
                let bias = self.tensors.matrix(&bias, c.experts, rows)?.row(expert);
                y.iter_mut().zip(bias).for_each(|(y, &b)| *y += f64::from(b));
            }
            Ok(y)
        };
        let hidden = self.activate(project("gate", n_ff, x)?, project("up", n_ff, x)?, run);
        project("down", c.n_embd, &hidden)
    }

    fn activate(&self, gate: Vec<f64>, up: Vec<f64>, run: &Run) -> Vec<f64> {
        let (gate, up) = if run.has(Fault::SwappedGateUp) { (up, gate) } else { (gate, up) };
        let mut activation = self.config.arch.activation;
        if run.has(Fault::OtherActivation) {
            activation = match activation {
                Activation::Silu => Activation::Gelu,
                Activation::Gelu | Activation::Clamped => Activation::Silu,
            };
        }
        let one = |(g, u): (f64, f64)| match activation {
            Activation::Silu => g * sigmoid(g) * u,
            Activation::Gelu if run.has(Fault::HalfGelu) => half_gelu(g) * u,
            Activation::Gelu => gelu(g) * u,
            Activation::Clamped => clamped(g, u, run),
        };
        gate.into_iter().zip(up).map(one).collect()
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The tanh form of GELU.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// GELU by a table of 16-bit floats.
fn half_gelu(x: f64) -> f64 {
    let half = |x: f64| half::f16::from_f64(x).to_f64();
    match x {
        _ if x <= -10.0 => 0.0,
        _ if x >= 10.0 => x,
        _ => half(gelu(half(x))),
    }
}

/// gpt-oss's gated activation.
fn clamped(gate: f64, up: f64, run: &Run) -> f64 {
    let limit = if run.has(Fault::NoClamp) { f64::INFINITY } else { 7.0 };
    let factor = if run.has(Fault::NoSigmoidFactor) { 1.0 } else { 1.702 };
    let offset = if run.has(Fault::NoUpOffset) { 0.0 } else { 1.0 };
    let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
    gate * sigmoid(factor * gate) * (up + offset)
}
