//! Mirostat (Basu et al. 2020): keeps the surprise of the drawn tokens near a target.
//!
//! Both versions hold a limit μ, at first twice the target, and correct it after every token by the error times the
//! learning rate. The error is the drawn token's surprise, in bits and under the model's distribution at the
//! temperature before anything is cut, less the target.

use super::candidates::{Candidates, Drawn};
use super::config::{Mirostat, SamplerConfig};

/// The paper estimates Zipf's exponent from this many best tokens.
const HEAD: usize = 100;

pub(super) struct Control {
    version: Mirostat,
    target: f32,
    rate: f32,
    limit: f32,
}

impl Control {
    pub(super) fn new(c: &SamplerConfig) -> Option<Self> {
        let version = c.mirostat?;
        let (target, rate) = (c.mirostat_ent, c.mirostat_lr);
        Some(Control { version, target, rate, limit: 2.0 * target })
    }

    /// Cuts the candidates, draws one and learns from it; `unit` decides the draw.
    pub(super) fn draw(&mut self, temperature: f32, unit: f32, candidates: &mut Candidates) -> Option<Drawn> {
        let (_, total) = candidates.weigh(temperature);
        match self.version {
            Mirostat::V1 => {
                let k = self.k(temperature, candidates);
                candidates.keep_best(k);
            }
            // The best token, with its weight of 1, always stays.
            Mirostat::V2 => candidates.keep_weights_from((total * (-self.limit).exp2()).min(1.0)),
        }
        let drawn = candidates.draw(temperature, unit)?;
        let surprise = -(drawn.weight / total).max(f32::MIN_POSITIVE).log2();
        self.limit -= self.rate * (surprise - self.target);
        Some(drawn)
    }

    /// How many tokens of a Zipf distribution with the estimated exponent have a cross-entropy of the limit.
    fn k(&self, temperature: f32, candidates: &mut Candidates) -> usize {
        let n = candidates.len();
        let (mut tb, mut tt) = (0.0, 0.0);
        for (i, pair) in candidates.head(HEAD).windows(2).enumerate() {
            let t = ((i + 2) as f64 / (i + 1) as f64).ln();
            // The logarithm of the ratio of two probabilities is the difference of their logits.
            let b = (f64::from(pair[0].logit) - f64::from(pair[1].logit)) / f64::from(temperature);
            (tb, tt) = (tb + t * b, tt + t * t);
        }
        let exponent = if tt > 0.0 { tb / tt } else { 0.0 };
        let tokens = f64::from(self.limit).exp2();
        let k = if exponent < 1e-3 {
            // The head is flat and has no exponent: 2^μ equal tokens have a cross-entropy of μ.
            tokens
        } else {
            let epsilon = exponent - 1.0;
            let norm = match epsilon.abs() < 1e-6 {
                true => (n as f64).ln(),
                false => (1.0 - (n as f64).powf(-epsilon)) / epsilon,
            };
            (tokens / norm).powf(1.0 / exponent)
        };
        // A cast saturates: infinity is all, NaN none.
        (k.round() as usize).clamp(1, n.max(1))
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> f32 {
        self.limit
    }
}
