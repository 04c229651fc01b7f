//! DRY ("don't repeat yourself"): a penalty for going on with what was said before.
//!
//! Where the end of the text, n tokens of it, occurred before, the token that followed there would make the
//! repetition longer. Its logit is lowered by `multiplier * base^(n - allowed)` if n is at least `allowed`, for the
//! longest such n. The end of the text does not reach back over a sequence breaker, and a token that contains one
//! is never penalised. Published by its author with text-generation-webui; the breakers are those of llama.cpp.
//!
//! All n come from one run of the Z algorithm over the reversed text: linear in the window, whatever the text.

use super::candidates::Candidates;
use super::config::SamplerConfig;
use super::history::{History, Tally};
use crate::error::Error;
use minfer_text::Tokenizer;

/// The penalty with what it knows of the text besides the tokens themselves.
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed: usize,
    window: usize,
    breakers: Breakers,
    /// Tokens since the last breaker.
    unbroken: usize,
    matches: Vec<u32>,
    /// One more than the longest repetition that a token would make longer.
    longest: Tally,
}

impl Dry {
    /// The penalty, if it is on. `None` as the tokenizer will do if there are no breakers.
    ///
    /// # Errors
    /// There are breakers, but no tokenizer.
    pub(super) fn new(c: &SamplerConfig, tokenizer: Option<&Tokenizer>) -> Result<Option<Self>, Error> {
        if c.dry_multiplier == 0.0 || c.dry_penalty_last_n == 0 {
            return Ok(None);
        }
        let breakers = match tokenizer {
            _ if c.dry_sequence_breakers.is_empty() => Breakers::default(),
            Some(t) => {
                let pieces = (0..t.n_vocab()).map(|id| t.token_bytes(id as u32));
                Breakers::new(&c.dry_sequence_breakers, pieces)
            }
            None => {
                let message =
                    "dry-sequence-breaker: the texts of tokens are needed; see Sampler::with_tokenizer";
                return Err(Error::input(message));
            }
        };
        Ok(Some(Self::with_breakers(c, breakers)))
    }

    pub(super) fn with_breakers(c: &SamplerConfig, breakers: Breakers) -> Self {
        Dry {
            multiplier: c.dry_multiplier,
            base: c.dry_base,
            allowed: c.dry_allowed_length,
            window: c.dry_penalty_last_n,
            breakers,
            unbroken: 0,
            matches: Vec::new(),
            longest: Tally::default(),
        }
    }

    /// Tells it about the next token of the text.
    pub(super) fn accept(&mut self, id: u32) {
        self.unbroken = if self.breakers.accept(id) { 0 } else { self.unbroken + 1 };
    }

    pub(super) fn forget(&mut self) {
        self.unbroken = 0;
        self.breakers.tail.clear();
    }

    /// Lowers the logits of the tokens that would make a repetition longer.
    pub(super) fn apply(&mut self, history: &History, candidates: &mut Candidates) {
        let recent = history.last(self.window);
        self.longest.reset(candidates.len());
        if self.unbroken < self.allowed {
            return;
        }
        repetitions(recent, &mut self.matches);
        for (i, &length) in self.matches.iter().enumerate() {
            let length = (length as usize).min(self.unbroken);
            if length >= self.allowed {
                self.longest.update(recent[i + 1], |n| n.max(length as u32 + 1));
            }
        }
        for (id, length) in self.longest.iter() {
            if !self.breakers.contains(id) {
                let excess = (length as usize - 1 - self.allowed) as f32;
                candidates.change(id, |logit| logit - self.multiplier * self.base.powf(excess));
            }
        }
    }
}

/// For every position but the last: how many tokens ending there equal the end of the text.
fn repetitions(text: &[u32], out: &mut Vec<u32>) {
    out.clear();
    let Some(last) = text.len().checked_sub(1) else { return };
    out.resize(last, 0);
    // The Z algorithm on the text read backwards; z of `i` stands at `last - i`. `start..end` is the match that
    // reaches furthest, so what lies in it was compared before, at its own beginning.
    let (mut start, mut end) = (0, 0);
    for i in 1..=last {
        let known = if i < end { (out[last - (i - start)] as usize).min(end - i) } else { 0 };
        let mut z = known;
        while i + z <= last && text[last - z] == text[last - i - z] {
            z += 1;
        }
        out[last - i] = z as u32;
        if i + z > end {
            (start, end) = (i, i + z);
        }
    }
}

/// Texts that end a repetition.
#[derive(Default)]
pub(super) struct Breakers {
    texts: Vec<Vec<u8>>,
    /// The bytes of all tokens, one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Which tokens contain a breaker.
    containing: Vec<bool>,
    /// The end of the text that a breaker may begin in.
    tail: Vec<u8>,
}

impl Breakers {
    /// Breakers in a vocabulary, `pieces` the bytes of its tokens by id.
    pub(super) fn new(texts: &[String], pieces: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut breakers = Breakers::default();
        breakers.texts.extend(texts.iter().map(|text| text.clone().into_bytes()));
        for piece in pieces {
            let contains = breakers.texts.iter().any(|text| find(&piece, text));
            breakers.containing.push(contains);
            breakers.bytes.extend(piece);
            breakers.ends.push(breakers.bytes.len());
        }
        breakers
    }

    fn contains(&self, id: u32) -> bool {
        self.containing.get(id as usize).is_some_and(|&contains| contains)
    }

    /// Whether a breaker ends in this token, the next one of the text; it may have begun in an earlier one.
    fn accept(&mut self, id: u32) -> bool {
        let Some(&end) = self.ends.get(id as usize) else { return false };
        let start = (id as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        let before = self.tail.len();
        self.tail.extend_from_slice(&self.bytes[start..end]);
        let ends_here = |text: &Vec<u8>| find(&self.tail[before.saturating_sub(text.len() - 1)..], text);
        let found = self.texts.iter().any(ends_here);
        let longest = self.texts.iter().map(|text| text.len() - 1).max().unwrap_or(0);
        self.tail.drain(..self.tail.len().saturating_sub(longest));
        found
    }
}

fn find(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive_repetitions(text: &[u32]) -> Vec<u32> {
        let n = text.len();
        let length = |i: usize| (0..=i).take_while(|&l| text[i - l] == text[n - 1 - l]).count() as u32;
        (0..n.saturating_sub(1)).map(length).collect()
    }

    /// Every text over two letters up to ten long, and longer periodic ones.
    #[test]
    fn repetitions_are_those_of_the_plain_search() {
        let mut out = Vec::new();
        let mut check = |text: &[u32]| {
            repetitions(text, &mut out);
            assert_eq!(out, naive_repetitions(text), "{text:?}");
        };
        check(&[]);
        for n in 1..=10 {
            for bits in 0..1u32 << n {
                check(&(0..n).map(|i| bits >> i & 1).collect::<Vec<_>>());
            }
        }
        for period in 1..9 {
            check(&(0..200).map(|i| if i == 77 { 9 } else { i % period }).collect::<Vec<_>>());
        }
    }

    /// The search compares at most two tokens per position, so a million of equal ones take milliseconds.
    #[test]
    fn a_hostile_text_takes_linear_time() {
        let text = vec![7; 1_000_000];
        let mut out = Vec::new();
        let start = std::time::Instant::now();
        repetitions(&text, &mut out);
        assert_eq!((out[0], out[999_998]), (1, 999_999));
        assert!(start.elapsed().as_secs() < 5);
    }

    #[test]
    fn breakers_may_lie_across_tokens() {
        let pieces = ["a", "b", "ab", "c\n", "\n", "xa"].map(|piece| piece.as_bytes().to_vec());
        let texts = ["ab".to_owned(), "\n".to_owned()];
        let mut breakers = Breakers::new(&texts, pieces.into_iter());
        let contains: Vec<bool> = (0..7).map(|id| breakers.contains(id)).collect();
        assert_eq!(contains, [false, false, true, true, true, false, false]);
        let found = [0, 1, 1, 2, 0, 0, 4, 5, 1, 99, 1].map(|id| breakers.accept(id));
        let want = [false, true, false, true, false, false, true, false, true, false, false];
        assert_eq!(found, want);
        assert!(breakers.tail.len() <= 1);
    }
}
