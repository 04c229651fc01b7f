//! The GGUF container and the block formats of its tensors.
//!
//! * [`Gguf`] reads a file's header: [`Metadata`] and the table of [`TensorInfo`]. It never touches tensor data, so the caller is free
//!   to map the file or to read from it. A file is untrusted: every count, length and offset is checked against the file's size before
//!   anything is allocated, and a bad file is a [`GgufError`] that says what is wrong and where.
//! * [`Gguf::join`] makes one header of the parts of a split model.
//! * [`Writer`] writes a file.
//! * [`TensorType`] is the table of tensor types; [`decode_row`] and [`encode_row`] define what a type's bytes mean, one module per
//!   quantised type in [`formats`].
//!
//! Shapes in this crate are in GGUF's own order: `dims[0]` is the row length, contiguous in memory.
#![forbid(unsafe_code)]
#![deny(clippy::as_conversions)]

mod cursor;
mod error;
pub mod formats;
mod metadata;
mod reader;
mod split;
mod types;
mod value;
mod writer;

pub use error::{FormatError, GgufError, GgufErrorKind, printable};
pub use formats::{
    can_encode, decode_row, encode_row, iq4_xs_scales, k_scales, pack_iq4_xs_scales, pack_k_scales,
    pack_q3_k_scales, q3_k_scales,
};
pub use metadata::Metadata;
pub use reader::{DEFAULT_ALIGNMENT, Gguf, MAX_DIMS, MAX_HEADER_BYTES, TensorInfo};
pub use split::{PartName, Split, SplitError, SplitProblem};
pub use types::TensorType;
pub use value::{Array, Value, ValueType};
pub use writer::Writer;
