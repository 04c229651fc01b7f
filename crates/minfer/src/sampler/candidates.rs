//! The tokens that are still in the draw.

use std::cmp::Ordering;

/// A token and its logit as changed so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// What a draw chose.
pub(super) struct Drawn {
    pub(super) id: u32,
    /// Its weight, 1 for the best token.
    pub(super) weight: f32,
    /// Sum of the weights of all that were in the draw.
    pub(super) total: f32,
}

/// Candidates with the buffers that the steps share, so that a step allocates nothing once they have grown.
///
/// Until the first of them is removed, candidate `i` is token `i`.
#[derive(Default)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    /// Best first?
    sorted: bool,
    banned: usize,
    weights: Vec<f32>,
    ranked: Vec<(f32, Candidate)>,
}

/// How many candidates are put in order at first where it is not known how many are needed.
pub(super) const FEW: usize = 256;

/// Best first; equal logits by id. No logit is NaN, so the order is total; and the two zeros are equal.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Logits that are compared at once.
const BLOCK: usize = 64;

/// How many candidates gather before the k best of them are chosen.
fn room(k: usize) -> usize {
    k.saturating_mul(4).max(256)
}

impl Candidates {
    /// All tokens with finite logits.
    pub(super) fn load(&mut self, logits: &[f32]) {
        self.list.clear();
        let all = logits.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit });
        self.list.extend(all);
        (self.sorted, self.banned) = (false, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Changes the logit of a token, only as long as all tokens are candidates. Bans stay, ids outside the
    /// vocabulary are passed over, and results stay within what an f32 can hold.
    pub(super) fn change(&mut self, id: u32, change: impl FnOnce(f32) -> f32) {
        let Some(candidate) = self.list.get_mut(id as usize) else { return };
        if candidate.logit != f32::NEG_INFINITY {
            candidate.logit = change(candidate.logit).clamp(f32::MIN, f32::MAX);
        }
    }

    /// Takes a token out of the draw, only as long as all tokens are candidates.
    pub(super) fn ban(&mut self, id: u32) {
        let logit = &mut self.list[id as usize].logit;
        self.banned += usize::from(*logit != f32::NEG_INFINITY);
        *logit = f32::NEG_INFINITY;
    }

    pub(super) fn all_banned(&self) -> bool {
        self.banned == self.list.len()
    }

    /// Removes what was banned.
    pub(super) fn drop_banned(&mut self) {
        if self.banned > 0 {
            self.list.retain(|c| c.logit != f32::NEG_INFINITY);
        }
    }

    /// The best one; of equal ones that with the lowest id.
    pub(super) fn best(&self) -> Option<Candidate> {
        let better = |best: Candidate, c: &Candidate| if c.logit > best.logit { *c } else { best };
        match self.list.split_first() {
            Some((first, rest)) if !self.sorted => Some(rest.iter().fold(*first, better)),
            first => first.map(|(first, _)| *first),
        }
    }

    /// The logits, in whatever order the candidates are.
    pub(super) fn logits(&self) -> impl Iterator<Item = f32> {
        self.list.iter().map(|c| c.logit)
    }

    /// Standard deviation of the logits.
    pub(super) fn deviation(&self) -> f64 {
        let n = self.list.len().max(1) as f64;
        let mean = self.list.iter().map(|c| f64::from(c.logit)).sum::<f64>() / n;
        let square = |c: &Candidate| (f64::from(c.logit) - mean).powi(2);
        (self.list.iter().map(square).sum::<f64>() / n).sqrt()
    }

    /// The candidates best first.
    pub(super) fn sorted(&mut self) -> &[Candidate] {
        if !self.sorted {
            self.list.sort_unstable_by(best_first);
            self.sorted = true;
        }
        &self.list
    }

    /// The n best in order, all others behind them.
    pub(super) fn head(&mut self, n: usize) -> &[Candidate] {
        if n == 0 || n >= self.list.len() {
            return self.sorted();
        }
        if !self.sorted {
            self.list.select_nth_unstable_by(n - 1, best_first);
            self.list[..n].sort_unstable_by(best_first);
        }
        &self.list[..n]
    }

    /// The `k` best tokens, as [`Candidates::load`] and then [`Candidates::keep_best`] would leave them, without a list of all.
    pub(super) fn load_best(&mut self, logits: &[f32], k: usize) {
        if k >= logits.len() {
            return self.load(logits);
        }
        self.list.clear();
        (self.sorted, self.banned) = (false, 0);
        let room = room(k);
        let mut least = f32::NEG_INFINITY;
        // Few logits pass once some are there, so blocks without any are left out with one comparison each.
        for (b, block) in logits.chunks(BLOCK).enumerate() {
            if !block.iter().fold(false, |any, &x| any | (x >= least)) {
                continue;
            }
            for (i, &logit) in block.iter().enumerate() {
                if logit < least {
                    continue;
                }
                self.list.push(Candidate { id: (b * BLOCK + i) as u32, logit });
                if self.list.len() == room {
                    self.list.select_nth_unstable_by(k - 1, best_first);
                    self.list.truncate(k);
                    least = self.list[k - 1].logit;
                }
            }
        }
        self.cut_to(k);
    }

    /// Keeps the k best. One pass: those that can still be among them gather at the front, and whenever they are
    /// many the k best of them are chosen. Nothing larger than that is ever sorted.
    pub(super) fn keep_best(&mut self, k: usize) {
        let n = self.list.len();
        if self.sorted || k >= n {
            return self.list.truncate(k);
        }
        let room = room(k);
        let (mut kept, mut least) = (0, f32::NEG_INFINITY);
        for i in 0..n {
            let candidate = self.list[i];
            if candidate.logit < least {
                continue;
            }
            self.list[kept] = candidate;
            kept += 1;
            if kept == room {
                self.list[..kept].select_nth_unstable_by(k - 1, best_first);
                (kept, least) = (k, self.list[k - 1].logit);
            }
        }
        self.list.truncate(kept);
        self.cut_to(k);
    }

    /// The k best of those that are left, in no order.
    fn cut_to(&mut self, k: usize) {
        if k < self.list.len() {
            self.list.select_nth_unstable_by(k - 1, best_first);
            self.list.truncate(k);
        }
    }

    /// Keeps those with at least this logit.
    pub(super) fn keep_from(&mut self, least: f32) {
        self.list.retain(|c| c.logit >= least);
    }

    /// Keeps the first `n` of a [`head`](Self::head) at least that long.
    pub(super) fn keep_head(&mut self, n: usize) {
        self.list.truncate(n);
        self.sorted = true;
    }

    /// Removes the first `n` of the sorted candidates.
    pub(super) fn skip(&mut self, n: usize) {
        self.list.drain(..n);
    }

    /// Keeps those with at least this weight.
    pub(super) fn keep_weights_from(&mut self, least: f32) {
        let mut weights = self.weights.iter();
        self.list.retain(|_| weights.next().is_some_and(|&w| w >= least));
    }

    /// Reorders by a key of logit, lowest first, equal keys best first, and keeps the shortest beginning whose
    /// weights reach `mass`; one candidate at least.
    pub(super) fn keep_lowest(&mut self, key: impl Fn(f32) -> f32, weight: impl Fn(f32) -> f64, mass: f64) {
        self.ranked.clear();
        self.ranked.extend(self.list.iter().map(|c| (key(c.logit), *c)));
        let order = |a: &(f32, Candidate), b: &(f32, Candidate)| {
            a.0.total_cmp(&b.0).then_with(|| best_first(&a.1, &b.1))
        };
        self.list.clear();
        let (mut sum, mut sorted) = (0.0, FEW);
        // A few mostly do, so only as many are put in order as turn out to be needed.
        while self.list.len() < self.ranked.len() {
            if sorted < self.ranked.len() {
                self.ranked.select_nth_unstable_by(sorted - 1, order);
            }
            let end = sorted.min(self.ranked.len());
            self.ranked[..end].sort_unstable_by(order);
            for (_, candidate) in &self.ranked[self.list.len()..end] {
                self.list.push(*candidate);
                sum += weight(candidate.logit);
                if sum >= mass {
                    self.sorted = false;
                    return;
                }
            }
            sorted = end.saturating_mul(8);
        }
        self.sorted = false;
    }

    /// Unnormalised probabilities, 1 for the best, in the order of the candidates; and their sum.
    pub(super) fn weigh(&mut self, temperature: f32) -> (&[f32], f32) {
        let best = self.best().map_or(0.0, |c| c.logit);
        self.weights.clear();
        self.weights.extend(self.list.iter().map(|c| ((c.logit - best) / temperature).exp()));
        let total = self.weights.iter().sum();
        (&self.weights, total)
    }

    /// Sum of the unnormalised probabilities at temperature 1, in whatever order the candidates are.
    pub(super) fn mass(&self) -> f64 {
        let best = self.best().map_or(0.0, |c| c.logit);
        self.list.iter().map(|c| f64::from((c.logit - best).exp())).sum()
    }

    /// The candidate at `unit` (0 to 1) of the probability; `None` if there is none.
    pub(super) fn draw(&mut self, temperature: f32, unit: f32) -> Option<Drawn> {
        let (weights, total) = self.weigh(temperature);
        let target = unit * total;
        let mut below = 0.0;
        // Rounding may leave the target at the very end: then the last candidate of any weight is the one.
        let mut chosen = weights.iter().rposition(|&w| w > 0.0)?;
        for (i, &w) in weights.iter().enumerate() {
            below += w;
            if target < below {
                chosen = i;
                break;
            }
        }
        Some(Drawn { id: self.list[chosen].id, weight: self.weights[chosen], total })
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Candidate] {
        &self.list
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<u32> {
        self.list.iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_loaded_as_they_would_be_kept() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 40
        };
        for n in [1, 63, 64, 65, 300, 5000] {
            for k in [1, 2, 40, 64, 100, 4999, 6000] {
                // Many are equal, and some are both zeros.
                let logits: Vec<f32> =
                    (0..n).map(|_| (next() % 97) as f32 * if next() % 2 == 0 { 0.5 } else { -0.5 }).collect();
                let (mut a, mut b) = (Candidates::default(), Candidates::default());
                a.load(&logits);
                a.keep_best(k);
                b.load_best(&logits, k);
                b.keep_best(k);
                assert_eq!(a.all(), b.all(), "{n} {k}");
            }
        }
    }
}
