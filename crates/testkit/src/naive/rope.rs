//! Rotary positions and their scalings.

use super::config::{Arch, Keys};
use super::{Fault, NaiveError, NaiveModel};
use std::f64::consts::PI;

/// How a context longer than the trained one is made to fit.
#[derive(Clone, Copy)]
pub(super) enum Scaling {
    None,
    /// All angles are divided by a factor.
    Linear(f64),
    /// Slow frequencies are divided by a factor, fast ones are kept, with a ramp between them: from
    /// those that turn `fast` times within the original context to those that turn `slow` times.
    Yarn {
        factor: f64,
        fast: f64,
        slow: f64,
        magnitude: f64,
    },
}

/// A model's rope.
pub(super) struct Rope {
    /// Rotated values of a head.
    pub n_rot: usize,
    base: f64,
    /// Base in layers with a window.
    local_base: f64,
    interleaved: bool,
    scaling: Scaling,
    /// What rotated values are multiplied by, besides YaRN's own magnitude.
    magnitude: f64,
    pub original_context: f64,
    /// Whether layers with a window keep clear of the scaling.
    local_unscaled: bool,
    whole_yarn: bool,
}

/// One layer's angles per position and the factor of the result.
pub(super) struct Rotation {
    frequencies: Vec<f64>,
    magnitude: f64,
    interleaved: bool,
}

impl Rope {
    pub fn read(keys: &Keys, arch: &Arch, head_dim: usize) -> Result<Self, NaiveError> {
        let base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
        let context = keys.count("context_length")?.unwrap_or(0);
        Ok(Rope {
            n_rot: keys.count("rope.dimension_count")?.unwrap_or(head_dim),
            base,
            local_base: keys.number("rope.freq_base_swa")?.unwrap_or(arch.local_base.unwrap_or(base)),
            interleaved: arch.interleaved,
            scaling: Self::scaling(keys)?,
            magnitude: keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0),
            original_context: keys.count("rope.scaling.original_context_length")?.unwrap_or(context) as f64,
            local_unscaled: arch.local_unscaled,
            whole_yarn: arch.whole_yarn,
        })
    }

    fn scaling(keys: &Keys) -> Result<Scaling, NaiveError> {
        let factor = match keys.number("rope.scaling.factor")? {
            Some(factor) => factor,
            None => keys.number("rope.scale_linear")?.unwrap_or(1.0),
        };
        Ok(match keys.text("rope.scaling.type")?.unwrap_or("linear") {
            "linear" => Scaling::Linear(factor),
            "yarn" => Scaling::Yarn {
                factor,
                fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                magnitude: Self::yarn_magnitude(keys, factor)?,
            },
            _ => Scaling::None,
        })
    }

    /// `0.1 ln(factor) + 1`, unless the file has another rule.
    fn yarn_magnitude(keys: &Keys, factor: f64) -> Result<f64, NaiveError> {
        let rule = |weight: f64| if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 };
        if let Some(stated) = keys.number("rope.scaling.yarn_attn_factor")? {
            return Ok(stated);
        }
        let all = keys.number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        Ok(if all == 0.0 { rule(1.0) } else { rule(1.0) / rule(all) })
    }

    /// Share of the unscaled frequency at each pair.
    fn yarn_shares(&self, base: f64, fast: f64, slow: f64, whole: bool) -> Vec<f64> {
        let pair = |turns: f64| {
            self.n_rot as f64 * (self.original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
        };
        let (mut low, mut high) = (pair(fast), pair(slow));
        if whole {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(self.n_rot as f64 - 1.0));
        let width = if high == low { 0.001 } else { high - low };
        (0..self.n_rot / 2).map(|i| 1.0 - ((i as f64 - low) / width).clamp(0.0, 1.0)).collect()
    }

    /// The rotation of a layer; `factors` divide the frequencies.
    fn rotation(&self, local: bool, factors: &[f64], fault: Option<Fault>) -> Rotation {
        let one_base = fault == Some(Fault::OneRopeBase);
        let base = if local && !one_base { self.local_base } else { self.base };
        let pairs = self.n_rot / 2;
        let plain = (0..pairs).map(|i| base.powf(-((2 * i) as f64) / self.n_rot as f64) / factors[i]);
        let unscaled = local && self.local_unscaled && fault != Some(Fault::ScaledWindowRope);
        let scaling =
            if unscaled || fault == Some(Fault::NoRopeScaling) { Scaling::None } else { self.scaling };
        let mut magnitude = self.magnitude;
        let frequencies = match scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear(factor) => plain.map(|f| f / factor).collect(),
            Scaling::Yarn { factor, fast, slow, magnitude: own } => {
                magnitude *= own;
                let shares = match fault {
                    Some(Fault::NoYarnRamp) => vec![0.0; pairs],
                    _ => {
                        let whole = self.whole_yarn || fault == Some(Fault::RoundedYarnCorners);
                        self.yarn_shares(base, fast, slow, whole)
                    }
                };
                plain.zip(shares).map(|(f, share)| f * share + f / factor * (1.0 - share)).collect()
            }
        };
        if fault == Some(Fault::NoRopeMagnitude) {
            magnitude = 1.0;
        }
        let interleaved = self.interleaved != (fault == Some(Fault::OtherRopeStyle));
        Rotation { frequencies, magnitude, interleaved }
    }
}

impl Rotation {
    /// Rotates every head of a row. The magnitude is left out if `plain`.
    pub fn apply(&self, x: &mut [f64], head_dim: usize, position: f64, plain: bool) {
        let magnitude = if plain { 1.0 } else { self.magnitude };
        let half = self.frequencies.len();
        for head in x.chunks_exact_mut(head_dim) {
            for (i, frequency) in self.frequencies.iter().enumerate() {
                let angle = position * frequency;
                let (a, b) = if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (u, v) = (head[a], head[b]);
                head[a] = magnitude * (u * angle.cos() - v * angle.sin());
                head[b] = magnitude * (u * angle.sin() + v * angle.cos());
            }
        }
    }
}

impl NaiveModel {
    /// The rotation of a layer for texts in a context, or none.
    pub(super) fn rotation(
        &self,
        layer: usize,
        context: usize,
        fault: Option<Fault>,
    ) -> Result<Option<Rotation>, NaiveError> {
        let (config, rope) = (&self.config, &self.config.rope);
        let skipped = config.arch.unrotated_every.is_some_and(|n| layer % n == n - 1);
        if skipped && fault != Some(Fault::RopeEverywhere) {
            return Ok(None);
        }
        let long = (context as f64 > rope.original_context) != (fault == Some(Fault::OtherRopeFactors));
        let named = if long { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
        let factors = ["rope_freqs.weight", named].into_iter().find(|name| self.tensors.has(name));
        let factors: Vec<f64> = match factors {
            Some(name) if fault != Some(Fault::NoRopeFactors) => {
                self.tensors.vector(name, rope.n_rot / 2)?.iter().map(|&v| v.into()).collect()
            }
            _ => vec![1.0; rope.n_rot / 2],
        };
        Ok(Some(rope.rotation(config.is_local(layer, 0), &factors, fault)))
    }
}
