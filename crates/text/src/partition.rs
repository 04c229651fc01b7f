//! Finding special tokens in a text.
//!
//! The longest token wins wherever tokens overlap, not the first: tokens are placed in order of falling length, each
//! from left to right where nothing is placed yet, as llama.cpp does. A trie finds the longest token at each place; if it
//! turns out not to fit, the next shorter one at that place is tried.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::model::SPACE;
use crate::trie::Trie;

/// Special tokens by text.
#[derive(Debug, Default)]
pub(crate) struct SpecialSet {
    /// The tokens, longest text first.
    tokens: Vec<Special>,
    /// The index of each in `tokens`.
    trie: Trie,
    /// Whether the vocabulary takes `▁` and the space for the same.
    spaces_alike: bool,
}

/// A special token.
#[derive(Debug)]
struct Special {
    text: Box<str>,
    id: u32,
    /// The index of the longest other token that this one begins with.
    shorter: Option<usize>,
}

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// Text to be tokenised.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

impl SpecialSet {
    /// A set of `tokens`; empty texts are left out.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut tokens: Vec<(Box<str>, u32)> =
            tokens.filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.into(), id)).collect();
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        let trie = Trie::new((0..).zip(&tokens).map(|(index, (text, _))| (&**text, index)));
        let special = |(text, id): (Box<str>, u32)| {
            let shorter = trie.longest(&text.as_bytes()[..text.len() - 1]);
            Special { text, id, shorter: shorter.map(|(_, index)| index as usize) }
        };
        SpecialSet { tokens: tokens.into_iter().map(special).collect(), trie, spaces_alike: false }
    }

    /// The set, for a vocabulary that takes `▁` and the space for the same: tokens with spaces are found in texts with `▁`.
    /// A set with a `▁` in its tokens stays as it is, or they would not be found.
    pub(crate) fn with_spaces_alike(mut self) -> Self {
        let any = |c: char| self.tokens.iter().any(|token| token.text.contains(c));
        self.spaces_alike = any(' ') && !any(SPACE);
        self
    }

    /// The text as its special tokens are to be sought.
    pub(crate) fn prepare<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.spaces_alike && text.contains(SPACE) { text.replace(SPACE, " ").into() } else { text.into() }
    }

    /// Cuts `text` at the special tokens in it.
    pub(crate) fn partition<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let placed = self.place(text);
        let mut fragments = Vec::with_capacity(2 * placed.len() + 1);
        let mut at = 0;
        for (start, index) in placed {
            if at < start {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            let Special { text: token, id, .. } = &self.tokens[index];
            fragments.push(Fragment::Token(*id));
            at = start + token.len();
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    /// Where special tokens are taken: start in `text` and index in `tokens`, from left to right.
    fn place(&self, text: &str) -> Vec<(usize, usize)> {
        let mut placed = Vec::new();
        if self.tokens.is_empty() {
            return placed;
        }
        let bytes = text.as_bytes();
        // One candidate for each start; the smallest index is the longest text.
        let longest = |start: usize| {
            let (_, index) = self.trie.longest(&bytes[start..])?;
            Some(Reverse((index as usize, start)))
        };
        let mut heap: BinaryHeap<_> = (0..bytes.len()).filter_map(longest).collect();
        let mut taken = vec![false; if heap.is_empty() { 0 } else { bytes.len() }];
        while let Some(Reverse((index, start))) = heap.pop() {
            if taken[start] {
                continue;
            }
            let range = start..start + self.tokens[index].text.len();
            // What is placed is at least as long, so an overlap covers the first or the last byte.
            if taken[range.end - 1] {
                heap.extend(self.tokens[index].shorter.map(|index| Reverse((index, start))));
            } else {
                taken[range].fill(true);
                placed.push((start, index));
            }
        }
        placed.sort_unstable();
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(tokens: &[&str], text: &str) -> Vec<String> {
        let set = SpecialSet::new(tokens.iter().copied().zip(0..));
        let show = |fragment: &Fragment<'_>| match fragment {
            Fragment::Text(text) => (*text).to_owned(),
            Fragment::Token(id) => format!("[{}]", tokens[*id as usize]),
        };
        set.partition(text).iter().map(show).collect()
    }

    #[test]
    fn the_longest_wins_even_if_it_starts_later() {
        assert_eq!(cut(&["abc", "bcde"], "abcdeabc"), ["a", "[bcde]", "[abc]"]);
        assert_eq!(cut(&["aa", "aaa"], "aaaaa"), ["[aaa]", "[aa]"]);
        assert_eq!(cut(&["<x>"], "<<x>><x"), ["<", "[<x>]", "><x"]);
        assert_eq!(cut(&["漢", "é"], "a漢é"), ["a", "[漢]", "[é]"]);
        assert_eq!(cut(&[""], "ab"), ["ab"]);
        assert!(cut(&["a"], "").is_empty());
    }
}
