//! One persistent pool of worker threads. The caller is worker 0.
//!
//! Work is a borrowed closure that workers call with their own index. A worker joins a job while the caller is still
//! at it; the caller waits for those who joined and for nobody else, so that a worker which the system runs late (a
//! shared machine, a quota) costs its help but never a wait. Members of a [`Team`] do wait for each other, and
//! `patience.rs` says for how long. Between jobs workers spin for a moment, because the next
//! operation of a graph follows within microseconds, and then park.

use crate::team::{Broken, Meeting, Team, spin_until};
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker looks for the next job before it parks.
const SPIN: Duration = Duration::from_millis(1);

/// A borrowed job without its lifetime; see [`Pool::run`] for why that is sound.
type Job = *const (dyn Fn(usize) + Sync);

/// A value on its own cache lines, so that spinning on one word does not slow writes to another.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// Bit of [`Shared::state`].
const OPEN: u64 = 1 << 31;
/// Workers inside the job, in [`Shared::state`].
const INSIDE_MASK: u64 = OPEN - 1;

const fn generation(state: u64) -> u64 {
    state >> 32
}

struct Shared {
    /// Upper half: generation, changes when a job is published or the pool closes. [`OPEN`]: workers may join the job.
    /// The bits below: workers that joined and have not finished.
    state: Line<AtomicU64>,
    /// The current job; written by the caller while nobody is in it and nobody may join.
    job: UnsafeCell<Option<Job>>,
    closing: AtomicBool,
    /// One flag per worker: it is parked or about to.
    parked: Vec<Line<AtomicBool>>,
    /// First panic of a worker during the job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spin: Duration,
    /// Threads that work on the current job, the caller included.
    limit: AtomicUsize,
    /// Where a team meets.
    meeting: Meeting,
}

// SAFETY: `job` is the only field that is not already shareable. The caller writes it while no worker is
// busy and publishes it by a release store of `generation`; workers read it after an acquire load.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is only dereferenced while `run` borrows the closure, which is `Sync`.
unsafe impl Send for Shared {}

thread_local! {
    /// Whether this thread is running a job of some pool.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A fixed number of threads that run one job at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    /// Jobs of several callers wait for each other.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` workers, the caller included; 0 means 1. Where the system refuses a thread, the pool is smaller.
    pub fn new(threads: usize) -> Pool {
        let threads = threads.max(1);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // Spinning with more threads than processors takes time from those who work.
        let spin = if threads > cpus { Duration::ZERO } else { SPIN };
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            job: UnsafeCell::new(None),
            closing: AtomicBool::new(false),
            parked: (1..threads).map(|_| Line(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
            spin,
            limit: AtomicUsize::new(threads),
            meeting: Meeting::new(threads, spin),
        });
        let mut handles = Vec::new();
        for index in 1..threads {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("minfer-{index}"));
            match builder.spawn(move || work(&shared, index)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, threads = index, "no more threads");
                    break;
                }
            }
        }
        let workers = handles.iter().map(|h| h.thread().clone()).collect();
        Pool { shared, workers, handles, turn: Mutex::new(()) }
    }

    /// The same, whose teams dismiss nobody.
    #[cfg(test)]
    pub(crate) fn patient(threads: usize) -> Pool {
        let pool = Pool::new(threads);
        pool.shared.meeting.patience().endless();
        pool
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)` here and, in parallel, `f(worker)` once for each worker that arrives before `f(0)` is done;
    /// returns when all of them have finished. Called from inside a job, it calls `f(0)` alone. So `f` must do all
    /// of the work by itself if nobody comes, as a loop over a shared counter does.
    ///
    /// # Panics
    ///
    /// With the first panic of `f`, after all have finished.
    pub fn run(&self, f: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || INSIDE.get() {
            return f(0);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.dispatch(&turn, self.threads(), &f);
    }

    /// Runs `f` on a team: this thread and the workers that arrive in time; see [`Team`]. Called from inside a job, the
    /// team is this thread alone.
    ///
    /// # Panics
    ///
    /// With the first panic of `f`, after all members have finished or left.
    pub fn team(&self, f: impl Fn(&Team<'_>) + Sync) {
        self.team_on(1, |team, _| {
            f(team);
            ControlFlow::Continue(())
        });
    }

    /// Runs `f` for the items `0..n` in order, on a team that workers may join before each of them. Every member calls `f`
    /// for an item and returns from it once all are done with it. [`ControlFlow::Break`] ends the work for all.
    ///
    /// # Panics
    ///
    /// As [`Pool::team`].
    pub fn team_on(&self, n: usize, f: impl Fn(&Team<'_>, usize) -> ControlFlow<()> + Sync) {
        let work = |meeting: &Meeting, (team, first): (Team<'_>, usize)| {
            let member = AssertUnwindSafe(|| {
                for item in first..n {
                    if f(&team, item).is_break() {
                        return meeting.end();
                    }
                    if !team.between(item + 1) {
                        return;
                    }
                }
            });
            if let Err(panic) = catch_unwind(member) {
                meeting.end();
                if !panic.is::<Broken>() {
                    resume_unwind(panic);
                }
            }
        };
        if self.workers.is_empty() || INSIDE.get() {
            let meeting = Meeting::new(1, Duration::ZERO);
            return work(&meeting, (meeting.first(0), 0));
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = &self.shared.meeting;
        meeting.reset();
        let limit = meeting.patience().begin(Instant::now()).min(self.threads());
        self.dispatch(&turn, limit, &|worker| {
            if worker == 0 {
                work(meeting, (meeting.first(limit - 1), 0));
                meeting.end();
            } else if let Some(place) = meeting.ask() {
                work(meeting, place);
            }
        });
    }

    /// As [`Pool::team_on`], for work that may fail: an error ends it for all. Should one member fail alone, the others
    /// don't wait for it.
    ///
    /// # Errors
    ///
    /// The first member's to fail, with its item.
    ///
    /// # Panics
    ///
    /// As [`Pool::team`].
    pub fn try_team_on<E: Send>(
        &self,
        n: usize,
        f: impl Fn(&Team<'_>, usize) -> Result<(), E> + Sync,
    ) -> Result<(), (usize, E)> {
        let failed = Mutex::new(None);
        self.team_on(n, |team, item| {
            let Err(e) = f(team, item) else { return ControlFlow::Continue(()) };
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((item, e));
            ControlFlow::Break(())
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Runs a job on up to `limit` threads; the caller holds `turn`.
    fn dispatch(&self, _turn: &MutexGuard<'_, ()>, limit: usize, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. This does not return or unwind before the job is closed and nobody is
        // inside, and no worker touches the job after it left, so that `f` outlives every use.
        let job: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(job) };
        self.shared.limit.store(limit, Ordering::SeqCst);
        let own = if limit == 1 {
            call(job, 0)
        } else {
            self.publish(Some(job), limit);
            let own = call(job, 0);
            self.close_and_wait();
            own
        };
        let other = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(other) {
            resume_unwind(panic);
        }
    }

    /// Cuts `0..n` into ranges of `chunk` (the last may be shorter) and calls `f` once for each, in
    /// parallel; which worker takes which is open.
    ///
    /// # Panics
    ///
    /// Like [`Pool::run`].
    pub fn chunks(&self, n: usize, chunk: usize, f: impl Fn(Range<usize>) + Sync) {
        let chunk = chunk.max(1);
        let next = AtomicUsize::new(0);
        let take = |_| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                match i.checked_mul(chunk) {
                    Some(start) if start < n => f(start..n.min(start.saturating_add(chunk))),
                    _ => break,
                }
            }
        };
        if n <= chunk { take(0) } else { self.run(take) }
    }

    /// Hands a job (or `None` to end) to the first workers, `limit` with the caller.
    fn publish(&self, job: Option<Job>, limit: usize) {
        let shared = &*self.shared;
        let open = if job.is_some() { OPEN } else { 0 };
        // SAFETY: the last job is closed and left by all (the caller holds `turn` or owns the pool), so no worker
        // reads this now.
        unsafe { *shared.job.get() = job };
        let next = generation(shared.state.0.load(Ordering::Relaxed)) + 1;
        // Sequentially consistent with `parked`: either the worker sees the new generation before it
        // parks, or this thread sees its flag and wakes it.
        shared.state.0.store((next & u64::from(u32::MAX)) << 32 | open, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked).take(limit - 1) {
            if parked.0.swap(false, Ordering::SeqCst) {
                worker.unpark();
            }
        }
    }

    /// Lets nobody join any more and waits for those who did.
    fn close_and_wait(&self) {
        let state = &self.shared.state.0;
        let done = || state.load(Ordering::Acquire) & INSIDE_MASK == 0;
        let inside = state.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE_MASK;
        if inside == 0 {
            return;
        }
        if !spin_until(self.shared.spin, done) {
            while !done() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.publish(None, usize::MAX);
        for handle in self.handles.drain(..) {
            // Workers catch panics of jobs; nothing is left to report.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// Calls the job with panics caught, marked as being inside a job.
fn call(job: &(dyn Fn(usize) + Sync), index: usize) -> Result<(), Box<dyn Any + Send>> {
    INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| job(index)));
    INSIDE.set(false);
    result
}

/// A worker's life.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    let parked = &shared.parked[index - 1].0;
    loop {
        let wanted = || index < shared.limit.load(Ordering::SeqCst);
        let fresh = || {
            let new = generation(shared.state.0.load(Ordering::SeqCst)) != seen;
            new && (wanted() || shared.closing.load(Ordering::SeqCst))
        };
        let spin = if wanted() { shared.spin } else { Duration::ZERO };
        if !spin_until(spin, fresh) {
            // The flag is raised before every look: a late wake-up for an earlier job may have lowered it.
            loop {
                parked.store(true, Ordering::SeqCst);
                if fresh() {
                    break;
                }
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let joined;
        (seen, joined) = join(&shared.state.0);
        if !joined {
            continue;
        }
        // SAFETY: this worker is inside the job, which was written before its generation was published; the caller
        // doesn't write again before this worker has left.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: `run` keeps the closure alive until this worker has left, below.
            if let Err(panic) = call(unsafe { &*job }, index) {
                shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
        shared.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Joins the current job if it is open; the generation that was seen, and whether it was joined.
fn join(state: &AtomicU64) -> (u64, bool) {
    let mut now = state.load(Ordering::Acquire);
    while now & OPEN != 0 {
        match state.compare_exchange_weak(now, now + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return (generation(now), true),
            Err(other) => now = other,
        }
    }
    (generation(now), false)
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Arrives and waits, for a bounded time, until `all` have: keeps a job open for the others.
    fn meet(arrived: &AtomicUsize, all: usize) {
        arrived.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while arrived.load(Ordering::SeqCst) < all && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn workers_join_an_open_job_once_each() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for round in 0..100 {
                let calls: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                let arrived = AtomicUsize::new(0);
                pool.run(|w| {
                    calls[w].fetch_add(1, Ordering::Relaxed);
                    meet(&arrived, threads);
                });
                assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                if round % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn the_caller_does_not_wait_for_who_never_came() {
        let pool = Pool::new(3);
        for _ in 0..20_000 {
            let calls = AtomicUsize::new(0);
            pool.run(|_| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert!((1..=3).contains(&calls.into_inner()));
        }
    }

    #[test]
    fn chunks_cover_the_range() {
        let pool = Pool::new(3);
        for (n, chunk) in [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7), (10, 0), (3, usize::MAX)] {
            let hits: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.chunks(n, chunk, |range| {
                assert!(!range.is_empty());
                hits[range].iter().for_each(|h| {
                    h.fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{n} {chunk}");
        }
    }

    #[test]
    fn panics_surface_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let arrived = AtomicUsize::new(0);
            let job = |w| {
                meet(&arrived, 3);
                assert!(w != bad, "worker {w}");
            };
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(job)));
            let text = result.unwrap_err();
            assert_eq!(text.downcast_ref::<String>().map(String::as_str), Some(&*format!("worker {bad}")));
        }
        let sum = AtomicUsize::new(0);
        pool.chunks(100, 3, |r| {
            sum.fetch_add(r.len(), Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 100);
    }

    #[test]
    fn nested_and_concurrent_jobs() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.chunks(2, 1, |_| {
                            pool.chunks(10, 3, |r| {
                                sum.fetch_add(r.len(), Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 50 * 2 * 10);
    }
}
