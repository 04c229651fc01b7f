//! A tree of texts by byte: which of many texts a text begins with.

use rustc_hash::FxHashMap;

/// Numbers by text.
#[derive(Debug)]
pub(crate) struct Trie {
    /// Child of a node by byte. Node 0 is the root.
    children: FxHashMap<(u32, u8), u32>,
    /// The number of the text that ends at each node.
    values: Vec<Option<u32>>,
}

impl Default for Trie {
    /// A tree without texts.
    fn default() -> Self {
        Trie { children: FxHashMap::default(), values: vec![None] }
    }
}

impl Trie {
    /// The tree of `texts`; of equal texts the first counts, and empty ones don't.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut trie = Trie::default();
        for (text, value) in texts.filter(|(text, _)| !text.is_empty()) {
            trie.insert(text, value);
        }
        trie
    }

    fn insert(&mut self, text: &str, value: u32) {
        let mut node = 0;
        for byte in text.bytes() {
            let fresh = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
            node = *self.children.entry((node, byte)).or_insert(fresh);
            if node == fresh {
                self.values.push(None);
            }
        }
        if let Some(end) = self.values.get_mut(node as usize) {
            end.get_or_insert(value);
        }
    }

    /// Every text that `bytes` begins with, shortest first: its length and its number.
    pub(crate) fn prefixes(&self, bytes: &[u8]) -> impl Iterator<Item = (usize, u32)> {
        let mut node = 0;
        let nodes = bytes.iter().map_while(move |byte| {
            node = *self.children.get(&(node, *byte))?;
            Some(node)
        });
        nodes.enumerate().filter_map(|(at, node)| {
            let value = self.values.get(node as usize).copied().flatten()?;
            Some((at + 1, value))
        })
    }

    /// The longest text that `bytes` begins with: its length and its number.
    pub(crate) fn longest(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(bytes).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found() {
        let trie = Trie::new([("a", 1), ("abc", 2), ("", 3), ("a", 4), ("é", 5)].into_iter());
        assert_eq!(trie.prefixes(b"abcd").collect::<Vec<_>>(), [(1, 1), (3, 2)]);
        assert_eq!(trie.longest(b"ab"), Some((1, 1)));
        assert_eq!(trie.longest("é".as_bytes()), Some((2, 5)));
        assert_eq!(trie.longest(b"b"), None);
        assert_eq!(trie.longest(b""), None);
    }
}
