//! Penalties for tokens that occurred lately: repetition (Keskar et al. 2019), frequency and presence.

use super::candidates::Candidates;
use super::config::SamplerConfig;
use super::history::Tally;

/// Whether a penalty is on.
pub(super) fn are_on(c: &SamplerConfig) -> bool {
    let changes = c.repeat_penalty != 1.0 || c.frequency_penalty != 0.0 || c.presence_penalty != 0.0;
    changes && c.repeat_last_n > 0
}

/// Makes the tokens in `recent` less likely.
pub(super) fn apply(c: &SamplerConfig, recent: &[u32], counts: &mut Tally, candidates: &mut Candidates) {
    counts.reset(candidates.len());
    recent.iter().for_each(|&id| counts.update(id, |n| n + 1));
    for (id, count) in counts.iter() {
        candidates.change(id, |logit| {
            let scaled = if logit > 0.0 { logit / c.repeat_penalty } else { logit * c.repeat_penalty };
            scaled - (count as f32 * c.frequency_penalty + c.presence_penalty)
        });
    }
}
