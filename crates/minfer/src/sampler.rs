//! Picks the next token from logits.
//!
//! The chain, in this order: repetition, frequency and presence penalties; top-k; top-p; min-p; temperature;
//! then a draw. A temperature of 0 takes the best token after the penalties. Filters before the temperature
//! work on the model's own probabilities, so that the kept set does not change with the temperature.
//!
//! Draws use ChaCha8 seeded with the 64-bit seed (`rand_chacha`), one 32-bit word per token, so that a seed
//! gives the same text in later releases and on other machines.

use crate::error::{Error, ErrorKind};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;

/// Settings of a sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Softness of the draw; 0 means greedy.
    pub temperature: f32,
    /// Keep the k best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of best tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Subtracted once per recent occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurred recently.
    pub presence_penalty: f32,
    /// How many recent tokens the penalties look at, prompt included.
    pub repeat_last_n: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplerConfig {
    /// Always the best token.
    pub fn greedy() -> Self {
        SamplerConfig { temperature: 0.0, ..Self::default() }
    }

    fn check(&self) -> Result<(), Error> {
        let within = |name: &str, value: f32, min: f32, max: f32| {
            if value.is_finite() && (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::input(format!("{name} is {value}; it must be within {min} and {max}")))
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top-p", self.top_p, 0.0, 1.0)?;
        within("min-p", self.min_p, 0.0, 1.0)?;
        within("repeat penalty", self.repeat_penalty, 0.01, 100.0)?;
        within("frequency penalty", self.frequency_penalty, -100.0, 100.0)?;
        within("presence penalty", self.presence_penalty, -100.0, 100.0)
    }
}

/// A picked token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Its probability among the tokens that were kept, at the temperature; 1 when greedy.
    pub probability: f32,
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// The chain with its state: recent tokens and the generator of draws.
pub struct Sampler {
    config: SamplerConfig,
    rng: ChaCha8Rng,
    recent: VecDeque<u32>,
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
}

/// Best first; equal logits by id, so that the order is total.
fn best_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

impl Sampler {
    /// A sampler.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: SamplerConfig) -> Result<Self, Error> {
        config.check()?;
        Ok(Sampler {
            config,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            recent: VecDeque::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Its settings.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Tells the penalties about a token of the prompt or the answer.
    pub fn accept(&mut self, id: u32) {
        if self.config.repeat_last_n == 0 {
            return;
        }
        if self.recent.len() == self.config.repeat_last_n {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    /// Forgets the tokens that the penalties know of; the draws go on.
    pub fn forget(&mut self) {
        self.recent.clear();
    }

    /// Picks a token; does not count it as accepted.
    ///
    /// # Errors
    /// [`ErrorKind::NonFinite`] if a logit is NaN or infinite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, Error> {
        if let Some(id) = logits.iter().position(|x| !x.is_finite()) {
            let message = format!("the model gave {} as the logit of token {id}", logits[id]);
            return Err(Error::new(ErrorKind::NonFinite, message));
        }
        if logits.is_empty() {
            return Err(Error::input("no logits to sample from"));
        }
        self.candidates.clear();
        let all = logits.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit });
        self.candidates.extend(all);
        self.penalise();
        if self.config.temperature == 0.0 {
            return self.greedy();
        }
        self.keep_top_k();
        self.keep_top_p_min_p();
        self.draw()
    }

    fn greedy(&self) -> Result<Sampled, Error> {
        let best = self.candidates.iter().min_by(|a, b| best_first(a, b));
        let best = best.ok_or_else(|| Error::input("no logits to sample from"))?;
        Ok(Sampled { id: best.id, probability: 1.0 })
    }

    fn penalise(&mut self) {
        let c = self.config;
        if c.repeat_penalty == 1.0 && c.frequency_penalty == 0.0 && c.presence_penalty == 0.0 {
            return;
        }
        let mut recent: Vec<u32> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        for run in recent.chunk_by(|a, b| a == b) {
            let Some(candidate) = self.candidates.get_mut(run[0] as usize) else { continue };
            let logit = &mut candidate.logit;
            *logit = if *logit > 0.0 { *logit / c.repeat_penalty } else { *logit * c.repeat_penalty };
            *logit -= run.len() as f32 * c.frequency_penalty + c.presence_penalty;
        }
    }

    /// Leaves the k best, sorted. Sorting is never over the whole vocabulary unless all of it is kept.
    fn keep_top_k(&mut self) {
        let k = self.config.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, best_first);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(best_first);
    }

    fn keep_top_p_min_p(&mut self) {
        softmax(&self.candidates, 1.0, &mut self.weights);
        let total: f32 = self.weights.iter().sum();
        let best = self.weights[0];
        let mut kept = 0;
        let mut mass = 0.0;
        for &w in &self.weights {
            // A top-p of 1 keeps all, whatever the sum rounds to.
            let enough = self.config.top_p < 1.0 && mass >= self.config.top_p * total;
            if kept > 0 && (enough || w < self.config.min_p * best) {
                break;
            }
            mass += w;
            kept += 1;
        }
        self.candidates.truncate(kept);
    }

    fn draw(&mut self) -> Result<Sampled, Error> {
        softmax(&self.candidates, self.config.temperature, &mut self.weights);
        let total: f32 = self.weights.iter().sum();
        let unit = (self.rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
        let target = unit * total;
        let mut below = 0.0;
        // Rounding may leave the target at the very end: then the last kept token is the one.
        let mut chosen = self.candidates.len() - 1;
        for (i, &w) in self.weights.iter().enumerate() {
            below += w;
            if target < below {
                chosen = i;
                break;
            }
        }
        Ok(Sampled { id: self.candidates[chosen].id, probability: self.weights[chosen] / total })
    }
}

/// Unnormalised probabilities of candidates sorted best first.
fn softmax(candidates: &[Candidate], temperature: f32, out: &mut Vec<f32>) {
    out.clear();
    let best = candidates.first().map_or(0.0, |c| c.logit);
    out.extend(candidates.iter().map(|c| ((c.logit - best) / temperature).exp()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, 0.0, -1.0, 2.5];

    fn frequencies(config: SamplerConfig, draws: usize) -> Vec<f64> {
        let mut sampler = Sampler::new(config).unwrap();
        let mut counts = vec![0usize; LOGITS.len()];
        for _ in 0..draws {
            counts[sampler.sample(&LOGITS).unwrap().id as usize] += 1;
        }
        counts.iter().map(|&c| c as f64 / draws as f64).collect()
    }

    fn open_config() -> SamplerConfig {
        SamplerConfig { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() }
    }

    fn expected(temperature: f64, kept: &[usize]) -> Vec<f64> {
        let weight = |i: usize| if kept.contains(&i) { (LOGITS[i] as f64 / temperature).exp() } else { 0.0 };
        let total: f64 = (0..LOGITS.len()).map(weight).sum();
        (0..LOGITS.len()).map(|i| weight(i) / total).collect()
    }

    #[track_caller]
    fn assert_distribution(config: SamplerConfig, temperature: f64, kept: &[usize]) {
        let (got, want) = (frequencies(config, 50_000), expected(temperature, kept));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let sigma = (w * (1.0 - w) / 50_000.0).sqrt();
            assert!((g - w).abs() <= 5.0 * sigma + 1e-12, "token {i}: {g} against {w}");
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        assert_distribution(open_config(), 1.0, &[0, 1, 2, 3, 4, 5]);
        assert_distribution(SamplerConfig { temperature: 0.5, ..open_config() }, 0.5, &[0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn filters_keep_what_they_say_at_any_temperature() {
        for temperature in [0.5, 1.0, 2.0] {
            let base = SamplerConfig { temperature, ..open_config() };
            let t = f64::from(temperature);
            assert_distribution(SamplerConfig { top_k: 3, ..base }, t, &[1, 2, 5]);
            // Probabilities at temperature 1: 0.46, 0.28 (together 0.74), 0.17 (0.91), ...
            assert_distribution(SamplerConfig { top_p: 0.7, ..base }, t, &[1, 5]);
            assert_distribution(SamplerConfig { min_p: 0.3, ..base }, t, &[1, 2, 5]);
        }
    }

    #[test]
    fn greedy_takes_the_best_and_the_lowest_id_among_equals() {
        let mut sampler = Sampler::new(SamplerConfig::greedy()).unwrap();
        assert_eq!(sampler.sample(&LOGITS).unwrap().id, 1);
        assert_eq!(sampler.sample(&[0.0, 7.0, 7.0]).unwrap().id, 1);
    }

    #[test]
    fn same_seed_same_draws() {
        let ids = |seed| {
            let mut s = Sampler::new(SamplerConfig { seed, ..open_config() }).unwrap();
            (0..50).map(|_| s.sample(&LOGITS).unwrap().id).collect::<Vec<_>>()
        };
        assert_eq!(ids(7), ids(7));
        assert_ne!(ids(7), ids(8));
    }

    #[test]
    fn the_stream_of_draws_is_fixed() {
        let mut s = Sampler::new(SamplerConfig { seed: 42, ..open_config() }).unwrap();
        let ids: Vec<u32> = (0..12).map(|_| s.sample(&LOGITS).unwrap().id).collect();
        assert_eq!(ids, FIXED_STREAM);
    }

    const FIXED_STREAM: [u32; 12] = [1, 5, 1, 0, 2, 1, 1, 5, 5, 1, 5, 1];

    #[test]
    fn penalties_follow_their_formulas() {
        let config = SamplerConfig {
            repeat_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..open_config()
        };
        let mut s = Sampler::new(config).unwrap();
        for id in [1, 1, 4] {
            s.accept(id);
        }
        s.candidates =
            LOGITS.iter().enumerate().map(|(i, &logit)| Candidate { id: i as u32, logit }).collect();
        s.penalise();
        assert_eq!(s.candidates[1].logit, 3.0 / 2.0 - 2.0 * 0.5 - 0.25);
        assert_eq!(s.candidates[4].logit, -2.0 - 0.5 - 0.25);
        assert_eq!(s.candidates[0].logit, 1.0);
    }

    #[test]
    fn the_penalty_window_forgets() {
        let mut s = Sampler::new(SamplerConfig { repeat_last_n: 2, ..open_config() }).unwrap();
        for id in [1, 2, 3] {
            s.accept(id);
        }
        assert_eq!(s.recent, [2, 3]);
    }

    #[test]
    fn non_finite_logits_and_bad_settings_are_errors() {
        let mut s = Sampler::new(SamplerConfig::greedy()).unwrap();
        assert_eq!(s.sample(&[0.0, f32::NAN]).unwrap_err().kind(), ErrorKind::NonFinite);
        assert_eq!(s.sample(&[f32::INFINITY]).unwrap_err().kind(), ErrorKind::NonFinite);
        for bad in [
            SamplerConfig { temperature: -1.0, ..Default::default() },
            SamplerConfig { top_p: 1.5, ..Default::default() },
            SamplerConfig { min_p: f32::NAN, ..Default::default() },
            SamplerConfig { repeat_penalty: 0.0, ..Default::default() },
        ] {
            assert_eq!(Sampler::new(bad).err().map(|e| e.kind()), Some(ErrorKind::Input));
        }
    }
}
