//! Pages of the KV cache: who holds which. The bytes live on the devices.
//!
//! A page holds 64 positions and is counted: sequences that begin alike share pages, and the prefix cache holds those that
//! ended ones left. Only a page with one holder is written; [`KvCache::reserve`] says what to copy first.

mod pages;
mod prefix;

use crate::error::{Error, ErrorKind};
use minfer_graph::{KvStorage, PAGE};
use pages::Pages;
use prefix::PrefixCache;

/// Names a sequence of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub(crate) usize);

#[derive(Clone, Default)]
struct Sequence {
    pages: Vec<usize>,
    len: usize,
}

/// How many pages there are, and who holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// All pages.
    pub all: usize,
    /// Pages that hold nothing.
    pub free: usize,
    /// Pages that only the prefix cache holds, and gives up when they are needed.
    pub cached: usize,
}

/// The KV cache of a session: storage, pages, each sequence's pages and length, and the prefix cache.
pub(crate) struct KvCache {
    pub storage: KvStorage,
    pages: Pages,
    prefix: PrefixCache,
    sequences: Vec<Option<Sequence>>,
    n_ctx: usize,
}

impl KvCache {
    pub(crate) fn new(storage: KvStorage, n_pages: usize, max_seqs: usize, n_ctx: usize) -> Self {
        let sequences = (0..max_seqs).map(|_| None).collect();
        KvCache { storage, pages: Pages::new(n_pages), prefix: PrefixCache::default(), sequences, n_ctx }
    }

    pub(crate) fn create(&mut self) -> Result<SeqId, Error> {
        self.add(Sequence::default())
    }

    fn add(&mut self, sequence: Sequence) -> Result<SeqId, Error> {
        let slot = self.sequences.iter().position(Option::is_none);
        let max = self.sequences.len();
        let id = slot.ok_or_else(|| Error::input(format!("all {max} sequences are in use")))?;
        self.sequences[id] = Some(sequence);
        Ok(SeqId(id))
    }

    /// A new sequence with the positions of another, whose pages both hold.
    pub(crate) fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        let sequence = self.get(seq)?.clone();
        let pages = sequence.pages.clone();
        let id = self.add(sequence)?;
        pages.iter().for_each(|&page| self.pages.hold(page));
        Ok(id)
    }

    fn get(&self, seq: SeqId) -> Result<&Sequence, Error> {
        let found = self.sequences.get(seq.0).and_then(Option::as_ref);
        found.ok_or_else(|| missing_sequence(seq))
    }

    fn get_mut(&mut self, seq: SeqId) -> Result<&mut Sequence, Error> {
        let found = self.sequences.get_mut(seq.0).and_then(Option::as_mut);
        found.ok_or_else(|| missing_sequence(seq))
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Result<(), Error> {
        self.truncate(seq, 0)?;
        self.sequences[seq.0] = None;
        Ok(())
    }

    pub(crate) fn len(&self, seq: SeqId) -> Result<usize, Error> {
        Ok(self.get(seq)?.len)
    }

    pub(crate) fn pages(&self, seq: SeqId) -> Result<&[usize], Error> {
        Ok(&self.get(seq)?.pages)
    }

    pub(crate) fn counts(&self) -> PageCounts {
        let cached = self.prefix.n_idle(&self.pages);
        PageCounts { all: self.pages.len(), free: self.pages.n_free(), cached }
    }

    /// Forgets positions from `len` on and lets go of the pages that hold none.
    pub(crate) fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), Error> {
        let sequence = self.get_mut(seq)?;
        sequence.len = sequence.len.min(len);
        let keep = sequence.len.div_ceil(PAGE);
        let left: Vec<usize> = sequence.pages.drain(keep..).rev().collect();
        left.into_iter().for_each(|page| self.pages.release(page));
        Ok(())
    }

    /// Gives an empty sequence the kept pages with which its tokens begin; returns how many tokens they hold.
    pub(crate) fn adopt(&mut self, seq: SeqId, tokens: &[u32]) -> Result<usize, Error> {
        if self.get(seq)?.len > 0 {
            return Err(Error::input(format!("sequence {} is not empty", seq.0)));
        }
        self.truncate(seq, 0)?;
        let pages = self.prefix.find(&tokens[..tokens.len().min(self.n_ctx)], &mut self.pages);
        let sequence = self.get_mut(seq)?;
        sequence.len = pages.len() * PAGE;
        sequence.pages = pages;
        Ok(sequence.len)
    }

    /// Keeps the full pages of a sequence for others. `tokens` are those of its positions.
    pub(crate) fn keep(&mut self, seq: SeqId, tokens: &[u32]) -> Result<(), Error> {
        let sequence = self.sequences.get_mut(seq.0).and_then(Option::as_mut);
        let sequence = sequence.ok_or_else(|| missing_sequence(seq))?;
        let tokens = &tokens[..tokens.len().min(sequence.len)];
        self.prefix.keep(tokens, &mut sequence.pages, &mut self.pages);
        Ok(())
    }

    /// Forgets what is kept.
    pub(crate) fn clear_kept(&mut self) {
        self.prefix.clear(&mut self.pages);
    }

    /// Pages that [`KvCache::reserve`] would take for `n` more positions.
    pub(crate) fn missing(&self, seq: SeqId, n: usize) -> Result<usize, Error> {
        let sequence = self.get(seq)?;
        let more = (sequence.len + n).div_ceil(PAGE).saturating_sub(sequence.pages.len());
        Ok(more + usize::from(n > 0 && self.shared_end(sequence).is_some()))
    }

    /// The part-filled page at a sequence's end, if others hold it too.
    fn shared_end(&self, sequence: &Sequence) -> Option<usize> {
        let page = *sequence.pages.get(sequence.len / PAGE)?;
        (self.pages.holders(page) > 1).then_some(page)
    }

    /// Makes sure that pages exist for `n` more positions, and that nobody else holds those that will be written.
    /// Returns the copy, from and to, that must be made before anything is.
    pub(crate) fn reserve(&mut self, seq: SeqId, n: usize) -> Result<Option<(usize, usize)>, Error> {
        let sequence = self.get(seq)?;
        let needed = sequence.len + n;
        if needed > self.n_ctx {
            return Err(Error::context(needed, self.n_ctx));
        }
        let missing = self.missing(seq, n)?;
        while self.pages.n_free() < missing {
            if self.prefix.evict(&mut self.pages).is_none() {
                let message = format!("{missing} KV pages are needed and {} are free", self.pages.n_free());
                return Err(Error::new(ErrorKind::Context, message));
            }
        }
        let end = self.get(seq)?.len / PAGE;
        let shared = if n > 0 { self.shared_end(self.get(seq)?) } else { None };
        let mut taken: Vec<usize> = (0..missing).filter_map(|_| self.pages.take()).collect();
        let mut copy = None;
        if let (Some(from), Some(to)) = (shared, shared.and_then(|_| taken.pop())) {
            self.get_mut(seq)?.pages[end] = to;
            self.pages.release(from);
            copy = Some((from, to));
        }
        self.get_mut(seq)?.pages.extend(taken);
        Ok(copy)
    }

    /// Counts `n` positions as written.
    pub(crate) fn advance(&mut self, seq: SeqId, n: usize) -> Result<(), Error> {
        self.get_mut(seq)?.len += n;
        Ok(())
    }
}

fn missing_sequence(seq: SeqId) -> Error {
    Error::input(format!("sequence {} does not exist", seq.0))
}
