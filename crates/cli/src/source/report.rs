//! Where the module says what it is doing: a bar on a terminal, plain lines elsewhere, nothing in tests.
#![allow(clippy::print_stderr, reason = "this is the one place of the module that talks to the user")]

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::console::{byte_style, megabytes, note};
use crate::exit::printable;

/// Receives messages and progress. All methods may be called from any thread.
pub trait Reporter: Send + Sync {
    /// One line for the user.
    fn note(&self, line: &str);
    /// A transfer begins: what it is, its size in bytes if known, and how much is already there.
    fn begin(&self, what: &str, total: Option<u64>, done: u64);
    /// The transfer now stands at `done` bytes. Called often.
    fn at(&self, done: u64);
    /// The transfer ended at `done` bytes, well or not.
    fn end(&self, done: u64, ok: bool);
}

/// Reports on stderr: a progress bar if that is a terminal, else a line at the start, now and then, and at the end.
#[derive(Debug)]
pub struct StderrReporter {
    terminal: bool,
    current: Mutex<Option<Transfer>>,
}

#[derive(Debug)]
struct Transfer {
    what: String,
    bar: Option<ProgressBar>,
    started: Instant,
    done_at_start: u64,
    total: Option<u64>,
    /// When the last plain line was written.
    said: Instant,
}

/// Time between two lines where there is no bar.
const LINE_EVERY: Duration = Duration::from_secs(30);

impl StderrReporter {
    /// Looks once whether stderr is a terminal.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), current: Mutex::new(None) }
    }

    /// A panic elsewhere must not silence the messages that explain it.
    fn current(&self) -> MutexGuard<'_, Option<Transfer>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for StderrReporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Reporter for StderrReporter {
    fn note(&self, line: &str) {
        let line = printable(line);
        match &*self.current() {
            Some(Transfer { bar: Some(bar), .. }) => bar.suspend(|| note!("{line}")),
            _ => note!("{line}"),
        }
    }

    fn begin(&self, what: &str, total: Option<u64>, done: u64) {
        let what = printable(what);
        let bar = self.terminal.then(|| new_bar(&what, total, done));
        if bar.is_none() {
            let size = total.map_or(String::new(), |t| format!(" ({})", megabytes(t)));
            let from = if done > 0 { format!(", resuming at {}", megabytes(done)) } else { String::new() };
            note!("fetching {what}{size}{from}");
        }
        let now = Instant::now();
        *self.current() = Some(Transfer { what, bar, started: now, done_at_start: done, total, said: now });
    }

    fn at(&self, done: u64) {
        match &mut *self.current() {
            Some(Transfer { bar: Some(bar), .. }) => bar.set_position(done),
            Some(t) if t.said.elapsed() >= LINE_EVERY => {
                t.said = Instant::now();
                let of = t.total.map_or(String::new(), |t| format!(" of {}", megabytes(t)));
                note!("{}: {}{of}", t.what, megabytes(done));
            }
            _ => {}
        }
    }

    fn end(&self, done: u64, ok: bool) {
        let Some(t) = self.current().take() else { return };
        if let Some(bar) = t.bar {
            bar.finish_and_clear();
        }
        if ok {
            let seconds = t.started.elapsed().as_secs_f64();
            let moved = megabytes(done.saturating_sub(t.done_at_start));
            note!("fetched {}: {moved} in {seconds:.1} s", t.what);
        }
    }
}

/// Shows the transfers of a split set's parts as one.
pub(super) struct SetReporter {
    inner: Arc<dyn Reporter>,
    what: String,
    total: Option<u64>,
    /// Bytes of the parts that are done.
    before: AtomicU64,
    begun: AtomicBool,
}

impl SetReporter {
    /// `total` is the size of all parts.
    pub fn new(inner: Arc<dyn Reporter>, what: &str, total: Option<u64>) -> Self {
        let (before, begun) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { inner, what: what.to_owned(), total, before, begun }
    }

    /// A part of `size` bytes is there.
    pub fn part_done(&self, size: u64) {
        self.before.fetch_add(size, Ordering::Relaxed);
    }

    /// The set is done, or given up.
    pub fn finish(&self, ok: bool) {
        if self.begun.load(Ordering::Relaxed) {
            self.inner.end(self.before.load(Ordering::Relaxed), ok);
        }
    }
}

impl Reporter for SetReporter {
    fn note(&self, line: &str) {
        self.inner.note(line);
    }

    fn begin(&self, _: &str, _: Option<u64>, done: u64) {
        if self.begun.swap(true, Ordering::Relaxed) {
            self.at(done);
        } else {
            self.inner.begin(&self.what, self.total, self.before.load(Ordering::Relaxed) + done);
        }
    }

    fn at(&self, done: u64) {
        self.inner.at(self.before.load(Ordering::Relaxed) + done);
    }

    fn end(&self, _: u64, _: bool) {}
}

/// A bar with rate and remaining time if the size is known, else a spinner.
fn new_bar(what: &str, total: Option<u64>, done: u64) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{msg} {wide_bar} {done} of {size}, {rate} {eta}"),
        None => (ProgressBar::new_spinner(), "{spinner} {msg} {done} {elapsed}"),
    };
    let bar = bar.with_style(byte_style(template)).with_message(what.to_owned()).with_position(done);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
