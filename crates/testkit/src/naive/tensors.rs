//! A file's tensors as f32 matrices.

use super::NaiveError;
use minfer_gguf::{Gguf, decode_row};
use std::collections::HashMap;

/// Rows of values. A tensor of three sizes is the matrices of its last size below each other.
pub(super) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    values: Vec<f32>,
}

impl Matrix {
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.cols..(i + 1) * self.cols]
    }

    /// The product with a column.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        self.part_times(0, self.rows, x)
    }

    /// The product of `n` rows from row `first` on with a column.
    pub fn part_times(&self, first: usize, n: usize, x: &[f64]) -> Vec<f64> {
        let dot = |i| self.row(i).iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        (first..first + n).map(dot).collect()
    }
}

/// All tensors by name.
pub(super) struct Tensors(HashMap<String, Matrix>);

impl Tensors {
    /// Decodes a file's tensors.
    pub fn read(file: &Gguf, bytes: &[u8]) -> Result<Self, NaiveError> {
        let mut tensors = HashMap::new();
        for t in &file.tensors {
            let bad = || NaiveError::Tensor(t.name.clone());
            let size = |n: u64| usize::try_from(n).map_err(|_| bad());
            let (rows, cols) = (size(t.rows())?, size(t.row_len())?);
            let (start, len) = (size(t.offset)?, size(t.bytes)?);
            let data = bytes.get(start..start + len).ok_or_else(bad)?;
            let mut values = vec![0.0; rows * cols];
            let row_bytes = t.ty.row_bytes(cols).ok_or_else(bad)?;
            for (out, row) in values.chunks_exact_mut(cols).zip(data.chunks_exact(row_bytes)) {
                decode_row(t.ty, row, out).map_err(|e| NaiveError::Decode(t.name.clone(), e))?;
            }
            tensors.insert(t.name.clone(), Matrix { rows, cols, values });
        }
        Ok(Tensors(tensors))
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Rows of a tensor, 0 if there is none.
    pub fn rows(&self, name: &str) -> usize {
        self.0.get(name).map_or(0, |t| t.rows)
    }

    /// A tensor that must have this shape.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<&Matrix, NaiveError> {
        let found = self.0.get(name).filter(|t| t.rows == rows && t.cols == cols);
        found.ok_or_else(|| NaiveError::Tensor(name.into()))
    }

    /// A vector that must have this length.
    pub fn vector(&self, name: &str, len: usize) -> Result<&[f32], NaiveError> {
        Ok(&self.matrix(name, 1, len)?.values)
    }

    /// Adds a vector to `x` if there is one of this name.
    pub fn add_bias(&self, name: &str, x: &mut [f64]) -> Result<(), NaiveError> {
        if self.has(name) {
            let bias = self.vector(name, x.len())?;
            x.iter_mut().zip(bias).for_each(|(x, &b)| *x += f64::from(b));
        }
        Ok(())
    }
}
