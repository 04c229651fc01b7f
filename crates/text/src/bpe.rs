//! The merging of byte-pair encoding.
//!
//! A piece of text begins as one symbol per byte. The adjacent pair whose merge stands first in the file's list is
//! replaced by one symbol, leftmost first among equals, until no pair has a merge. With a heap of candidate pairs over
//! a linked list this takes O(n log n) for a piece of n bytes, however long the piece is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::alphabet::{self, BYTE_TO_CHAR};
use crate::error::TokenizerError;

/// No neighbour.
const NONE: usize = usize::MAX;

/// Merges and the symbols they work on. Symbols below the vocabulary's size are its tokens; merges may name others.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// Symbol of each text, in the alphabet of [`crate::alphabet`].
    symbols: FxHashMap<Arc<str>, u32>,
    /// Text of each symbol.
    texts: Vec<Arc<str>>,
    /// Rank and result of each pair that merges.
    merges: FxHashMap<(u32, u32), (u32, u32)>,
    /// The symbol of each byte.
    byte_symbols: Vec<u32>,
    /// The token of each symbol; `None` if text must not become it.
    tokens: Vec<Option<u32>>,
}

/// A pair that may merge. Ordered by rank, then by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    left_symbol: u32,
    right_symbol: u32,
    result: u32,
}

/// One place of the linked list.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// `None` once it was merged into its left neighbour.
    symbol: Option<u32>,
    prev: usize,
    next: usize,
}

/// Buffers that are reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<Candidate>>,
    text: String,
}

impl Bpe {
    /// Builds the tables from the vocabulary's texts (index = token id), from whether text may become each token, and
    /// from merges `"left right"` in order of rank.
    pub(crate) fn new(
        texts: &[Arc<str>],
        from_text: impl Fn(usize) -> bool,
        merges: &[String],
    ) -> Result<Self, TokenizerError> {
        let mut bpe = Bpe {
            symbols: FxHashMap::default(),
            texts: texts.to_vec(),
            merges: FxHashMap::default(),
            byte_symbols: Vec::new(),
            tokens: Vec::new(),
        };
        bpe.symbols.reserve(texts.len());
        for (id, text) in texts.iter().enumerate() {
            let symbol = symbol_number(id)?;
            bpe.tokens.push(from_text(id).then_some(symbol));
            if !text.is_empty()
                && let Some(first) = bpe.symbols.insert(Arc::clone(text), symbol)
            {
                return Err(TokenizerError::Invalid {
                    key: "tokenizer.ggml.tokens",
                    problem: format!("ids {first} and {id} are the same token {text:?}"),
                });
            }
        }
        for c in BYTE_TO_CHAR {
            let symbol = bpe.intern(c.encode_utf8(&mut [0; 4]))?;
            bpe.byte_symbols.push(symbol);
        }
        bpe.merges.reserve(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            bpe.add_merge(rank, merge)?;
        }
        Ok(bpe)
    }

    /// The symbol of `text`, a new one if it is no token.
    fn intern(&mut self, text: &str) -> Result<u32, TokenizerError> {
        if let Some(symbol) = self.symbols.get(text) {
            return Ok(*symbol);
        }
        let symbol = symbol_number(self.texts.len())?;
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.tokens.push(None);
        self.symbols.insert(text, symbol);
        Ok(symbol)
    }

    fn add_merge(&mut self, rank: usize, merge: &str) -> Result<(), TokenizerError> {
        let invalid = |problem| TokenizerError::Invalid { key: "tokenizer.ggml.merges", problem };
        let Some((left, right)) = merge.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty())
        else {
            return Err(invalid(format!("entry {rank} is no pair: {merge:?}")));
        };
        let rank = u32::try_from(rank).map_err(|_| invalid("too many entries".to_owned()))?;
        let result = self.intern(&format!("{left}{right}"))?;
        let pair = (self.intern(left)?, self.intern(right)?);
        self.merges.entry(pair).or_insert((rank, result));
        Ok(())
    }

    /// The token whose text is `text` in the byte alphabet, if text may become it.
    pub(crate) fn token(&self, text: &str) -> Option<u32> {
        self.tokens.get(*self.symbols.get(text)? as usize).copied().flatten()
    }

    /// The bytes that have no token of their own, ascending.
    pub(crate) fn missing_bytes(&self) -> Vec<u8> {
        let token = |byte: u8| self.tokens[self.byte_symbols[usize::from(byte)] as usize];
        (0..=u8::MAX).filter(|byte| token(*byte).is_none()).collect()
    }

    /// Appends the tokens of one piece. With `whole_first`, a piece that is a token needs no merges.
    pub(crate) fn encode_piece(
        &self,
        piece: &str,
        whole_first: bool,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if whole_first {
            scratch.text.clear();
            scratch.text.extend(piece.bytes().map(|byte| BYTE_TO_CHAR[usize::from(byte)]));
            if let Some(id) = self.token(&scratch.text) {
                out.push(id);
                return;
            }
        }
        self.start(piece.as_bytes(), scratch);
        while let Some(Reverse(candidate)) = scratch.heap.pop() {
            self.merge(candidate, scratch);
        }
        for symbol in scratch.nodes.iter().filter_map(|node| node.symbol) {
            self.emit(symbol, out);
        }
    }

    /// One node per byte, and every adjacent pair that merges.
    fn start(&self, bytes: &[u8], scratch: &mut Scratch) {
        scratch.nodes.clear();
        scratch.heap.clear();
        let last = bytes.len().saturating_sub(1);
        scratch.nodes.extend(bytes.iter().enumerate().map(|(at, byte)| Node {
            symbol: Some(self.byte_symbols[usize::from(*byte)]),
            prev: if at == 0 { NONE } else { at - 1 },
            next: if at == last { NONE } else { at + 1 },
        }));
        for at in 0..last {
            self.propose(at, scratch);
        }
    }

    /// Puts the pair that begins at `left` on the heap if it merges.
    fn propose(&self, left: usize, scratch: &mut Scratch) {
        let Some(node) = scratch.nodes.get(left) else { return };
        let Some(right) = scratch.nodes.get(node.next) else { return };
        let (Some(left_symbol), Some(right_symbol)) = (node.symbol, right.symbol) else { return };
        if let Some(&(rank, result)) = self.merges.get(&(left_symbol, right_symbol)) {
            scratch.heap.push(Reverse(Candidate { rank, left, left_symbol, right_symbol, result }));
        }
    }

    /// Merges a candidate unless one of its sides has changed since.
    fn merge(&self, candidate: Candidate, scratch: &mut Scratch) {
        let Candidate { left, left_symbol, right_symbol, result, .. } = candidate;
        let nodes = &mut scratch.nodes;
        let right = nodes[left].next;
        let stale = nodes[left].symbol != Some(left_symbol)
            || nodes.get(right).is_none_or(|node| node.symbol != Some(right_symbol));
        if stale {
            return;
        }
        let after = nodes[right].next;
        nodes[left].symbol = Some(result);
        nodes[left].next = after;
        nodes[right].symbol = None;
        if let Some(node) = nodes.get_mut(after) {
            node.prev = left;
        }
        let before = nodes[left].prev;
        self.propose(before, scratch);
        self.propose(left, scratch);
    }

    /// Appends a symbol's token; a symbol without one falls apart into its bytes' tokens, and a byte without one is dropped.
    fn emit(&self, symbol: u32, out: &mut Vec<u32>) {
        if let Some(id) = self.tokens[symbol as usize] {
            out.push(id);
            return;
        }
        let mut bytes = Vec::new();
        alphabet::decode_into(&self.texts[symbol as usize], &mut bytes);
        out.extend(
            bytes.iter().filter_map(|byte| self.tokens[self.byte_symbols[usize::from(*byte)] as usize]),
        );
    }
}

/// `index` as a symbol.
fn symbol_number(index: usize) -> Result<u32, TokenizerError> {
    u32::try_from(index).map_err(|_| TokenizerError::Invalid {
        key: "tokenizer.ggml.tokens",
        problem: "too many tokens".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(tokens: &[&str], merges: &[&str], piece: &str, whole_first: bool) -> Vec<String> {
        let texts: Vec<Arc<str>> = tokens.iter().map(|text| (*text).into()).collect();
        let merges: Vec<String> = merges.iter().map(|merge| (*merge).to_owned()).collect();
        let bpe = Bpe::new(&texts, |id| !tokens[id].starts_with('<'), &merges).unwrap();
        let mut ids = Vec::new();
        bpe.encode_piece(piece, whole_first, &mut Scratch::default(), &mut ids);
        ids.iter().map(|id| tokens[*id as usize].to_owned()).collect()
    }

    #[test]
    fn lowest_rank_first_then_leftmost() {
        let tokens = ["a", "b", "aa", "ab", "aab"];
        assert_eq!(encode(&tokens, &["a a", "a b"], "aaab", false), ["aa", "ab"]);
        assert_eq!(encode(&tokens, &["a b", "a a"], "aaab", false), ["aa", "ab"]);
        assert_eq!(encode(&tokens, &["a a", "aa b"], "aaab", false), ["aa", "a", "b"]);
        assert_eq!(encode(&tokens, &["a a", "aa b"], "aab", false), ["aab"]);
    }

    #[test]
    fn merges_may_pass_through_texts_that_are_no_tokens() {
        assert_eq!(encode(&["a", "b", "c", "abc"], &["a b", "ab c"], "abc", false), ["abc"]);
        assert_eq!(encode(&["a", "b", "c"], &["a b", "ab c"], "abc", false), ["a", "b", "c"]);
    }

    #[test]
    fn whole_pieces_are_taken_only_where_asked_and_never_as_control_tokens() {
        assert_eq!(encode(&["a", "b", "ab"], &[], "ab", true), ["ab"]);
        assert_eq!(encode(&["a", "b", "ab"], &[], "ab", false), ["a", "b"]);
        assert_eq!(encode(&["<", "a", "<a"], &["< a"], "<a", true), ["a"]);
    }

    /// The definition of the algorithm, quadratic: merge the leftmost pair of the lowest rank until none merges.
    fn by_definition(merges: &[(String, String)], piece: &str) -> Vec<String> {
        let mut symbols: Vec<String> = piece.chars().map(String::from).collect();
        loop {
            let rank = |pair: &[String]| merges.iter().position(|(l, r)| *l == pair[0] && *r == pair[1]);
            let best = symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(pair)?, at))).min();
            let Some((_, at)) = best else { return symbols };
            let right = symbols.remove(at + 1);
            symbols[at].push_str(&right);
        }
    }

    proptest::proptest! {
        #[test]
        fn merging_follows_the_definition(
            merges in proptest::collection::vec(("[abc]{1,3}", "[abc]{1,3}"), 0..24),
            piece in "[abc]{0,40}",
        ) {
            let mut tokens = std::collections::BTreeSet::from(["a", "b", "c"].map(String::from));
            tokens.extend(merges.iter().flat_map(|(l, r)| [l.clone(), r.clone(), format!("{l}{r}")]));
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let lines: Vec<String> = merges.iter().map(|(l, r)| format!("{l} {r}")).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            proptest::prop_assert_eq!(encode(&tokens, &lines, &piece, false), by_definition(&merges, &piece));
        }
    }

    #[test]
    fn bad_vocabularies_are_errors() {
        let text = |t: &str| -> Arc<str> { t.into() };
        assert!(Bpe::new(&[text("a"), text("a")], |_| true, &[]).is_err());
        for merge in ["ab", "a ", " a", ""] {
            assert!(Bpe::new(&[text("a")], |_| true, &[merge.to_owned()]).is_err(), "{merge:?}");
        }
    }
}
