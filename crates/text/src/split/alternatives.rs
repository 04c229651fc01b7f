//! Matching by alternatives: the expressions of tokenizers, without an engine for expressions.
//!
//! A pass is an ordered list of alternatives. At each place the first that matches takes its match out of the text; what is
//! between matches is a piece, too. All alternatives decide by a character or two, or read a run that they then take, so
//! that a text is read a small number of times, however long its runs are.

use super::sets::{LINE_END, Set};

/// One alternative of an expression.
#[derive(Clone, Copy)]
pub(super) enum Alt {
    /// `'s|'t|'re|'ve|'m|'ll|'d`, in any case of ASCII if so told.
    Contraction { any_case: bool },
    /// `before? what{1,at_most} after{0,after_at_most}`
    Run { before: Set, what: Set, at_most: usize, after: Set, after_at_most: usize },
    /// `before? upper* lower+ contraction?|before? upper+ lower* contraction?`: a word ends where its case rises.
    Cased { before: Set, upper: u16, lower: u16, contraction: bool },
    /// `\s*[\r\n]+`: white space up to its last line end
    Lines,
    /// `\s+(?!\S)`: white space, but the last of it stays with what follows
    SpacesBeforeSpace,
    /// `\s+`
    Spaces,
    /// What the function measures at the start of a text; in constant time, unless the match is as long.
    By(fn(&str) -> Option<usize>),
}

/// `what+`
pub(super) const fn run(what: Set) -> Alt {
    run_of(what, usize::MAX)
}

/// `what{1,at_most}`
pub(super) const fn run_of(what: Set, at_most: usize) -> Alt {
    Alt::Run { before: Set::NONE, what, at_most, after: Set::NONE, after_at_most: 0 }
}

/// `before?what+`
pub(super) const fn prefixed(before: Set, what: Set) -> Alt {
    Alt::Run { before, what, at_most: usize::MAX, after: Set::NONE, after_at_most: 0 }
}

/// `before?what+after*`
pub(super) const fn enclosed(before: Set, what: Set, after: Set) -> Alt {
    Alt::Run { before, what, at_most: usize::MAX, after, after_at_most: usize::MAX }
}

/// Cuts `text` into the matches of `alternatives` and what is between them.
pub(super) fn cut<'t>(alternatives: &[Alt], text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let (mut between, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        match alternatives.iter().find_map(|alternative| alternative.length(c, &text[at..])) {
            Some(length) => {
                if between < at {
                    piece(&text[between..at]);
                }
                piece(&text[at..at + length]);
                at += length;
                between = at;
            }
            None => at += c.len_utf8(),
        }
    }
    if between < at {
        piece(&text[between..at]);
    }
}

impl Alt {
    /// The length in bytes of the match at the start of `text`, whose first character is `first`; never 0.
    fn length(self, first: char, text: &str) -> Option<usize> {
        match self {
            Alt::Contraction { any_case } => contraction_length(text, any_case),
            Alt::Run { before, what, at_most, after, after_at_most } => {
                let rest = &text[first.len_utf8()..];
                let prefix = before.contains(first) && starts_with(rest, what);
                if !prefix && !what.contains(first) {
                    return None;
                }
                let start = if prefix { first.len_utf8() } else { 0 };
                let end = start + run_length(&text[start..], what, at_most);
                Some(end + run_length(&text[end..], after, after_at_most))
            }
            Alt::Cased { before, upper, lower, contraction } => {
                let end = cased_length(first, text, before, upper, lower)?;
                let tail = if contraction { contraction_length(&text[end..], true) } else { None };
                Some(end + tail.unwrap_or(0))
            }
            Alt::Lines => {
                let spaces = &text[..space_length(text)];
                spaces.rfind(['\r', '\n']).map(|last| last + 1)
            }
            Alt::SpacesBeforeSpace => {
                let length = space_length(text);
                let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
                let kept = if length < text.len() { length - last } else { length };
                (kept > 0).then_some(kept)
            }
            Alt::Spaces => Some(space_length(text)).filter(|length| *length > 0),
            Alt::By(measure) => measure(text),
        }
    }
}

/// Whether `text` begins with a character of `set`.
pub(super) fn starts_with(text: &str, set: Set) -> bool {
    text.chars().next().is_some_and(|c| set.contains(c))
}

/// The length in bytes of the characters of `set` that `text` begins with, `at_most` of them.
pub(super) fn run_length(text: &str, set: Set, at_most: usize) -> usize {
    let mut left = at_most;
    let stop = |c: char| {
        if left == 0 || !set.contains(c) {
            return true;
        }
        left -= 1;
        false
    };
    text.find(stop).unwrap_or(text.len())
}

/// The length in bytes of the white space that `text` begins with.
fn space_length(text: &str) -> usize {
    text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len())
}

/// The length of the contraction that `text` begins with.
fn contraction_length(text: &str, any_case: bool) -> Option<usize> {
    let letters = text.strip_prefix('\'')?.as_bytes();
    let at = |i: usize| letters.get(i).map(|b| if any_case { b.to_ascii_lowercase() } else { *b });
    match (at(0)?, at(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// The length of a word that ends where its case rises, in the order in which an engine would try: words with a lower part
/// before those without, and each with a prefix before those without.
fn cased_length(first: char, text: &str, before: Set, upper: u16, lower: u16) -> Option<usize> {
    let prefix = if before.contains(first) { first.len_utf8() } else { 0 };
    let starts = [Some(prefix).filter(|prefix| *prefix > 0), Some(0)];
    let mut without_lower = None;
    for start in starts.into_iter().flatten() {
        let word = &text[start..];
        let uppers = run_length(word, Set::Of(upper), usize::MAX);
        let lowers = run_length(&word[uppers..], Set::Of(lower), usize::MAX);
        if lowers > 0 {
            return Some(start + uppers + lowers);
        }
        // The upper part gives back what may stand in the lower part: all after the last such character is lost.
        let shared = word[..uppers].char_indices().rev().find(|(_, c)| Set::Of(lower).contains(*c));
        if let Some((at, c)) = shared {
            return Some(start + at + c.len_utf8());
        }
        if uppers > 0 && without_lower.is_none() {
            without_lower = Some(start + uppers);
        }
    }
    without_lower
}

/// Whether `c` ends a line.
pub(super) const LINE_ENDS: Set = Set::Of(LINE_END);
