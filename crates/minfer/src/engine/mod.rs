//! Many requests on one model at once.
//!
//! An [`Engine`] has a thread that owns a session. Each step computes the next token of every running sequence and, with what
//! is left of its budget, chunks of prompts; so a long prompt never holds up a stream. Nothing a request hears depends on
//! what else runs, on what the prefix cache held, or on whether it had to give its pages back for a while.

mod answer;
mod api;
mod job;
mod queue;
mod step;
mod worker;

pub use api::*;

use crate::error::{Error, ErrorKind};
use crate::model::Model;
use crate::session::Session;
use queue::{FairQueue, Waiting};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::Worker;

/// Runs requests on a model. Dropping it fails those that have not ended.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    options: EngineOptions,
    n_vocab: usize,
}

/// What callers and the engine's thread share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// The next step panics: for tests of what a panic does.
    panics: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: FairQueue,
    stats: EngineStats,
    /// Requests that left the queue and have not ended.
    jobs: usize,
    stop: bool,
    /// Whether the prefix cache is to be emptied.
    clear: bool,
    /// Mean seconds of a request, the last ones counting most.
    seconds: f64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts an engine: its session takes the memory of all that may run.
    ///
    /// # Errors
    /// Sizes that make no sense, as [`Session::new`], a model without a tokenizer, or a thread that cannot be had.
    pub fn start(model: &Model, options: EngineOptions) -> Result<Engine, Error> {
        check(&options)?;
        model.tokenizer()?;
        let session = Session::new(model, options.session())?;
        let pages = session.page_counts().all;
        let stats = EngineStats { pages, accepting: true, healthy: true, ..EngineStats::default() };
        let state = State { stats, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), ..Shared::default() });
        let n_vocab = model.spec().n_vocab;
        let (model, theirs, copy) = (model.clone(), shared.clone(), options.clone());
        let run = move || {
            let work = || Worker::new(&model, session, &theirs, copy)?.run();
            let lived = matches!(catch_unwind(AssertUnwindSafe(work)), Ok(Ok(())));
            end(&theirs, lived);
        };
        let thread = std::thread::Builder::new().name("minfer-engine".into()).spawn(run);
        let thread = thread.map_err(|e| Error::caused(ErrorKind::Internal, e))?;
        Ok(Engine { shared, thread: Some(thread), options, n_vocab })
    }

    /// Its sizes and bounds.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Positions of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// Puts a request in the queue. Its events go to `sink`, from the engine's thread.
    ///
    /// # Errors
    /// What makes no sense, does not fit, or finds no place.
    pub fn submit(&self, request: Request, sink: Box<dyn Sink>) -> Result<Ticket, Refusal> {
        self.check(&request)?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut state = self.shared.lock();
        if !state.stats.accepting {
            return Err(Refusal::Closed);
        }
        state.queue.drop_cancelled();
        let waiting = state.queue.len();
        if waiting >= self.options.max_queue && (waiting > 0 || self.options.max_queue == 0) {
            return Err(Refusal::QueueFull { waiting, retry_after: self.patience(&state) });
        }
        let entry = Waiting { request, sink, cancelled: cancelled.clone(), since: Instant::now() };
        state.queue.push(entry);
        state.stats.waiting = state.queue.len();
        drop(state);
        self.shared.wake.notify_all();
        Ok(Ticket { cancelled })
    }

    /// When a place in the queue may be free: a round of those that run, by what requests took lately.
    fn patience(&self, state: &State) -> Duration {
        let rounds = (1 + state.queue.len() / self.options.max_running) as f64;
        Duration::from_secs_f64((rounds * state.seconds).clamp(1.0, 60.0))
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let invalid = |message: String| Err(Refusal::Invalid(Error::input(message)));
        let (prompt, limit) = (request.prompt.len(), self.options.n_ctx);
        if prompt == 0 {
            return invalid("the prompt is empty".into());
        }
        if prompt > limit {
            return Err(Refusal::Context { prompt, limit });
        }
        if request.n == 0 || request.n > self.options.max_running {
            return invalid(format!("{} answers; from 1 to {} can run", request.n, self.options.max_running));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= self.n_vocab) {
            return invalid(format!("token {id} is outside the vocabulary of {}", self.n_vocab));
        }
        if let Some(bias) = request.sampling.logit_bias.iter().find(|b| b.id as usize >= self.n_vocab) {
            return invalid(format!(
                "a bias for token {}, outside the vocabulary of {}",
                bias.id, self.n_vocab
            ));
        }
        request.sampling.check().map_err(Refusal::Invalid)
    }

    /// What it is doing and has done.
    pub fn stats(&self) -> EngineStats {
        self.shared.lock().stats
    }

    /// Takes nothing new from now on; what it has runs to its end.
    pub fn drain(&self) {
        self.shared.lock().stats.accepting = false;
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        let state = self.shared.lock();
        state.queue.len() == 0 && state.jobs == 0
    }

    /// Forgets the prefixes that are kept.
    pub fn clear_cache(&self) {
        self.shared.lock().clear = true;
        self.shared.wake.notify_all();
    }

    /// Makes the next step panic: for tests of what callers then see.
    #[doc(hidden)]
    pub fn panic_next_step(&self) {
        self.shared.panics.store(true, Ordering::Release);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // What it died of was told to those that waited.
            let _ = thread.join();
        }
    }
}

/// After the engine's thread: nothing is taken any more, and who still waits is told.
fn end(shared: &Shared, lived: bool) {
    let mut state = shared.lock();
    state.stats.accepting = false;
    state.stats.healthy = lived;
    state.jobs = 0;
    let left = state.queue.take_all();
    state.stats.waiting = 0;
    drop(state);
    for mut waiting in left {
        let message = String::from("the engine has stopped");
        waiting.sink.event(Event::Failed(Failure { kind: ErrorKind::Internal, message }));
    }
}

fn check(options: &EngineOptions) -> Result<(), Error> {
    let EngineOptions { n_ctx, step_tokens, chunk_tokens, .. } = *options;
    if step_tokens == 0 || chunk_tokens == 0 {
        return Err(Error::input("a step or a chunk of 0 tokens"));
    }
    let least = n_ctx.div_ceil(minfer_graph::PAGE);
    match options.kv_pages {
        Some(pages) if pages < least => {
            Err(Error::input(format!("{pages} KV pages; a context of {n_ctx} takes {least}")))
        }
        _ => Ok(()),
    }
}
