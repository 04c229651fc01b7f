//! Full pages that sequences left behind, found again by their tokens.
//!
//! A page is known by the page before it and its own 64 tokens, so that what is found was computed from exactly the tokens
//! asked for: there is no hash to trust. A cache belongs to one session, and so to one model and one type of cache.

use super::pages::Pages;
use minfer_graph::PAGE;
use std::collections::HashMap;

/// The page before the first.
const ROOT: usize = usize::MAX;

/// A kept page.
struct Kept {
    parent: usize,
    tokens: Box<[u32]>,
    page: usize,
    /// Kept pages that follow it.
    children: u32,
    /// When it was last found or left.
    used: u64,
}

/// The kept pages: each holds its page once.
#[derive(Default)]
pub(super) struct PrefixCache {
    known: HashMap<(usize, Box<[u32]>), usize>,
    kept: Vec<Option<Kept>>,
    empty: Vec<usize>,
    clock: u64,
}

impl PrefixCache {
    /// Pages of the longest kept beginning of `tokens` that leaves at least one token to compute; each is held once more.
    pub(super) fn find(&mut self, tokens: &[u32], pages: &mut Pages) -> Vec<usize> {
        self.clock += 1;
        let (mut parent, mut found) = (ROOT, Vec::new());
        let whole = tokens.len().saturating_sub(1) / PAGE;
        for block in tokens.chunks_exact(PAGE).take(whole) {
            let Some(&id) = self.known.get(&(parent, block.into())) else { break };
            let Some(kept) = &mut self.kept[id] else { break };
            kept.used = self.clock;
            pages.hold(kept.page);
            found.push(kept.page);
            parent = id;
        }
        found
    }

    /// Keeps the full pages of a sequence, whose tokens those are. Where an equal page is kept already the sequence holds
    /// that one from now on: so who holds a kept page holds all before it, and a page that is not followed can go.
    pub(super) fn keep(&mut self, tokens: &[u32], of: &mut [usize], pages: &mut Pages) {
        self.clock += 1;
        let mut parent = ROOT;
        for (block, page) in tokens.chunks_exact(PAGE).zip(of) {
            let key = (parent, Box::from(block));
            let known = self.known.get(&key).copied();
            parent = match known.and_then(|id| Some((id, self.kept[id].as_mut()?))) {
                Some((id, kept)) => {
                    kept.used = self.clock;
                    if kept.page != *page {
                        pages.hold(kept.page);
                        pages.release(std::mem::replace(page, kept.page));
                    }
                    id
                }
                None => {
                    pages.hold(*page);
                    self.insert(key, *page)
                }
            };
        }
    }

    fn insert(&mut self, key: (usize, Box<[u32]>), page: usize) -> usize {
        let (parent, tokens) = (key.0, key.1.clone());
        if let Some(Some(before)) = self.kept.get_mut(parent) {
            before.children += 1;
        }
        let kept = Some(Kept { parent, tokens, page, children: 0, used: self.clock });
        let id = match self.empty.pop() {
            Some(id) => {
                self.kept[id] = kept;
                id
            }
            None => {
                self.kept.push(kept);
                self.kept.len() - 1
            }
        };
        self.known.insert(key, id);
        id
    }

    /// How many pages nobody but this cache holds.
    pub(super) fn n_idle(&self, pages: &Pages) -> usize {
        self.kept.iter().flatten().filter(|kept| pages.holders(kept.page) == 1).count()
    }

    /// Gives up the page that was not used for longest, of those that nobody else holds and none follows. `None`: there is
    /// none.
    pub(super) fn evict(&mut self, pages: &mut Pages) -> Option<()> {
        let all = self.kept.iter().enumerate().filter_map(|(id, kept)| Some((id, kept.as_ref()?)));
        let idle = all.filter(|(_, kept)| kept.children == 0 && pages.holders(kept.page) == 1);
        let (id, _) = idle.min_by_key(|(_, kept)| kept.used)?;
        self.remove(id, pages);
        Some(())
    }

    fn remove(&mut self, id: usize, pages: &mut Pages) {
        let Some(kept) = self.kept[id].take() else { return };
        pages.release(kept.page);
        if let Some(Some(before)) = self.kept.get_mut(kept.parent) {
            before.children -= 1;
        }
        self.known.remove(&(kept.parent, kept.tokens));
        self.empty.push(id);
    }

    /// Forgets all.
    pub(super) fn clear(&mut self, pages: &mut Pages) {
        for kept in self.kept.drain(..).flatten() {
            pages.release(kept.page);
        }
        self.known.clear();
        self.empty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize, salt: u32) -> Vec<u32> {
        (0..n as u32).map(|i| i * 7 + salt).collect()
    }

    /// Takes pages for tokens, keeps them and lets go of them.
    fn leave(cache: &mut PrefixCache, pages: &mut Pages, tokens: &[u32]) -> Vec<usize> {
        let mut of: Vec<_> = (0..tokens.len().div_ceil(PAGE)).map(|_| pages.take().unwrap()).collect();
        cache.keep(tokens, &mut of, pages);
        of.iter().for_each(|&page| pages.release(page));
        of
    }

    #[test]
    fn only_whole_pages_of_the_same_tokens_are_found() {
        let (mut cache, mut pages) = (PrefixCache::default(), Pages::new(8));
        let text = tokens(3 * PAGE + 5, 1);
        let of = leave(&mut cache, &mut pages, &text);
        assert_eq!((pages.n_free(), cache.n_idle(&pages)), (5, 3), "the part-filled page is free");
        assert_eq!(cache.find(&text, &mut pages), of[..3]);
        assert_eq!(cache.n_idle(&pages), 0);
        let mut other = text.clone();
        other[PAGE + 1] += 1;
        assert_eq!(cache.find(&other, &mut pages), of[..1], "the second page differs");
        assert_eq!(cache.find(&text[..2 * PAGE], &mut pages), of[..1], "one token is left to compute");
        assert_eq!(
            cache.find(&text[PAGE..], &mut pages),
            [0usize; 0],
            "a page counts only after its beginning"
        );
    }

    #[test]
    fn the_longest_unused_goes_first_and_never_what_is_held_or_followed() {
        let (mut cache, mut pages) = (PrefixCache::default(), Pages::new(6));
        let (a, b) = (tokens(2 * PAGE, 1), tokens(2 * PAGE, 2));
        let of_a = leave(&mut cache, &mut pages, &a);
        let of_b = leave(&mut cache, &mut pages, &b);
        let held = cache.find(&[&a[..], &[9]].concat(), &mut pages);
        assert_eq!(held, of_a);
        assert_eq!(cache.evict(&mut pages), Some(()), "the end of b, though a is as old");
        assert_eq!(cache.find(&[&b[..], &[9]].concat(), &mut pages), of_b[..1]);
        of_b[..1].iter().chain(&held).for_each(|&page| pages.release(page));
        for left in (0..3).rev() {
            assert_eq!(cache.evict(&mut pages), Some(()));
            assert_eq!(cache.n_idle(&pages), left);
        }
        assert_eq!(cache.evict(&mut pages), None);
        assert_eq!(pages.n_free(), 6);
    }

    #[test]
    fn equal_pages_are_kept_once_and_clearing_frees_them() {
        let (mut cache, mut pages) = (PrefixCache::default(), Pages::new(6));
        let text = tokens(2 * PAGE, 3);
        let first = leave(&mut cache, &mut pages, &text);
        assert_eq!(leave(&mut cache, &mut pages, &text), first);
        assert_eq!((pages.n_free(), cache.n_idle(&pages)), (4, 2));
        assert_eq!(cache.find(&[&text[..], &[1]].concat(), &mut pages), first);
        first.iter().for_each(|&page| pages.release(page));
        cache.clear(&mut pages);
        assert_eq!(pages.n_free(), 6);
        assert!(cache.find(&text, &mut pages).is_empty());
    }
}
