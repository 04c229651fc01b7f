//! What is known of a request: its line in the log, its share of the metrics, and that it is under way.

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::talk::Reason;
use minfer::engine::Usage;
use serde_json::{Value, json};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sixteen letters that nobody had before.
pub fn random_name() -> String {
    format!("{:016x}", random_number())
}

/// A number that nobody can guess from the ones before it.
pub fn random_number() -> u64 {
    // Each state has keys of its own, from the system's randomness and a counter.
    RandomState::new().build_hasher().finish()
}

/// Takes a line of the log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A request; when it is dropped, its line is written.
pub struct Record {
    /// `x-request-id`, the client's or ours.
    pub id: String,
    method: String,
    path: String,
    began: Instant,
    metrics: Arc<Metrics>,
    log: Log,
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    status: u16,
    model: Option<String>,
    queued: Option<Duration>,
    cached: usize,
    first: Option<Duration>,
    last: Option<Instant>,
    usage: Option<Usage>,
    reason: Option<&'static str>,
    error: Option<String>,
}

impl Record {
    /// A request that just came.
    pub fn new(id: String, method: &str, path: &str, metrics: Arc<Metrics>, log: Log) -> Self {
        let (method, path) = (method.to_string(), path.to_string());
        Record { id, method, path, began: Instant::now(), metrics, log, facts: Mutex::default() }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status of its answer.
    pub fn set_status(&self, status: u16) {
        self.facts().status = status;
    }

    /// The model it is for.
    pub fn set_model(&self, name: &str) {
        self.facts().model = Some(name.to_string());
    }

    /// The model it is for, as far as known.
    pub fn model(&self) -> Option<String> {
        self.facts().model.clone()
    }

    /// It left the queue.
    pub fn start(&self, cached: usize, queued: Duration) {
        let mut facts = self.facts();
        (facts.cached, facts.queued) = (cached, Some(queued));
    }

    /// A token came.
    pub fn token(&self) {
        let mut facts = self.facts();
        let now = Instant::now();
        match facts.last.replace(now) {
            Some(before) => self.metrics.inter_token.observe(now - before),
            None => {
                let first = now - self.began;
                facts.first = Some(first);
                self.metrics.first_token.observe(first);
            }
        }
    }

    /// An answer ended.
    pub fn finish(&self, reason: &Reason) {
        let name = match reason {
            Reason::Stop | Reason::StopString(_) => "stop",
            Reason::Length => "length",
            Reason::Calls => "tool_calls",
        };
        self.facts().reason = Some(name);
        self.metrics.finished(name);
    }

    /// All answers ended.
    pub fn done(&self, usage: Usage) {
        self.facts().usage = Some(usage);
        self.metrics.whole.observe(self.began.elapsed());
    }

    /// It failed.
    pub fn fail(&self, error: &ApiError) {
        self.facts().error = Some(error.message.clone());
        self.metrics.finished("error");
    }

    /// Milliseconds in the queue, as far as known.
    pub fn queue_ms(&self) -> Option<f64> {
        self.facts().queued.map(ms)
    }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl Drop for Record {
    fn drop(&mut self) {
        let facts = std::mem::take(&mut *self.facts());
        let mut line = json!({
            "id": self.id, "method": self.method, "path": self.path, "status": facts.status,
            "ms": ms(self.began.elapsed()),
        });
        let mut add = |name: &str, value: Value| line[name] = value;
        if let Some(model) = facts.model {
            add("model", json!(model));
        }
        if let Some(queued) = facts.queued {
            add("queue_ms", json!(ms(queued)));
            add("cached_tokens", json!(facts.cached));
        }
        if let Some(first) = facts.first {
            add("first_token_ms", json!(ms(first)));
        }
        if let Some(usage) = facts.usage {
            add("prompt_tokens", json!(usage.prompt_tokens));
            add("answer_tokens", json!(usage.answer_tokens));
            add("prefill_ms", json!(ms(usage.prefill)));
            add("decode_ms", json!(ms(usage.decode)));
        } else if facts.first.is_some() && facts.error.is_none() {
            add("cancelled", json!(true));
        }
        if let Some(reason) = facts.reason {
            add("finish", json!(reason));
        }
        if let Some(error) = facts.error {
            add("error", json!(error));
        }
        (self.log)(&line.to_string());
    }
}

/// Requests that are under way, for the end of the server to wait for.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// One more, until what is returned is dropped.
    pub fn enter(&self) -> Busy {
        self.0.fetch_add(1, Ordering::AcqRel);
        Busy(self.0.clone())
    }

    /// How many there are.
    pub fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A request under way.
pub struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
