//! The temperature of a draw.

use super::candidates::Candidates;

/// The lowest that the entropy leads to; below it an f32 knows only the best token anyway.
const LOWEST: f32 = 1e-6;

/// Dynamic temperature: from `temperature - range` for a certain token to `temperature + range` for tokens that are
/// all alike, by the entropy as a fraction of the greatest possible, to the power of `exponent`.
pub(super) fn dynamic(temperature: f32, range: f32, exponent: f32, candidates: &mut Candidates) -> f32 {
    if range == 0.0 || candidates.len() < 2 {
        return temperature;
    }
    let greatest = (candidates.len() as f32).ln();
    let (weights, total) = candidates.weigh(1.0);
    let part = |&w: &f32| if w > 0.0 { -(w / total) * (w / total).ln() } else { 0.0 };
    let entropy: f32 = weights.iter().map(part).sum();
    let low = (temperature - range).max(0.0);
    let share = (entropy / greatest).clamp(0.0, 1.0).powf(exponent);
    (low + (temperature + range - low) * share).max(LOWEST)
}
