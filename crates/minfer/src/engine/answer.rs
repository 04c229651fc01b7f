//! One answer of a request: its tokens, what picks them, and what becomes of its text.

use super::api::{Request, TokenLogProb};
use crate::constraint::{Constraint, TokenMask};
use crate::error::Error;
use crate::generate::Finish;
use crate::kv_cache::SeqId;
use crate::logprobs::{LogProbs, top_k};
use crate::sampler::{Sampler, SamplerConfig};
use crate::stop::{StopMatcher, Stopped};
use minfer_text::{Detokenizer, Tokenizer};

/// An answer that is being made.
pub(super) struct Answer<'m> {
    /// Where its keys and values are; none before its prompt was read, or while it gave its pages back.
    pub seq: Option<SeqId>,
    /// The prompt and what was picked.
    pub tokens: Vec<u32>,
    /// Whether it has ended.
    pub finished: bool,
    prompt: usize,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    mask: TokenMask,
    text: Text<'m>,
}

/// What came of a row of logits.
pub(super) struct Picked {
    pub id: u32,
    pub text: String,
    pub logprob: Option<TokenLogProb>,
    pub finish: Option<Finish>,
}

impl<'m> Answer<'m> {
    /// Answer `index` of a request, before anything is computed.
    ///
    /// # Errors
    /// Of the sampler or the constraint.
    pub(super) fn new(request: &Request, index: usize, tokenizer: &'m Tokenizer) -> Result<Self, Error> {
        let seed = request.sampling.seed.wrapping_add(index as u64);
        let mut sampler =
            Sampler::with_tokenizer(SamplerConfig { seed, ..request.sampling.clone() }, tokenizer)?;
        request.prompt.iter().for_each(|&id| sampler.accept(id));
        let constraint = request.constraint.as_ref().map(|factory| factory.start()).transpose()?;
        let detokenizer = tokenizer.detokenizer_after(&request.prompt, request.show_control);
        Ok(Answer {
            seq: None,
            tokens: request.prompt.clone(),
            finished: false,
            prompt: request.prompt.len(),
            sampler,
            mask: TokenMask::new(if constraint.is_some() { tokenizer.n_vocab() } else { 0 }),
            constraint,
            text: Text { stops: StopMatcher::new(&request.stop), detokenizer },
        })
    }

    /// Tokens that were picked.
    pub(super) fn picked(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Picks a token from a row of logits, `[n_vocab]`, of a context with room for `n_ctx` positions.
    ///
    /// # Errors
    /// Of the sampler or the constraint: the answer cannot go on.
    pub(super) fn pick(
        &mut self,
        request: &Request,
        row: &[f32],
        tokenizer: &Tokenizer,
        n_ctx: usize,
    ) -> Result<Picked, Error> {
        let mask = match &mut self.constraint {
            Some(constraint) => {
                constraint.mask(&mut self.mask)?;
                Some(&self.mask)
            }
            None => None,
        };
        let id = self.sampler.sample_among(row, mask)?.id;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        let logprob = request.logprobs.map(|n| logprob_of(row, id, n));
        self.tokens.push(id);
        self.sampler.accept(id);
        let (text, finish) = self.text_of(request, id, tokenizer, n_ctx);
        self.finished = finish.is_some();
        Ok(Picked { id, text, logprob, finish })
    }

    fn text_of(
        &mut self,
        request: &Request,
        id: u32,
        tokenizer: &Tokenizer,
        n_ctx: usize,
    ) -> (String, Option<Finish>) {
        if !request.ignore_eos && tokenizer.is_eog(id) {
            return self.text.end(Finish::EndToken(id));
        }
        let text = match self.text.push(id) {
            (text, Some(stop)) => return (text, Some(Finish::StopString(stop))),
            (text, None) => text,
        };
        let finish = if request.max_tokens == Some(self.picked()) {
            Finish::MaxTokens
        } else if self.tokens.len() > n_ctx {
            // Everything but the last token is in the cache, and the cache is full.
            Finish::ContextFull
        } else {
            return (text, None);
        };
        let (rest, finish) = self.text.end(finish);
        (text + &rest, finish)
    }

    /// The text that is still held back when an answer ends from outside.
    pub(super) fn rest(&mut self) -> String {
        self.text.end(Finish::Cancelled).0
    }
}

/// Text on its way out.
struct Text<'m> {
    stops: StopMatcher,
    detokenizer: Detokenizer<'m>,
}

impl Text<'_> {
    /// What is final with a token, and the stop string that it completed.
    fn push(&mut self, id: u32) -> (String, Option<String>) {
        let piece = self.detokenizer.push(id);
        self.pass(&piece)
    }

    fn pass(&mut self, piece: &str) -> (String, Option<String>) {
        match self.stops.push(piece) {
            Stopped::Text(text) => (text, None),
            Stopped::Found { text, which } => (text, Some(self.stops.stop(which).to_string())),
        }
    }

    /// What was held back. A stop string in it is why the answer ended.
    fn end(&mut self, finish: Finish) -> (String, Option<Finish>) {
        let last = self.detokenizer.finish();
        let (mut text, mut stop) = self.pass(&last);
        if stop.is_none() {
            match self.stops.finish() {
                Stopped::Text(held) => text.push_str(&held),
                Stopped::Found { text: held, which } => {
                    text.push_str(&held);
                    stop = Some(self.stops.stop(which).to_string());
                }
            }
        }
        (text, Some(stop.map_or(finish, Finish::StopString)))
    }
}

/// A token's probability by a row of logits, with the `n` most probable beside it.
pub(super) fn logprob_of(row: &[f32], id: u32, n: usize) -> TokenLogProb {
    TokenLogProb { id, logprob: LogProbs::new(row).of(id), top: top_k(row, n) }
}
