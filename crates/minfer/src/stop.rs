//! Stop strings over a stream of text: what may still become one is held back.

/// Finds stop strings in text that arrives in pieces.
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Text that can be shown.
    Text(String),
    /// A stop string was completed; the text before it.
    Found {
        /// Text before the stop string.
        text: String,
        /// Index of the stop string.
        which: usize,
    },
}

impl StopMatcher {
    /// A matcher; empty strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopMatcher { stops, held: String::new() }
    }

    /// Adds a piece. The stop string that starts first wins; of several that start at one place, the longest.
    /// A complete one waits while one that started earlier may still become complete.
    pub fn push(&mut self, piece: &str) -> Stopped {
        self.held.push_str(piece);
        let growing = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let start = self.held.len() - growing;
        match self.first() {
            Some((at, which)) if at <= start => self.cut(at, which),
            _ => {
                let rest = self.held.split_off(start);
                Stopped::Text(std::mem::replace(&mut self.held, rest))
            }
        }
    }

    /// What is still held back when the text ends.
    pub fn finish(&mut self) -> Stopped {
        match self.first() {
            Some((at, which)) => self.cut(at, which),
            None => Stopped::Text(std::mem::take(&mut self.held)),
        }
    }

    /// Place and index of the complete stop string that starts first.
    fn first(&self) -> Option<(usize, usize)> {
        let places = self.stops.iter().enumerate();
        let found = places.filter_map(|(i, s)| self.held.find(s.as_str()).map(|at| (at, i)));
        found.min_by_key(|&(at, i)| (at, usize::MAX - self.stops[i].len()))
    }

    fn cut(&mut self, at: usize, which: usize) -> Stopped {
        let mut text = std::mem::take(&mut self.held);
        text.truncate(at);
        Stopped::Found { text, which }
    }

    /// The stop string of an index.
    pub fn stop(&self, which: usize) -> &str {
        &self.stops[which]
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = stop.len().saturating_sub(1).min(text.len());
    let fits = |&n: &usize| stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..]);
    (1..=longest).rev().filter(|&n| text.is_char_boundary(text.len() - n)).find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut m = StopMatcher::new(&stops);
        let mut out = String::new();
        for p in pieces {
            match m.push(p) {
                Stopped::Text(t) => out.push_str(&t),
                Stopped::Found { text, which } => return (out + &text, Some(which)),
            }
        }
        match m.finish() {
            Stopped::Text(t) => (out + &t, None),
            Stopped::Found { text, which } => (out + &text, Some(which)),
        }
    }

    #[test]
    fn stop_string_over_borders_is_never_shown() {
        assert_eq!(stream(&["END"], &["abE", "N", "Dxy"]), ("ab".into(), Some(0)));
        assert_eq!(stream(&["END"], &["abE", "N", "x"]), ("abENx".into(), None));
        assert_eq!(stream(&["\n\n"], &["a\n", "b\n", "\nc"]), ("a\nb".into(), Some(0)));
        assert_eq!(stream(&["aab"], &["aa", "ab"]), ("a".into(), Some(0)));
    }

    #[test]
    fn earliest_wins() {
        assert_eq!(stream(&["yy", "x"], &["axyy"]), ("a".into(), Some(1)));
        assert_eq!(stream(&["ab", "abc"], &["zabc"]), ("z".into(), Some(1)));
        // However the text is cut.
        assert_eq!(stream(&["abcd", "bc"], &["abc", "d"]), ("".into(), Some(0)));
        assert_eq!(stream(&["abcd", "bc"], &["abcd"]), ("".into(), Some(0)));
        assert_eq!(stream(&["abcd", "bc"], &["abc", "x"]), ("a".into(), Some(1)));
        assert_eq!(stream(&["abcd", "bc"], &["zabc"]), ("za".into(), Some(1)));
    }

    #[test]
    fn half_a_stop_at_the_end_is_text() {
        assert_eq!(stream(&["é!"], &["caf", "é"]), ("café".into(), None));
        assert_eq!(stream(&[], &["all", " of it"]), ("all of it".into(), None));
        assert_eq!(stream(&[""], &["x"]), ("x".into(), None));
    }
}
