//! The operations as plain functions on rows of f32: sums in f64, one rounding at the output.
//! A fused op is the composition of the plain ones, with their roundings in between.

use minfer_gguf::decode_row;
use minfer_graph::{BackendError, Rope, RopeStyle, WeightSpec};

/// A loaded weight: the file's bytes and what they are.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Description.
    pub spec: WeightSpec,
    /// Rows of blocks.
    pub bytes: Vec<u8>,
}

impl Weight {
    /// Checks the bytes against the description.
    pub fn new(spec: &WeightSpec, data: &[u8]) -> Result<Self, BackendError> {
        let expected = spec.ty.row_bytes(spec.cols).and_then(|row| row.checked_mul(spec.rows));
        if expected != Some(data.len()) {
            let reason = format!(
                "{} bytes for [{}, {}] of {}, which takes {expected:?}",
                data.len(),
                spec.rows,
                spec.cols,
                spec.ty
            );
            return Err(BackendError::BadWeight { name: spec.name.clone(), reason });
        }
        Ok(Weight { spec: spec.clone(), bytes: data.to_vec() })
    }

    /// One row, dequantised.
    pub fn row(&self, row: usize) -> Result<Vec<f32>, BackendError> {
        let bad = |reason: String| BackendError::BadWeight { name: self.spec.name.clone(), reason };
        let size = self.bytes.len() / self.spec.rows.max(1);
        let bytes = self.bytes.get(row * size..(row + 1) * size);
        let bytes = bytes.ok_or_else(|| bad(format!("has no row {row}")))?;
        let mut out = vec![0.0; self.spec.cols];
        decode_row(self.spec.ty, bytes, &mut out).map_err(|e| bad(e.to_string()))?;
        Ok(out)
    }
}

/// An index read from an input, checked.
pub fn index(what: &'static str, value: i32, limit: usize) -> Result<usize, BackendError> {
    match usize::try_from(value) {
        Ok(i) if i < limit => Ok(i),
        _ => Err(BackendError::OutOfRange { what, value: value.into(), limit }),
    }
}

/// Rows of a table.
pub fn embed(table: &Weight, ids: &[i32]) -> Result<Vec<f32>, BackendError> {
    let mut out = Vec::new();
    for &id in ids {
        out.extend(table.row(index("token id", id, table.spec.rows)?)?);
    }
    Ok(out)
}

/// `out[t, o] = sum_k w[o, k] * x[t, k]`, then the bias.
pub fn matmul(x: &[f32], w: &Weight, bias: Option<&[f32]>) -> Result<Vec<f32>, BackendError> {
    let (n_in, n_out) = (w.spec.cols, w.spec.rows);
    let mut out = vec![0.0; x.len() / n_in.max(1) * n_out];
    for o in 0..n_out {
        let row = w.row(o)?;
        for (t, x) in x.chunks_exact(n_in).enumerate() {
            let sum: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            out[t * n_out + o] = sum as f32;
        }
    }
    if let Some(bias) = bias {
        out = add_bias(&out, bias);
    }
    Ok(out)
}

/// `x + bias` on each row.
pub fn add_bias(x: &[f32], bias: &[f32]) -> Vec<f32> {
    x.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect()
}

/// `x / sqrt(mean(x^2) + eps) * weight` on each row.
pub fn rms_norm(x: &[f32], cols: usize, weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(cols.max(1)) {
        let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / cols as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        for (i, &v) in row.iter().enumerate() {
            let weight = weight.map_or(1.0, |w| f64::from(w[i]));
            out.push((f64::from(v) * factor * weight) as f32);
        }
    }
    out
}

/// `x / (1 + exp(-x))`.
pub fn silu(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&v| (f64::from(v) / (1.0 + (-f64::from(v)).exp())) as f32).collect()
}

/// `a + b`.
pub fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `a * b`.
pub fn mul(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Rotates each head of each row (`cols` values) by the row's position.
pub fn rope(x: &[f32], cols: usize, positions: &[i32], rope: &Rope, factors: Option<&[f32]>) -> Vec<f32> {
    let mut out = x.to_vec();
    for (row, &position) in out.chunks_exact_mut(cols.max(1)).zip(positions) {
        for head in row.chunks_exact_mut(rope.head_dim) {
            for i in 0..rope.n_rot / 2 {
                let exponent = -2.0 * i as f64 / rope.n_rot as f64;
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                let frequency = f64::from(rope.freq_scale) * f64::from(rope.base).powf(exponent) / factor;
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                let (a, b) = match rope.style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Halves => (i, i + rope.n_rot / 2),
                };
                let (u, v) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = (u * cos - v * sin) as f32;
                head[b] = (u * sin + v * cos) as f32;
            }
        }
    }
    out
}

/// Rows picked by index.
pub fn gather(x: &[f32], cols: usize, rows: &[i32]) -> Result<Vec<f32>, BackendError> {
    let n = x.len() / cols.max(1);
    let mut out = Vec::new();
    for &row in rows {
        let row = index("output row", row, n)?;
        out.extend_from_slice(&x[row * cols..(row + 1) * cols]);
    }
    Ok(out)
}
