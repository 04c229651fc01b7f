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

/// A function of each value.
pub fn each(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f32> {
    x.iter().map(|&v| f(v.into()) as f32).collect()
}

/// `x / (1 + exp(-x))`.
pub fn silu(x: &[f32]) -> Vec<f32> {
    each(x, |v| v / (1.0 + (-v).exp()))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` of x rounded to f16, rounded to f16; 0 below -10, x above
/// 10.
pub fn gelu(x: &[f32]) -> Vec<f32> {
    let half = |v: f64| f64::from(half::f16::from_f64(v));
    let slope = std::f64::consts::FRAC_2_PI.sqrt();
    // Far below zero the bracket cancels to 0, where `1 + tanh` of the definition is an e^2u.
    let one_plus_tanh = |u: f64| 2.0 / (1.0 + (-2.0 * u).exp());
    let inside = |v: f64| half(0.5 * v * one_plus_tanh(slope * (v + 0.044715 * v * v * v)));
    each(x, |v| match v {
        _ if v < -10.0 => 0.0,
        _ if v > 10.0 => v,
        _ => inside(half(v)),
    })
}

/// `g / (1 + exp(-alpha g)) * (u + 1)` of clamped operands.
pub fn clamped_glu(gate: &[f32], up: &[f32], alpha: f32, limit: f32) -> Vec<f32> {
    let (alpha, limit) = (f64::from(alpha), f64::from(limit));
    let one = |(&g, &u): (&f32, &f32)| {
        let g = if f64::from(g) > limit { limit } else { g.into() };
        let u = f64::from(u).clamp(-limit, limit);
        (g / (1.0 + (-alpha * g).exp()) * (u + 1.0)) as f32
    };
    gate.iter().zip(up).map(one).collect()
}

/// `x * (1 + gain * ln(1 + floor(position / interval)))` on each row.
pub fn position_scale(x: &[f32], cols: usize, positions: &[i32], gain: f32, interval: usize) -> Vec<f32> {
    let factor = |p: i32| 1.0 + f64::from(gain) * (1.0 + (f64::from(p) / interval as f64).floor()).ln();
    let rows = x.chunks_exact(cols.max(1)).zip(positions);
    rows.flat_map(|(row, &p)| each(row, |v| v * factor(p))).collect()
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
                let frequency = rope.frequency(i, factors.map_or(1.0, |f| f[i]));
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                let (sin, cos) = (sin * f64::from(rope.magnitude), cos * f64::from(rope.magnitude));
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
