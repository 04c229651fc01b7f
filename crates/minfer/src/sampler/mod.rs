//! Picks the next token from logits.
//!
//! The chain, in this order; a module for each family, which says what it does and who published it:
//!
//! 1. logit bias (`bias`);
//! 2. repetition, frequency and presence penalties (`penalties`), then DRY (`dry`);
//! 3. top-n-sigma, top-k, typical, top-p, min-p, XTC (`filters`);
//! 4. the temperature, fixed or dynamic (`temperature`), and a draw.
//!
//! A temperature of 0 takes the best token after the second step. Filters stand before the temperature and work on
//! the model's own probabilities, so that the kept set does not change with the temperature. Mirostat (`mirostat`)
//! takes the place of all filters and stands after the temperature.
//!
//! Draws use ChaCha8 seeded with the 64-bit seed (`rand_chacha`), one 32-bit word per token, and one before it if
//! XTC is on, so that a seed gives the same text in later releases and on other machines.

mod bias;
mod candidates;
mod config;
mod dry;
mod filters;
mod history;
mod mirostat;
mod penalties;
mod temperature;
#[cfg(test)]
mod tests;

pub use bias::LogitBias;
pub use config::{Mirostat, SamplerConfig};

use crate::constraint::TokenMask;
use crate::error::{Error, ErrorKind};
use candidates::Candidates;
use dry::Dry;
use history::{History, Tally};
use minfer_text::Tokenizer;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A picked token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Its probability among the tokens that were kept, at the temperature; 1 when greedy.
    pub probability: f32,
}

/// The chain with its state: recent tokens, the generator of draws, mirostat's limit.
pub struct Sampler {
    config: SamplerConfig,
    rng: ChaCha8Rng,
    history: History,
    counts: Tally,
    dry: Option<Dry>,
    mirostat: Option<mirostat::Control>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler.
    ///
    /// # Errors
    /// As [`SamplerConfig::check`]; or DRY is on with sequence breakers, which needs a tokenizer.
    pub fn new(config: SamplerConfig) -> Result<Self, Error> {
        Self::build(config, None)
    }

    /// A sampler that knows the texts of tokens, for DRY's sequence breakers.
    ///
    /// # Errors
    /// As [`SamplerConfig::check`].
    pub fn with_tokenizer(config: SamplerConfig, tokenizer: &Tokenizer) -> Result<Self, Error> {
        Self::build(config, Some(tokenizer))
    }

    fn build(config: SamplerConfig, tokenizer: Option<&Tokenizer>) -> Result<Self, Error> {
        config.check()?;
        let dry = Dry::new(&config, tokenizer)?;
        let penalties = if penalties::are_on(&config) { config.repeat_last_n } else { 0 };
        let keep = penalties.max(dry.as_ref().map_or(0, |_| config.dry_penalty_last_n));
        Ok(Sampler {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            history: History::new(keep),
            counts: Tally::default(),
            dry,
            mirostat: mirostat::Control::new(&config),
            candidates: Candidates::default(),
            config,
        })
    }

    /// Its settings.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Tells the penalties about a token of the prompt or the answer.
    pub fn accept(&mut self, id: u32) {
        self.history.push(id);
        if let Some(dry) = &mut self.dry {
            dry.accept(id);
        }
    }

    /// Forgets the tokens that the penalties know of; the draws go on, and so does what mirostat has learnt.
    pub fn forget(&mut self) {
        self.history.clear();
        if let Some(dry) = &mut self.dry {
            dry.forget();
        }
    }

    /// Picks a token; does not count it as accepted.
    ///
    /// # Errors
    /// [`ErrorKind::NonFinite`] if a logit is NaN or infinite. [`ErrorKind::Input`] if there are no logits, if a
    /// logit bias names a token that there is not, or if all tokens are banned.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, Error> {
        self.sample_among(logits, None)
    }

    /// Picks a token that a mask allows, if there is one; does not count it as accepted.
    ///
    /// # Errors
    /// As [`Sampler::sample`], and if the mask and the biases together ban all tokens.
    pub fn sample_among(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<Sampled, Error> {
        check_finite(logits)?;
        if self.takes_the_best(mask) {
            return Ok(Sampled { id: best(logits), probability: 1.0 });
        }
        if self.begins_with_top_k(mask) {
            self.candidates.load_best(logits, self.config.top_k);
        } else {
            self.candidates.load(logits);
            if let Some(mask) = mask {
                mask.forbidden(logits.len()).for_each(|id| self.candidates.ban(id));
            }
            self.change_logits()?;
        }
        let drawn = if self.config.temperature == 0.0 {
            let best = self.candidates.best();
            return best.map(|best| Sampled { id: best.id, probability: 1.0 }).ok_or_else(no_logits);
        } else if let Some(mirostat) = &mut self.mirostat {
            let unit = unit(&mut self.rng);
            mirostat.draw(self.config.temperature, unit, &mut self.candidates)
        } else {
            self.filter();
            let c = &self.config;
            let candidates = &mut self.candidates;
            let t = temperature::dynamic(c.temperature, c.dynatemp_range, c.dynatemp_exp, candidates);
            candidates.draw(t, unit(&mut self.rng))
        };
        let drawn = drawn.ok_or_else(no_logits)?;
        Ok(Sampled { id: drawn.id, probability: drawn.weight / drawn.total })
    }

    /// Whether it is the largest logit, whatever came before.
    fn takes_the_best(&self, mask: Option<&TokenMask>) -> bool {
        self.config.temperature == 0.0 && self.leaves_logits(mask)
    }

    /// Whether all but the `top_k` largest logits are dropped at once.
    fn begins_with_top_k(&self, mask: Option<&TokenMask>) -> bool {
        let c = &self.config;
        c.top_k > 0
            && c.temperature > 0.0
            && c.top_n_sigma <= 0.0
            && self.mirostat.is_none()
            && self.leaves_logits(mask)
    }

    /// Whether logits are taken as they are.
    fn leaves_logits(&self, mask: Option<&TokenMask>) -> bool {
        let c = &self.config;
        c.logit_bias.is_empty() && !penalties::are_on(c) && self.dry.is_none() && mask.is_none()
    }

    /// Bias and penalties.
    fn change_logits(&mut self) -> Result<(), Error> {
        let (c, candidates) = (&self.config, &mut self.candidates);
        if !c.logit_bias.is_empty() {
            bias::apply(&c.logit_bias, candidates)?;
        }
        if penalties::are_on(c) {
            penalties::apply(c, self.history.last(c.repeat_last_n), &mut self.counts, candidates);
        }
        if let Some(dry) = &mut self.dry {
            dry.apply(&self.history, candidates);
        }
        candidates.drop_banned();
        Ok(())
    }

    fn filter(&mut self) {
        let (c, candidates) = (&self.config, &mut self.candidates);
        if c.top_n_sigma > 0.0 {
            filters::top_n_sigma(c.top_n_sigma, candidates);
        }
        if c.top_k > 0 {
            candidates.keep_best(c.top_k);
        }
        if c.typical_p < 1.0 {
            filters::typical(c.typical_p, candidates);
        }
        filters::top_p_min_p(c.top_p, c.min_p, candidates);
        if c.xtc_probability > 0.0 && unit(&mut self.rng) < c.xtc_probability {
            filters::exclude_top(c.xtc_threshold, candidates);
        }
    }
}

/// Place of the largest; of equal ones the first.
fn best(logits: &[f32]) -> u32 {
    let larger = |best: (usize, f32), (i, &x): (usize, &f32)| if x > best.1 { (i, x) } else { best };
    logits.iter().enumerate().fold((0, f32::NEG_INFINITY), larger).0 as u32
}

/// A number from 0 to below 1.
fn unit(rng: &mut ChaCha8Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1 << 24) as f32
}

fn no_logits() -> Error {
    Error::input("no logits to sample from")
}

fn check_finite(logits: &[f32]) -> Result<(), Error> {
    if logits.is_empty() {
        return Err(no_logits());
    }
    // All of them and without a branch: many times as fast as a search for the first.
    if !logits.iter().fold(false, |bad, x| bad | !x.is_finite()) {
        return Ok(());
    }
    let id = logits.iter().position(|x| !x.is_finite()).unwrap_or(0);
    let message = format!("the model gave {} as the logit of token {id}", logits[id]);
    Err(Error::new(ErrorKind::NonFinite, message))
}
