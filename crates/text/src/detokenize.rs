//! From token ids back to text.

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into text, whole characters only.
///
/// A character may be spread over several tokens; its bytes are held back until it is complete. Bytes that can't be
/// part of any character become U+FFFD. What [`push`](Self::push) and [`finish`](Self::finish) return is, put together,
/// what [`Tokenizer::decode`] returns for all the tokens at once. The space that some tokenizers put in front of a text is
/// taken away again.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    show_special: bool,
    /// No byte of the text has come yet.
    begins: bool,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<'t> Detokenizer<'t> {
    /// A detokeniser at the start of a text. Control tokens are shown as their texts if `show_special`, else not at all.
    pub fn new(tokenizer: &'t Tokenizer, show_special: bool) -> Self {
        Self::after(tokenizer, show_special, true)
    }

    /// A detokeniser at the start of a text, or else inside one.
    pub(crate) fn after(tokenizer: &'t Tokenizer, show_special: bool, begins: bool) -> Self {
        Detokenizer { tokenizer, show_special, begins, held: Vec::new() }
    }

    /// The characters that `id` completes. An id outside the vocabulary stands for U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        self.tokenizer.next_piece_into(id, self.show_special, &mut self.begins, &mut self.held);
        let whole = whole_characters(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// Whether the beginning of a character is held back.
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// The end of the text: U+FFFD if a character was left incomplete. The detokeniser is then at the start of a text.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        self.begins = true;
        text
    }
}

/// The length of `bytes` without a last character that more bytes could still complete.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                Some(len) => start += error.valid_up_to() + len,
                None => return start + error.valid_up_to(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn streaming_equals_decoding_at_once(chunks in proptest::collection::vec(
            proptest::collection::vec(proptest::prop_oneof![
                proptest::num::u8::ANY,
                proptest::sample::select(vec![0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xC3, 0xA9, 0xED, 0xA0, 0x80, b'a']),
            ], 0..4), 0..24))
        {
            let mut held = Vec::new();
            let mut streamed = String::new();
            for chunk in &chunks {
                held.extend_from_slice(chunk);
                let whole = whole_characters(&held);
                streamed.push_str(&String::from_utf8_lossy(&held[..whole]));
                held.drain(..whole);
                proptest::prop_assert!(held.len() < 4, "more than one character is held back");
            }
            streamed.push_str(&String::from_utf8_lossy(&held));
            proptest::prop_assert_eq!(streamed, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }
    }
}
