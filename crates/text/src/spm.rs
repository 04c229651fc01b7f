//! SentencePiece's BPE (`tokenizer.ggml.model` = `llama`): pairs merge by the score of the token that they make.
//!
//! Spaces are spelt `▁`, and a text has one more in front of it where the file says so. The text is one chain of
//! characters; of all neighbours that together are a token, those of the highest score merge, leftmost first. A character
//! that is no token falls apart into the tokens of its bytes, and where these are missing it is the unknown token.
//!
//! Hardly a token goes on behind a space. Where none does, nothing merges across the space, and the chain is cut: short chains
//! are much faster than long ones.
//!
//! Control tokens, the unknown token and byte tokens are never made by merging, as in SentencePiece.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::chain::Chain;
use crate::error::TokenizerError;
use crate::model::{self, Model, SPACE};
use crate::vocab::{self, TokenKind};

/// The symbol of a character that is no token.
const NO_TOKEN: u32 = u32::MAX;

/// A SentencePiece vocabulary.
#[derive(Debug)]
pub(crate) struct Spm {
    /// Tokens that text may become, by spelling.
    tokens: FxHashMap<Arc<str>, u32>,
    /// The place of each token's score among all scores, highest first; equal scores have equal ranks.
    ranks: Vec<u32>,
    /// The longest spelling, in bytes: what is longer need not be looked up.
    longest: usize,
    /// Characters that stand before a space inside a token.
    before_space: FxHashSet<char>,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    add_space: bool,
}

impl Spm {
    /// Builds the tables. `texts`, `kinds` and `scores` are indexed by id; `add_space`: texts get a space in front.
    ///
    /// # Errors
    ///
    /// A text that two tokens share, a score that is no number, lengths that differ, a byte token that names no byte.
    pub(crate) fn new(
        texts: &[Arc<str>],
        kinds: &[TokenKind],
        scores: &[f32],
        unknown: Option<u32>,
        add_space: bool,
    ) -> Result<Self, TokenizerError> {
        vocab::check_scores(scores, texts.len())?;
        let by_text = vocab::by_text(texts)?;
        let bytes = byte_tokens(texts, kinds, &by_text)?;
        let mut tokens = by_text;
        tokens.retain(|_, id| {
            matches!(kinds[*id as usize], TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
        });
        let longest = tokens.keys().map(|text| text.len()).max().unwrap_or(0);
        let before_space = tokens.keys().flat_map(|text| characters_before_space(text)).collect();
        Ok(Spm { tokens, ranks: ranks(scores), longest, before_space, bytes, unknown, add_space })
    }

    /// The length of the text up to the first space that no token goes across.
    fn piece_length(&self, text: &str) -> usize {
        let mut before = None;
        for (at, c) in text.char_indices() {
            if c == SPACE && before.is_some_and(|before| !self.before_space.contains(&before)) {
                return at;
            }
            before = Some(c);
        }
        text.len()
    }

    /// Appends the tokens of a piece. `after_unknown`: the last token is the unknown one.
    fn encode_piece(&self, piece: &str, chain: &mut Chain, after_unknown: &mut bool, ids: &mut Vec<u32>) {
        let token = |text: &str| self.tokens.get(text).copied();
        let characters = piece.char_indices().map(|(at, c)| {
            let len = c.len_utf8();
            (token(&piece[at..at + len]).unwrap_or(NO_TOKEN), len)
        });
        chain.merge(characters, |left, right| {
            let len = left.len + right.len;
            if len > self.longest {
                return None;
            }
            let id = token(&piece[left.start..left.start + len])?;
            Some((self.ranks[id as usize], id))
        });
        for node in chain.symbols() {
            if node.symbol == NO_TOKEN {
                let character = &piece[node.start..node.start + node.len];
                *after_unknown = self.fall_back(character, *after_unknown, ids);
            } else {
                ids.push(node.symbol);
                *after_unknown = false;
            }
        }
    }

    /// Appends the tokens of the bytes of a character that is no token, or the unknown token if one has none.
    /// A run of unknown characters is one unknown token.
    fn fall_back(&self, character: &str, after_unknown: bool, ids: &mut Vec<u32>) -> bool {
        let length = ids.len();
        for byte in character.bytes() {
            match self.bytes[usize::from(byte)] {
                Some(id) => ids.push(id),
                None => {
                    ids.truncate(length);
                    ids.extend(self.unknown.filter(|_| !after_unknown));
                    return true;
                }
            }
        }
        false
    }
}

impl Model for Spm {
    fn encode(&self, text: &str, begins: bool, ids: &mut Vec<u32>) {
        let mut escaped = String::new();
        if self.add_space && begins {
            escaped.push(SPACE);
        }
        model::escape_spaces(text, &mut escaped);
        let (mut chain, mut after_unknown) = (Chain::default(), false);
        let mut left = &*escaped;
        while !left.is_empty() {
            let (piece, rest) = left.split_at(self.piece_length(left));
            self.encode_piece(piece, &mut chain, &mut after_unknown, ids);
            left = rest;
        }
    }

    fn decode(&self, spelling: &str, kind: TokenKind, out: &mut Vec<u8>) {
        model::decode_escaped(spelling, kind, out);
    }

    fn missing_bytes(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|byte| self.bytes[usize::from(*byte)].is_none()).collect()
    }

    fn adds_space(&self) -> bool {
        self.add_space
    }
}

/// The characters that stand before a space in a token.
fn characters_before_space(text: &str) -> impl Iterator<Item = char> {
    let pairs = text.chars().zip(text.chars().skip(1));
    pairs.filter(|(_, second)| *second == SPACE).map(|(first, _)| first)
}

/// The token of each byte: spelt `<0x41>`, else the character itself where it is one byte.
fn byte_tokens(
    texts: &[Arc<str>],
    kinds: &[TokenKind],
    by_text: &FxHashMap<Arc<str>, u32>,
) -> Result<Vec<Option<u32>>, TokenizerError> {
    if let Some(id) =
        (0..texts.len()).find(|id| kinds[*id] == TokenKind::Byte && model::spelt_byte(&texts[*id]).is_none())
    {
        return Err(TokenizerError::Invalid {
            key: "tokenizer.ggml.tokens",
            problem: format!("the byte token {id} names no byte: {:?}", texts[id]),
        });
    }
    let find = |text: &str| {
        let id = by_text.get(text).copied();
        id.filter(|id| !kinds[*id as usize].is_control())
    };
    let token = |byte: u8| {
        let plain = || byte.is_ascii().then(|| find(char::from(byte).encode_utf8(&mut [0; 4])))?;
        find(&model::byte_spelling(byte)).or_else(plain)
    };
    Ok((0..=u8::MAX).map(token).collect())
}

/// The rank of each score, the highest score first.
fn ranks(scores: &[f32]) -> Vec<u32> {
    // Adding 0 makes the two zeros one.
    let descending = |a: &f32, b: &f32| (b + 0.0).total_cmp(&(a + 0.0));
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(descending);
    sorted.dedup();
    let rank = |score| sorted.binary_search_by(|other| descending(other, score)).unwrap_or(sorted.len());
    scores.iter().map(|score| u32::try_from(rank(score)).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spm(tokens: &[(&str, TokenKind, f32)], add_space: bool) -> Result<Spm, TokenizerError> {
        let texts: Vec<Arc<str>> = tokens.iter().map(|(text, ..)| (*text).into()).collect();
        let kinds: Vec<TokenKind> = tokens.iter().map(|(_, kind, _)| *kind).collect();
        let scores: Vec<f32> = tokens.iter().map(|(.., score)| *score).collect();
        Spm::new(&texts, &kinds, &scores, Some(0), add_space)
    }

    fn encode(spm: &Spm, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        spm.encode(text, true, &mut ids);
        ids
    }

    use TokenKind::{Byte, Control, Normal, Unknown};

    #[test]
    fn the_highest_score_merges_first_then_the_leftmost() {
        let tokens = [("?", Unknown, 0.0), ("a", Normal, -9.0), ("aa", Normal, -1.0), ("▁", Normal, -9.0)];
        let spm = spm(&tokens, true).unwrap();
        assert_eq!(encode(&spm, "aaa"), [3, 2, 1]);
        assert_eq!(encode(&spm, ""), [3]);
        assert_eq!(ranks(&[0.0, -0.0, 2.0, f32::NEG_INFINITY, -1.0]), [1, 1, 0, 3, 2]);
    }

    #[test]
    fn what_is_no_token_becomes_bytes_or_the_unknown_token() {
        let tokens = [
            ("?", Unknown, 0.0),
            ("<0xC3>", Byte, 0.0),
            ("<0xA9>", Byte, 0.0),
            ("b", Normal, 0.0),
            ("<s>", Control, 9.0),
            ("<s", Normal, -1.0),
            ("<", Normal, -1.0),
            ("s", Normal, -1.0),
            (">", Normal, -1.0),
        ];
        let spm = spm(&tokens, false).unwrap();
        assert_eq!(encode(&spm, "ébéÿÿbÿ"), [1, 2, 3, 1, 2, 0, 3, 0]);
        assert_eq!(encode(&spm, "<s>"), [5, 8], "no control token is made by merging");
        assert_eq!(spm.missing_bytes().len(), 256 - 2 - 4);
    }

    #[test]
    fn bad_vocabularies_are_errors() {
        for tokens in [
            [("a", Normal, 0.0), ("a", Normal, 0.0)],
            [("a", Normal, f32::NAN), ("b", Normal, 0.0)],
            [("<0xG0>", Byte, 0.0), ("b", Normal, 0.0)],
        ] {
            assert!(spm(&tokens, false).is_err());
        }
        assert!(Spm::new(&["a".into()], &[Normal], &[], None, false).is_err());
        assert!(spm(&[("", Normal, 0.0), ("", Normal, 0.0)], false).is_ok(), "no text, no token");
    }
}
