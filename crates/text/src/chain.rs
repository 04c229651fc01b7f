//! Merging neighbours, the cheapest pair first: the part that byte-pair encoding and SentencePiece share.
//!
//! A text begins as a chain of small symbols. Of all adjacent pairs that may merge, the one of the lowest rank is
//! replaced by one symbol, leftmost first among equals, until none is left. With a heap of candidates over a linked
//! list this takes O(n log n) for n symbols, however long the text is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour.
const NONE: usize = usize::MAX;

/// A symbol in its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// What the symbol is, in the caller's numbering.
    pub(crate) symbol: u32,
    /// Where its text begins, in bytes.
    pub(crate) start: usize,
    /// The length of its text in bytes; 0 once it was merged into its left neighbour.
    pub(crate) len: usize,
    prev: usize,
    next: usize,
}

/// Two neighbours that may merge. Ordered by rank, then by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    right: usize,
    /// The length of both: symbols only grow, so another length tells that one of them has changed.
    len: usize,
    result: u32,
}

/// The chain; its buffers are reused from text to text.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Chain {
    /// Merges all that can be merged of `symbols`, given as symbol and length (not 0) from left to right. `pair` tells
    /// rank and result of two neighbours that may merge.
    pub(crate) fn merge(
        &mut self,
        symbols: impl Iterator<Item = (u32, usize)>,
        pair: impl Fn(&Node, &Node) -> Option<(u32, u32)>,
    ) {
        self.nodes.clear();
        self.heap.clear();
        let mut start = 0;
        for (at, (symbol, len)) in symbols.enumerate() {
            self.nodes.push(Node { symbol, start, len, prev: at.wrapping_sub(1), next: at + 1 });
            start += len;
        }
        if let Some(last) = self.nodes.last_mut() {
            last.next = NONE;
        }
        for right in 1..self.nodes.len() {
            self.propose(right - 1, right, &pair);
        }
        while let Some(Reverse(candidate)) = self.heap.pop() {
            self.take(candidate, &pair);
        }
    }

    /// The symbols that are left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.len > 0)
    }

    /// Puts a pair on the heap if it merges.
    fn propose(&mut self, left: usize, right: usize, pair: &impl Fn(&Node, &Node) -> Option<(u32, u32)>) {
        let (Some(l), Some(r)) = (self.nodes.get(left), self.nodes.get(right)) else { return };
        if let Some((rank, result)) = pair(l, r) {
            let len = l.len + r.len;
            self.heap.push(Reverse(Candidate { rank, left, right, len, result }));
        }
    }

    /// Merges a candidate unless one of its sides has changed since.
    fn take(&mut self, candidate: Candidate, pair: &impl Fn(&Node, &Node) -> Option<(u32, u32)>) {
        let Candidate { left, right, len, result, .. } = candidate;
        let Node { len: right_len, next: after, .. } = self.nodes[right];
        let left_node = &mut self.nodes[left];
        if left_node.len == 0 || right_len == 0 || left_node.len + right_len != len {
            return;
        }
        *left_node = Node { symbol: result, len, next: after, ..*left_node };
        let before = left_node.prev;
        self.nodes[right].len = 0;
        if let Some(node) = self.nodes.get_mut(after) {
            node.prev = left;
        }
        self.propose(before, left, pair);
        self.propose(left, after, pair);
    }
}
