//! A request that left the queue, with its answers.

use super::answer::Answer;
use super::api::{Event, Failure, Request, Sink, TokenLogProb, Usage};
use super::queue::Waiting;
use crate::error::{Error, ErrorKind};
use crate::generate::Finish;
use minfer_text::Tokenizer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A running request.
pub(super) struct Job<'m> {
    pub request: Request,
    pub answers: Vec<Answer<'m>>,
    /// When the logits of its prompt were there: until then only its first answer runs.
    pub prompt_read: Option<Instant>,
    /// Of the prompt's tokens but the first.
    pub prompt_logprobs: Vec<TokenLogProb>,
    sink: Box<dyn Sink>,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    started: Instant,
    cached_tokens: usize,
    /// Whether nobody listens any more.
    gone: bool,
}

impl<'m> Job<'m> {
    /// Takes a request from the queue and says so to it; what it fails with is said to it too.
    pub(super) fn start(waiting: Waiting, cached_tokens: usize, tokenizer: &'m Tokenizer) -> Option<Self> {
        let Waiting { request, mut sink, cancelled, since } = waiting;
        let answers = (0..request.n).map(|i| Answer::new(&request, i, tokenizer)).collect();
        let answers = match answers {
            Ok(answers) => answers,
            Err(e) => {
                sink.event(Event::Failed(failure(&e)));
                return None;
            }
        };
        let started = Instant::now();
        let mut job = Job {
            request,
            answers,
            prompt_read: None,
            prompt_logprobs: Vec::new(),
            sink,
            cancelled,
            submitted: since,
            started,
            cached_tokens,
            gone: false,
        };
        job.say(Event::Started { cached_tokens, queued: started - since });
        Some(job)
    }

    fn say(&mut self, event: Event) {
        self.gone = self.gone || !self.sink.event(event);
    }

    /// Whether it is to be dropped.
    pub(super) fn is_cancelled(&self) -> bool {
        self.gone || self.cancelled.load(Ordering::Acquire)
    }

    /// Answers that have not ended.
    pub(super) fn unfinished(&self) -> usize {
        self.answers.iter().filter(|a| !a.finished).count()
    }

    /// Answers that may be computed now: the first alone while the prompt is read.
    pub(super) fn active(&self) -> impl Iterator<Item = (usize, &Answer<'m>)> {
        let n = if self.prompt_read.is_some() { self.answers.len() } else { 1 };
        self.answers.iter().enumerate().take(n).filter(|(_, a)| !a.finished)
    }

    /// The prompt's logits are there.
    pub(super) fn read_prompt(&mut self) {
        self.prompt_read = Some(Instant::now());
        let logprobs = std::mem::take(&mut self.prompt_logprobs);
        self.say(Event::PromptRead { logprobs });
        if self.request.max_tokens == Some(0) {
            for i in 0..self.answers.len() {
                self.answers[i].finished = true;
                self.say_finished(i, String::new(), Finish::MaxTokens);
            }
        }
    }

    /// Lets an answer pick a token from a row of logits and tells of it.
    ///
    /// # Errors
    /// What the request fails with.
    pub(super) fn pick(
        &mut self,
        i: usize,
        row: &[f32],
        tokenizer: &Tokenizer,
        n_ctx: usize,
    ) -> Result<(), Error> {
        let picked = self.answers[i].pick(&self.request, row, tokenizer, n_ctx)?;
        // The end token is no part of the answer; text that was held back comes with the end.
        match picked.finish {
            Some(finish @ Finish::EndToken(_)) => self.say_finished(i, picked.text, finish),
            finish => {
                let (id, text, logprob) = (picked.id, picked.text, picked.logprob);
                self.say(Event::Token { answer: i, id, text, logprob });
                if let Some(finish) = finish {
                    self.say_finished(i, String::new(), finish);
                }
            }
        }
        Ok(())
    }

    fn say_finished(&mut self, answer: usize, text: String, finish: Finish) {
        let tokens = self.answers[answer].picked();
        self.say(Event::Finished { answer, text, finish, tokens });
    }

    /// Tells that all answers ended; returns how long the request took.
    pub(super) fn done(mut self) -> Duration {
        let read = self.prompt_read.unwrap_or(self.started);
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached_tokens,
            answer_tokens: self.answers.iter().map(Answer::picked).sum(),
            queued: self.started - self.submitted,
            prefill: read - self.started,
            decode: read.elapsed(),
        };
        self.say(Event::Done(usage));
        self.started.elapsed()
    }

    /// Tells that the request failed. Text that was held back until then is not lost.
    pub(super) fn fail(mut self, error: &Failure) {
        for i in 0..self.answers.len() {
            let rest = if self.answers[i].finished { String::new() } else { self.answers[i].rest() };
            if !rest.is_empty() {
                self.say_finished(i, rest, Finish::Cancelled);
            }
        }
        self.say(Event::Failed(error.clone()));
    }
}

/// An error as a request hears it.
pub(super) fn failure(error: &Error) -> Failure {
    Failure { kind: error.kind(), message: error.to_string() }
}

/// What a panic becomes.
pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure { kind: ErrorKind::Internal, message: format!("the engine failed: {text}") }
}
