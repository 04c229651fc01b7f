//! The library's error: opaque, with a kind for callers that must act on it.

use minfer_gguf::GgufError;
use minfer_graph::{BackendError, GraphError, Plan, Progress};
use std::fmt;
use std::path::Path;

/// What kind of trouble an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file cannot be read, is not GGUF, or is not a model that can be run.
    Model,
    /// The caller's arguments don't make sense (a token id outside the vocabulary, an unknown sequence).
    Input,
    /// A sequence would grow past the context.
    Context,
    /// A device is missing or failed.
    Device,
    /// Not enough memory.
    Memory,
    /// The model produced logits that are not finite.
    NonFinite,
    /// The caller asked to stop.
    Cancelled,
    /// A bug of the engine.
    Internal,
}

/// An error of the library.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// What kind of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error for a logit that is NaN or infinite.
    pub fn non_finite(position: usize, token: usize, value: f32) -> Self {
        let message = format!("the model gave {value} as the logit of token {token} at position {position}");
        Self::new(ErrorKind::NonFinite, message)
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// An error that says what its source says.
    pub(crate) fn caused(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error { kind, message: source.to_string(), source: Some(Box::new(source)) }
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    pub(crate) fn context(needed: usize, limit: usize) -> Self {
        let message = format!("the context holds {limit} tokens, and {needed} are needed");
        Self::new(ErrorKind::Context, message)
    }

    /// The error of a step; where a device failed, the message says what had run before.
    pub(crate) fn in_step(source: GraphError, progress: &Progress, plan: &Plan) -> Self {
        let mut error = Error::from(source);
        if error.kind == ErrorKind::Device {
            error.message = format!("{}; {}", error.message, progress.describe(plan));
        }
        error
    }

    /// An error about a model file, or that there is no memory for its header; the message starts with its path.
    pub(crate) fn model(path: &Path, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        let cause = (&source as &(dyn std::error::Error + 'static)).downcast_ref::<GgufError>();
        let no_room = matches!(cause, Some(GgufError::OutOfMemory { .. }));
        let kind = if no_room { ErrorKind::Memory } else { ErrorKind::Model };
        let (path, reason) = (path.display().to_string(), source.to_string());
        let message = if reason.starts_with(&path) { reason } else { format!("{path}: {reason}") };
        Error { kind, message, source: Some(Box::new(source)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}

impl From<GraphError> for Error {
    fn from(e: GraphError) -> Self {
        let kind = match &e {
            GraphError::NoBackend(_) | GraphError::Unassignable { .. } => ErrorKind::Device,
            GraphError::Execute { source, .. } | GraphError::Backend { source, .. } => match source {
                BackendError::Cancelled => ErrorKind::Cancelled,
                BackendError::OutOfMemory(_) => ErrorKind::Memory,
                BackendError::OutOfRange { .. } => ErrorKind::Input,
                BackendError::BadWeight { .. } => ErrorKind::Model,
                _ => ErrorKind::Device,
            },
            GraphError::Memory { .. } => ErrorKind::Memory,
            GraphError::Capacity(_) => ErrorKind::Input,
            _ => ErrorKind::Internal,
        };
        Error { kind, message: e.to_string(), source: Some(Box::new(e)) }
    }
}
