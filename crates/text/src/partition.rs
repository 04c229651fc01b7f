//! Finding special tokens in a text.
//!
//! The longest token wins wherever tokens overlap, not the first: tokens are placed in order of falling length, each
//! from left to right where nothing is placed yet, as llama.cpp does. A trie finds every occurrence in one walk.

use rustc_hash::FxHashMap;

/// Special tokens by text.
#[derive(Debug, Default)]
pub(crate) struct SpecialSet {
    /// Texts and ids, longest text first.
    tokens: Vec<(Box<str>, u32)>,
    /// Child of a node by byte. Node 0 is the root.
    children: FxHashMap<(u32, u8), u32>,
    /// The index in `tokens` of the token that ends at each node.
    ends: Vec<Option<usize>>,
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
        let mut set = SpecialSet { tokens: Vec::new(), children: FxHashMap::default(), ends: vec![None] };
        for (index, (text, _)) in tokens.iter().enumerate() {
            set.insert(text, index);
        }
        set.tokens = tokens;
        set
    }

    fn insert(&mut self, text: &str, index: usize) {
        let mut node = 0;
        for byte in text.bytes() {
            let fresh = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
            node = *self.children.entry((node, byte)).or_insert(fresh);
            if node == fresh {
                self.ends.push(None);
            }
        }
        if let Some(end) = self.ends.get_mut(node as usize) {
            end.get_or_insert(index);
        }
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
            let (token, id) = &self.tokens[index];
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
        let mut found = self.occurrences(text);
        if found.is_empty() {
            return found;
        }
        // Stable: places of one token stay in order.
        found.sort_by_key(|(_, index)| *index);
        let mut taken = vec![false; text.len()];
        // What is placed is at least as long, so an overlap covers the first or the last byte.
        found.retain(|&(start, index)| {
            let range = start..start + self.tokens[index].0.len();
            let free = !taken[range.start] && !taken[range.end - 1];
            if free {
                taken[range].fill(true);
            }
            free
        });
        found.sort_unstable();
        found
    }

    /// Every occurrence of every token: start and index.
    fn occurrences(&self, text: &str) -> Vec<(usize, usize)> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        if self.tokens.is_empty() {
            return found;
        }
        for start in 0..bytes.len() {
            let mut node = 0;
            for byte in &bytes[start..] {
                match self.children.get(&(node, *byte)) {
                    Some(child) => node = *child,
                    None => break,
                }
                if let Some(index) = self.ends.get(node as usize).copied().flatten() {
                    found.push((start, index));
                }
            }
        }
        found
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
