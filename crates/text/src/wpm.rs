//! WordPiece (`tokenizer.ggml.model` = `bert`): words fall into the longest tokens that they begin with.
//!
//! Text is cleaned of control characters, stripped of accents and lowercased as the file says, and cut into words at white
//! space, around punctuation and around Chinese characters, as Hugging Face's `BertNormalizer` and `BertPreTokenizer` do. In
//! the vocabulary a word's first token begins with `▁`. A word that is not made of tokens altogether is the unknown token,
//! and so is one of more than a hundred characters.

use std::sync::Arc;

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;

use crate::error::TokenizerError;
use crate::model::{self, Model, SPACE};
use crate::split::sets;
use crate::trie::Trie;
use crate::vocab::{self, TokenKind};

/// The longest word that is looked up, in characters. No key of a file says it; all published models have this one.
const LONGEST_WORD: usize = 100;

/// A WordPiece vocabulary.
#[derive(Debug)]
pub(crate) struct Wpm {
    tokens: Trie,
    unknown: Option<u32>,
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    /// Builds the tables; `texts` and `kinds` are indexed by id.
    ///
    /// # Errors
    ///
    /// A text that two tokens share.
    pub(crate) fn new(
        texts: &[Arc<str>],
        kinds: &[TokenKind],
        unknown: Option<u32>,
        lowercase: bool,
        strip_accents: bool,
    ) -> Result<Self, TokenizerError> {
        vocab::by_text(texts)?;
        let tokens = (0..).zip(texts).zip(kinds);
        let of_text = tokens.filter(|(_, kind)| {
            matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
        });
        let tokens = Trie::new(of_text.map(|((id, text), _)| (&**text, id)));
        Ok(Wpm { tokens, unknown, lowercase, strip_accents })
    }

    /// The text without control characters, accents and capitals, with spaces around Chinese characters.
    fn normalise(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars().filter(|c| !is_dropped(*c)) {
            if is_chinese(c) {
                clean.extend([' ', c, ' ']);
            } else {
                clean.push(c);
            }
        }
        if self.strip_accents {
            clean =
                clean.nfd().filter(|c| get_general_category(*c) != GeneralCategory::NonspacingMark).collect();
        }
        if self.lowercase {
            // Character by character: no final sigma.
            clean = clean.chars().flat_map(char::to_lowercase).collect();
        }
        clean
    }

    fn encode_word(&self, word: &str, scratch: &mut String, ids: &mut Vec<u32>) {
        if word.chars().nth(LONGEST_WORD).is_some() {
            ids.extend(self.unknown);
            return;
        }
        scratch.clear();
        scratch.push(SPACE);
        scratch.push_str(word);
        let start = ids.len();
        let mut left = scratch.as_bytes();
        while !left.is_empty() {
            // What begins with `▁` begins a word, so a `▁` of the text itself is in no token.
            let begins = left.len() < scratch.len() && left.starts_with("▁".as_bytes());
            let Some((length, id)) = self.tokens.longest(left).filter(|_| !begins) else {
                ids.truncate(start);
                ids.extend(self.unknown);
                return;
            };
            ids.push(id);
            left = &left[length..];
        }
    }
}

impl Model for Wpm {
    fn encode(&self, text: &str, _begins: bool, ids: &mut Vec<u32>) {
        let clean = self.normalise(text);
        let mut scratch = String::new();
        for word in clean.split_whitespace() {
            let mut start = 0;
            for (at, mark) in word.match_indices(is_punctuation) {
                if start < at {
                    self.encode_word(&word[start..at], &mut scratch, ids);
                }
                self.encode_word(mark, &mut scratch, ids);
                start = at + mark.len();
            }
            if start < word.len() {
                self.encode_word(&word[start..], &mut scratch, ids);
            }
        }
    }

    fn decode(&self, spelling: &str, _kind: TokenKind, out: &mut Vec<u8>) {
        model::unescape_spaces(spelling, out);
    }

    fn missing_bytes(&self) -> Vec<u8> {
        // The vocabulary is one of words; no byte is expressible as such.
        Vec::new()
    }

    fn adds_space(&self) -> bool {
        true
    }
}

/// Control, format and private characters, and the replacement character. Line ends and tabs are white space.
fn is_dropped(c: char) -> bool {
    use GeneralCategory as G;
    match c {
        '\t' | '\n' | '\r' => false,
        '\u{FFFD}' => true,
        c => matches!(get_general_category(c), G::Control | G::Format | G::PrivateUse | G::Surrogate),
    }
}

/// Whether `c` is a word of its own as a punctuation mark.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || !c.is_ascii() && sets::is_punctuation(get_general_category(c))
}

/// Whether `c` is a word of its own as a Chinese character. The gap before U+2B920 is Hugging Face's.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F | 0x2B920..=0x2CEAF | 0x2F800..=0x2FA1F)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(lowercase: bool, text: &str) -> Vec<u32> {
        let texts = ["[UNK]", "▁hello", "ing", "▁ete", "▁!", "▁漢", "▁É", "a", "▁a"].map(Arc::from);
        let mut kinds = [TokenKind::Normal; 9];
        kinds[0] = TokenKind::Unknown;
        let wpm = Wpm::new(&texts, &kinds, Some(0), lowercase, lowercase).unwrap();
        let mut ids = Vec::new();
        wpm.encode(text, true, &mut ids);
        ids
    }

    #[test]
    fn words_fall_into_the_longest_tokens() {
        assert_eq!(encode(true, "Helloing hello!ing"), [1, 2, 1, 4, 0]);
        assert_eq!(encode(true, "\u{0}É\u{AD}té漢漢\u{3000}ing"), [3, 5, 5, 0]);
        assert_eq!(encode(false, "É Hello hello"), [6, 0, 1]);
        assert!(encode(true, " \u{FFFD}\n").is_empty());
        assert_eq!(encode(true, &"a".repeat(100)).len(), 100);
        assert_eq!(encode(true, &"a".repeat(101)), [0]);
    }
}
