//! Hands out seeds to threads until there are enough cases, the time is up, or a case fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many cases, from which seed, on how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Seed of the first case; the others follow.
    pub first: u64,
    /// Cases at most.
    pub cases: u64,
    /// Time at most.
    pub time: Option<Duration>,
    /// Threads.
    pub threads: usize,
}

/// Runs cases, each thread on a state of its own; returns the states with the number of cases, or the seed and the
/// words of the first failure that was seen.
///
/// # Errors
/// The failed case.
pub fn until_done<S: Default + Send>(
    limits: Limits,
    case: impl Fn(&mut S, u64) -> Result<(), String> + Sync,
) -> Result<(Vec<S>, u64), (u64, String)> {
    let (next, stop, done) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let started = Instant::now();
    let late = || limits.time.is_some_and(|most| started.elapsed() >= most);
    let work = || -> Result<S, (u64, String)> {
        let mut state = S::default();
        while !stop.load(Ordering::Relaxed) && !late() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= limits.cases {
                break;
            }
            let seed = limits.first.wrapping_add(index);
            if let Err(why) = case(&mut state, seed) {
                stop.store(true, Ordering::Relaxed);
                return Err((seed, why));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(state)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..limits.threads.max(1)).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err((limits.first, "a thread panicked; its message stands above".to_owned()));
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    });
    let states = results.into_iter().collect::<Result<Vec<S>, _>>()?;
    Ok((states, done.into_inner()))
}
