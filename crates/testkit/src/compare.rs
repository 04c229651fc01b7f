//! Error measures between an expected and an actual row of numbers, and reports for people.

use std::fmt;

/// Normalised squared error: `sum((a - e)^2) / sum(e^2)`.
///
/// Infinite when the lengths differ, or where one side is not finite and the other is not the very
/// same (NaN matches NaN). Two rows of zeros have no error.
pub fn nmse<E: Copy + Into<f64>, A: Copy + Into<f64>>(expected: &[E], actual: &[A]) -> f64 {
    if expected.len() != actual.len() {
        return f64::INFINITY;
    }
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (&e, &a) in expected.iter().zip(actual) {
        let (e, a): (f64, f64) = (e.into(), a.into());
        if e.is_finite() && a.is_finite() {
            error += (a - e) * (a - e);
            norm += e * e;
        } else if !(e == a || e.is_nan() && a.is_nan()) {
            return f64::INFINITY;
        }
    }
    if error == 0.0 { 0.0 } else { error / norm }
}

/// NMSE of log-probabilities `[rows, cols]` after the mean of each row is removed on both sides, so
/// that a common shift of a row (which softmax does not see) neither hides nor makes an error.
pub fn centred_nmse<E: Copy + Into<f64>, A: Copy + Into<f64>>(
    expected: &[E],
    actual: &[A],
    cols: usize,
) -> f64 {
    nmse(&centred(expected, cols), &centred(actual, cols))
}

fn centred<T: Copy + Into<f64>>(rows: &[T], cols: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows.len());
    for row in rows.chunks(cols.max(1)) {
        let mean = row.iter().map(|&v| v.into()).sum::<f64>() / row.len() as f64;
        out.extend(row.iter().map(|&v| v.into() - mean));
    }
    out
}

/// Log-softmax of one row of logits, in f64.
pub fn log_softmax<T: Copy + Into<f64>>(logits: &[T]) -> Vec<f64> {
    let max = logits.iter().map(|&v| v.into()).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|&v| (v.into() - max).exp()).sum();
    logits.iter().map(|&v| v.into() - max - sum.ln()).collect()
}

/// Steps between two floats on the number line; `u32::MAX` if exactly one of them is NaN.
/// Both zeros are one place, and so are all NaNs.
pub fn ulp(a: f32, b: f32) -> u32 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() && b.is_nan() { 0 } else { u32::MAX };
    }
    // Magnitude bits grow with the number, so that the sign turns them into places on a line.
    let place = |v: f32| {
        let magnitude = i64::from(v.to_bits() & 0x7fff_ffff);
        if v.is_sign_negative() { -magnitude } else { magnitude }
    };
    u32::try_from((place(a) - place(b)).unsigned_abs()).unwrap_or(u32::MAX)
}

/// How two rows of numbers differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// Numbers expected.
    pub expected_len: usize,
    /// Numbers found.
    pub actual_len: usize,
    /// [`nmse`].
    pub nmse: f64,
    /// Positions whose bits differ.
    pub different: usize,
    /// Largest distance in [`ulp`].
    pub max_ulp: u32,
    /// The position with the largest absolute error, with what was expected and found there. A NaN
    /// on one side counts as the largest error.
    pub worst: Option<(usize, f32, f32)>,
}

impl Diff {
    /// Compares.
    pub fn new(expected: &[f32], actual: &[f32]) -> Self {
        let pairs = || expected.iter().copied().zip(actual.iter().copied());
        let size = |e: f32, a: f32| match ulp(e, a) {
            0 => 0.0,
            _ if e.is_nan() || a.is_nan() => f64::INFINITY,
            _ => (f64::from(a) - f64::from(e)).abs(),
        };
        let worst = pairs()
            .enumerate()
            .filter(|&(_, (e, a))| e.to_bits() != a.to_bits())
            .max_by(|x, y| size(x.1.0, x.1.1).total_cmp(&size(y.1.0, y.1.1)))
            .map(|(i, (e, a))| (i, e, a));
        Diff {
            expected_len: expected.len(),
            actual_len: actual.len(),
            nmse: nmse(expected, actual),
            different: pairs().filter(|(e, a)| e.to_bits() != a.to_bits()).count(),
            max_ulp: pairs().map(|(e, a)| ulp(e, a)).max().unwrap_or(0),
            worst,
        }
    }

    /// Whether every bit is the same; NaNs match whatever their payload, zeros only with their sign.
    pub fn same_bits(&self) -> bool {
        self.expected_len == self.actual_len && self.max_ulp == 0 && self.nmse == 0.0
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expected_len != self.actual_len {
            return write!(f, "{} values, expected {}", self.actual_len, self.expected_len);
        }
        write!(f, "NMSE {:.3e}, {} of {} differ", self.nmse, self.different, self.expected_len)?;
        if let Some((i, e, a)) = self.worst {
            write!(f, ", up to {} ulp, worst at {i}: {a:?} for {e:?}", self.max_ulp)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures() {
        assert_eq!(nmse(&[3.0f32, 4.0], &[3.0f32, 4.5]), 0.01);
        assert_eq!(nmse(&[1.0f32], &[1.0f32, 2.0]), f64::INFINITY);
        assert_eq!(nmse(&[f32::NAN, 1.0], &[f32::NAN, 1.0]), 0.0);
        assert_eq!(nmse(&[1.0f32], &[f32::NAN]), f64::INFINITY);
        assert_eq!(nmse(&[f32::INFINITY], &[f32::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(nmse(&[0.0f32], &[0.1f32]), f64::INFINITY);
        assert_eq!(centred_nmse(&[1.0f32, 2.0], &[11.0f32, 12.0], 2), 0.0);
    }

    #[test]
    fn ulps() {
        assert_eq!(ulp(1.0, 1.0 + f32::EPSILON), 1);
        assert_eq!(ulp(-0.0, 0.0), 0);
        assert_eq!(ulp(-f32::from_bits(1), f32::from_bits(1)), 2);
        assert_eq!(ulp(f32::NAN, 0.0), u32::MAX);
    }

    #[test]
    fn report() {
        let diff = Diff::new(&[1.0, 2.0, 3.0], &[1.0, 2.5, f32::NAN]);
        assert_eq!(diff.worst.map(|w| w.0), Some(2));
        assert_eq!(diff.different, 2);
        assert!(!diff.same_bits());
        assert!(Diff::new(&[1.0, f32::NAN], &[1.0, f32::NAN]).same_bits());
    }

    #[test]
    fn log_softmax_sums_to_one() {
        let p: f64 = log_softmax(&[1000.0f32, 1001.0, 999.0]).iter().map(|v| v.exp()).sum();
        assert!((p - 1.0).abs() < 1e-12);
    }
}
