//! From token ids back to text.

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into text, whole characters only.
///
/// A character may be spread over several tokens; its bytes are held back until it is complete. Bytes that can't be
/// part of any character become U+FFFD. What [`push`](Self::push) and [`finish`](Self::finish) return is, put together,
/// what [`Tokenizer::decode`] returns for all the tokens at once.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    show_special: bool,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<'t> Detokenizer<'t> {
    /// A detokeniser at the start of a text. Control tokens are shown as their texts if `show_special`, else not at all.
    pub fn new(tokenizer: &'t Tokenizer, show_special: bool) -> Self {
        Detokenizer { tokenizer, show_special, held: Vec::new() }
    }

    /// The characters that `id` completes. An id outside the vocabulary stands for U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        self.tokenizer.piece_into(id, self.show_special, &mut self.held);
        let whole = whole_characters(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// The end of the text: U+FFFD if a character was left incomplete. The detokeniser is then at the start of a text.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
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
