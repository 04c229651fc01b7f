//! What an answer may be: a hook between the logits and the sampler.

use crate::error::Error;
use std::any::Any;
use std::fmt;

/// The tokens that may come next, a bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    n_vocab: usize,
}

impl TokenMask {
    /// A mask of `n_vocab` tokens, none allowed.
    pub fn new(n_vocab: usize) -> Self {
        TokenMask { words: vec![0; n_vocab.div_ceil(32)], n_vocab }
    }

    /// Forbids all.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Allows a token.
    ///
    /// # Panics
    /// The token is outside the vocabulary.
    pub fn allow(&mut self, id: u32) {
        assert!((id as usize) < self.n_vocab, "token {id} of {}", self.n_vocab);
        self.words[id as usize / 32] |= 1 << (id % 32);
    }

    /// Whether a token is allowed; one outside the vocabulary is not.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.n_vocab && self.words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// How many are allowed.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Its words, 32 tokens each, the lowest bit first; bits past the vocabulary are ignored by [`TokenMask::allows`].
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// The forbidden ones of `n_vocab` tokens, ascending.
    pub fn forbidden(&self, n_vocab: usize) -> impl Iterator<Item = u32> + '_ {
        (0..n_vocab as u32).filter(|&id| !self.allows(id))
    }
}

/// The state of one answer under a constraint.
pub trait Constraint: Send {
    /// Writes which tokens may come next. End tokens are allowed where the answer may end; where nothing but the end
    /// is possible, only they are.
    ///
    /// # Errors
    /// The constraint cannot be computed within its limits: the answer ends with this error.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), Error>;

    /// Takes the token that was picked, which the mask allowed.
    ///
    /// # Errors
    /// The token does not fit.
    fn accept(&mut self, token: u32) -> Result<(), Error>;
}

/// Makes the [`Constraint`] of each answer; checked and compiled once, when the request is read.
pub trait ConstraintFactory: Send + Sync + fmt::Debug {
    /// The state at the start of an answer.
    ///
    /// # Errors
    /// It cannot be built within its limits.
    fn start(&self) -> Result<Box<dyn Constraint>, Error>;

    /// For callers that know what it is.
    fn as_any(&self) -> &dyn Any;
}
