//! What callers of the engine see: requests, events, refusals, counts.

use crate::constraint::ConstraintFactory;
use crate::error::{Error, ErrorKind};
use crate::generate::Finish;
use crate::sampler::SamplerConfig;
use crate::session::SessionOptions;
use minfer_graph::{FusionSwitches, KvType, KvTypes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Sizes and bounds of an engine.
#[derive(Clone)]
pub struct EngineOptions {
    /// Positions per sequence.
    pub n_ctx: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Tokens of one step: the decodes of all running sequences, then chunks of prompts.
    pub step_tokens: usize,
    /// Tokens of prompts in a step while others decode: bounds how long a stream waits for a long prompt.
    pub chunk_tokens: usize,
    /// KV pages in all, running sequences and cache together; `None`: enough for `max_running` whole contexts.
    pub kv_pages: Option<usize>,
    /// Whether prompts take pages that earlier ones left behind.
    pub prefix_cache: bool,
    /// Requests that may wait; one more is refused.
    pub max_queue: usize,
    /// Element type of the KV cache.
    pub kv_types: KvTypes,
    /// Which fusions may be applied.
    pub fusions: FusionSwitches,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            n_ctx: 8192,
            max_running: 8,
            step_tokens: 512,
            chunk_tokens: 64,
            kv_pages: None,
            prefix_cache: true,
            max_queue: 256,
            kv_types: KvType::F16.into(),
            fusions: FusionSwitches::default(),
        }
    }
}

impl EngineOptions {
    /// The session that such an engine runs.
    pub fn session(&self) -> SessionOptions {
        SessionOptions {
            n_ctx: self.n_ctx,
            n_batch: self.step_tokens.max(self.max_running),
            max_seqs: self.max_running,
            kv_pages: self.kv_pages,
            kv_types: self.kv_types,
            fusions: self.fusions,
            ..SessionOptions::default()
        }
    }
}

/// One generation, with all that decides its tokens.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt, not empty.
    pub prompt: Vec<u32>,
    /// Answers wanted; answer `i` has the seed plus `i`.
    pub n: usize,
    /// Most tokens of an answer; until the context is full if `None`. 0 reads the prompt and answers nothing.
    pub max_tokens: Option<usize>,
    /// Sampling; its seed decides the draws.
    pub sampling: SamplerConfig,
    /// Strings that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past the model's end tokens.
    pub ignore_eos: bool,
    /// Show control tokens in texts as they are spelt.
    pub show_control: bool,
    /// Log-probabilities of each token of an answer, with this many alternatives (0: the token's own alone).
    pub logprobs: Option<usize>,
    /// Log-probabilities of the prompt's tokens, with this many alternatives. Such a prompt is computed anew.
    pub prompt_logprobs: Option<usize>,
    /// What the answers may be.
    pub constraint: Option<Arc<dyn ConstraintFactory>>,
    /// Whom the request is for; clients take turns.
    pub client: u64,
}

impl Request {
    /// One answer to a prompt, as long as the context allows.
    pub fn new(prompt: Vec<u32>, sampling: SamplerConfig) -> Self {
        Request {
            prompt,
            n: 1,
            max_tokens: None,
            sampling,
            stop: Vec::new(),
            ignore_eos: false,
            show_control: false,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            client: 0,
        }
    }
}

/// A token with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability by the model's own logits, before bias, penalties, filters and constraints.
    pub logprob: f64,
    /// The most probable tokens, best first.
    pub top: Vec<(u32, f64)>,
}

/// What a request hears, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// It left the queue.
    Started {
        /// Prompt tokens whose keys and values came from the cache.
        cached_tokens: usize,
        /// Time in the queue.
        queued: Duration,
    },
    /// The prompt was read. Its log-probabilities, if wanted: the first token has none.
    PromptRead {
        /// One for each prompt token but the first.
        logprobs: Vec<TokenLogProb>,
    },
    /// A token was picked.
    Token {
        /// Which answer.
        answer: usize,
        /// The token.
        id: u32,
        /// Text that is final with it: whole characters, nothing that may still become a stop string; may be empty.
        text: String,
        /// If wanted.
        logprob: Option<TokenLogProb>,
    },
    /// An answer ended.
    Finished {
        /// Which answer.
        answer: usize,
        /// Text that was held back, to be appended.
        text: String,
        /// Why.
        finish: Finish,
        /// Tokens that were picked, the end token too.
        tokens: usize,
    },
    /// All answers ended: the last event.
    Done(Usage),
    /// The request failed: the last event. What was said before it stays valid.
    Failed(Failure),
}

/// Tokens and times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, taken from the cache.
    pub cached_tokens: usize,
    /// Tokens of all answers.
    pub answer_tokens: usize,
    /// From submission to the first computation.
    pub queued: Duration,
    /// From then until the prompt's logits were there.
    pub prefill: Duration,
    /// From then to the end.
    pub decode: Duration,
}

/// Why a request failed after it was taken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of trouble.
    pub kind: ErrorKind,
    /// In words.
    pub message: String,
}

/// Why a request was not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue is full.
    QueueFull {
        /// How many wait.
        waiting: usize,
        /// When a place may be free.
        retry_after: Duration,
    },
    /// The engine is draining, or has stopped.
    Closed,
    /// The prompt does not fit, or leaves no room for an answer.
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of a sequence.
        limit: usize,
    },
    /// It makes no sense.
    Invalid(Error),
}

/// Where events go. Called on the engine's thread: it must not block. An event that cannot be taken is a client that is gone.
pub trait Sink: Send {
    /// Takes an event; `false` cancels the request.
    fn event(&mut self, event: Event) -> bool;
}

impl<F: FnMut(Event) -> bool + Send> Sink for F {
    fn event(&mut self, event: Event) -> bool {
        self(event)
    }
}

/// A request that was taken. Dropping it cancels the request, which then hears nothing more.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// Stops the request within a step, in the queue, while its prompt is read, or later.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// What the engine is doing and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that wait.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// KV pages in all.
    pub pages: usize,
    /// Pages that a running sequence holds.
    pub pages_running: usize,
    /// Pages that only the prefix cache holds.
    pub pages_cached: usize,
    /// Prompt tokens that asked the prefix cache.
    pub prefix_queries: u64,
    /// Of these, found.
    pub prefix_hits: u64,
    /// Sequences that gave their pages back and began anew.
    pub preemptions: u64,
    /// Steps run.
    pub steps: u64,
    /// Tokens of prompts computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub answer_tokens: u64,
    /// Whether it takes requests.
    pub accepting: bool,
    /// Whether its thread lives and its last step did not fail.
    pub healthy: bool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::QueueFull { waiting, .. } => write!(f, "{waiting} requests wait already"),
            Refusal::Closed => f.write_str("no more requests are taken"),
            Refusal::Context { prompt, limit } => {
                write!(f, "the prompt has {prompt} tokens and the context holds {limit}")
            }
            Refusal::Invalid(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}
