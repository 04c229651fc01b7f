//! What 32 activations add to a product where weights are stored with an offset.

/// Sums of 32 signed bytes. A pair of sums is two i16 in a word: of the bytes 0 and 1 of each four, and of 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// -8 and -16 times the pair of sums, then -32 times those over the first half and over the second.
    pub starts: [i32; 4],
    /// The sum over the first half and over the second, two i16.
    pub halves: i32,
    /// The sum.
    pub total: i32,
}

impl Sums {
    /// Makes them of the pairs of sums over the first half and over the second. At most `16 * 16 * 127` in magnitude, a sum
    /// times its factor fits i16.
    pub(super) fn of([low, high]: [[i32; 2]; 2]) -> Self {
        let total = [low[0] + high[0], low[1] + high[1]];
        let halves = [low[0] + low[1], high[0] + high[1]];
        Sums {
            starts: [pair(total, -8), pair(total, -16), pair(low, -32), pair(high, -32)],
            halves: pair(halves, 1),
            total: total[0] + total[1],
        }
    }
}

/// `factor` times a pair of sums, as one word.
fn pair(sums: [i32; 2], factor: i32) -> i32 {
    (sums[0] * factor) & 0xffff | (sums[1] * factor) << 16
}
