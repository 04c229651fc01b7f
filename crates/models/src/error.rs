//! Why a file is not a model that can be run.

use minfer_gguf::printable;

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

/// Most characters of a name that an error shows.
const NAME: usize = 100;

/// Most characters of a reason that an error shows.
const TEXT: usize = 300;

/// A file that parses as GGUF but does not describe a model we can run. Its messages are fit for a terminal: what
/// comes from the file is escaped and cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// `general.architecture` names an architecture that is not in the registry.
    #[error("unknown architecture `{}` (known: {known})", printable(name, NAME))]
    UnknownArchitecture {
        /// Name in the file.
        name: String,
        /// Names in the registry.
        known: String,
    },
    /// A key is missing, of the wrong type, or out of range.
    #[error("key `{}`: {}", printable(key, NAME), printable(reason, TEXT))]
    Key {
        /// Full key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor `{}` is missing", printable(.0, NAME))]
    MissingTensor(String),
    /// A tensor's shape or type does not fit.
    #[error("tensor `{}`: {}", printable(name, NAME), printable(reason, TEXT))]
    Tensor {
        /// Name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key or tensor whose meaning is not implemented; running without it would give wrong results.
    #[error("{} is not handled, and ignoring it would change the result", printable(what, TEXT))]
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

#[cfg(test)]
mod tests {
    use super::ModelError;

    #[test]
    fn names_and_values_of_a_file_move_no_cursor_and_have_an_end() {
        let hostile = "\u{1b}[2J\r\u{202e}".repeat(1000);
        let errors = [
            ModelError::UnknownArchitecture { name: hostile.clone(), known: "llama".into() },
            ModelError::key(&hostile, hostile.clone()),
            ModelError::MissingTensor(hostile.clone()),
            ModelError::Tensor { name: hostile.clone(), reason: hostile.clone() },
            ModelError::Refused { what: hostile },
        ];
        for text in errors.map(|error| error.to_string()) {
            assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text}");
            assert!(text.contains("\\u{1b}[2J\\r\\u{202e}") && text.chars().count() < 4000, "{text}");
        }
        let plain = ModelError::Refused { what: "key `a` = \"b\\n\"".into() }.to_string();
        assert!(plain.starts_with("key `a` = \"b\\n\" is not"), "{plain}");
    }
}
