//! Filters: each removes tokens from the draw and leaves one at least. They work on the probabilities at
//! temperature 1 of what the filters before them have left.

use super::candidates::{Candidates, FEW};

/// Keeps the logits within n standard deviations below the best (Tang et al. 2024).
pub(super) fn top_n_sigma(n: f32, candidates: &mut Candidates) {
    let Some(best) = candidates.best() else { return };
    let deviation = candidates.deviation();
    candidates.keep_from((f64::from(best.logit) - f64::from(n) * deviation) as f32);
}

/// Locally typical sampling (Meister et al. 2022): the smallest set of tokens with a probability of at least `p`,
/// taken in the order of how near the surprise of a token is to the entropy.
pub(super) fn typical(p: f32, candidates: &mut Candidates) {
    let Some(best) = candidates.best() else { return };
    let below = |logit: f32| f64::from(logit) - f64::from(best.logit);
    let (total, weighted) = candidates.logits().fold((0.0, 0.0), |(total, weighted), logit| {
        let weight = below(logit).exp();
        (total + weight, weighted + weight * below(logit))
    });
    let entropy = total.ln() - weighted / total;
    candidates.keep_lowest(
        |logit| (total.ln() - below(logit) - entropy).abs() as f32,
        |logit| below(logit).exp() / total,
        f64::from(p),
    );
}

/// Keeps the smallest set of best tokens whose probability reaches `top_p` (Holtzman et al. 2020), and of them
/// those at least `min_p` times as probable as the best (Nguyen et al. 2024).
pub(super) fn top_p_min_p(top_p: f32, min_p: f32, candidates: &mut Candidates) {
    let Some(best) = candidates.best() else { return };
    // A top-p of 1 keeps all, whatever the sum rounds to.
    let enough = if top_p < 1.0 { f64::from(top_p) * candidates.mass() } else { f64::INFINITY };
    let (mut kept, mut mass) = (0, 0.0);
    // A few tokens mostly do, so only as many are put in order as turn out to be needed.
    let mut sorted = FEW;
    'all: loop {
        for c in &candidates.head(sorted)[kept..] {
            let weight = (c.logit - best.logit).exp();
            if kept > 0 && (mass >= enough || weight < min_p) {
                break 'all;
            }
            mass += f64::from(weight);
            kept += 1;
        }
        if kept == candidates.len() {
            break;
        }
        sorted = kept * 8;
    }
    candidates.keep_head(kept);
}

/// Excludes the top choices: of the tokens with a probability of at least `threshold` all but the least probable.
pub(super) fn exclude_top(threshold: f32, candidates: &mut Candidates) {
    candidates.sorted();
    let (weights, total) = candidates.weigh(1.0);
    let above = weights.iter().take_while(|&&w| w / total >= threshold).count();
    candidates.skip(above.saturating_sub(1));
}
