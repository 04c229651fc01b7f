//! The engine's thread: who runs, and with which pages.

use super::api::{EngineOptions, EngineStats, Event, Failure};
use super::job::{Job, failure};
use super::queue::Waiting;
use super::{Shared, State};
use crate::error::{Error, ErrorKind};
use crate::kv_cache::SeqId;
use crate::model::Model;
use crate::session::Session;
use minfer_text::Tokenizer;
use std::sync::PoisonError;

/// What the thread works with.
pub(super) struct Worker<'m> {
    model: &'m Model,
    pub(super) tokenizer: &'m Tokenizer,
    session: Option<Session>,
    pub(super) shared: &'m Shared,
    pub(super) options: EngineOptions,
    /// Oldest first.
    pub(super) jobs: Vec<Job<'m>>,
    /// Its own part of the counts.
    pub(super) stats: EngineStats,
}

/// Names an answer: its job and its place there.
pub(super) type Place = (usize, usize);

impl<'m> Worker<'m> {
    pub(super) fn new(
        model: &'m Model,
        session: Session,
        shared: &'m Shared,
        options: EngineOptions,
    ) -> Result<Self, Error> {
        let stats = EngineStats { healthy: true, ..EngineStats::default() };
        let tokenizer = model.tokenizer()?;
        Ok(Worker { model, tokenizer, session: Some(session), shared, options, jobs: Vec::new(), stats })
    }

    /// Works until the engine is dropped, or cannot go on.
    ///
    /// # Errors
    /// After a failure no new session could be had.
    pub(super) fn run(mut self) -> Result<(), Error> {
        while self.wait()? {
            if let Err(e) = self.turn() {
                // A failure of the bookkeeping itself: nobody can be trusted to be where they should be.
                self.fail_all(&failure(&e));
                self.rebuild()?;
            }
            self.report();
        }
        let message = String::from("the engine has stopped");
        self.fail_all(&Failure { kind: ErrorKind::Cancelled, message });
        self.report();
        Ok(())
    }

    /// Waits for something to do; `false`: it is over.
    fn wait(&mut self) -> Result<bool, Error> {
        let mut state = self.shared.lock();
        while !state.stop && !state.clear && self.jobs.is_empty() && state.queue.len() == 0 {
            state = self.shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (stop, clear) = (state.stop, std::mem::take(&mut state.clear));
        drop(state);
        if clear {
            self.session()?.clear_prefixes();
        }
        Ok(!stop)
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.drop_cancelled()?;
        self.resume()?;
        self.admit()?;
        let parts = self.plan()?;
        self.step(&parts)
    }

    pub(super) fn session(&mut self) -> Result<&mut Session, Error> {
        self.session.as_mut().ok_or_else(|| Error::new(ErrorKind::Internal, "the engine has no session"))
    }

    /// The session, and the jobs beside it.
    pub(super) fn session_and_jobs(&mut self) -> Result<(&mut Session, &mut Vec<Job<'m>>), Error> {
        let session = self.session.as_mut();
        let session = session.ok_or_else(|| Error::new(ErrorKind::Internal, "the engine has no session"))?;
        Ok((session, &mut self.jobs))
    }

    fn drop_cancelled(&mut self) -> Result<(), Error> {
        for j in (0..self.jobs.len()).rev().filter(|&j| self.jobs[j].is_cancelled()).collect::<Vec<_>>() {
            for i in 0..self.jobs[j].answers.len() {
                self.leave((j, i), true)?;
            }
            self.jobs.remove(j);
        }
        Ok(())
    }

    /// Takes an answer's pages from it; `keep`: for others, as far as they are full.
    pub(super) fn leave(&mut self, (j, i): Place, keep: bool) -> Result<(), Error> {
        let keep = keep && self.options.prefix_cache;
        let (session, jobs) = self.session_and_jobs()?;
        let answer = &mut jobs[j].answers[i];
        if let Some(seq) = answer.seq.take() {
            if keep {
                session.keep_prefix(seq, &answer.tokens)?;
            }
            session.remove_sequence(seq)?;
        }
        Ok(())
    }

    /// Answers that have pages, oldest first.
    pub(super) fn running(&self) -> Vec<Place> {
        let of = |(j, job): (usize, &Job<'m>)| {
            let with_pages = job.active().filter(|(_, a)| a.seq.is_some());
            with_pages.map(|(i, _)| (j, i)).collect::<Vec<_>>()
        };
        self.jobs.iter().enumerate().flat_map(of).collect()
    }

    /// Answers that gave their pages back take new ones, the oldest first.
    fn resume(&mut self) -> Result<(), Error> {
        for j in 0..self.jobs.len() {
            let without = |(i, a): (usize, &super::answer::Answer<'m>)| a.seq.is_none().then_some(i);
            for i in self.jobs[j].active().filter_map(without).collect::<Vec<_>>() {
                let job = &self.jobs[j];
                let reads_all = job.request.prompt_logprobs.is_some() && job.prompt_read.is_none();
                let tokens = job.answers[i].tokens.clone();
                let Some((seq, _)) = self.place(&tokens, 1, !reads_all)? else { return Ok(()) };
                self.jobs[j].answers[i].seq = Some(seq);
            }
        }
        Ok(())
    }

    /// Requests leave the queue as long as there is room.
    fn admit(&mut self) -> Result<(), Error> {
        while self.jobs.iter().all(|job| job.active().all(|(_, a)| a.seq.is_some())) {
            let Some(waiting) = self.next_waiting() else { break };
            let request = &waiting.request;
            let adopts = request.prompt_logprobs.is_none();
            let (prompt, n) = (request.prompt.clone(), request.n);
            let Some((seq, cached)) = self.place(&prompt, n, adopts)? else {
                self.shared.lock().queue.push_front(waiting);
                break;
            };
            if adopts && self.options.prefix_cache {
                self.stats.prefix_queries += prompt.len() as u64;
                self.stats.prefix_hits += cached as u64;
            }
            match Job::start(waiting, cached, self.tokenizer) {
                Some(mut job) => {
                    job.answers[0].seq = Some(seq);
                    self.jobs.push(job);
                }
                None => self.session()?.remove_sequence(seq)?,
            }
        }
        Ok(())
    }

    /// The next request, if as many answers more may run.
    fn next_waiting(&mut self) -> Option<Waiting> {
        let unfinished: usize = self.jobs.iter().map(Job::unfinished).sum();
        let mut state = self.shared.lock();
        state.queue.drop_cancelled();
        let n = state.queue.peek()?.request.n;
        (unfinished + n <= self.options.max_running).then(|| state.queue.pop())?
    }

    /// A sequence for tokens, with what is kept of them; `None` if pages for them, for `n` answers and for what runs already
    /// are not there now.
    fn place(&mut self, tokens: &[u32], n: usize, adopt: bool) -> Result<Option<(SeqId, usize)>, Error> {
        let running = self.running().len();
        let adopt = adopt && self.options.prefix_cache;
        let session = self.session()?;
        let seq = session.new_sequence()?;
        let cached = if adopt { session.adopt_prefix(seq, tokens)? } else { 0 };
        let needed = session.pages_for(seq, tokens.len() - cached)? + n;
        let counts = session.page_counts();
        if running > 0 && needed + running > counts.free + counts.cached {
            session.remove_sequence(seq)?;
            return Ok(None);
        }
        Ok(Some((seq, cached)))
    }

    /// The youngest answer gives its pages back and begins again when there is room: what it said stays said. `false` if it is
    /// the only one.
    pub(super) fn preempt(&mut self) -> Result<bool, Error> {
        let running = self.running();
        let Some(&(j, i)) = running.last().filter(|_| running.len() > 1) else { return Ok(false) };
        self.leave((j, i), true)?;
        self.jobs[j].prompt_logprobs.clear();
        self.stats.preemptions += 1;
        Ok(true)
    }

    /// Fails a job; its pages may hold anything, so none is kept.
    pub(super) fn fail(&mut self, j: usize, failure: &Failure) -> Result<(), Error> {
        for i in 0..self.jobs[j].answers.len() {
            self.leave((j, i), false)?;
        }
        self.jobs.remove(j).fail(failure);
        Ok(())
    }

    fn fail_all(&mut self, failure: &Failure) {
        self.jobs.drain(..).for_each(|job| job.fail(failure));
        let mut state = self.shared.lock();
        let left = if state.stop { state.queue.take_all() } else { Vec::new() };
        drop(state);
        for mut waiting in left {
            waiting.sink.event(Event::Failed(failure.clone()));
        }
    }

    /// A new session in place of one that may be broken. Who was not in the failed step begins again.
    pub(super) fn rebuild(&mut self) -> Result<(), Error> {
        self.model.forgive_panic();
        self.session = None;
        for job in &mut self.jobs {
            job.answers.iter_mut().for_each(|answer| answer.seq = None);
            job.prompt_logprobs.clear();
        }
        self.session = Some(Session::new(self.model, self.options.session())?);
        Ok(())
    }

    /// Tells the counts to whoever asks.
    fn report(&mut self) {
        let counts = self.session.as_ref().map(Session::page_counts).unwrap_or_default();
        let mut state = self.shared.lock();
        let State { stats, queue, jobs, .. } = &mut *state;
        *jobs = self.jobs.len();
        *stats = EngineStats {
            waiting: queue.len(),
            running: self.jobs.iter().map(Job::unfinished).sum(),
            pages: counts.all,
            pages_running: counts.all - counts.free - counts.cached,
            pages_cached: counts.cached,
            accepting: stats.accepting,
            ..self.stats
        };
    }
}
