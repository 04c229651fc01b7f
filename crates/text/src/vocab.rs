//! What a tokenizer is built from, read from a file's metadata, and what the kinds of tokenizers assume where it is silent.

use std::sync::Arc;

use minfer_gguf::Metadata;
use rustc_hash::FxHashMap;

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
    /// Steers the conversation as [`TokenKind::Control`] does, but is part of an answer's text: the marks between
    /// channels or around thoughts.
    Marker,
    /// Text that is a token of its own wherever it stands.
    UserDefined,
    /// Fills the vocabulary; stands for nothing.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenKind {
    /// Whether user text never becomes such a token, and a template may.
    pub fn is_control(self) -> bool {
        matches!(self, TokenKind::Control | TokenKind::Unknown | TokenKind::Marker)
    }

    /// The kind with this number in a file. 0, which says that the kind is not known, stands for nothing; numbers that
    /// were never published are no kinds.
    pub fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            0 | 5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// The parts of a tokenizer as a file gives them.
#[derive(Clone, Debug, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// `general.name`: the tokens of some models swallow the white space around them, which no other key says.
    pub name: Option<&'a str>,
    /// `tokenizer.ggml.tokens`: text of each id, in the byte alphabet for byte-level BPE.
    pub tokens: &'a [String],
    /// `tokenizer.ggml.token_type`, one per token; all are text if absent.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.scores`, one per token.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.merges`: `"left right"` in order of rank; empty for tokenizers that have none.
    pub merges: &'a [String],
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub cls: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`, spelt so.
    pub separator: Option<u32>,
    /// Ids of the padding, repository and file marks of fill-in-the-middle.
    pub fim_ends: [Option<u32>; 3],
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub merge_spaces: Option<bool>,
    /// `tokenizer.ggml.normalizer.lowercase`.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`.
    pub strip_accents: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: replacements of characters, see SentencePiece.
    pub charsmap: Option<Vec<u8>>,
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
        let (kind, _) = ModelKind::by_name(model)?;
        let required = |key: &'static str| -> Result<&'a [String], TokenizerError> {
            metadata.strings(key)?.ok_or(TokenizerError::MissingKey { key })
        };
        let id = |name: &str| -> Result<Option<u32>, TokenizerError> {
            Ok(metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?)
        };
        let flag = |name: &str| -> Result<Option<bool>, TokenizerError> {
            Ok(metadata.bool(&format!("tokenizer.ggml.{name}"))?)
        };
        Ok(VocabSource {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?,
            name: metadata.str("general.name")?,
            tokens: required("tokenizer.ggml.tokens")?,
            token_types: metadata.i32s("tokenizer.ggml.token_type")?,
            scores: metadata.f32s("tokenizer.ggml.scores")?,
            merges: if kind == ModelKind::Bpe { required("tokenizer.ggml.merges")? } else { &[] },
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unknown: id("unknown")?,
            cls: id("cls")?,
            separator: id("seperator")?,
            fim_ends: [id("fim_pad")?, id("fim_rep")?, id("fim_sep")?],
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space: flag("add_space_prefix")?,
            merge_spaces: flag("remove_extra_whitespaces")?,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
            charsmap: if kind == ModelKind::Ugm { charsmap(metadata)? } else { None },
        })
    }
}

/// The table of replacements: bytes, stored with or without a sign.
fn charsmap(metadata: &Metadata) -> Result<Option<Vec<u8>>, TokenizerError> {
    let key = "tokenizer.ggml.precompiled_charsmap";
    let Some(numbers) = metadata.i32s(key)? else { return Ok(None) };
    let byte = |number: i32| match number {
        -128..=-1 => Some(number.to_le_bytes()[0]),
        _ => u8::try_from(number).ok(),
    };
    let bytes: Option<Vec<u8>> = numbers.into_iter().map(byte).collect();
    let invalid = || TokenizerError::Invalid { key, problem: "not all entries are bytes".to_owned() };
    bytes.ok_or_else(invalid).map(Some)
}

/// A kind of tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelKind {
    /// Byte-level BPE.
    Bpe,
    /// SentencePiece's BPE.
    Spm,
    /// WordPiece.
    Wpm,
    /// SentencePiece's unigram model.
    Ugm,
}

/// What a kind of tokenizer assumes where the file is silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) add_space: bool,
}

/// Nothing assumed.
const SILENT: Defaults =
    Defaults { bos: None, eos: None, unknown: None, add_bos: false, add_eos: false, add_space: false };

/// Every value of `tokenizer.ggml.model` that is supported, what it stands for, and what it assumes. Whether BPE adds BOS
/// depends on how it splits text.
pub(crate) const MODELS: &[(&str, &str, ModelKind, Defaults)] = &[
    ("gpt2", "byte-level BPE", ModelKind::Bpe, SILENT),
    ("gemma4", "BPE that spells text as SentencePiece does", ModelKind::Bpe, SILENT),
    ("whitespace", "BPE on the characters of words; white space is lost", ModelKind::Bpe, SILENT),
    (
        "llama",
        "SentencePiece's BPE with byte fallback",
        ModelKind::Spm,
        Defaults { bos: Some(1), eos: Some(2), unknown: Some(0), add_bos: true, add_space: true, ..SILENT },
    ),
    (
        "bert",
        "WordPiece",
        ModelKind::Wpm,
        Defaults {
            bos: Some(101),
            eos: Some(102),
            unknown: Some(100),
            add_bos: true,
            add_eos: true,
            ..SILENT
        },
    ),
    (
        "t5",
        "SentencePiece's unigram model",
        ModelKind::Ugm,
        Defaults { eos: Some(1), unknown: Some(2), add_eos: true, ..SILENT },
    ),
];

impl ModelKind {
    /// The kind with this name, and its defaults.
    pub(crate) fn by_name(model: &str) -> Result<(Self, Defaults), TokenizerError> {
        if let Some((.., kind, defaults)) = MODELS.iter().find(|(name, ..)| *name == model) {
            return Ok((*kind, *defaults));
        }
        Err(match model {
            "none" | "no_vocab" => {
                TokenizerError::Missing { reason: format!("\"tokenizer.ggml.model\" is \"{model}\"") }
            }
            other => TokenizerError::UnknownModel {
                model: other.to_owned(),
                known: MODELS.iter().map(|(name, ..)| *name).collect(),
            },
        })
    }
}

/// `index` as an id.
pub(crate) fn id_of(index: usize) -> Result<u32, TokenizerError> {
    u32::try_from(index).map_err(|_| TokenizerError::Invalid {
        key: "tokenizer.ggml.tokens",
        problem: "too many tokens".to_owned(),
    })
}

/// The id of each text. Empty texts are left out; texts that two tokens share are an error.
pub(crate) fn by_text(texts: &[Arc<str>]) -> Result<FxHashMap<Arc<str>, u32>, TokenizerError> {
    let mut ids = FxHashMap::default();
    ids.reserve(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let id = id_of(index)?;
        if !text.is_empty()
            && let Some(first) = ids.insert(Arc::clone(text), id)
        {
            return Err(TokenizerError::Invalid {
                key: "tokenizer.ggml.tokens",
                problem: format!("ids {first} and {id} are the same token {text:?}"),
            });
        }
    }
    Ok(ids)
}

/// Fails unless there are `count` scores, all of them numbers.
pub(crate) fn check_scores(scores: &[f32], count: usize) -> Result<(), TokenizerError> {
    let invalid = |problem| Err(TokenizerError::Invalid { key: "tokenizer.ggml.scores", problem });
    if scores.len() != count {
        return invalid(format!("{} entries for {count} tokens", scores.len()));
    }
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => invalid(format!("the score of token {id} is no number")),
        None => Ok(()),
    }
}
