//! Prompt in, text out.

use crate::batch::{Batch, Wanted};
use crate::error::{Error, ErrorKind};
use crate::kv_cache::SeqId;
use crate::sampler::Sampler;
use crate::session::{Control, Session};
use crate::stop::{StopMatcher, Stopped};
use std::time::{Duration, Instant};

/// When a generation ends, besides the model's own end tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; until the context is full if `None`.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past the model's end tokens.
    pub ignore_eos: bool,
    /// Show the control tokens that the model writes, as they are spelt; the one that ends the answer is not shown.
    pub show_control: bool,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it with this token.
    EndToken(u32),
    /// This stop string appeared.
    StopString(String),
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller asked to stop.
    Cancelled,
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text, without stop strings, and without control tokens unless these were asked for.
    pub text: String,
    /// The tokens, including the end token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time until the prompt's logits were there.
    pub prompt_time: Duration,
    /// Time for the rest.
    pub decode_time: Duration,
}

/// Appends a prompt to a sequence and generates after it; `on_text` gets the text as it grows, in whole
/// characters.
///
/// # Errors
/// An empty prompt, a prompt longer than the context, logits that are not finite (the sequence is emptied,
/// since its cache may hold them), or what a device reports. Cancelling is not an error here.
pub fn generate(
    session: &mut Session,
    seq: SeqId,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    control: &Control<'_>,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer, Error> {
    let model = session.model().clone();
    let tokenizer = model.tokenizer()?;
    if prompt.is_empty() {
        return Err(Error::input("the prompt is empty"));
    }
    let started = Instant::now();
    prompt.iter().for_each(|&id| sampler.accept(id));
    let mut run = Run {
        session,
        seq,
        control,
        started,
        out: Output { stops: StopMatcher::new(&options.stop), text: String::new(), on_text },
        tokens: Vec::new(),
        prompt_tokens: prompt.len(),
        prompt_time: Duration::ZERO,
    };
    let mut detokenizer = tokenizer.detokenizer_after(prompt, options.show_control);
    let mut next: Vec<u32> = prompt.to_vec();
    loop {
        let sampled = match run.step(&next, sampler)? {
            None => return Ok(run.finish(Finish::Cancelled)),
            Some(id) => id,
        };
        if run.tokens.len() == options.max_tokens.unwrap_or(usize::MAX) {
            return Ok(run.finish(Finish::MaxTokens));
        }
        run.tokens.push(sampled);
        sampler.accept(sampled);
        if !options.ignore_eos && tokenizer.is_eog(sampled) {
            run.out.push(&detokenizer.finish());
            return Ok(run.finish(Finish::EndToken(sampled)));
        }
        if let Some(stop) = run.out.push(&detokenizer.push(sampled)) {
            return Ok(run.finish(Finish::StopString(stop)));
        }
        let full = run.session.sequence_len(seq)? == run.session.options().n_ctx;
        let enough = run.tokens.len() == options.max_tokens.unwrap_or(usize::MAX);
        if full || enough {
            run.out.push(&detokenizer.finish());
            return Ok(run.finish(if enough { Finish::MaxTokens } else { Finish::ContextFull }));
        }
        next = vec![sampled];
    }
}

/// Text on its way out.
struct Output<'a> {
    stops: StopMatcher,
    text: String,
    on_text: &'a mut dyn FnMut(&str),
}

impl Output<'_> {
    fn show(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            (self.on_text)(text);
        }
    }

    /// Passes a piece on; returns the stop string that it completed.
    fn push(&mut self, piece: &str) -> Option<String> {
        match self.stops.push(piece) {
            Stopped::Text(text) => {
                self.show(&text);
                None
            }
            Stopped::Found { text, which } => {
                self.show(&text);
                Some(self.stops.stop(which).to_string())
            }
        }
    }
}

struct Run<'a, 'c> {
    session: &'a mut Session,
    seq: SeqId,
    control: &'a Control<'c>,
    started: Instant,
    out: Output<'a>,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    prompt_time: Duration,
}

impl Run<'_, '_> {
    /// Feeds tokens and samples the next; `None` if cancelled.
    fn step(&mut self, tokens: &[u32], sampler: &mut Sampler) -> Result<Option<u32>, Error> {
        let mut batch = Batch::new();
        batch.add(self.seq, tokens, Wanted::Last);
        let logits = match self.session.step(&batch, self.control) {
            Ok(logits) => logits,
            Err(e) if e.kind() == ErrorKind::Cancelled => return Ok(None),
            Err(e) => return Err(e),
        };
        let sampled = sampler.sample(logits.row(0));
        if self.prompt_time.is_zero() {
            self.prompt_time = self.started.elapsed();
        }
        match sampled {
            Ok(sampled) => Ok(Some(sampled.id)),
            Err(e) => {
                self.session.truncate(self.seq, 0)?;
                Err(e)
            }
        }
    }

    fn finish(mut self, finish: Finish) -> Answer {
        let finish = match (finish, self.out.stops.finish()) {
            (finish @ Finish::StopString(_), _) => finish,
            (finish, Stopped::Text(held)) => {
                self.out.show(&held);
                finish
            }
            (_, Stopped::Found { text, which }) => {
                self.out.show(&text);
                Finish::StopString(self.out.stops.stop(which).to_string())
            }
        };
        Answer {
            text: self.out.text,
            tokens: self.tokens,
            finish,
            prompt_tokens: self.prompt_tokens,
            prompt_time: self.prompt_time,
            decode_time: self.started.elapsed().saturating_sub(self.prompt_time),
        }
    }
}
