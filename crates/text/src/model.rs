//! What the kinds of tokenizers have in common.

use std::fmt::Debug;

use crate::vocab::TokenKind;

/// A kind of tokenizer: how a stretch of text without special tokens becomes ids, and what a token stands for.
pub(crate) trait Model: Debug + Send + Sync {
    /// Appends the ids of `text`. `begins`: nothing, or a special token, stands before it.
    fn encode(&self, text: &str, begins: bool, ids: &mut Vec<u32>);

    /// Appends the bytes that a token of text stands for; `spelling` is its text in the vocabulary.
    fn decode(&self, spelling: &str, kind: TokenKind, out: &mut Vec<u8>);

    /// The bytes that the vocabulary can't express, ascending.
    fn missing_bytes(&self) -> Vec<u8>;

    /// Merges that name, or make, a text that is no token.
    fn unknown_merges(&self) -> usize {
        0
    }

    /// Whether encoding puts a space before a text, which decoding has to take away.
    fn adds_space(&self) -> bool;
}

/// The space of the SentencePiece family.
pub(crate) const SPACE: char = '\u{2581}';

/// Appends `text` with every space spelt as [`SPACE`].
pub(crate) fn escape_spaces(text: &str, out: &mut String) {
    out.reserve(text.len());
    out.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
}

/// Appends `text` with every [`SPACE`] spelt as a space.
pub(crate) fn unescape_spaces(text: &str, out: &mut Vec<u8>) {
    for (at, part) in text.split(SPACE).enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends what a token of the SentencePiece family stands for.
pub(crate) fn decode_escaped(spelling: &str, kind: TokenKind, out: &mut Vec<u8>) {
    match spelt_byte(spelling).filter(|_| kind == TokenKind::Byte) {
        Some(byte) => out.push(byte),
        None => unescape_spaces(spelling, out),
    }
}

/// How the SentencePiece family spells a byte that is a token: `<0x0A>`.
pub(crate) fn byte_spelling(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// The byte that is spelt so; hexadecimal digits of either case.
pub(crate) fn spelt_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_spaces_are_spelt_and_read() {
        for byte in 0..=255 {
            assert_eq!(spelt_byte(&byte_spelling(byte)), Some(byte));
        }
        for text in ["<0x1>", "<0x+1>", "<0x111>", "0x11", "<0xé>", ""] {
            assert_eq!(spelt_byte(text), None, "{text}");
        }
        let mut escaped = String::new();
        escape_spaces(" a  b", &mut escaped);
        assert_eq!(escaped, "▁a▁▁b");
        let mut back = Vec::new();
        unescape_spaces(&escaped, &mut back);
        assert_eq!(back, b" a  b");
    }
}
