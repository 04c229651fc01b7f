//! Errors: what is wrong with a file and where, and what is wrong with a call on a block format.

use std::io;
use std::path::PathBuf;

use crate::TensorType;

/// Why a GGUF file can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file can't be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Reading or writing failed.
    #[error("i/o error at byte {offset}: {source}")]
    Io {
        /// Where in the file.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is no memory for a list in the header.
    #[error("out of memory: {} takes {bytes} bytes", printable(what, 160))]
    OutOfMemory {
        /// The list.
        what: String,
        /// What it takes, about.
        bytes: usize,
    },
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: it begins with \"{}\"{}", found.escape_ascii(), hint(found))]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version of the container this crate does not know.
    #[error("GGUF version {found} is not supported (versions 2 and 3 are)")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file was written for a big-endian machine.
    #[error("big-endian GGUF file (version {version}) is not supported; convert it to little-endian")]
    BigEndian {
        /// The version, bytes swapped.
        version: u32,
    },
    /// The file ends too early, or claims to hold more than it does.
    #[error(
        "file truncated: {} at byte {offset} needs {needed} bytes, {available} are left",
        printable(what, 160)
    )]
    Truncated {
        /// What was to be read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// The fewest bytes that it takes.
        needed: u64,
        /// Bytes left in the file from there.
        available: u64,
    },
    /// The header exceeds [`MAX_HEADER_BYTES`](crate::MAX_HEADER_BYTES).
    #[error(
        "header too large: {} at byte {offset} needs {needed} bytes, beyond the limit of {limit} for a header",
        printable(what, 160)
    )]
    HeaderTooLarge {
        /// What was to be read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// The fewest bytes that it takes.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// A metadata entry is malformed.
    #[error("metadata \"{}\" at byte {offset}: {problem}", shown(key))]
    Metadata {
        /// The key, or `#n` where the n-th key itself is unreadable.
        key: String,
        /// Where in the file.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A metadata key that the caller needs is absent.
    #[error("metadata \"{}\" is missing", shown(key))]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value has another type than the caller needs, or does not fit it.
    #[error("metadata \"{}\": expected {expected}, found {found}", shown(key))]
    WrongType {
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// The type found and, where that is the reason, the value.
        found: String,
    },
    /// A tensor's entry is malformed.
    #[error("tensor \"{}\" (entry at byte {offset}): {problem}", shown(tensor))]
    Tensor {
        /// The tensor's name, or `#n` where the n-th name itself is unreadable.
        tensor: String,
        /// Where its entry begins in the file; 0 for a tensor to be written.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
}

/// The kinds of [`GgufError`], for callers that act on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgufErrorKind {
    /// Another kind of file.
    NotGguf,
    /// Shorter than it claims.
    Truncated,
    /// An unsupported version.
    Version,
    /// Big-endian.
    BigEndian,
    /// A bad, missing or mistyped metadata entry.
    Metadata,
    /// A bad tensor entry.
    Tensor,
    /// Beyond this crate's limits.
    Limit,
    /// The system's fault.
    Io,
}

impl GgufError {
    /// The kind of this error.
    pub fn kind(&self) -> GgufErrorKind {
        match self {
            GgufError::Open { .. } | GgufError::Io { .. } | GgufError::OutOfMemory { .. } => {
                GgufErrorKind::Io
            }
            GgufError::NotGguf { .. } => GgufErrorKind::NotGguf,
            GgufError::Version { .. } => GgufErrorKind::Version,
            GgufError::BigEndian { .. } => GgufErrorKind::BigEndian,
            GgufError::Truncated { .. } => GgufErrorKind::Truncated,
            GgufError::HeaderTooLarge { .. } => GgufErrorKind::Limit,
            GgufError::Metadata { .. } | GgufError::MissingKey { .. } | GgufError::WrongType { .. } => {
                GgufErrorKind::Metadata
            }
            GgufError::Tensor { .. } => GgufErrorKind::Tensor,
        }
    }
}

/// What people most often have in place of a model.
fn hint(magic: &[u8; 4]) -> &'static str {
    match magic {
        b"vers" => " (a Git LFS pointer? fetch the file itself)",
        b"<!DO" | b"<!do" | b"<htm" => " (a web page? the download failed)",
        b"lmgg" | b"tjgg" | b"fmgg" | b"algg" => " (a model from before GGUF)",
        b"PK\x03\x04" => " (a ZIP archive, maybe a PyTorch checkpoint)",
        _ => "",
    }
}

/// A name out of an untrusted file, between quotation marks: what [`printable`] escapes and the marks themselves
/// escaped, at most 100 characters.
pub(crate) fn shown(name: &str) -> String {
    shortened(name, 100, |c| c.escape_debug().collect())
}

/// A text that an untrusted file may have a part in, fit for a terminal: control and other invisible characters escaped
/// as Rust does it, at most `most` characters of the text and `…` if there are more. A text without such characters,
/// such as one that was escaped already, stays as it is.
pub fn printable(text: &str, most: usize) -> String {
    shortened(text, most, |c| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().collect(),
    })
}

/// The first `most` characters of a text, each as `spell` spells it.
fn shortened(text: &str, most: usize, spell: impl Fn(char) -> String) -> String {
    let mut out: String = text.chars().take(most).map(spell).collect();
    if text.chars().nth(most).is_some() {
        out.push('…');
    }
    out
}

/// Why a row can't be decoded or encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The type is known, its block format is not implemented.
    #[error("{action} tensor type {ty} is not supported")]
    Unsupported {
        /// `decoding` or `encoding`.
        action: &'static str,
        /// The type.
        ty: TensorType,
    },
    /// The number of elements is not a whole number of blocks.
    #[error("a row of {len} elements is not a multiple of the {ty} block of {}", ty.block_len())]
    RowLength {
        /// The type.
        ty: TensorType,
        /// Elements in the row.
        len: usize,
    },
    /// The bytes don't belong to a row of that many elements.
    #[error("a {ty} row of {len} elements takes {expected} bytes, not {found}")]
    ByteLength {
        /// The type.
        ty: TensorType,
        /// Elements in the row.
        len: usize,
        /// Bytes such a row takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A quantised type can't hold infinities or NaN.
    #[error("element {index} is {value}, which {ty} can't hold")]
    NotFinite {
        /// The type.
        ty: TensorType,
        /// Which element of the row.
        index: usize,
        /// The element, as text.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::{printable, shown};

    #[test]
    fn what_a_file_says_moves_no_cursor_and_has_an_end() {
        assert_eq!(printable("a\u{1b}[2J\n\u{9b}\u{202e}é\"\\", 99), "a\\u{1b}[2J\\n\\u{9b}\\u{202e}é\"\\");
        assert_eq!(printable("ééé", 2), "éé…");
        let once = printable("a\tb", 99);
        assert_eq!(printable(&once, 99), once);
        assert_eq!(shown("a\"\t"), "a\\\"\\t");
    }
}
