//! How many threads work while others want the processors too.
//!
//! A team goes at the pace of its slowest member. One that the system has taken off its processor keeps all others waiting
//! for milliseconds, over and over; they get further without it. So long waits are added up, and where they take too
//! large a share of the time the team goes on with a member less. After a pause it tries again with one more: pauses
//! grow from failure to failure. Nothing here changes a result, only who computes it.

use std::time::{Duration, Instant};

/// Waits below this are the work's own: shares of different length, a cache miss.
pub(crate) const LONG: Duration = Duration::from_micros(50);
/// A team may lose one in so many parts of its time.
const SHARE: u32 = 4;
/// How much more than its share it loses before it gets smaller: some turns of another process, so that a single one
/// changes nothing.
const LIMIT: Duration = Duration::from_millis(10);
/// The first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// What has been lost, and what follows from it.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Members the team may have, the first included.
    most: usize,
    size: usize,
    /// [`LIMIT`], but for tests.
    limit: Duration,
    /// Time lost beyond what may be, up to `seen`.
    lost: Duration,
    seen: Instant,
    /// When the size changed last, and whether it grew.
    changed: Instant,
    grew: bool,
    pause: Duration,
}

impl Patience {
    /// All of `most` members.
    pub fn new(most: usize, now: Instant) -> Self {
        let [pause, _] = PAUSES;
        let lost = Duration::ZERO;
        Patience { most, size: most, limit: LIMIT, lost, seen: now, changed: now, grew: false, pause }
    }

    /// Dismisses nobody from now on.
    #[cfg(test)]
    pub fn endless(&mut self) {
        self.limit = Duration::MAX;
    }

    /// Members now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Before a job: the members it may have. There is one more than before when the pause is over.
    pub fn begin(&mut self, now: Instant) -> usize {
        if self.size < self.most && now.saturating_duration_since(self.changed) >= self.pause {
            if self.grew {
                // The last one that came is still there.
                self.pause = (self.pause / 2).max(PAUSES[0]);
            }
            self.change(self.size + 1, now);
        }
        self.size
    }

    /// A member of a team of `present` has waited for another one, until now. Whether the team is to go on with a member
    /// less than it has.
    pub fn waited(&mut self, now: Instant, wait: Duration, present: usize) -> bool {
        // Of those that may be members some may not have come; nobody waits for them, and sending them away helps nobody.
        let present = present.min(self.size);
        // All others wait for the one that is late, and all of them say so.
        let others = u32::try_from(present.saturating_sub(1)).unwrap_or(u32::MAX);
        if others == 0 {
            return false;
        }
        let since = now.saturating_duration_since(self.changed);
        let allowed = now.saturating_duration_since(self.seen) / SHARE;
        self.lost = self.lost.saturating_sub(allowed) + wait.min(since) / others;
        self.seen = now;
        if self.lost < self.limit {
            return false;
        }
        let [shortest, longest] = PAUSES;
        let failed = self.grew && since < 2 * self.pause;
        self.pause = if failed { (2 * self.pause).min(longest) } else { shortest };
        self.change(present - 1, now);
        true
    }

    fn change(&mut self, size: usize, now: Instant) {
        self.grew = size > self.size;
        (self.size, self.changed, self.seen, self.lost) = (size, now, now, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, PAUSES, Patience};
    use std::time::{Duration, Instant};

    const MS: Duration = Duration::from_millis(1);

    /// A clock that the test sets, and what it is about.
    fn team(of: usize) -> (Instant, Patience) {
        let start = Instant::now();
        (start, Patience::new(of, start))
    }

    #[test]
    fn short_and_rare_waits_change_nothing() {
        let (start, mut team) = team(2);
        for ms in 1..10_000 {
            // A fifth of the time.
            assert!(!team.waited(start + ms * MS, MS / 5, 2), "{ms}");
        }
        for second in 20..30 {
            assert!(!team.waited(start + 1000 * second * MS, LIMIT * 9 / 10, 2));
        }
        assert_eq!(team.begin(start + 40_000 * MS), 2);
    }

    #[test]
    fn one_long_wait_or_many_dismiss_a_member() {
        let (start, mut alone) = team(2);
        assert!(alone.waited(start + 20 * MS, LIMIT, 2));
        assert_eq!(alone.size(), 1);
        // Nobody is left to wait for.
        assert!(!alone.waited(start + 90 * MS, 20 * MS, 1));
        let (start, mut many) = team(2);
        let first = (1..100).find(|&ms| many.waited(start + ms * MS, MS / 2, 2));
        assert!(first.is_some_and(|ms| (20..60).contains(&ms)), "{first:?}");
    }

    #[test]
    fn pauses_grow_while_trials_fail_and_shrink_when_they_hold() {
        let (start, mut team) = team(2);
        let (mut now, mut pauses) = (start + 15 * MS, Vec::new());
        for _ in 0..9 {
            assert!(team.waited(now, LIMIT, 2));
            let begun = now;
            while team.begin(now) == 1 {
                now += MS;
            }
            pauses.push((now - begun).as_millis());
            now += 12 * MS;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 200, 200, 200, 200, 200]);
        // The machine is quiet for long, then busy again.
        now += 5 * PAUSES[1];
        assert!(team.waited(now, LIMIT, 2));
        assert_eq!((team.begin(now + 19 * MS), team.begin(now + 20 * MS)), (1, 2));
    }

    #[test]
    fn larger_teams_lose_and_gain_one_at_a_time() {
        let (start, mut team) = team(8);
        let mut now = start + 100 * MS;
        // Seven wait for one that is late, and it counts once.
        assert_eq!((0..7).filter(|_| team.waited(now, 12 * MS, 8)).count(), 1);
        assert_eq!(team.size(), 7);
        now += 20 * MS;
        assert!((0..6).filter(|_| team.waited(now, 15 * MS, 7)).count() == 1);
        assert_eq!(team.size(), 6);
        let mut sizes = Vec::new();
        for _ in 0..5 {
            now += PAUSES[0];
            sizes.push(team.begin(now));
        }
        assert_eq!(sizes, [7, 8, 8, 8, 8]);
    }

    /// Five of eight never came: what the two others lose counts as much as in a team of three, and then one goes.
    #[test]
    fn who_never_came_is_not_counted() {
        let (start, mut few) = team(8);
        let (_, mut three) = team(3);
        let lost = |team: &mut Patience, ms: u32| (0..2).any(|_| team.waited(start + ms * MS, MS / 2, 3));
        let first = (1..200).find(|&ms| lost(&mut few, ms));
        assert!(first.is_some() && first == (1..200).find(|&ms| lost(&mut three, ms)), "{first:?}");
        assert_eq!((few.size(), three.size()), (2, 2));
        assert_eq!(few.begin(start + 1000 * MS), 3);
    }
}
