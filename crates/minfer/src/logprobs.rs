//! Log-probabilities from logits.

/// The log-softmax of a row of logits, in f64.
pub struct LogProbs<'a> {
    logits: &'a [f32],
    max: f64,
    /// Of the exponentials relative to the largest logit.
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Normalises a row.
    pub fn new(logits: &'a [f32]) -> Self {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        LogProbs { logits, max, log_sum: sum.ln() }
    }

    /// Log-probability of a token.
    pub fn of(&self, id: u32) -> f64 {
        (f64::from(self.logits[id as usize]) - self.max) - self.log_sum
    }
}

/// Ids and log-probabilities of the `k` best tokens, best first; equal ones by id.
pub fn top_k(logits: &[f32], k: usize) -> Vec<(u32, f64)> {
    let k = k.min(logits.len());
    if k == 0 {
        return Vec::new();
    }
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.select_nth_unstable_by(k - 1, order);
    ids.truncate(k);
    ids.sort_unstable_by(order);
    let normalised = LogProbs::new(logits);
    ids.into_iter().map(|id| (id, normalised.of(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_are_sorted() {
        let logits = [0.5, 9.0, -3.0, 9.0, 2.0];
        let all = top_k(&logits, 5);
        assert_eq!(all.iter().map(|x| x.0).collect::<Vec<_>>(), [1, 3, 4, 0, 2]);
        assert!((all.iter().map(|x| x.1.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(top_k(&logits, 2), all[..2]);
        assert_eq!(top_k(&logits, 99).len(), 5);
        assert!(top_k(&logits, 0).is_empty());
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert!((LogProbs::new(&[1e30, 1e30]).of(0) + 2f64.ln()).abs() < 1e-9);
    }
}
