//! Pages of the KV cache: who owns which. The bytes live on the devices.

use crate::error::{Error, ErrorKind};
use minfer_graph::{KvStorage, PAGE};

/// Names a sequence of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub(crate) usize);

#[derive(Default)]
struct Sequence {
    pages: Vec<usize>,
    len: usize,
}

/// The KV cache of a session: storage, free pages, and each sequence's pages and length.
pub(crate) struct KvCache {
    pub storage: KvStorage,
    free: Vec<usize>,
    sequences: Vec<Option<Sequence>>,
    n_ctx: usize,
}

impl KvCache {
    pub(crate) fn new(storage: KvStorage, n_pages: usize, max_seqs: usize, n_ctx: usize) -> Self {
        let sequences = (0..max_seqs).map(|_| None).collect();
        KvCache { storage, free: (0..n_pages).rev().collect(), sequences, n_ctx }
    }

    pub(crate) fn create(&mut self) -> Result<SeqId, Error> {
        let slot = self.sequences.iter().position(Option::is_none);
        let max = self.sequences.len();
        let id = slot.ok_or_else(|| Error::input(format!("all {max} sequences are in use")))?;
        self.sequences[id] = Some(Sequence::default());
        Ok(SeqId(id))
    }

    fn get(&self, seq: SeqId) -> Result<&Sequence, Error> {
        let found = self.sequences.get(seq.0).and_then(Option::as_ref);
        found.ok_or_else(|| Error::input(format!("sequence {} does not exist", seq.0)))
    }

    fn get_mut(&mut self, seq: SeqId) -> Result<&mut Sequence, Error> {
        let found = self.sequences.get_mut(seq.0).and_then(Option::as_mut);
        found.ok_or_else(|| Error::input(format!("sequence {} does not exist", seq.0)))
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

    /// Forgets positions from `len` on and frees the pages that hold none.
    pub(crate) fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), Error> {
        let sequence = self.get_mut(seq)?;
        sequence.len = sequence.len.min(len);
        let keep = sequence.len.div_ceil(PAGE);
        let freed: Vec<usize> = sequence.pages.drain(keep..).rev().collect();
        self.free.extend(freed);
        Ok(())
    }

    /// Makes sure that pages exist for `n` more positions.
    pub(crate) fn reserve(&mut self, seq: SeqId, n: usize) -> Result<(), Error> {
        let sequence = self.get(seq)?;
        let needed = sequence.len + n;
        if needed > self.n_ctx {
            return Err(Error::context(needed, self.n_ctx));
        }
        let missing = needed.div_ceil(PAGE).saturating_sub(sequence.pages.len());
        if missing > self.free.len() {
            let message = format!("{missing} KV pages are needed and {} are free", self.free.len());
            return Err(Error::new(ErrorKind::Context, message));
        }
        let taken = self.free.split_off(self.free.len() - missing);
        self.get_mut(seq)?.pages.extend(taken.into_iter().rev());
        Ok(())
    }

    /// Counts `n` positions as written.
    pub(crate) fn advance(&mut self, seq: SeqId, n: usize) -> Result<(), Error> {
        self.get_mut(seq)?.len += n;
        Ok(())
    }
}
