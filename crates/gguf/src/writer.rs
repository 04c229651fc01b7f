//! Writing a file: metadata in the order given, then the tensor table, then aligned data.

use std::collections::HashSet;
use std::io::{self, Read, Write};

use crate::reader::{data_bytes, name_problem, read_alignment};
use crate::{Array, GgufError, MAX_DIMS, Metadata, TensorType, Value};

/// The version written.
const VERSION: u32 = 3;

/// Collects metadata and tensors and writes them as a GGUF file (version 3).
///
/// Data are aligned to 32 bytes, or as the metadata `general.alignment` says. Everything is checked by [`write`](Writer::write).
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Writer {
    /// Nothing to write yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry.
    pub fn add_meta(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor: `dims[0]` is the row length, `bytes` are the rows one after another as `ty` stores them.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        dims: impl Into<Vec<u64>>,
        ty: TensorType,
        bytes: impl Into<Vec<u8>>,
    ) -> &mut Self {
        self.tensors.push(Tensor { name: name.into(), dims: dims.into(), ty, bytes: bytes.into() });
        self
    }

    /// Writes the file. Writes whole tensors at a time; a file needs no buffer around it.
    ///
    /// # Errors
    ///
    /// Before the first byte: duplicate or unusable names and keys, dimensions that don't fit the type or the bytes, an alignment that
    /// is no power of two. Then whatever `out` says.
    pub fn write(&self, out: impl Write) -> Result<(), GgufError> {
        let alignment = self.check()?;
        let mut out = Aligned { out, offset: 0, alignment };
        out.put(&self.header(alignment))?;
        for tensor in &self.tensors {
            out.put(&tensor.bytes)?;
        }
        out.out.flush().map_err(|source| GgufError::Io { offset: out.offset, source })
    }

    /// The file as bytes; errors as [`write`](Writer::write).
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Checks everything and returns the alignment.
    fn check(&self) -> Result<u64, GgufError> {
        let mut metadata = Metadata::new();
        for (key, value) in &self.metadata {
            let bad = |problem| GgufError::Metadata { key: key.clone(), offset: 0, problem };
            if let Some(problem) = name_problem(key) {
                return Err(bad(problem));
            }
            // Arrays need no copy: only the alignment is looked at, and that is no array.
            let value = if matches!(value, Value::Array(_)) { Value::Bool(false) } else { value.clone() };
            if !metadata.insert(key.clone(), value) {
                return Err(bad("duplicate key".to_owned()));
            }
        }
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            let bad = |problem| GgufError::Tensor { tensor: tensor.name.clone(), offset: 0, problem };
            if let Some(problem) = name_problem(&tensor.name) {
                return Err(bad(problem));
            }
            if !names.insert(&tensor.name) {
                return Err(bad("duplicate name".to_owned()));
            }
            if tensor.dims.is_empty() || tensor.dims.len() > MAX_DIMS {
                return Err(bad(format!("{} dimensions (1 to {MAX_DIMS} are possible)", tensor.dims.len())));
            }
            let bytes = data_bytes(tensor.ty, &tensor.dims).map_err(bad)?;
            if bytes != length(tensor.bytes.len()) {
                let (ty, dims, found) = (tensor.ty, &tensor.dims, tensor.bytes.len());
                return Err(bad(format!("{ty} of dimensions {dims:?} takes {bytes} bytes, not {found}")));
            }
        }
        read_alignment(&metadata, 0)
    }

    /// Everything before the padding in front of the data.
    fn header(&self, alignment: u64) -> Vec<u8> {
        let mut to = Vec::new();
        to.extend(b"GGUF");
        to.extend(VERSION.to_le_bytes());
        to.extend(length(self.tensors.len()).to_le_bytes());
        to.extend(length(self.metadata.len()).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut to, key);
            to.extend(value.value_type().id().to_le_bytes());
            put_value(&mut to, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut to, &tensor.name);
            let n_dims = u32::try_from(tensor.dims.len()).unwrap_or(u32::MAX);
            to.extend(n_dims.to_le_bytes());
            tensor.dims.iter().for_each(|dim| to.extend(dim.to_le_bytes()));
            to.extend(tensor.ty.id().to_le_bytes());
            to.extend(offset.to_le_bytes());
            offset = (offset + length(tensor.bytes.len())).next_multiple_of(alignment);
        }
        to
    }
}

/// A sink that pads what is put into it to the alignment; the last tensor too, since some readers expect it.
struct Aligned<W> {
    out: W,
    offset: u64,
    alignment: u64,
}

impl<W: Write> Aligned<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let failed = |offset| move |source| GgufError::Io { offset, source };
        self.out.write_all(bytes).map_err(failed(self.offset))?;
        self.offset += length(bytes.len());
        let padding = self.offset.next_multiple_of(self.alignment) - self.offset;
        io::copy(&mut io::repeat(0).take(padding), &mut self.out).map_err(failed(self.offset))?;
        self.offset += padding;
        Ok(())
    }
}

/// A length in memory as a length in a file; no machine's memory exceeds 64 bits.
fn length(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn put_string(to: &mut Vec<u8>, text: &str) {
    to.extend(length(text.len()).to_le_bytes());
    to.extend(text.as_bytes());
}

fn put_value(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => to.extend(v.to_le_bytes()),
        Value::I8(v) => to.extend(v.to_le_bytes()),
        Value::U16(v) => to.extend(v.to_le_bytes()),
        Value::I16(v) => to.extend(v.to_le_bytes()),
        Value::U32(v) => to.extend(v.to_le_bytes()),
        Value::I32(v) => to.extend(v.to_le_bytes()),
        Value::U64(v) => to.extend(v.to_le_bytes()),
        Value::I64(v) => to.extend(v.to_le_bytes()),
        Value::F32(v) => to.extend(v.to_le_bytes()),
        Value::F64(v) => to.extend(v.to_le_bytes()),
        Value::Bool(v) => to.push(u8::from(*v)),
        Value::String(v) => put_string(to, v),
        Value::Array(v) => put_array(to, v),
    }
}

fn put_array(to: &mut Vec<u8>, array: &Array) {
    to.extend(array.element_type().id().to_le_bytes());
    to.extend(length(array.len()).to_le_bytes());
    match array {
        Array::U8(v) => to.extend(v),
        Array::I8(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::U64(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Array::Bool(v) => to.extend(v.iter().map(|&x| u8::from(x))),
        Array::String(v) => v.iter().for_each(|x| put_string(to, x)),
    }
}
