//! Cuts batches into steps.

use crate::batch::{Batch, Wanted};
use crate::kv_cache::SeqId;
use std::ops::Range;

/// A sequence's part of one step.
pub(super) struct Piece {
    pub item: usize,
    pub seq: SeqId,
    pub range: Range<usize>,
    pub wanted: Wanted,
}

/// Cuts a batch into steps of at most `n_batch` tokens and `max_outputs` wanted rows. A sequence occurs at
/// most once in a step, and its pieces come in order.
pub(super) fn cut_batch(batch: &Batch, n_batch: usize, max_outputs: usize) -> Vec<Vec<Piece>> {
    let mut steps = Vec::new();
    let (mut step, mut tokens, mut outputs) = (Vec::new(), 0, 0);
    for (index, item) in batch.items.iter().enumerate() {
        let mut start = 0;
        while start < item.tokens.len() {
            let left = item.tokens.len() - start;
            let mut n = left.min(n_batch - tokens);
            if item.wanted == Wanted::All {
                n = n.min(max_outputs - outputs);
            } else if item.wanted == Wanted::Last && n == left && outputs == max_outputs {
                n -= 1;
            }
            if n > 0 {
                let last = n == left;
                let wanted = if item.wanted == Wanted::Last && !last { Wanted::Nothing } else { item.wanted };
                outputs += match wanted {
                    Wanted::Nothing => 0,
                    Wanted::Last => 1,
                    Wanted::All => n,
                };
                tokens += n;
                step.push(Piece { item: index, seq: item.seq, range: start..start + n, wanted });
                start += n;
            }
            if start < item.tokens.len() || tokens == n_batch {
                steps.push(std::mem::take(&mut step));
                (tokens, outputs) = (0, 0);
            }
        }
    }
    if !step.is_empty() {
        steps.push(step);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(steps: &[Vec<Piece>]) -> Vec<Vec<(usize, Range<usize>, Wanted)>> {
        steps.iter().map(|s| s.iter().map(|p| (p.item, p.range.clone(), p.wanted)).collect()).collect()
    }

    #[test]
    fn long_prompt_is_cut_and_only_its_last_piece_wants_logits() {
        let mut batch = Batch::new();
        batch.add(SeqId(0), &[1; 5], Wanted::Last).add(SeqId(1), &[2; 2], Wanted::Last);
        let steps = shape_of(&cut_batch(&batch, 3, 2));
        assert_eq!(
            steps,
            vec![
                vec![(0, 0..3, Wanted::Nothing)],
                vec![(0, 3..5, Wanted::Last), (1, 0..1, Wanted::Nothing)],
                vec![(1, 1..2, Wanted::Last)],
            ]
        );
    }

    #[test]
    fn wanted_rows_never_pass_the_capacity() {
        let mut batch = Batch::new();
        batch.add(SeqId(0), &[1; 7], Wanted::All).add(SeqId(1), &[2; 1], Wanted::Last);
        let steps = cut_batch(&batch, 100, 3);
        let outputs = |s: &Vec<Piece>| -> usize {
            s.iter().map(|p| if p.wanted == Wanted::All { p.range.len() } else { 1 }).sum()
        };
        assert!(steps.iter().all(|s| outputs(s) <= 3));
        assert_eq!(steps.iter().flatten().map(|p| p.range.len()).sum::<usize>(), 8);
    }
}
