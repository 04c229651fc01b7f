//! Why a file is not a model that can be run.

/// What kind of trouble a [`ModelError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The architecture is not known.
    Architecture,
    /// A key is missing or has a value that makes no sense.
    Key,
    /// A tensor is missing or has the wrong shape or type.
    Tensor,
    /// Something in the file would change the result, and is not handled.
    Refused,
}

/// A file that parses as GGUF but does not describe a model we can run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// `general.architecture` names an architecture that is not in the registry.
    #[error("unknown architecture `{}` (known: {known})", name.escape_debug())]
    UnknownArchitecture {
        /// Name in the file.
        name: String,
        /// Names in the registry.
        known: String,
    },
    /// A key is missing, of the wrong type, or out of range.
    #[error("key `{key}`: {reason}")]
    Key {
        /// Full key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor `{0}` is missing")]
    MissingTensor(String),
    /// A tensor's shape or type does not fit.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// Name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key or tensor whose meaning is not implemented; running without it would give wrong results.
    #[error("{what} is not handled, and ignoring it would change the result")]
    Refused {
        /// The key with its value, or the tensor.
        what: String,
    },
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] minfer_gguf::GgufError),
}

impl ModelError {
    /// The kind of trouble.
    pub fn kind(&self) -> ModelErrorKind {
        match self {
            ModelError::UnknownArchitecture { .. } => ModelErrorKind::Architecture,
            ModelError::Key { .. } | ModelError::Gguf(_) => ModelErrorKind::Key,
            ModelError::MissingTensor(_) | ModelError::Tensor { .. } => ModelErrorKind::Tensor,
            ModelError::Refused { .. } => ModelErrorKind::Refused,
        }
    }

    pub(crate) fn key(key: &str, reason: impl Into<String>) -> Self {
        ModelError::Key { key: key.to_string(), reason: reason.into() }
    }
}
