//! Settings of a sampler, and which of them make sense.

use super::bias::LogitBias;
use crate::error::Error;

/// The control loops of Basu et al. 2020 ("Mirostat") that hold the surprise of the text near a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirostat {
    /// Estimates Zipf's exponent and keeps the k best tokens.
    V1,
    /// Keeps the tokens whose surprise is below a limit.
    V2,
}

/// Settings of a sampler; the names are those of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Added to the logits before anything else; several of one token add up.
    pub logit_bias: Vec<LogitBias>,
    /// Divides positive and multiplies negative logits of recent tokens; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Subtracted once per recent occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurred recently.
    pub presence_penalty: f32,
    /// How many recent tokens the penalties look at, prompt included; `usize::MAX` for all, 0 for none.
    pub repeat_last_n: usize,
    /// Strength of DRY, the penalty for going on with what was said before; 0 switches it off.
    pub dry_multiplier: f32,
    /// Growth of DRY's penalty per further repeated token.
    pub dry_base: f32,
    /// Repetitions shorter than this are free of DRY's penalty.
    pub dry_allowed_length: usize,
    /// How many recent tokens DRY looks at; `usize::MAX` for all.
    pub dry_penalty_last_n: usize,
    /// Texts over which DRY sees no repetition. Unless there are none, DRY needs
    /// [`Sampler::with_tokenizer`](super::Sampler::with_tokenizer).
    pub dry_sequence_breakers: Vec<String>,
    /// Keep logits within this many standard deviations below the best; 0 or less keeps all.
    pub top_n_sigma: f32,
    /// Keep the k best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the tokens whose surprise is nearest to the entropy, until their probability reaches this; 1 keeps all.
    pub typical_p: f32,
    /// Keep the smallest set of best tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Chance per token that XTC removes the most probable ones; 0 switches it off.
    pub xtc_probability: f32,
    /// XTC removes the tokens of at least this probability, except the least of them.
    pub xtc_threshold: f32,
    /// Softness of the draw; 0 means greedy.
    pub temperature: f32,
    /// The temperature goes up and down by this much with the entropy; 0 leaves it as it is.
    pub dynatemp_range: f32,
    /// Exponent of the normalised entropy in the temperature.
    pub dynatemp_exp: f32,
    /// Mirostat in place of all filters.
    pub mirostat: Option<Mirostat>,
    /// How fast mirostat follows its error.
    pub mirostat_lr: f32,
    /// The surprise in bits that mirostat aims at.
    pub mirostat_ent: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::plain() }
    }
}

impl SamplerConfig {
    /// Draws from the model's own distribution: temperature 1, no filter, no penalty.
    pub fn plain() -> Self {
        SamplerConfig {
            logit_bias: Vec::new(),
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: usize::MAX,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            top_n_sigma: -1.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            temperature: 1.0,
            dynatemp_range: 0.0,
            dynatemp_exp: 1.0,
            mirostat: None,
            mirostat_lr: 0.1,
            mirostat_ent: 5.0,
            seed: 0,
        }
    }

    /// Always the best token.
    pub fn greedy() -> Self {
        SamplerConfig { temperature: 0.0, ..Self::default() }
    }

    /// Whether the settings make sense, each by itself and together.
    ///
    /// # Errors
    /// A value outside its range, or two settings that contradict each other; both by their names.
    pub fn check(&self) -> Result<(), Error> {
        self.check_ranges()?;
        if self.dry_sequence_breakers.iter().any(|text| !(1..=MAX_BREAKER).contains(&text.len())) {
            let message = format!("dry-sequence-breaker: each must have 1 to {MAX_BREAKER} bytes");
            return Err(Error::input(message));
        }
        if self.xtc_probability > 0.0 && self.xtc_threshold > 0.5 {
            let message = "xtc-threshold is above 0.5: never do two tokens reach that, so xtc-probability has no effect";
            return Err(Error::input(message));
        }
        if self.temperature == 0.0 {
            // With what the best token stays the best whatever they do there is no quarrel.
            self.refuse(
                "temp 0 (the best token)",
                &["mirostat", "typical", "xtc-probability", "dynatemp-range"],
            )?;
        }
        if self.mirostat.is_some() {
            self.refuse("mirostat", &FILTERS)?;
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), Error> {
        let ranges = [
            ("repeat-penalty", self.repeat_penalty, 0.01, 100.0),
            ("frequency-penalty", self.frequency_penalty, -100.0, 100.0),
            ("presence-penalty", self.presence_penalty, -100.0, 100.0),
            ("dry-multiplier", self.dry_multiplier, 0.0, 100.0),
            ("dry-base", self.dry_base, 1.0, 100.0),
            ("top-n-sigma", self.top_n_sigma, -1.0, 100.0),
            ("typical", self.typical_p, 0.0, 1.0),
            ("top-p", self.top_p, 0.0, 1.0),
            ("min-p", self.min_p, 0.0, 1.0),
            ("xtc-probability", self.xtc_probability, 0.0, 1.0),
            ("xtc-threshold", self.xtc_threshold, 0.0, 1.0),
            ("temp", self.temperature, 0.0, 100.0),
            ("dynatemp-range", self.dynatemp_range, 0.0, 100.0),
            ("dynatemp-exp", self.dynatemp_exp, 0.0, 100.0),
            ("mirostat-lr", self.mirostat_lr, 0.0, 1.0),
            ("mirostat-ent", self.mirostat_ent, 0.0, 100.0),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(Error::input(format!("{name} is {value}; it must be within {min} and {max}")));
            }
        }
        Ok(())
    }

    /// An error if one of the named settings is on.
    fn refuse(&self, with: &str, names: &[&str]) -> Result<(), Error> {
        let on = [
            ("mirostat", self.mirostat.is_some()),
            ("top-n-sigma", self.top_n_sigma > 0.0),
            ("top-k", self.top_k > 0),
            ("typical", self.typical_p < 1.0),
            ("top-p", self.top_p < 1.0),
            ("min-p", self.min_p > 0.0),
            ("xtc-probability", self.xtc_probability > 0.0),
            ("dynatemp-range", self.dynatemp_range > 0.0),
        ];
        match on.iter().find(|(name, on)| *on && names.contains(name)) {
            Some((name, _)) => Err(Error::input(format!("{name} does not go with {with}"))),
            None => Ok(()),
        }
    }
}

/// Longest sequence breaker in bytes.
const MAX_BREAKER: usize = 64;
/// What mirostat replaces.
const FILTERS: [&str; 7] =
    ["top-n-sigma", "top-k", "typical", "top-p", "min-p", "xtc-probability", "dynatemp-range"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refused(config: &SamplerConfig, names: &[&str]) {
        let error = config.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(names.iter().all(|name| error.to_string().contains(name)), "{error}");
    }

    #[test]
    fn what_the_constructors_give_is_valid() {
        for config in [SamplerConfig::default(), SamplerConfig::plain(), SamplerConfig::greedy()] {
            config.check().unwrap();
        }
    }

    #[test]
    fn values_outside_their_ranges_are_named() {
        let plain = SamplerConfig::plain;
        let nan = f32::NAN;
        refused(&SamplerConfig { temperature: -1.0, ..plain() }, &["temp"]);
        refused(&SamplerConfig { top_p: 1.5, ..plain() }, &["top-p"]);
        refused(&SamplerConfig { min_p: nan, ..plain() }, &["min-p"]);
        refused(&SamplerConfig { typical_p: -0.1, ..plain() }, &["typical"]);
        refused(&SamplerConfig { top_n_sigma: f32::INFINITY, ..plain() }, &["top-n-sigma"]);
        refused(&SamplerConfig { repeat_penalty: 0.0, ..plain() }, &["repeat-penalty"]);
        refused(&SamplerConfig { xtc_probability: 1.1, ..plain() }, &["xtc-probability"]);
        refused(&SamplerConfig { xtc_threshold: nan, ..plain() }, &["xtc-threshold"]);
        refused(&SamplerConfig { dry_multiplier: -1.0, ..plain() }, &["dry-multiplier"]);
        refused(&SamplerConfig { dry_base: 0.5, ..plain() }, &["dry-base"]);
        refused(&SamplerConfig { dynatemp_range: -0.5, ..plain() }, &["dynatemp-range"]);
        refused(&SamplerConfig { dynatemp_exp: -0.5, ..plain() }, &["dynatemp-exp"]);
        refused(&SamplerConfig { mirostat_lr: 2.0, ..plain() }, &["mirostat-lr"]);
        refused(&SamplerConfig { mirostat_ent: -1.0, ..plain() }, &["mirostat-ent"]);
        for text in [String::new(), "x".repeat(65)] {
            refused(
                &SamplerConfig { dry_sequence_breakers: vec![text], ..plain() },
                &["dry-sequence-breaker"],
            );
        }
    }

    #[test]
    fn contradictions_name_both() {
        let v2 = || SamplerConfig { mirostat: Some(Mirostat::V2), ..SamplerConfig::plain() };
        v2().check().unwrap();
        refused(&SamplerConfig { top_k: 1, ..v2() }, &["mirostat", "top-k"]);
        refused(&SamplerConfig { top_p: 0.9, ..v2() }, &["mirostat", "top-p"]);
        refused(&SamplerConfig { min_p: 0.1, ..v2() }, &["mirostat", "min-p"]);
        refused(&SamplerConfig { typical_p: 0.9, ..v2() }, &["mirostat", "typical"]);
        refused(&SamplerConfig { top_n_sigma: 1.0, ..v2() }, &["mirostat", "top-n-sigma"]);
        refused(&SamplerConfig { xtc_probability: 0.5, ..v2() }, &["mirostat", "xtc-probability"]);
        refused(&SamplerConfig { dynatemp_range: 0.5, ..v2() }, &["mirostat", "dynatemp-range"]);
        refused(&SamplerConfig { temperature: 0.0, ..v2() }, &["mirostat", "temp 0"]);
        let greedy = SamplerConfig::greedy;
        refused(&SamplerConfig { xtc_probability: 0.5, ..greedy() }, &["xtc-probability", "temp 0"]);
        refused(&SamplerConfig { typical_p: 0.5, ..greedy() }, &["typical", "temp 0"]);
        let xtc = SamplerConfig { xtc_probability: 0.5, xtc_threshold: 0.6, ..SamplerConfig::plain() };
        refused(&xtc, &["xtc-threshold"]);
    }
}
