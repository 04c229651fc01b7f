//! SentencePiece's table of replacements (`tokenizer.ggml.precompiled_charsmap`).
//!
//! The table is a double array, a trie packed into 32-bit units, whose leaves point into a list of texts that end with a zero
//! byte. At each place of a text the longest match is replaced; what nothing matches stays. Layout: the length of the array
//! in bytes (little endian), the array, the texts.

use crate::error::TokenizerError;

/// The replacements; none at all by default.
#[derive(Debug, Default)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    /// The replacements, each with a zero byte behind it.
    texts: String,
}

impl CharsMap {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// Lengths that contradict each other, replacements that are no text.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let invalid = |problem: &str| TokenizerError::Invalid {
            key: "tokenizer.ggml.precompiled_charsmap",
            problem: problem.to_owned(),
        };
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| invalid("it is too short"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (units, texts) =
            rest.split_at_checked(length).ok_or_else(|| invalid("it is shorter than it says"))?;
        let units =
            units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        let texts = std::str::from_utf8(texts).map_err(|_| invalid("its replacements are no UTF-8"))?;
        if !texts.is_empty() && !texts.ends_with('\0') {
            return Err(invalid("its last replacement does not end"));
        }
        Ok(CharsMap { units: units.collect(), texts: texts.to_owned() })
    }

    /// The text with all replacements made.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut left = text;
        while let Some(c) = left.chars().next() {
            let (length, replacement) = self.longest(left).unwrap_or((c.len_utf8(), &left[..c.len_utf8()]));
            out.push_str(replacement);
            left = &left[length..];
        }
        out
    }

    /// The longest match at the start of `text`: its length and its replacement. Entries that point nowhere match nothing.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut found = None;
        let mut at = self.units.first().map_or(0, |root| Unit(*root).base());
        for (index, byte) in text.bytes().enumerate() {
            at ^= usize::from(byte);
            let Some(unit) = self.units.get(at).map(|unit| Unit(*unit)) else { break };
            if byte == 0 || unit.label() != u32::from(byte) {
                break;
            }
            at ^= unit.base();
            if unit.has_leaf() {
                found = self.units.get(at).map(|leaf| (index + 1, Unit(*leaf).value())).or(found);
            }
        }
        let (length, start) = found.filter(|(length, _)| text.is_char_boundary(*length))?;
        let replacement = self.texts.get(start..)?.split('\0').next()?;
        Some((length, replacement))
    }
}

/// A unit of the double array.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// Where the children are, relative to the unit.
    fn base(self) -> usize {
        ((self.0 >> 10) << ((self.0 & (1 << 9)) >> 6)) as usize
    }

    /// The byte that leads here; with the highest bit set for a leaf, which no byte leads to.
    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xFF)
    }

    /// Whether a text ends here: the leaf is then where the children are.
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// A leaf's place in the list of texts.
    fn value(self) -> usize {
        (self.0 & ((1 << 31) - 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that replaces `a` by `bc`. Root at 0 with its children at 1 ^ byte; the leaf of `a` beside it.
    fn table() -> Vec<u8> {
        let mut units = vec![0u32; 256];
        units[0] = 1 << 10;
        let at = 1 ^ usize::from(b'a');
        units[at] = (2 << 10) | 1 << 8 | u32::from(b'a');
        units[at ^ 2] = 1 << 31 | 1;
        let mut bytes = 1024u32.to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"\0bc\0");
        bytes
    }

    #[test]
    fn matches_are_replaced() {
        let map = CharsMap::new(&table()).unwrap();
        assert_eq!(map.apply("xaé\0a"), "xbcé\0bc");
        assert_eq!(CharsMap::default().apply("xaé"), "xaé");
    }

    #[test]
    fn bad_tables_are_errors_and_bad_entries_match_nothing() {
        for bad in [&b"abc"[..], b"\x10\0\0\0abcd", b"\0\0\0\0abc", b"\0\0\0\0\xFF\0"] {
            assert!(CharsMap::new(bad).is_err(), "{bad:?}");
        }
        let mut bytes = table();
        for at in 4..1028 {
            let old = std::mem::replace(&mut bytes[at], 0xFF);
            CharsMap::new(&bytes).unwrap().apply("aab");
            bytes[at] = old;
        }
        assert_eq!(CharsMap::new(b"\0\0\0\0").unwrap().apply("a"), "a");
    }
}
