//! The packed scales of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes.
//!
//! | byte         | bits 0..4       | bits 4..6       | bits 6..8              |
//! |--------------|-----------------|-----------------|------------------------|
//! | 0..4  (`j`)  | scale `j`       | scale `j`       | scale `j + 4`, bits 4..6 |
//! | 4..8  (`j`)  | minimum `j`     | minimum `j`     | minimum `j + 4`, bits 4..6 |
//! | 8..12 (`j`)  | scale `j + 4`, bits 0..4 | minimum `j + 4`, bits 0..4 | (bits 4..8 are the minimum's) |

/// Unpacks the scales and the minima of a block's eight groups, each below 64.
pub const fn k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    let mut j = 0;
    while j < 4 {
        let (s, m, low) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = s & 63;
        minima[j] = m & 63;
        scales[j + 4] = low & 15 | s >> 6 << 4;
        minima[j + 4] = low >> 4 | m >> 6 << 4;
        j += 1;
    }
    (scales, minima)
}

/// The inverse of [`k_scales`]; only the low six bits of each number are kept.
pub const fn pack_k_scales(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    let mut j = 0;
    while j < 4 {
        packed[j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        packed[j + 4] = minima[j] & 63 | minima[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | minima[j + 4] << 4;
        j += 1;
    }
    packed
}

/// A block of 256 elements in `G` groups, rounded to nearest: the header's numbers and a level per element.
pub(super) struct Groups<const G: usize> {
    /// Scale of the scales.
    pub(super) d: f32,
    /// Scale of the minima.
    pub(super) dmin: f32,
    /// A scale per group.
    pub(super) scales: [u8; G],
    /// A minimum per group.
    pub(super) minima: [u8; G],
    /// `x[i] ≈ d * scale * levels[i] - dmin * minimum`.
    pub(super) levels: [u8; 256],
}

/// Quantises 256 elements in `G` groups with levels `0..=top` and scales and minima `0..=limit`.
pub(super) fn quantise_groups<const G: usize>(x: &[f32; 256], top: u8, limit: u8) -> Groups<G> {
    let len = 256 / G;
    let (top, limit) = (f32::from(top), f32::from(limit));
    // A minimum is stored as a non-negative number to subtract, so a group of positive elements starts at zero.
    let ranges: [(f32, f32); G] = std::array::from_fn(|g| {
        let (lo, hi) = super::range(&x[g * len..][..len]);
        (lo.min(0.0), hi.max(0.0))
    });
    let steps = ranges.map(|(lo, hi)| (hi - lo) / top);
    let half = |v: f32| half::f16::from_f32(v).to_f32();
    let d = half(steps.iter().fold(0.0, |a, &b| f32::max(a, b)) / limit);
    let dmin = half(ranges.iter().fold(0.0, |a, &(lo, _)| f32::max(a, -lo)) / limit);
    let whole = |v: f32| v.round().clamp(0.0, limit) as u8;
    let scales = steps.map(|step| whole(step * super::inverse(d)));
    let minima = ranges.map(|(lo, _)| whole(-lo * super::inverse(dmin)));
    let levels = std::array::from_fn(|i| {
        let g = i / len;
        let (step, minimum) = (d * f32::from(scales[g]), dmin * f32::from(minima[g]));
        ((x[i] + minimum) * super::inverse(step)).round().clamp(0.0, top) as u8
    });
    Groups { d, dmin, scales, minima, levels }
}
