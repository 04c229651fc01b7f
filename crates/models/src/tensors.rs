//! Reads an architecture's tensor table: every tensor is checked for shape and type, and a tensor
//! that nobody read is refused, since leaving a weight out changes the result.

use crate::error::ModelError;
use minfer_gguf::Gguf;
use minfer_graph::{TensorPart, WeightSpec};
use std::cell::RefCell;
use std::collections::HashSet;

/// The file's tensors.
pub struct Tensors<'a> {
    gguf: &'a Gguf,
    read: RefCell<HashSet<String>>,
}

/// Tensors that carry nothing a graph needs (precomputed rotation tables of early converters).
const HARMLESS: &[&str] = &[".attn_rot_embd", ".rotary_emb.inv_freq"];

impl<'a> Tensors<'a> {
    /// Tensors of a file.
    pub fn new(gguf: &'a Gguf) -> Self {
        Tensors { gguf, read: RefCell::default() }
    }

    /// Number of tensors in the file.
    pub fn len(&self) -> usize {
        self.gguf.tensors.len()
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Rows and columns of a tensor, without reading it.
    pub fn shape(&self, name: &str) -> Result<(usize, usize), ModelError> {
        let info = self.gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor(name.to_string()))?;
        let size = |n: u64| {
            usize::try_from(n).map_err(|_| ModelError::Tensor {
                name: name.to_string(),
                reason: format!("{n} values do not fit this machine"),
            })
        };
        Ok((size(info.rows())?, size(info.row_len())?))
    }

    /// The matrices of `n` experts, `[n * rows, cols]`.
    pub fn experts(&self, name: &str, n: usize, rows: usize, cols: usize) -> Result<WeightSpec, ModelError> {
        self.read(name, &[cols, rows, n])
    }

    /// Some rows of a matrix `[all_rows, cols]`, as a weight of its own.
    pub fn rows(
        &self,
        name: &str,
        all_rows: usize,
        cols: usize,
        rows: std::ops::Range<usize>,
    ) -> Result<WeightSpec, ModelError> {
        let whole = self.matrix(name, all_rows, cols)?;
        let part = Some(TensorPart { tensor: name.to_string(), first_row: rows.start });
        Ok(WeightSpec {
            name: format!("{name}[{}..{}]", rows.start, rows.end),
            rows: rows.len(),
            part,
            ..whole
        })
    }

    /// A matrix `[rows, cols]`.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<WeightSpec, ModelError> {
        self.read(name, &[cols, rows])
    }

    /// A tensor of these dimensions, columns first; leading experts or rows of 1 may be missing in the file.
    fn read(&self, name: &str, dims: &[usize]) -> Result<WeightSpec, ModelError> {
        let (rows, cols) = self.shape(name)?;
        let info = self.gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor(name.to_string()))?;
        let fail = |reason| Err(ModelError::Tensor { name: name.to_string(), reason });
        let found = info.dims.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX));
        let found = found.chain(std::iter::repeat_n(1, dims.len().saturating_sub(info.dims.len())));
        if !found.eq(dims.iter().copied()) {
            return fail(format!("has shape {:?} (columns first), needs {dims:?}", info.dims));
        }
        if !info.ty.can_decode() {
            return fail(format!("type {} is not supported", info.ty.name()));
        }
        self.read.borrow_mut().insert(name.to_string());
        Ok(WeightSpec::new(name, info.ty, rows, cols))
    }

    /// A vector of `len` floats.
    pub fn vector(&self, name: &str, len: usize) -> Result<WeightSpec, ModelError> {
        let spec = self.matrix(name, 1, len)?;
        if spec.ty.is_quantized() {
            let reason = format!("a vector of type {} is not supported", spec.ty.name());
            return Err(ModelError::Tensor { name: name.to_string(), reason });
        }
        Ok(spec)
    }

    /// A vector, if the file has it.
    pub fn optional_vector(&self, name: &str, len: usize) -> Result<Option<WeightSpec>, ModelError> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// Fails on a tensor that nobody read; returns the harmless ones.
    pub fn finish(self) -> Result<Vec<String>, ModelError> {
        let read = self.read.into_inner();
        let mut harmless = Vec::new();
        for info in &self.gguf.tensors {
            if read.contains(&info.name) {
                continue;
            }
            if !HARMLESS.iter().any(|h| info.name.contains(h)) {
                return Err(ModelError::Refused { what: format!("tensor `{}`", info.name) });
            }
            harmless.push(info.name.clone());
        }
        Ok(harmless)
    }
}
