//! What a tokenizer is built from, read from a file's metadata.

use minfer_gguf::Metadata;

use crate::error::TokenizerError;

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenKind {
    /// Text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Steers the conversation; user text never becomes one.
    Control,
    /// Text that is a token of its own wherever it stands.
    UserDefined,
    /// Fills the vocabulary; stands for nothing.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenKind {
    /// The kind with this number in a file; unknown numbers stand for nothing.
    pub fn from_number(number: i32) -> Self {
        match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            _ => TokenKind::Unused,
        }
    }
}

/// The parts of a tokenizer as a file gives them.
#[derive(Clone, Debug, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`: text of each id, in the byte alphabet.
    pub tokens: &'a [String],
    /// `tokenizer.ggml.token_type`, one per token; all are text if absent.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`: `"left right"` in order of rank.
    pub merges: &'a [String],
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// Ids of the padding, repository and file marks of fill-in-the-middle.
    pub fim_ends: [Option<u32>; 3],
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
}

impl<'a> VocabSource<'a> {
    /// Reads the tokenizer keys of a file.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Missing`] if the file has no tokenizer, [`TokenizerError::UnknownModel`] if it has another
    /// one, and errors that name the key for keys that are absent or of the wrong type.
    pub fn from_metadata(metadata: &'a Metadata) -> Result<Self, TokenizerError> {
        let Some(model) = metadata.str("tokenizer.ggml.model")? else {
            return Err(TokenizerError::Missing { reason: "\"tokenizer.ggml.model\" is missing".to_owned() });
        };
        check_model(model)?;
        let required = |key: &'static str| -> Result<&'a [String], TokenizerError> {
            metadata.strings(key)?.ok_or(TokenizerError::MissingKey { key })
        };
        let id = |key: &str| -> Result<Option<u32>, TokenizerError> { Ok(metadata.u32(key)?) };
        Ok(VocabSource {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?,
            tokens: required("tokenizer.ggml.tokens")?,
            token_types: metadata.i32s("tokenizer.ggml.token_type")?,
            merges: required("tokenizer.ggml.merges")?,
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            fim_ends: [
                id("tokenizer.ggml.fim_pad_token_id")?,
                id("tokenizer.ggml.fim_rep_token_id")?,
                id("tokenizer.ggml.fim_sep_token_id")?,
            ],
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
        })
    }
}

/// Fails unless `model` is a supported kind of tokenizer.
pub(crate) fn check_model(model: &str) -> Result<(), TokenizerError> {
    match model {
        "gpt2" => Ok(()),
        "none" | "no_vocab" => {
            Err(TokenizerError::Missing { reason: format!("\"tokenizer.ggml.model\" is \"{model}\"") })
        }
        other => Err(TokenizerError::UnknownModel { model: other.to_owned() }),
    }
}
