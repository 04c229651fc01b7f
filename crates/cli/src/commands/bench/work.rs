//! What a test is, and what it reads and multiplies.

use minfer::models::ModelSpec;
use minfer::{Ceilings, KvTypes, TokenWork};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A prompt at once, in steps of at most the batch size.
    Prefill,
    /// A token of each sequence per step.
    Decode,
}

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub kind: Kind,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Tokens in the cache before.
    pub depth: usize,
    /// Sequences.
    pub batch: usize,
}

/// What a test reads and multiplies, per token of its sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights and of the KV cache, each once per step.
    pub bytes: f64,
    /// Multiply-adds with weights. Those of attention, which have floats on both sides, are left out.
    pub multiply_adds: f64,
}

/// Shares of the ceilings that a rate reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Of reading memory.
    pub read: f64,
    /// Of int8 multiply-adds.
    pub multiply_adds: f64,
}

impl Test {
    /// `pp512`, `tg64`: llama-bench's names.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Prefill => format!("pp{}", self.tokens),
            Kind::Decode => format!("tg{}", self.tokens),
        }
    }

    /// Positions of a sequence that it needs.
    pub fn positions(&self) -> usize {
        self.depth.saturating_add(self.tokens)
    }

    /// Its work, with steps of at most `n_batch` tokens.
    pub fn work(&self, spec: &ModelSpec, kv: KvTypes, n_batch: usize) -> Work {
        self.work_of(|positions| TokenWork::of(spec, kv, positions), n_batch)
    }

    /// `token` is the work of a token that sees so many positions. On average the tokens see half of the test's own.
    fn work_of(&self, token: impl Fn(usize) -> TokenWork, n_batch: usize) -> Work {
        let (n, sequences) = (self.tokens as f64, self.batch as f64);
        let (steps, heads, seen) = match self.kind {
            // Every step reads the cache up to its last token; only the last token of all has logits.
            Kind::Prefill => (self.tokens.div_ceil(n_batch.max(1)) as f64, 1.0, self.positions()),
            Kind::Decode => (n, n, self.depth + self.tokens.div_ceil(2)),
        };
        let token = token(seen);
        let bytes = steps * token.block_bytes + heads * token.head_bytes + steps * sequences * token.kv_bytes;
        let products = sequences * (n * token.block_products + heads * token.head_products);
        Work { bytes: bytes / (n * sequences), multiply_adds: products / (n * sequences) }
    }
}

impl Work {
    /// What `rate` tokens per second reach of ceilings that were measured before and after.
    pub fn reached(&self, rate: f64, [before, after]: [Ceilings; 2]) -> Reached {
        let mean = |of: fn(&Ceilings) -> f64| (of(&before) + of(&after)) / 2.0;
        Reached {
            read: self.bytes * rate / mean(|c| c.read),
            multiply_adds: self.multiply_adds * rate / mean(|c| c.multiply_adds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 bytes and products of blocks, 100 of the head, 2 bytes of cache per position.
    fn token(positions: usize) -> TokenWork {
        TokenWork {
            block_bytes: 1000.0,
            head_bytes: 100.0,
            kv_bytes: 2.0 * positions as f64,
            block_products: 3000.0,
            head_products: 300.0,
            attention: 1e9,
        }
    }

    #[test]
    fn decode_reads_everything_for_every_step() {
        let one = Test { kind: Kind::Decode, tokens: 64, depth: 4096, batch: 1 };
        // 4096 tokens in the cache and half of 64.
        let work = one.work_of(token, 512);
        assert_eq!(work, Work { bytes: 1000.0 + 100.0 + 2.0 * 4128.0, multiply_adds: 3300.0 });
        let four = Test { batch: 4, ..one };
        let work = four.work_of(token, 512);
        assert_eq!(work, Work { bytes: 1100.0 / 4.0 + 2.0 * 4128.0, multiply_adds: 3300.0 });
    }

    #[test]
    fn prefill_reads_once_per_step_and_has_one_head() {
        let test = Test { kind: Kind::Prefill, tokens: 100, depth: 0, batch: 1 };
        let work = test.work_of(token, 512);
        assert_eq!(work.bytes, (1000.0 + 100.0 + 200.0) / 100.0);
        assert_eq!(work.multiply_adds, 3000.0 + 3.0);
        assert_eq!(test.work_of(token, 30).bytes, (4.0 * 1000.0 + 100.0 + 4.0 * 200.0) / 100.0);
    }

    #[test]
    fn shares_are_of_the_mean_ceiling() {
        let work = Work { bytes: 1e6, multiply_adds: 2e6 };
        let ceilings = |read, multiply_adds| Ceilings { read, multiply_adds };
        let reached = work.reached(100.0, [ceilings(1e8, 1e9), ceilings(3e8, 1e9)]);
        assert_eq!(reached, Reached { read: 0.5, multiply_adds: 0.2 });
    }

    #[test]
    fn names_are_llama_bench_s() {
        let test = Test { kind: Kind::Decode, tokens: 64, depth: 5, batch: 2 };
        assert_eq!((test.name().as_str(), test.positions()), ("tg64", 69));
        assert_eq!(Test { kind: Kind::Prefill, ..test }.name(), "pp64");
    }
}
