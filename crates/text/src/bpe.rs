//! Byte-pair encoding by a list of merges (`tokenizer.ggml.model` = `gpt2`, `gemma4`, `whitespace`).
//!
//! A piece of text begins as one symbol per byte, and [`crate::chain`] merges them; the rank of a pair is its place in the
//! file's list of merges. A few vocabularies are spelt as SentencePiece spells: one symbol per character, `▁` for a space,
//! `<0x0A>` for a byte that is in no token. One kind knows no space at all: it keeps the words, and drops what is between.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::alphabet::{self, BYTE_TO_CHAR};
use crate::chain::{Chain, Node};
use crate::error::TokenizerError;
use crate::model::{self, Model};
use crate::split::{PreSettings, Spelling};
use crate::vocab::{self, TokenKind};

/// The symbol of a character that no token and no merge knows.
const NO_SYMBOL: u32 = u32::MAX;

/// Merges and the symbols they work on. Symbols below the vocabulary's size are its tokens; merges may name others.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// How text is cut into pieces, and whether a piece that is a token needs no merges.
    settings: PreSettings,
    /// Symbol of each text, in the alphabet of [`crate::alphabet`].
    symbols: FxHashMap<Arc<str>, u32>,
    /// Text of each symbol.
    texts: Vec<Arc<str>>,
    /// Rank and result of each pair that merges.
    merges: FxHashMap<(u32, u32), (u32, u32)>,
    /// The symbol of each byte, however the vocabulary spells it.
    byte_symbols: Vec<u32>,
    /// The token of each symbol; `None` if text must not become it.
    tokens: Vec<Option<u32>>,
    /// Merges of which a part or the result is no token.
    unknown_merges: usize,
    /// Whether text is lower-cased first.
    lowercase: bool,
}

/// Buffers that are reused from piece to piece.
#[derive(Debug, Default)]
struct Scratch {
    chain: Chain,
    text: String,
    bytes: Vec<u8>,
}

impl Bpe {
    /// Builds the tables from the vocabulary's texts (index = token id), from whether text may become each token, and
    /// from merges `"left right"` in order of rank.
    pub(crate) fn new(
        settings: PreSettings,
        texts: &[Arc<str>],
        from_text: impl Fn(usize) -> bool,
        merges: &[String],
    ) -> Result<Self, TokenizerError> {
        let mut bpe = Bpe {
            settings,
            symbols: vocab::by_text(texts)?,
            texts: texts.to_vec(),
            merges: FxHashMap::default(),
            byte_symbols: Vec::new(),
            tokens: (0u32..).zip(texts).map(|(id, _)| from_text(id as usize).then_some(id)).collect(),
            unknown_merges: 0,
            lowercase: false,
        };
        for byte in 0..=u8::MAX {
            let symbol = match settings.spelling {
                Spelling::Bytes => bpe.intern(BYTE_TO_CHAR[usize::from(byte)].encode_utf8(&mut [0; 4]))?,
                Spelling::Words if let Some(symbol) = bpe.ascii_symbol(byte) => symbol,
                Spelling::Characters | Spelling::Words => bpe.intern(&model::byte_spelling(byte))?,
            };
            bpe.byte_symbols.push(symbol);
        }
        bpe.merges.reserve(merges.len());
        let mut whole = String::new();
        let mut last = 0;
        for (rank, merge) in merges.iter().enumerate() {
            last = bpe.add_merge(rank, merge, texts.len(), last, &mut whole)?;
        }
        Ok(bpe)
    }

    /// The same tables for texts that are lower-cased first, where the kind of tokenizer knows that.
    pub(crate) fn with_lowercase(self, lowercase: bool) -> Self {
        Bpe { lowercase: lowercase && self.settings.spelling == Spelling::Words, ..self }
    }

    /// The token of a character of one byte.
    fn ascii_symbol(&self, byte: u8) -> Option<u32> {
        let character = byte.is_ascii().then(|| char::from(byte))?;
        self.symbols.get(&*character.encode_utf8(&mut [0; 4])).copied()
    }

    /// The symbol of `text`, a new one if it is no token.
    fn intern(&mut self, text: &str) -> Result<u32, TokenizerError> {
        if let Some(symbol) = self.symbols.get(text) {
            return Ok(*symbol);
        }
        let symbol = vocab::id_of(self.texts.len())?;
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.tokens.push(None);
        self.symbols.insert(text, symbol);
        Ok(symbol)
    }

    /// Adds a merge and returns the symbol that it makes. `last` is that of the merge before, `whole` a buffer.
    fn add_merge(
        &mut self,
        rank: usize,
        merge: &str,
        n_vocab: usize,
        last: u32,
        whole: &mut String,
    ) -> Result<u32, TokenizerError> {
        let invalid = |problem| TokenizerError::Invalid { key: "tokenizer.ggml.merges", problem };
        let Some((left, right)) = merge.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty())
        else {
            return Err(invalid(format!("entry {rank} is no pair: {merge:?}")));
        };
        let rank = u32::try_from(rank).map_err(|_| invalid("too many entries".to_owned()))?;
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        // Most vocabularies list the tokens that merges make in the order of the merges.
        let next = last.saturating_add(1);
        let result = match self.texts.get(next as usize) {
            Some(text) if **text == **whole => next,
            _ => self.intern(whole)?,
        };
        let pair = (self.intern(left)?, self.intern(right)?);
        self.merges.entry(pair).or_insert((rank, result));
        let is_token = |symbol: u32| (symbol as usize) < n_vocab;
        self.unknown_merges += usize::from(![pair.0, pair.1, result].into_iter().all(is_token));
        Ok(result)
    }

    /// The token whose text is `text` in the byte alphabet, if text may become it.
    fn token(&self, text: &str) -> Option<u32> {
        self.tokens.get(*self.symbols.get(text)? as usize).copied().flatten()
    }

    /// Appends the tokens of one piece.
    fn encode_piece(&self, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        // Runs of line feeds are tokens that merges do not make where text is spelt in characters.
        let lines = || self.settings.spelling == Spelling::Characters && piece.bytes().all(|b| b == b'\n');
        if self.settings.ignore_merges || lines() {
            scratch.text.clear();
            match self.settings.spelling {
                Spelling::Bytes => scratch.text.extend(piece.bytes().map(|b| BYTE_TO_CHAR[usize::from(b)])),
                Spelling::Characters | Spelling::Words => scratch.text.push_str(piece),
            }
            if let Some(id) = self.token(&scratch.text) {
                out.push(id);
                return;
            }
        }
        let rank = |left: &Node, right: &Node| self.merges.get(&(left.symbol, right.symbol)).copied();
        scratch.bytes.clear();
        match self.settings.spelling {
            Spelling::Bytes => {
                // Bytes that have no token are not there at all: what is around them merges.
                let known = piece.bytes().filter(|byte| self.byte_token(*byte).is_some());
                scratch.bytes.extend(known);
                let bytes = scratch.bytes.iter().map(|byte| (self.byte_symbols[usize::from(*byte)], 1));
                scratch.chain.merge(bytes, rank);
            }
            Spelling::Characters | Spelling::Words => {
                scratch.bytes.extend(piece.bytes());
                let characters = piece.char_indices().map(|(at, c)| {
                    let text = &piece[at..at + c.len_utf8()];
                    (self.symbols.get(text).copied().unwrap_or(NO_SYMBOL), text.len())
                });
                scratch.chain.merge(characters, rank);
            }
        }
        for node in scratch.chain.symbols() {
            self.emit(node.symbol, &scratch.bytes[node.start..node.start + node.len], out);
        }
    }

    /// Appends the token of a symbol that stands for `bytes`; a symbol without one falls apart into its bytes' tokens, and
    /// a byte without one is dropped.
    fn emit(&self, symbol: u32, bytes: &[u8], out: &mut Vec<u32>) {
        match self.tokens.get(symbol as usize).copied().flatten() {
            Some(id) => out.push(id),
            None => out.extend(bytes.iter().filter_map(|byte| self.byte_token(*byte))),
        }
    }

    fn byte_token(&self, byte: u8) -> Option<u32> {
        self.tokens[self.byte_symbols[usize::from(byte)] as usize]
    }
}

impl Model for Bpe {
    fn encode(&self, text: &str, _begins: bool, ids: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        let mut escaped = String::new();
        let text = match self.settings.spelling {
            Spelling::Bytes => text,
            Spelling::Characters => {
                model::escape_spaces(text, &mut escaped);
                &escaped
            }
            Spelling::Words if self.lowercase => {
                escaped.extend(text.chars().flat_map(char::to_lowercase));
                &escaped
            }
            Spelling::Words => text,
        };
        let lost =
            |piece: &str| self.settings.spelling == Spelling::Words && piece.starts_with(char::is_whitespace);
        self.settings.split.split(text, &mut |piece| {
            if !lost(piece) {
                self.encode_piece(piece, &mut scratch, ids);
            }
        });
    }

    fn decode(&self, spelling: &str, kind: TokenKind, out: &mut Vec<u8>) {
        match self.settings.spelling {
            Spelling::Bytes => alphabet::decode_into(spelling, out),
            Spelling::Characters => model::decode_escaped(spelling, kind, out),
            Spelling::Words => out.extend_from_slice(spelling.as_bytes()),
        }
    }

    fn unknown_merges(&self) -> usize {
        self.unknown_merges
    }

    fn missing_bytes(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|byte| self.byte_token(*byte).is_none()).collect()
    }

    fn adds_space(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(tokens: &[&str], merges: &[&str], piece: &str, whole_first: bool) -> Vec<String> {
        let texts: Vec<Arc<str>> = tokens.iter().map(|text| (*text).into()).collect();
        let merges: Vec<String> = merges.iter().map(|merge| (*merge).to_owned()).collect();
        let settings = PreSettings { ignore_merges: whole_first, ..PreSettings::by_name("gpt-2").unwrap() };
        let bpe = Bpe::new(settings, &texts, |id| !tokens[id].starts_with('<'), &merges).unwrap();
        let mut ids = Vec::new();
        bpe.encode_piece(piece, &mut Scratch::default(), &mut ids);
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
        let settings = PreSettings::by_name("gpt-2").unwrap();
        assert!(Bpe::new(settings, &[text("a"), text("a")], |_| true, &[]).is_err());
        for merge in ["ab", "a ", " a", ""] {
            assert!(Bpe::new(settings, &[text("a")], |_| true, &[merge.to_owned()]).is_err(), "{merge:?}");
        }
    }
}
