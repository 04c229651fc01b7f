//! How fast the threads can multiply at all: the ceiling of prefill.
//!
//! The instructions of an int8 product, without everything around it: 16 rows by 4 tokens over blocks of 32 values, both
//! operands in the innermost cache. Each step loads weights, spreads four activations over a vector and adds products;
//! each block ends with scales and a float sum. What a matmul reaches of this rate it loses to unpacking weights, to
//! caches and to waiting.

use super::{LEAST_RUNS, TIME};
use crate::dispatch_products;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Groups of 8 rows in the tile, and its tokens.
const GROUPS: usize = 2;
const TOKENS: usize = 4;
/// Steps of four values in a block.
const STEPS: usize = 8;
/// Blocks of a run over the operands: 8 KiB of weights and 2 KiB of activations.
const BLOCKS: usize = 16;
/// Runs of one measurement: about a tenth of a millisecond.
const RUNS: usize = 64;
/// Multiply-adds of one measurement.
const PRODUCTS: usize = GROUPS * 8 * TOKENS * 4 * STEPS * BLOCKS * RUNS;

/// Int8 multiply-adds per second that the threads can do together: the sum over the threads of each one's best rate
/// while all of them were at it. Takes a fraction of a second.
pub fn multiply_add_ceiling(isa: Isa, pool: &Pool) -> f64 {
    let start = Instant::now();
    let rates = Mutex::new(Vec::new());
    let arrived = AtomicUsize::new(0);
    pool.run(|_| {
        arrived.fetch_add(1, Ordering::Relaxed);
        let all_here = || arrived.load(Ordering::Relaxed) == pool.threads();
        // A thread that comes late must find the others still at work; a thread that never comes is not waited for.
        while !all_here() && start.elapsed() < TIME / 2 {
            std::hint::spin_loop();
        }
        let best = best_seconds(isa);
        if let Ok(mut rates) = rates.lock() {
            rates.push(PRODUCTS as f64 / best);
        }
    });
    let rates = rates.into_inner().unwrap_or_default();
    // Threads that the pool did not get to run would have been as fast.
    rates.iter().sum::<f64>() * pool.threads() as f64 / rates.len().max(1) as f64
}

fn best_seconds(isa: Isa) -> f64 {
    let mut operands = Operands::new();
    let started = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < LEAST_RUNS || started.elapsed() < TIME / 2 {
        let start = Instant::now();
        dispatch_products!(isa, s => s.run(Products { operands: black_box(&mut operands) }));
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// What the tile multiplies. The values don't matter; all ones keep the sums small.
struct Operands {
    /// `[BLOCKS][STEPS][GROUPS]` vectors: four values for each of 8 rows.
    weights: Vec<u8>,
    /// `[BLOCKS][GROUPS]` scales of 8 rows.
    scales: Vec<f32>,
    /// `[BLOCKS][TOKENS][STEPS]` fours of activations.
    tokens: Vec<i32>,
    /// `[BLOCKS][TOKENS]`.
    token_scales: Vec<f32>,
    /// `[TOKENS][GROUPS]` sums of 8 rows.
    sums: Vec<f32>,
}

impl Operands {
    fn new() -> Operands {
        Operands {
            weights: vec![1; BLOCKS * STEPS * GROUPS * 32],
            scales: vec![1e-6; BLOCKS * GROUPS * 8],
            tokens: vec![0x0101_0101; BLOCKS * TOKENS * STEPS],
            token_scales: vec![1e-6; BLOCKS * TOKENS],
            sums: vec![0.0; TOKENS * GROUPS * 8],
        }
    }
}

struct Products<'a> {
    operands: &'a mut Operands,
}

impl Kernel for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for _ in 0..RUNS {
            for block in 0..BLOCKS {
                one_block(s, self.operands, block);
            }
        }
    }
}

/// A block of the tile: integer sums in registers, then scaled and added to the float sums.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several arrays are indexed alike")]
fn one_block<S: Simd>(s: S, o: &mut Operands, block: usize) {
    let weights = &o.weights[block * STEPS * GROUPS * 32..][..STEPS * GROUPS * 32];
    let tokens = &o.tokens[block * TOKENS * STEPS..][..TOKENS * STEPS];
    let mut acc = [[s.acc_start(0); GROUPS]; TOKENS];
    for step in 0..STEPS {
        let mut w = [s.splat_i32(0); GROUPS];
        for g in 0..GROUPS {
            w[g] = s.load_bytes(&weights[(step * GROUPS + g) * 32..]);
        }
        for t in 0..TOKENS {
            for g in 0..GROUPS {
                acc[t][g] = s.acc_step(acc[t][g], w[g], tokens[t * STEPS + step]);
            }
        }
    }
    for t in 0..TOKENS {
        let token_scale = s.splat(o.token_scales[block * TOKENS + t]);
        for g in 0..GROUPS {
            let scale = s.mul(s.load(&o.scales[(block * GROUPS + g) * 8..]), token_scale);
            let sums = &mut o.sums[(t * GROUPS + g) * 8..][..8];
            let sum = s.fma(s.from_i32(s.acc_finish(acc[t][g])), scale, s.load(sums));
            s.store(sum, sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, Kernel, Operands, Products, RUNS, STEPS, multiply_add_ceiling};
    use crate::pool::Pool;
    use crate::simd::Isa;

    #[test]
    fn the_tile_multiplies() {
        for isa in Isa::available() {
            let mut operands = Operands::new();
            operands.scales.fill(1.0);
            operands.token_scales.fill(1.0);
            crate::dispatch_products!(isa, s => Products { operands: &mut operands }.run(s));
            let each = (4 * STEPS * BLOCKS * RUNS) as f32;
            assert!(operands.sums.iter().all(|&x| x == each), "{isa}: {:?}", operands.sums);
        }
    }

    #[test]
    fn the_ceiling_is_that_of_a_computer() {
        for threads in [1, 2] {
            let rate = multiply_add_ceiling(Isa::detect(), &Pool::new(threads));
            assert!((1e6..1e14).contains(&rate), "{rate}");
        }
    }
}
