//! SentencePiece's unigram model (`tokenizer.ggml.model` = `t5`): the tokens of the highest sum of scores.
//!
//! Text is normalised by the file's table of replacements, spaces are spelt `▁`, and Viterbi's algorithm finds the best
//! sequence of tokens in one walk over the characters. A character that no token begins with costs ten more than the worst
//! token; a run of such is one unknown token.

use std::sync::Arc;

use crate::charsmap::CharsMap;
use crate::error::TokenizerError;
use crate::model::{self, Model, SPACE};
use crate::trie::Trie;
use crate::vocab::{self, TokenKind};

/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A unigram vocabulary.
#[derive(Debug)]
pub(crate) struct Ugm {
    tokens: Trie,
    /// What each token adds to the sum; user-defined tokens nothing, so that they are preferred.
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    charsmap: CharsMap,
    add_space: bool,
    merge_spaces: bool,
}

/// The best way to reach a place.
#[derive(Clone, Copy)]
struct Step {
    score: f64,
    /// The token that ends here, and where it begins.
    token: u32,
    start: usize,
}

impl Ugm {
    /// Builds the tables; `texts`, `kinds` and `scores` are indexed by id. `add_space`: texts get a space in front;
    /// `merge_spaces`: runs of spaces count as one, and spaces at the end not at all.
    ///
    /// # Errors
    ///
    /// A text that two tokens share, a score that is no number, lengths that differ.
    pub(crate) fn new(
        texts: &[Arc<str>],
        kinds: &[TokenKind],
        scores: &[f32],
        unknown: u32,
        charsmap: CharsMap,
        [add_space, merge_spaces]: [bool; 2],
    ) -> Result<Self, TokenizerError> {
        vocab::check_scores(scores, texts.len())?;
        vocab::by_text(texts)?;
        let of_text = |kind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        let tokens = (0..).zip(texts).zip(kinds).filter(|(_, kind)| of_text(**kind));
        let tokens = Trie::new(tokens.map(|((id, text), _)| (&**text, id)));
        let normal = scores.iter().zip(kinds).filter(|(_, kind)| **kind == TokenKind::Normal);
        let worst = normal.map(|(score, _)| f64::from(*score)).fold(f64::INFINITY, f64::min);
        let score = |(score, kind): (&f32, &TokenKind)| {
            if *kind == TokenKind::UserDefined { 0.0 } else { f64::from(*score) }
        };
        Ok(Ugm {
            tokens,
            scores: scores.iter().zip(kinds).map(score).collect(),
            unknown,
            unknown_score: if worst.is_finite() { worst } else { 0.0 } - UNKNOWN_PENALTY,
            charsmap,
            add_space,
            merge_spaces,
        })
    }

    /// The text as the vocabulary spells it.
    fn normalise(&self, text: &str) -> String {
        let replaced = self.charsmap.apply(text);
        let mut out = String::with_capacity(replaced.len() + SPACE.len_utf8());
        // Whether a word has begun, and whether we are in one.
        let (mut begun, mut inside) = (false, false);
        for c in replaced.chars() {
            if c == ' ' {
                inside = false;
                if !self.merge_spaces {
                    out.push(SPACE);
                }
                continue;
            }
            if !inside && if begun { self.merge_spaces } else { self.add_space } {
                out.push(SPACE);
            }
            (begun, inside) = (true, true);
            out.push(c);
        }
        out
    }

    /// The best step to every place of `text`, by Viterbi's algorithm.
    fn best_steps(&self, text: &str) -> Vec<Step> {
        let nothing = Step { score: f64::NEG_INFINITY, token: self.unknown, start: 0 };
        let mut best = vec![nothing; text.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let here = best[start].score;
            let mut reach = |end: usize, token: u32, score: f64| {
                if here + score > best[end].score {
                    best[end] = Step { score: here + score, token, start };
                }
            };
            let mut known = false;
            for (length, token) in self.tokens.prefixes(&text.as_bytes()[start..]) {
                known |= length == c.len_utf8();
                reach(start + length, token, self.scores[token as usize]);
            }
            if !known {
                reach(start + c.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        best
    }
}

impl Model for Ugm {
    fn encode(&self, text: &str, _begins: bool, ids: &mut Vec<u32>) {
        let text = self.normalise(text);
        let best = self.best_steps(&text);
        let first = ids.len();
        let mut at = text.len();
        while at > 0 {
            let Step { token, start, .. } = best[at];
            let repeated = token == self.unknown && ids.len() > first && ids.last() == Some(&token);
            if !repeated {
                ids.push(token);
            }
            at = start;
        }
        ids[first..].reverse();
    }

    fn decode(&self, spelling: &str, kind: TokenKind, out: &mut Vec<u8>) {
        model::decode_escaped(spelling, kind, out);
    }

    fn missing_bytes(&self) -> Vec<u8> {
        // The vocabulary is one of words; no byte is expressible as such.
        Vec::new()
    }

    fn adds_space(&self) -> bool {
        self.add_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ugm(options: [bool; 2]) -> Ugm {
        let tokens = [("?", 0.0), ("▁", -2.0), ("a", -3.0), ("ab", -4.0), ("b", -3.0), ("▁a", -4.5)];
        let texts: Vec<Arc<str>> = tokens.iter().map(|(text, _)| (*text).into()).collect();
        let scores: Vec<f32> = tokens.iter().map(|(_, score)| *score).collect();
        let mut kinds = vec![TokenKind::Normal; tokens.len()];
        kinds[0] = TokenKind::Unknown;
        Ugm::new(&texts, &kinds, &scores, 0, CharsMap::default(), options).unwrap()
    }

    fn encode(options: [bool; 2], text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        ugm(options).encode(text, true, &mut ids);
        ids
    }

    #[test]
    fn the_highest_sum_wins() {
        assert_eq!(encode([true, true], "ab"), [1, 3], "-2 - 4 is more than -4.5 - 3");
        assert_eq!(encode([false, true], "éfab"), [0, 3]);
        assert_eq!(encode([true, true], "a é"), [5, 1, 0]);
        assert!(encode([true, true], "").is_empty());
    }

    #[test]
    fn spaces_are_kept_or_merged() {
        let spell = |options, text: &str| ugm(options).normalise(text);
        assert_eq!(spell([true, true], "  a  b "), "▁a▁b");
        assert_eq!(spell([false, true], "  a  b "), "a▁b");
        assert_eq!(spell([true, false], " a  b "), "▁▁a▁▁b▁");
        assert_eq!(spell([false, false], " a  b "), "▁a▁▁b▁");
    }
}
