//! One step: what is computed in it, and what comes of it.

use super::answer::logprob_of;
use super::api::{Failure, TokenLogProb};
use super::job::{Job, failure, panicked};
use super::worker::{Place, Worker};
use crate::batch::{Batch, Wanted};
use crate::error::{Error, ErrorKind};
use crate::kv_cache::SeqId;
use crate::session::Control;
use minfer_graph::PAGE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Most tokens of a prompt in a step whose log-probabilities are wanted: each takes a row of logits.
const ROWS: usize = 32;

/// What a step computes of an answer.
#[derive(Clone, Copy)]
pub(super) struct Part {
    place: Place,
    seq: SeqId,
    /// Tokens in the cache before.
    start: usize,
    /// Tokens to compute.
    count: usize,
    /// Tokens that could be computed.
    pending: usize,
}

impl Worker<'_> {
    /// The next step: a token of each answer that decodes, then chunks of prompts. Where pages are short, the youngest wait.
    pub(super) fn plan(&mut self) -> Result<Vec<Part>, Error> {
        loop {
            let all = self.pending()?;
            if all.is_empty() {
                return Ok(all);
            }
            if let Some(parts) = self.fit(all)? {
                return Ok(parts);
            }
            if !self.preempt()? {
                let message = "a sequence alone finds too few KV pages";
                return Err(Error::new(ErrorKind::Internal, message));
            }
        }
    }

    /// All that could be computed.
    fn pending(&mut self) -> Result<Vec<Part>, Error> {
        let running = self.running();
        let (session, jobs) = self.session_and_jobs()?;
        let mut parts = Vec::with_capacity(running.len());
        for place in running {
            let answer = &jobs[place.0].answers[place.1];
            let Some(seq) = answer.seq else { continue };
            let start = session.sequence_len(seq)?;
            let pending = answer.tokens.len() - start;
            parts.push(Part { place, seq, start, count: pending, pending });
        }
        Ok(parts)
    }

    /// What fits the budget and the pages; `None` if an answer that decodes finds no page, or no prompt gets on.
    fn fit(&mut self, all: Vec<Part>) -> Result<Option<Vec<Part>>, Error> {
        let (mut parts, mut prompts): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.pending == 1);
        let options = &self.options;
        let mut budget = match parts.len() {
            0 => options.step_tokens,
            n => options.chunk_tokens.min(options.step_tokens.saturating_sub(n)),
        };
        let (session, jobs) = self.session_and_jobs()?;
        let counts = session.page_counts();
        let mut pages = counts.free + counts.cached;
        for part in &parts {
            match pages.checked_sub(session.pages_for(part.seq, 1)?) {
                Some(left) => pages = left,
                None => return Ok(None),
            }
        }
        // Short prompts first, and each gets its share, so that a long one holds up nobody.
        prompts.sort_by_key(|p| p.pending);
        let n = prompts.len();
        for (i, mut part) in prompts.into_iter().enumerate() {
            let job = &jobs[part.place.0];
            let rows = if wants_rows(job) { ROWS } else { usize::MAX };
            part.count = part.pending.min(budget.div_ceil(n - i)).min(rows);
            while part.count > 0 && session.pages_for(part.seq, part.count)? > pages {
                part.count = part.count.saturating_sub(PAGE);
            }
            if part.count > 0 {
                pages -= session.pages_for(part.seq, part.count)?;
                budget -= part.count;
                parts.push(part);
            }
        }
        Ok((!parts.is_empty()).then_some(parts))
    }

    /// Computes a step and hands its logits on.
    pub(super) fn step(&mut self, parts: &[Part]) -> Result<(), Error> {
        if parts.is_empty() {
            return Ok(());
        }
        let panics = self.shared.panics.swap(false, Ordering::AcqRel);
        let (session, jobs) = self.session_and_jobs()?;
        let batch = batch_of(parts, jobs);
        let compute = || {
            assert!(!panics, "a test asked for it");
            session.step(&batch, &Control::default()).map(|_| ())
        };
        let failed = match catch_unwind(AssertUnwindSafe(compute)) {
            Ok(Ok(())) => return self.take(parts),
            Ok(Err(e)) => failure(&e),
            Err(panic) => {
                let failed = panicked(&*panic);
                // Before any sequence is touched: the session may be anything.
                self.fail_parts_without_session(parts, &failed);
                return self.rebuild();
            }
        };
        self.stats.healthy = failed.kind != ErrorKind::Device;
        for j in jobs_of(parts) {
            self.fail(j, &failed)?;
        }
        Ok(())
    }

    fn fail_parts_without_session(&mut self, parts: &[Part], failed: &Failure) {
        for j in jobs_of(parts) {
            self.jobs.remove(j).fail(failed);
        }
    }

    /// Lets answers pick tokens, and ends those that are done.
    fn take(&mut self, parts: &[Part]) -> Result<(), Error> {
        self.stats.healthy = true;
        self.stats.steps += 1;
        let prompts = parts.iter().filter(|p| p.pending > 1 || self.jobs[p.place.0].prompt_read.is_none());
        self.stats.prompt_tokens += prompts.map(|p| p.count as u64).sum::<u64>();
        let mut failures: Vec<(usize, Failure)> = Vec::new();
        let mut read = Vec::new();
        let (tokenizer, n_ctx) = (self.tokenizer, self.options.n_ctx);
        let mut picked = 0;
        let (session, jobs) = self.session_and_jobs()?;
        let logits = session.logits();
        for row in 0..logits.len() {
            let (seq, position) = logits.origin(row);
            let Some(&Part { place: (j, i), .. }) = parts.iter().find(|p| p.seq == seq) else { continue };
            if failures.iter().any(|(failed, _)| *failed == j) {
                continue;
            }
            let (job, row) = (&mut jobs[j], logits.row(row));
            let takes = match job.answers[i].tokens.get(position + 1) {
                Some(&next) => job.take_prompt_row(position, next, row).map(|()| 0..0),
                None if job.prompt_read.is_none() => {
                    job.read_prompt();
                    read.push((j, seq));
                    let n = if job.unfinished() == 0 { 0 } else { job.answers.len() };
                    Ok(0..n)
                }
                None => Ok(i..i + 1),
            };
            let taken = takes.map_err(|e| failure(&e)).and_then(|mut answers| {
                answers.try_for_each(|i| {
                    picked += 1;
                    pick(job, i, row, tokenizer, n_ctx)
                })
            });
            if let Err(failed) = taken {
                failures.push((j, failed));
            }
        }
        self.stats.answer_tokens += picked;
        self.share_prompts(&read, &failures)?;
        self.finish(failures)
    }

    /// Prompts that were just read: their pages are kept, and their further answers begin with them.
    fn share_prompts(&mut self, read: &[(usize, SeqId)], failures: &[(usize, Failure)]) -> Result<(), Error> {
        let keep = self.options.prefix_cache;
        let (session, jobs) = self.session_and_jobs()?;
        for &(j, seq) in read.iter().filter(|(j, _)| failures.iter().all(|(failed, _)| failed != j)) {
            let job = &mut jobs[j];
            if keep {
                session.keep_prefix(seq, &job.request.prompt)?;
            }
            for answer in job.answers.iter_mut().skip(1).filter(|a| !a.finished) {
                answer.seq = Some(session.fork(seq)?);
            }
        }
        Ok(())
    }

    /// Ends answers and jobs that are done or failed.
    fn finish(&mut self, failures: Vec<(usize, Failure)>) -> Result<(), Error> {
        for j in (0..self.jobs.len()).rev() {
            if let Some((_, failed)) = failures.iter().find(|(failed, _)| *failed == j) {
                self.fail(j, failed)?;
                continue;
            }
            for i in 0..self.jobs[j].answers.len() {
                if self.jobs[j].answers[i].finished {
                    self.leave((j, i), true)?;
                }
            }
            if self.jobs[j].unfinished() == 0 {
                let seconds = self.jobs.remove(j).done().as_secs_f64();
                let mut state = self.shared.lock();
                state.seconds =
                    if state.seconds == 0.0 { seconds } else { 0.9 * state.seconds + 0.1 * seconds };
            }
        }
        Ok(())
    }
}

/// Whether log-probabilities of the prompt are still to come.
fn wants_rows(job: &Job<'_>) -> bool {
    job.request.prompt_logprobs.is_some() && job.prompt_read.is_none()
}

fn batch_of(parts: &[Part], jobs: &[Job<'_>]) -> Batch {
    let mut batch = Batch::new();
    for part in parts {
        let (job, end) = (&jobs[part.place.0], part.start + part.count);
        let wanted = match part.count == part.pending {
            _ if wants_rows(job) => Wanted::All,
            true => Wanted::Last,
            false => Wanted::Nothing,
        };
        batch.add(part.seq, &job.answers[part.place.1].tokens[part.start..end], wanted);
    }
    batch
}

/// The jobs of a step, the youngest first, so that they can be removed in turn.
fn jobs_of(parts: &[Part]) -> Vec<usize> {
    let mut jobs: Vec<usize> = parts.iter().map(|p| p.place.0).collect();
    jobs.sort_unstable_by(|a, b| b.cmp(a));
    jobs.dedup();
    jobs
}

/// A pick that fails its own request alone, even if something in it panics.
fn pick(
    job: &mut Job<'_>,
    i: usize,
    row: &[f32],
    tokenizer: &minfer_text::Tokenizer,
    n_ctx: usize,
) -> Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(|| job.pick(i, row, tokenizer, n_ctx))) {
        Ok(picked) => picked.map_err(|e| failure(&e)),
        Err(panic) => Err(panicked(&*panic)),
    }
}

impl Job<'_> {
    /// Log-probability of the prompt's token after a position.
    fn take_prompt_row(&mut self, position: usize, next: u32, row: &[f32]) -> Result<(), Error> {
        let n = self.request.prompt_logprobs.unwrap_or(0);
        let logprob: TokenLogProb = logprob_of(row, next, n);
        if !logprob.logprob.is_finite() {
            return Err(Error::non_finite(position, next as usize, logprob.logprob as f32));
        }
        self.prompt_logprobs.push(logprob);
        Ok(())
    }
}
