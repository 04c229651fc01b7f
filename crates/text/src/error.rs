//! Errors: why a file's tokenizer can't be used, and why a chat template can't be rendered.

use minfer_gguf::{GgufError, printable};

/// Most characters of a name that an error shows.
const NAME: usize = 100;

/// Most characters of a problem that an error shows.
const TEXT: usize = 300;

/// Why a tokenizer can't be built. Its messages are fit for a terminal: what comes from the file is escaped and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file has no tokenizer.
    #[error("the file has no tokenizer ({})", printable(reason, TEXT))]
    Missing {
        /// How the file says so.
        reason: String,
    },
    /// The file's kind of tokenizer is not supported.
    #[error("tokenizer model \"{}\" is not supported (known: {})", printable(model, NAME), known.join(", "))]
    UnknownModel {
        /// `tokenizer.ggml.model`.
        model: String,
        /// Every value that is supported.
        known: Vec<&'static str>,
    },
    /// The file's way of splitting text before BPE is not supported.
    #[error(
        "metadata \"tokenizer.ggml.pre\" is \"{}\", which is not supported; docs/models.md lists the {} that are",
        printable(pre, NAME), known.len()
    )]
    UnknownPre {
        /// `tokenizer.ggml.pre`.
        pre: String,
        /// Every name that is supported.
        known: Vec<&'static str>,
    },
    /// The file does not say how to split text before BPE; guessing would give wrong ids without a word.
    #[error(
        "metadata \"tokenizer.ggml.pre\" is missing: the file does not say how its tokenizer splits text; convert the model again with a newer converter"
    )]
    MissingPre,
    /// A key that the tokenizer needs is absent.
    #[error("metadata \"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A value contradicts itself or another one.
    #[error("metadata \"{key}\": {}", printable(problem, TEXT))]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A value has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
}

/// The kinds of [`TokenizerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenizerErrorKind {
    /// The file has no tokenizer.
    Missing,
    /// The file's tokenizer is of a kind that is not supported.
    Unsupported,
    /// The file's tokenizer is malformed.
    Invalid,
}

impl TokenizerError {
    /// The kind of this error.
    pub fn kind(&self) -> TokenizerErrorKind {
        match self {
            TokenizerError::Missing { .. } => TokenizerErrorKind::Missing,
            TokenizerError::UnknownModel { .. }
            | TokenizerError::UnknownPre { .. }
            | TokenizerError::MissingPre => TokenizerErrorKind::Unsupported,
            TokenizerError::MissingKey { .. }
            | TokenizerError::Invalid { .. }
            | TokenizerError::Metadata(_) => TokenizerErrorKind::Invalid,
        }
    }
}

/// Why a chat template can't be compiled or rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template failed while it was rendered.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What the template says.
        message: String,
    },
    /// The template made nothing of the conversation.
    #[error("the chat template gave an empty text")]
    Empty,
    /// The template ran for too long.
    #[error("chat template, line {line}: stopped after {fuel} steps")]
    OutOfFuel {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// The limit.
        fuel: u64,
    },
}

/// The kinds of [`TemplateError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TemplateErrorKind {
    /// The template is not valid.
    Syntax,
    /// The template failed on this conversation.
    Render,
    /// The template refused this conversation.
    Raised,
    /// The template made nothing of this conversation.
    Empty,
    /// The template ran for too long.
    OutOfFuel,
}

impl TemplateError {
    /// The kind of this error.
    pub fn kind(&self) -> TemplateErrorKind {
        match self {
            TemplateError::Syntax { .. } => TemplateErrorKind::Syntax,
            TemplateError::Render { .. } => TemplateErrorKind::Render,
            TemplateError::Raised { .. } => TemplateErrorKind::Raised,
            TemplateError::Empty => TemplateErrorKind::Empty,
            TemplateError::OutOfFuel { .. } => TemplateErrorKind::OutOfFuel,
        }
    }
}
