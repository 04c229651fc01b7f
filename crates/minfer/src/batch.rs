//! The tokens of a step, by sequence.

use crate::kv_cache::SeqId;

/// Which rows of a sequence's tokens the caller wants logits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens only fill the cache.
    Nothing,
    /// The last one.
    Last,
    /// All of them.
    All,
}

pub(crate) struct Item {
    pub seq: SeqId,
    pub tokens: Vec<u32>,
    pub wanted: Wanted,
}

/// Tokens to append to one or more sequences. Results do not depend on what else is in the batch.
#[derive(Default)]
pub struct Batch {
    pub(crate) items: Vec<Item>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends tokens to a sequence; a sequence may occur once per batch.
    pub fn add(&mut self, seq: SeqId, tokens: &[u32], wanted: Wanted) -> &mut Self {
        self.items.push(Item { seq, tokens: tokens.to_vec(), wanted });
        self
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.items.iter().map(|i| i.tokens.len()).sum()
    }

    /// Whether it holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
