//! Which rows of a tile are computed together, and what they see of a page.

use super::page::GROUP;
use std::ops::Range;

/// Neighbouring rows, at most [`GROUP`], and the positions of a page that they see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Rows of the tile.
    pub rows: Range<usize>,
    /// Positions relative to the page; empty where they see none.
    pub seen: Range<usize>,
}

/// Rows that all see the same positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The rows.
    pub span: Span,
    /// Whether the page is the first that they see.
    pub first: bool,
}

/// Cuts rows into ranges of at most [`GROUP`], as equal as possible.
pub fn groups(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (start, len) = (rows.start, rows.len());
    let count = len.div_ceil(GROUP);
    (0..count).map(move |i| start + i * len / count..start + (i + 1) * len / count)
}

/// What a tile's rows see of one page.
#[derive(Debug, Default)]
pub struct Spans {
    /// Positions that each row sees.
    pub seen: Vec<Range<usize>>,
    /// Groups that never change, with the positions that some row of each sees.
    pub groups: Vec<Span>,
    /// Runs of rows that see the same, none of them empty.
    pub runs: Vec<Run>,
    /// Neighbouring rows, any number, that see something, and whether the page is the first that they see.
    pub merges: Vec<(Range<usize>, bool)>,
    /// Tokens, rows per token and what all of them see, if they see the same: most pages are like the one before.
    same: Option<(usize, usize, (Range<usize>, bool))>,
}

impl Spans {
    /// Fills in a page: `of_token` says what the rows of a token see, and whether the page is their first.
    pub fn fill(&mut self, tokens: usize, group: usize, of_token: impl Fn(usize) -> (Range<usize>, bool)) {
        let Some(last) = tokens.checked_sub(1) else { return };
        // What is seen only moves forward from token to token.
        let ends = (of_token(0), of_token(last));
        let all = (ends.0 == ends.1).then_some((tokens, group, ends.0));
        if all.is_some() && all == self.same {
            return;
        }
        self.same = all;
        self.seen.clear();
        self.runs.clear();
        self.merges.clear();
        let mut same: Option<Run> = None;
        for token in 0..tokens {
            let (seen, first) = of_token(token);
            let rows = token * group..(token + 1) * group;
            self.seen.extend(rows.clone().map(|_| seen.clone()));
            if !seen.is_empty() {
                match self.merges.last_mut() {
                    Some((last, f)) if last.end == rows.start && *f == first => last.end = rows.end,
                    _ => self.merges.push((rows.clone(), first)),
                }
            }
            match &mut same {
                Some(run) if run.span.seen == seen && run.first == first => run.span.rows.end = rows.end,
                _ => {
                    let next = Run { span: Span { rows, seen }, first };
                    self.runs.extend(same.replace(next).into_iter().flat_map(cut));
                }
            }
        }
        self.runs.extend(same.into_iter().flat_map(cut));
        self.groups.clear();
        for rows in groups(0..tokens * group) {
            let some = || self.seen[rows.clone()].iter().filter(|r| !r.is_empty());
            let start = some().map(|r| r.start).min().unwrap_or(0);
            let seen = start..some().map(|r| r.end).max().unwrap_or(0);
            self.groups.push(Span { rows, seen });
        }
    }

    /// Positions that some row sees.
    pub fn union(&self) -> Range<usize> {
        let start = self.runs.iter().map(|r| r.span.seen.start).min().unwrap_or(0);
        start..self.runs.iter().map(|r| r.span.seen.end).max().unwrap_or(0)
    }
}

/// A run of any length in runs of at most [`GROUP`] rows; nothing if the rows see nothing.
fn cut(run: Run) -> impl Iterator<Item = Run> {
    let rows = if run.span.seen.is_empty() { 0..0 } else { run.span.rows };
    groups(rows).map(move |rows| Run { span: Span { rows, seen: run.span.seen.clone() }, ..run })
}

#[cfg(test)]
mod tests {
    use super::{Run, Span, Spans, groups};

    #[test]
    fn groups_are_even() {
        let lens = |n: usize| groups(3..3 + n).map(|r| r.len()).collect::<Vec<_>>();
        assert_eq!(lens(0), [0; 0]);
        assert_eq!(lens(6), [6]);
        assert_eq!(lens(7), [3, 4]);
        assert_eq!(lens(13), [4, 4, 5]);
    }

    #[test]
    fn rows_that_see_the_same_run_together() {
        let mut spans = Spans::default();
        // Token 0 sees nothing, 1 a position, 2 and 3 the whole page.
        let of_token = |t: usize| ([0..0, 0..1, 0..64, 0..64][t].clone(), t == 1);
        spans.fill(4, 2, of_token);
        let run = |rows, seen, first| Run { span: Span { rows, seen }, first };
        assert_eq!(spans.runs, [run(2..4, 0..1, true), run(4..8, 0..64, false)]);
        assert_eq!(spans.groups, [Span { rows: 0..4, seen: 0..1 }, Span { rows: 4..8, seen: 0..64 }]);
        assert_eq!(spans.merges, [(2..4, true), (4..8, false)]);
        assert_eq!(spans.union(), 0..64);
        assert_eq!(spans.seen.len(), 8);
    }
}
