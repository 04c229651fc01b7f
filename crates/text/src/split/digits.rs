//! Passes that group digits: what they cut depends on how many there are, so that they look at a whole run at once.

use super::sets::{self, NUMBER, Set};

/// `\d{1,3}(?=(?:\d{3})*\b)`: threes counted from the end, unless a word goes on behind the digits.
pub(super) fn threes_before_a_word_end<'t>(text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let goes_on = |after: &str| after.chars().next().is_some_and(sets::is_word);
    groups(text, Set::By(sets::is_digit), &|after| !goes_on(after), piece);
}

/// Threes of `\p{N}`, counted from the end.
pub(super) fn threes<'t>(text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    groups(text, Set::Of(NUMBER), &|_| true, piece);
}

/// Cuts before every place that has a multiple of three digits behind it, and then no digit: `(?=(\d{3})+(?!\d))`.
pub(super) fn cuts_before_threes<'t>(text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let mut start = 0;
    for (from, to) in runs(text, Set::By(sets::is_digit)) {
        let digits = &text[from..to];
        let count = digits.chars().count();
        for (index, (at, _)) in digits.char_indices().enumerate() {
            if (count - index).is_multiple_of(3) && start < from + at {
                piece(&text[start..from + at]);
                start = from + at;
            }
        }
    }
    if start < text.len() {
        piece(&text[start..]);
    }
}

/// Cuts every run of `set` that `taken` accepts by what is behind it into threes, and what is between into pieces.
fn groups<'t>(text: &'t str, set: Set, taken: &dyn Fn(&str) -> bool, piece: &mut dyn FnMut(&'t str)) {
    let mut start = 0;
    for (from, to) in runs(text, set) {
        if !taken(&text[to..]) {
            continue;
        }
        if start < from {
            piece(&text[start..from]);
        }
        let digits = &text[from..to];
        let count = digits.chars().count();
        start = from;
        for (index, (at, _)) in digits.char_indices().enumerate().skip(1) {
            if (count - index).is_multiple_of(3) {
                piece(&text[start..from + at]);
                start = from + at;
            }
        }
        piece(&text[start..to]);
        start = to;
    }
    if start < text.len() {
        piece(&text[start..]);
    }
}

/// Start and end of every run of `set`.
fn runs(text: &str, set: Set) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + text[at..].find(|c| set.contains(c))?;
        let to = text[from..].find(|c| !set.contains(c)).map_or(text.len(), |length| from + length);
        at = to;
        Some((from, to))
    })
}
