//! What was said lately, and a number per token of the vocabulary.

/// The latest tokens, oldest first.
pub(super) struct History {
    ids: Vec<u32>,
    keep: usize,
}

impl History {
    /// Remembers at least `keep` tokens.
    pub(super) fn new(keep: usize) -> Self {
        History { ids: Vec::new(), keep }
    }

    pub(super) fn push(&mut self, id: u32) {
        if self.keep == 0 {
            return;
        }
        // Rarely, so that a token costs a constant time on average and the rest stays in one piece.
        if self.ids.len() >= self.keep.saturating_mul(2) {
            self.ids.drain(..self.ids.len() - self.keep);
        }
        self.ids.push(id);
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
    }

    /// The last n, or all there are.
    pub(super) fn last(&self, n: usize) -> &[u32] {
        &self.ids[self.ids.len().saturating_sub(n.min(self.keep))..]
    }
}

/// A number per token, zero for most, cleared in the time that it took to fill.
#[derive(Default)]
pub(super) struct Tally {
    values: Vec<u32>,
    touched: Vec<u32>,
}

impl Tally {
    /// All zero, for this many tokens.
    pub(super) fn reset(&mut self, n_vocab: usize) {
        for id in self.touched.drain(..) {
            self.values[id as usize] = 0;
        }
        self.values.resize(n_vocab, 0);
    }

    /// Changes the number of a token to something other than zero; ids outside the vocabulary are passed over.
    pub(super) fn update(&mut self, id: u32, change: impl FnOnce(u32) -> u32) {
        let Some(value) = self.values.get_mut(id as usize) else { return };
        if *value == 0 {
            self.touched.push(id);
        }
        *value = change(*value);
    }

    /// Tokens whose number is not zero, with it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.touched.iter().map(|&id| (id, self.values[id as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_the_latest() {
        let mut history = History::new(3);
        for id in 0..100 {
            history.push(id);
            let first = (id + 1).saturating_sub(3);
            assert_eq!(history.last(3), (first..=id).collect::<Vec<_>>());
            assert_eq!(history.last(usize::MAX), history.last(3));
            assert_eq!(history.last(1), [id]);
            assert!(history.last(0).is_empty() && history.ids.len() <= 6);
        }
        let (mut none, mut all) = (History::new(0), History::new(usize::MAX));
        for id in 0..100 {
            none.push(id);
            all.push(id);
        }
        assert!(none.last(5).is_empty());
        assert_eq!(all.last(usize::MAX).len(), 100);
    }

    #[test]
    fn a_tally_forgets() {
        let mut tally = Tally::default();
        tally.reset(4);
        for id in [1, 3, 1, 9] {
            tally.update(id, |n| n + 1);
        }
        assert_eq!(tally.iter().collect::<Vec<_>>(), [(1, 2), (3, 1)]);
        tally.reset(4);
        assert_eq!(tally.iter().count(), 0);
        tally.update(1, |n| n + 1);
        assert_eq!(tally.iter().collect::<Vec<_>>(), [(1, 1)]);
    }
}
