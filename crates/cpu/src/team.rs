//! The members of a team: threads that run the same function together, step by step.
//!
//! All members call the same methods in the same order with the same arguments. What is between the calls runs on
//! every member; [`Team::chunks`] divides work among them, [`Team::solo`] leaves it to one, and both end with all
//! members meeting. So a list of small operations needs no dispatch each, only a meeting of some 100 ns.

use crate::patience::{LONG, Patience};
use crate::pool::Line;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the first member waits for the others before it begins without them. A worker that is awake needs less.
const GATHER: Duration = Duration::from_micros(10);

/// Room for a value that is shown: a few slices.
type Shown = MaybeUninit<[usize; 8]>;

// SAFETY: `shown` is the only field that is not already shareable; `Team::share` says who touches it when.
unsafe impl Sync for Meeting {}

/// Where the members of a team meet.
pub(crate) struct Meeting {
    /// Members that have arrived.
    arrived: Line<AtomicUsize>,
    /// Meetings so far.
    round: Line<AtomicUsize>,
    /// Next piece of work, of even and of odd rounds: one counts while the other is set back.
    next: [Line<AtomicUsize>; 2],
    /// Pieces taken of each member's share, of even and of odd rounds as `next`.
    taken: [Box<[Line<AtomicUsize>]>; 2],
    /// Threads that have asked to become members, after the first.
    asked: Line<AtomicUsize>,
    /// How many of these are members.
    admitted: Line<AtomicUsize>,
    /// The item and the round that the last ones admitted begin with.
    entry: [AtomicUsize; 2],
    /// Whether the last to arrive at the last meeting saw somebody ask, or that the team is to get smaller.
    knock: AtomicBool,
    /// The team is to get smaller.
    shrink: AtomicBool,
    /// It did, and nobody is admitted any more.
    closed: AtomicBool,
    patience: Mutex<Patience>,
    /// What member 0 shows to the others, in even and in odd rounds.
    shown: [Line<UnsafeCell<Shown>>; 2],
    /// A member left early, or all have finished; nobody waits any more.
    over: AtomicBool,
    /// How long a member looks for the others before it gives way to other threads.
    spin: Duration,
}

impl Meeting {
    /// For up to `most` members.
    pub(crate) fn new(most: usize, spin: Duration) -> Self {
        let zero = || Line(AtomicUsize::new(0));
        Meeting {
            arrived: zero(),
            round: zero(),
            next: [zero(), zero()],
            taken: [0, 1].map(|_| (0..most).map(|_| zero()).collect()),
            asked: zero(),
            admitted: zero(),
            entry: [AtomicUsize::new(0), AtomicUsize::new(0)],
            knock: AtomicBool::new(false),
            shrink: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            patience: Mutex::new(Patience::new(most, Instant::now())),
            shown: [const { Line(UnsafeCell::new(Shown::uninit())) }; 2],
            over: AtomicBool::new(false),
            spin,
        }
    }

    /// Makes it fresh. Nobody may be in it.
    pub(crate) fn reset(&self) {
        let counters =
            [&self.arrived, &self.round, &self.next[0], &self.next[1], &self.asked, &self.admitted];
        for counter in counters {
            counter.0.store(0, Ordering::Relaxed);
        }
        self.taken.iter().flatten().for_each(|taken| taken.0.store(0, Ordering::Relaxed));
        for flag in [&self.knock, &self.shrink, &self.closed, &self.over] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets everybody go who waits.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until `done` or the end; for how long, if it is worth telling.
    fn wait(&self, done: impl Fn() -> bool) -> Duration {
        let done = || done() || self.is_over();
        if look(&done) {
            return Duration::ZERO;
        }
        let start = Instant::now();
        if !spin_until(self.spin, done) {
            while !done() {
                std::thread::yield_now();
            }
        }
        start.elapsed()
    }

    /// Waits for a round to end, as one of `size` members; whether it did. Long waits may make the team smaller.
    fn wait_for_others(&self, round: usize, size: usize) -> bool {
        let done = || self.round.0.load(Ordering::Acquire) != round;
        let waited = self.wait(done);
        if waited >= LONG && self.patience().waited(Instant::now(), waited, size) {
            self.shrink.store(true, Ordering::Relaxed);
        }
        done()
    }

    /// The first member, after `others` have asked or a moment has passed.
    pub(crate) fn first(&self, others: usize) -> Team<'_> {
        spin_until(GATHER, || self.asked.0.load(Ordering::Relaxed) == others);
        let asked = self.asked.0.load(Ordering::Acquire);
        self.admit(asked, [0, 0]);
        Team { meeting: self, index: 0, size: Cell::new(1 + asked), round: Cell::new(0) }
    }

    /// Another member, once it is admitted, with the item it begins with; `None` at the end.
    pub(crate) fn ask(&self) -> Option<(Team<'_>, usize)> {
        let index = self.asked.0.fetch_add(1, Ordering::AcqRel) + 1;
        let admitted = || self.admitted.0.load(Ordering::Acquire) >= index;
        self.wait(|| admitted() || self.closed.load(Ordering::Acquire));
        if !admitted() {
            return None;
        }
        // Nobody gets past the next meeting without this member, so that all of these stay as they are.
        let size = Cell::new(1 + self.admitted.0.load(Ordering::Acquire));
        let [item, round] = [&self.entry[0], &self.entry[1]].map(|e| e.load(Ordering::Relaxed));
        Some((Team { meeting: self, index, size, round: Cell::new(round) }, item))
    }

    /// Whether the team is to change before the next item. The others wait.
    fn look_around(&self) {
        let asked = self.asked.0.load(Ordering::Relaxed) > self.admitted.0.load(Ordering::Relaxed);
        let knock = self.shrink.load(Ordering::Relaxed) || asked && !self.closed.load(Ordering::Relaxed);
        self.knock.store(knock, Ordering::Relaxed);
    }

    /// Lets in who has asked, or some go. The others wait.
    fn change(&self, entry: [usize; 2]) {
        self.knock.store(false, Ordering::Relaxed);
        if self.shrink.swap(false, Ordering::Relaxed) {
            let most = self.patience().size() - 1;
            self.closed.store(true, Ordering::Release);
            self.admitted.0.store(self.admitted.0.load(Ordering::Relaxed).min(most), Ordering::Release);
        } else {
            self.admit(self.asked.0.load(Ordering::Acquire), entry);
        }
    }

    fn admit(&self, asked: usize, entry: [usize; 2]) {
        self.entry[0].store(entry[0], Ordering::Relaxed);
        self.entry[1].store(entry[1], Ordering::Relaxed);
        self.admitted.0.store(asked, Ordering::Release);
    }
}

/// What a member panics with when another one left early.
pub(crate) struct Broken;

/// One thread's place in a team.
pub struct Team<'a> {
    meeting: &'a Meeting,
    index: usize,
    size: Cell<usize>,
    /// Meetings of the team so far.
    round: Cell<usize>,
}

impl Team<'_> {
    /// This member's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Members. There may be more from the next item on.
    pub fn threads(&self) -> usize {
        self.size.get()
    }

    /// Waits for all members. What each did before is visible to all afterwards.
    pub fn meet(&self) {
        if self.size.get() > 1 {
            self.meet_and(|| self.meeting.look_around());
        }
    }

    /// Waits for all members; the last one does something before the others go on.
    fn meet_and(&self, last: impl FnOnce()) {
        let meeting = self.meeting;
        let round = self.round.get();
        let next = round.wrapping_add(1);
        self.round.set(next);
        if meeting.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.size.get() {
            meeting.arrived.0.store(0, Ordering::Relaxed);
            meeting.next[round % 2].0.store(0, Ordering::Relaxed);
            let taken = &meeting.taken[round % 2][..self.size.get()];
            taken.iter().for_each(|taken| taken.0.store(0, Ordering::Relaxed));
            last();
            meeting.round.0.store(next, Ordering::Release);
        } else if !meeting.wait_for_others(round, self.size.get()) {
            std::panic::resume_unwind(Box::new(Broken));
        }
    }

    /// Between two items, `next` being the second: lets in who has asked, or members go. Whether this one stays. No member
    /// does this before all have finished the first.
    pub(crate) fn between(&self, next: usize) -> bool {
        let meeting = self.meeting;
        if self.size.get() == 1 {
            let asked = meeting.asked.0.load(Ordering::Acquire);
            if asked > 0 && !meeting.closed.load(Ordering::Relaxed) {
                meeting.admit(asked, [next, self.round.get()]);
            }
        } else if meeting.knock.load(Ordering::Relaxed) {
            self.meet_and(|| meeting.change([next, self.round.get()]));
        } else {
            return true;
        }
        self.size.set(1 + meeting.admitted.0.load(Ordering::Acquire));
        self.index < self.size.get()
    }

    /// Cuts `0..n` into ranges of `chunk` (the last may be shorter) and calls `f` once for each; which member takes
    /// which is open. Then all meet.
    pub fn chunks(&self, n: usize, chunk: usize, mut f: impl FnMut(Range<usize>)) {
        let chunk = chunk.max(1);
        if self.size.get() == 1 {
            for start in (0..n).step_by(chunk) {
                f(start..n.min(start.saturating_add(chunk)));
            }
            return;
        }
        let next = &self.meeting.next[self.round.get() % 2].0;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            match i.checked_mul(chunk) {
                Some(start) if start < n => f(start..n.min(start.saturating_add(chunk))),
                _ => break,
            }
        }
        self.meet();
    }

    /// Cuts `0..n` into a share for each member, multiples of `unit` long but for the last, and calls `f` for the pieces of
    /// each, which end at these eighths of it. A member that is done with its own takes what others have not begun. Then
    /// all meet.
    pub fn shares(&self, n: usize, unit: usize, ends: &[usize], mut f: impl FnMut(Range<usize>)) {
        let members = self.size.get();
        if members == 1 {
            if n > 0 {
                f(0..n);
            }
            return;
        }
        let units = n.div_ceil(unit);
        let bound = |eighth: usize| (units * eighth / (members * 8) * unit).min(n);
        let taken = &self.meeting.taken[self.round.get() % 2][..members];
        for member in (self.index..members).chain(0..self.index) {
            // A look before the claim, which takes the line from its owner: mostly all is taken.
            while taken[member].0.load(Ordering::Relaxed) < ends.len() {
                let piece = taken[member].0.fetch_add(1, Ordering::Relaxed);
                let Some(&end) = ends.get(piece) else { break };
                let start = if piece == 0 { 0 } else { ends[piece - 1] };
                let range = bound(8 * member + start)..bound(8 * member + end);
                if !range.is_empty() {
                    f(range);
                }
            }
        }
        self.meet();
    }

    /// Calls `f` on one member; then all meet.
    pub fn solo(&self, f: impl FnOnce()) {
        if self.index == 0 {
            f();
        }
        self.meet();
    }

    /// Hands what member 0 makes to all members.
    ///
    /// # Safety
    ///
    /// All members call this with the same `T` at the same point of their work.
    pub unsafe fn share<T: Copy + Send>(&self, make: impl FnOnce() -> T) -> T {
        if self.size.get() == 1 {
            return make();
        }
        const { assert!(size_of::<T>() <= size_of::<Shown>() && align_of::<T>() <= align_of::<Shown>()) };
        let place = self.meeting.shown[self.round.get() % 2].0.get().cast::<T>();
        if self.index == 0 {
            // SAFETY: the value fits. Those who read what was here before have done so: it was shown two meetings ago or
            // earlier, and each of them has come to the meeting after that since.
            unsafe { place.write(make()) };
        }
        self.meet();
        // SAFETY: member 0 wrote a value of this type before the meeting. It writes here again after the next meeting,
        // which this member will not have come to before it has read.
        unsafe { place.read() }
    }

    /// As [`Team::share`], for what member 0 may fail to make: then it leaves with the error, and the others with it.
    ///
    /// # Errors
    ///
    /// That of `make`, on member 0.
    ///
    /// # Safety
    ///
    /// As [`Team::share`].
    pub unsafe fn try_share<T: Copy + Send, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut failed = None;
        // SAFETY: the caller's promise.
        let shared = unsafe { self.share(|| make().map_err(|e| failed = Some(e)).ok()) };
        match (shared, failed) {
            (Some(value), _) => Ok(value),
            (None, Some(e)) => Err(e),
            (None, None) => std::panic::resume_unwind(Box::new(Broken)),
        }
    }
}

/// Looks for a microsecond or two whether it is `done`.
#[inline]
fn look(done: &impl Fn() -> bool) -> bool {
    for _ in 0..64 {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Spins until `done`, at most for `limit`; whether it was.
pub(crate) fn spin_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if look(&done) {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::pool::Pool;
    use std::ops::ControlFlow;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Members that joined over some tries, at least once all of them.
    fn pools() -> [Pool; 4] {
        [1, 2, 3, 8].map(Pool::patient)
    }

    #[test]
    fn each_piece_is_done_once_and_seen_by_all() {
        for pool in pools() {
            for round in 0..200 {
                let n = round % 37;
                let done: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.team(|team| {
                    assert!(team.index() < team.threads() && team.threads() <= pool.threads());
                    for step in 1..20 {
                        team.chunks(n, 1 + step % 5, |range| {
                            done[range].iter().for_each(|d| {
                                d.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(done.iter().all(|d| d.load(Ordering::Relaxed) >= step));
                        team.meet();
                    }
                });
                assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 19));
            }
        }
    }

    #[test]
    fn each_piece_of_a_share_is_done_once() {
        for pool in pools() {
            for n in 0..200 {
                let done: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.team(|team| {
                    for (step, ends) in
                        [&[8][..], &[5, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 8]].into_iter().enumerate()
                    {
                        team.shares(n, 1 + n % 5, ends, |range| {
                            assert!(!range.is_empty());
                            done[range].iter().for_each(|d| {
                                d.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(done.iter().all(|d| d.load(Ordering::Relaxed) > step));
                    }
                });
                assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 3));
            }
        }
    }

    /// Whoever is done takes what a late member has not begun.
    #[test]
    fn a_late_member_keeps_the_piece_it_is_at() {
        let pool = Pool::patient(2);
        let start = std::time::Instant::now();
        loop {
            let by = [const { AtomicUsize::new(usize::MAX) }; 16];
            let members = AtomicUsize::new(0);
            pool.team(|team| {
                members.store(team.threads(), Ordering::Relaxed);
                team.shares(16, 1, &[4, 6, 8], |range| {
                    if range.contains(&8) {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    by[range].iter().for_each(|by| by.store(team.index(), Ordering::Relaxed));
                });
            });
            let by = by.map(AtomicUsize::into_inner);
            assert!(by.iter().all(|&by| by < 2));
            let late = by[8];
            if members.into_inner() == 2 && (0..16).all(|i| (by[i] == late) == (8..12).contains(&i)) {
                return;
            }
            assert!(start.elapsed().as_secs() < 60);
        }
    }

    #[test]
    fn one_works_and_shows() {
        for pool in pools() {
            let count = AtomicUsize::new(0);
            for round in 0..200 {
                pool.team(|team| {
                    team.solo(|| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(count.load(Ordering::Relaxed), round + 1);
                    // SAFETY: all members are here.
                    let shown = unsafe { team.share(|| (team.index(), round)) };
                    assert_eq!(shown, (0, round));
                });
            }
        }
    }

    #[test]
    fn nobody_waits_for_who_left() {
        for pool in pools() {
            for bad in 0..pool.threads() {
                let there = AtomicUsize::new(0);
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.team(|team| {
                        there.fetch_max(team.threads(), Ordering::Relaxed);
                        team.meet();
                        assert!(team.index() != bad, "member {bad}");
                        team.meet();
                    });
                }));
                match result {
                    Ok(()) => assert!(there.into_inner() <= bad),
                    Err(e) => assert_eq!(e.downcast_ref::<String>(), Some(&format!("member {bad}"))),
                }
            }
            let sum = AtomicUsize::new(0);
            pool.team(|team| {
                team.chunks(100, 3, |r| {
                    sum.fetch_add(r.len(), Ordering::Relaxed);
                });
            });
            assert_eq!(sum.into_inner(), 100);
        }
    }

    /// Workers that come late begin with an item that nobody has begun.
    #[test]
    fn items_in_order_with_who_is_there() {
        for pool in pools() {
            let mut most = 0;
            for round in 0..200 {
                let (sums, seen) = ([const { AtomicUsize::new(0) }; 50], AtomicUsize::new(0));
                pool.team_on(50, |team, item| {
                    let before = |i: &AtomicUsize| i.load(Ordering::Relaxed) == 100;
                    assert!(sums[..item].iter().all(before));
                    assert!(sums[item + 1..].iter().all(|s| s.load(Ordering::Relaxed) == 0));
                    team.chunks(100, 7, |range| {
                        sums[item].fetch_add(range.len(), Ordering::Relaxed);
                        if round % 20 == 0 {
                            std::thread::sleep(std::time::Duration::from_micros(20));
                        }
                    });
                    seen.fetch_max(team.threads(), Ordering::Relaxed);
                    ControlFlow::Continue(())
                });
                assert!(sums.iter().all(|s| s.load(Ordering::Relaxed) == 100));
                most = most.max(seen.into_inner());
                if round % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            }
            assert_eq!(most, pool.threads());
        }
    }

    /// A member that is late over and over is sent away in the middle of a job, and asked again after a pause.
    #[test]
    fn who_is_late_goes_and_comes_back() {
        let (pool, items) = (Pool::new(2), 400);
        let run = |late: bool| {
            let sums: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            let most = AtomicUsize::new(0);
            let last = AtomicUsize::new(0);
            pool.team_on(items, |team, item| {
                if late && team.index() > 0 {
                    std::thread::sleep(std::time::Duration::from_millis(4));
                }
                team.chunks(100, 7, |range| {
                    sums[item].fetch_add(range.len(), Ordering::Relaxed);
                });
                most.fetch_max(team.threads(), Ordering::Relaxed);
                last.store(team.threads(), Ordering::Relaxed);
                // Time to arrive.
                if item == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                ControlFlow::Continue(())
            });
            assert!(sums.iter().all(|s| s.load(Ordering::Relaxed) == 100));
            (most.into_inner(), last.into_inner())
        };
        let start = std::time::Instant::now();
        let until = |late: bool, wanted: (usize, usize)| {
            while run(late) != wanted {
                assert!(start.elapsed().as_secs() < 60);
            }
        };
        until(false, (2, 2));
        until(true, (2, 1));
        until(false, (2, 2));
    }

    /// As [`items_in_order_with_who_is_there`], on teams that get smaller and larger by themselves.
    #[test]
    fn all_is_done_once_whoever_goes() {
        for pool in [2, 3, 8].map(Pool::new) {
            for round in 0..100 {
                let sums = [const { AtomicUsize::new(0) }; 50];
                pool.team_on(50, |team, item| {
                    assert!(sums[..item].iter().all(|s| s.load(Ordering::Relaxed) == 100));
                    team.shares(100, 3, &[4, 7, 8], |range| {
                        if (item + team.index() + round).is_multiple_of(7) {
                            std::thread::sleep(std::time::Duration::from_micros(300));
                        }
                        sums[item].fetch_add(range.len(), Ordering::Relaxed);
                    });
                    ControlFlow::Continue(())
                });
                assert!(sums.iter().all(|s| s.load(Ordering::Relaxed) == 100));
            }
        }
    }

    #[test]
    fn a_break_ends_it_for_all() {
        for pool in pools() {
            for stop in 0..20 {
                let last = AtomicUsize::new(0);
                pool.team_on(20, |team, item| {
                    last.fetch_max(item, Ordering::Relaxed);
                    team.meet();
                    if item == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert_eq!(last.into_inner(), stop);
            }
        }
    }

    #[test]
    fn a_team_within_a_job_is_alone() {
        let pool = Pool::new(3);
        pool.run(|_| pool.team(|team| assert_eq!((team.index(), team.threads()), (0, 1))));
        pool.team(|_| pool.team(|team| assert_eq!(team.threads(), 1)));
    }
}
