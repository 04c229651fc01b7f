//! Text on both sides of a model: tokenizers and chat templates, read from a GGUF file's metadata.
//!
//! - [`Tokenizer`] turns text into token ids (byte-level BPE, SentencePiece's BPE and unigram model, WordPiece) and knows the file's special tokens.
//! - [`Detokenizer`] turns ids back into text, one token at a time, and never emits half a character.
//! - [`ChatTemplate`] renders a conversation with the file's Jinja template, as Hugging Face's libraries do.
//! - [`ReasoningSplitter`] tells a model's thoughts from its answer while they come.
//!
//! # The trust border
//!
//! Text from a user never becomes a control token. [`Tokenizer::encode`] reads control tokens in a text only where
//! [`EncodeOptions::parse_special`] asks for it, and a rendered template comes as [`Part`]s: [`Part::Special`] is a
//! control token that the template itself wrote, [`Part::Plain`] is everything else, whatever it looks like.
//! [`Tokenizer::encode_parts`] keeps the two apart. [`template`] says how the border is drawn.
#![forbid(unsafe_code)]

mod alphabet;
mod bpe;
mod chain;
mod charsmap;
mod detokenize;
mod error;
mod model;
mod partition;
mod reasoning;
mod special;
mod split;
mod spm;
pub mod template;
mod tokenizer;
mod tools;
mod trie;
mod ugm;
mod vocab;
mod wpm;

pub use detokenize::Detokenizer;
pub use error::{TemplateError, TemplateErrorKind, TokenizerError, TokenizerErrorKind};
pub use reasoning::{Reasoning, ReasoningSplitter, Thought};
pub use split::PreTokenizer;
pub use template::{ChatTemplate, LocalTime, Message, RenderInput, Rendered};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use tools::{ToolFormat, ToolParser, ToolPiece};
pub use vocab::{TokenKind, VocabSource};

/// A stretch of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The text of one control token, to become its id.
    Special(String),
    /// Text to be tokenised as text, even if it looks like a control token.
    Plain(String),
}

impl Part {
    /// The text of this part.
    pub fn text(&self) -> &str {
        match self {
            Part::Special(text) | Part::Plain(text) => text,
        }
    }
}
