//! How fast the threads read memory together: the ceiling of decode, which reads every weight once per token.

use super::{LEAST_BYTES, MOST_BYTES, median_seconds};
use crate::dispatch;
use crate::matmul::Region;
use crate::memory::memory_info;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd};
use minfer_graph::BackendError;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};

/// Places of a thread's part that are read in turn. One stream waits for its own misses; four keep the processor's miss
/// buffers full, and more gain nothing.
const STREAMS: usize = 4;
/// What a thread reads of one stream before it turns to the next.
const STEP: usize = 256;
/// Bytes of a probe: so many times a last-level cache that what stays there does not count.
const PROBE_BYTES: usize = 512 << 20;
/// Part of the free memory that a probe takes at most.
const PART_OF_FREE: u64 = 4;

/// Bytes per second that the threads together read from memory, doing next to nothing with them, over and over from
/// a region of `bytes` (at most 128 MiB); takes a fraction of a second.
///
/// # Errors
/// No memory.
pub fn read_rate(isa: Isa, pool: &Pool, bytes: usize) -> Result<f64, BackendError> {
    ReadProbe::of(bytes.clamp(LEAST_BYTES, MOST_BYTES))?.measure(isa, pool)
}

/// Memory to read from, much larger than the caches, on huge pages where the system has them.
pub struct ReadProbe {
    region: Region,
}

impl ReadProbe {
    /// 512 MiB, less where less than four times as much is free.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<ReadProbe, BackendError> {
        let free = memory_info().free.map_or(u64::MAX, |free| free / PART_OF_FREE);
        ReadProbe::of(PROBE_BYTES.min(usize::try_from(free).unwrap_or(usize::MAX)).max(LEAST_BYTES))
    }

    fn of(bytes: usize) -> Result<ReadProbe, BackendError> {
        let mut region = Region::new(bytes)?;
        // Memory that was never written is one page of zeros, however often.
        region.bytes_mut().fill(1);
        Ok(ReadProbe { region })
    }

    /// Bytes per second that the threads read together: the median of a fraction of a second.
    ///
    /// # Errors
    /// None so far.
    pub fn measure(&self, isa: Isa, pool: &Pool) -> Result<f64, BackendError> {
        let bytes = self.region.bytes();
        // Large parts, so that streams are long; several per thread, so that a late one costs little.
        let part = bytes.len().div_ceil(8 * pool.threads()).next_multiple_of(STREAMS * STEP);
        let total = AtomicI32::new(0);
        let seconds = median_seconds(|| {
            pool.chunks(bytes.len(), part, |range| {
                total.fetch_add(sum(isa, bytes, range), Ordering::Relaxed);
            });
            Ok(())
        })?;
        black_box(total.into_inner());
        Ok(bytes.len() as f64 / seconds)
    }
}

/// The wrapping sum of the i32 words of a range, but for what does not fill a step of every stream.
fn sum(isa: Isa, bytes: &[u8], range: Range<usize>) -> i32 {
    dispatch!(isa, s => s.run(Sum { bytes: &bytes[range] }))
}

struct Sum<'a> {
    bytes: &'a [u8],
}

impl Kernel for Sum<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let each = self.bytes.len() / STREAMS / STEP * STEP;
        let mut sums = [s.splat_i32(0); STREAMS];
        for at in (0..each).step_by(STEP) {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let step = &self.bytes[stream * each + at..][..STEP];
                for pair in step.chunks_exact(64) {
                    let both = s.add_i32(s.load_bytes(pair), s.load_bytes(&pair[32..]));
                    *sum = s.add_i32(*sum, both);
                }
            }
        }
        let mut lanes = [0; 32];
        let mut total = 0i32;
        for sum in sums {
            s.store_bytes(sum, &mut lanes);
            for word in lanes.as_chunks::<4>().0 {
                total = total.wrapping_add(i32::from_le_bytes(*word));
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadProbe, STEP, STREAMS, read_rate, sum};
    use crate::Isa;
    use crate::pool::Pool;

    #[test]
    fn sums_words() {
        let words = STREAMS * STEP / 4 * 3;
        let bytes: Vec<u8> = (0..words as i32).flat_map(i32::to_le_bytes).collect();
        for isa in Isa::available() {
            assert_eq!(sum(isa, &bytes, 0..bytes.len()), (0..words as i32).sum::<i32>());
        }
    }

    #[test]
    fn rates_are_those_of_a_computer() {
        let pool = Pool::new(2);
        for isa in Isa::available() {
            let rate = read_rate(isa, &pool, 1).unwrap();
            assert!((1e6..1e14).contains(&rate), "{rate}");
        }
        let probe = ReadProbe::of(1 << 20).unwrap();
        assert!(probe.measure(Isa::detect(), &pool).unwrap() > 1e6);
    }
}
