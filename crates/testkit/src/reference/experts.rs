//! A mixture of experts, plainly: one row, one expert, one output after another.

use super::ops::{Weight, index};
use minfer_graph::BackendError;

/// The `n_used` largest of each row's logits, best first, NaN before all, the lower index among equals. The
/// integers stand in the bits of f32, which is what an output buffer takes here.
pub fn top(logits: &[f32], n_expert: usize, n_used: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in logits.chunks_exact(n_expert) {
        let key = |i: &usize| if row[*i].is_nan() { f32::INFINITY } else { row[*i] };
        let mut left: Vec<usize> = (0..n_expert).collect();
        for _ in 0..n_used {
            let best = (0..left.len())
                .reduce(|a, b| {
                    let better =
                        (row[left[b]].is_nan() && !row[left[a]].is_nan()) || (key(&left[b]) > key(&left[a]));
                    if better { b } else { a }
                })
                .unwrap_or(0);
            let expert = left.remove(best);
            out.push(f32::from_bits(u32::try_from(expert).unwrap_or(u32::MAX)));
        }
    }
    out
}

/// Softmax of the logits over all experts or over the chosen, at the chosen, times `scale`.
pub fn shares(
    logits: &[f32],
    n_expert: usize,
    experts: &[i32],
    n_used: usize,
    over_chosen: bool,
    scale: f32,
) -> Result<Vec<f32>, BackendError> {
    let mut out = Vec::new();
    for (row, chosen) in logits.chunks_exact(n_expert).zip(experts.chunks_exact(n_used)) {
        let chosen: Vec<usize> =
            chosen.iter().map(|&e| index("expert", e, n_expert)).collect::<Result<_, _>>()?;
        let max = row.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x.into()));
        let exp = |i: &usize| (f64::from(row[*i]) - max).exp();
        let sum: f64 =
            if over_chosen { chosen.iter().map(exp).sum() } else { (0..n_expert).map(|i| exp(&i)).sum() };
        out.extend(chosen.iter().map(|i| (exp(i) / sum * f64::from(scale)) as f32));
    }
    Ok(out)
}

/// Products with the chosen experts' rows and their biases.
pub fn matmul(
    x: &[f32],
    experts: &[i32],
    n_used: usize,
    weight: &Weight,
    bias: Option<&Weight>,
    n_expert: usize,
) -> Result<Vec<f32>, BackendError> {
    let (n_in, n_out) = (weight.spec.cols, weight.spec.rows / n_expert);
    let parts = x.len() / n_in * n_used / experts.len().max(1);
    let mut out = Vec::new();
    for (i, &expert) in experts.iter().enumerate() {
        let expert = index("expert", expert, n_expert)?;
        let part = if parts == 1 { i / n_used } else { i };
        let x = &x[part * n_in..(part + 1) * n_in];
        let bias = bias.map(|b| b.row(expert)).transpose()?;
        for o in 0..n_out {
            let row = weight.row(expert * n_out + o)?;
            let sum: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            out.push(bias.as_ref().map_or(sum as f32, |b| sum as f32 + b[o]));
        }
    }
    Ok(out)
}

/// `out[t] = sum_r shares[t, r] * x[t, r]`.
pub fn sum(x: &[f32], shares: &[f32], n_used: usize) -> Vec<f32> {
    let cols = x.len() / shares.len().max(1);
    let mut out = Vec::new();
    for (parts, shares) in x.chunks_exact((n_used * cols).max(1)).zip(shares.chunks_exact(n_used)) {
        for c in 0..cols {
            let terms =
                shares.iter().enumerate().map(|(r, &s)| f64::from(s) * f64::from(parts[r * cols + c]));
            out.push(terms.sum::<f64>() as f32);
        }
    }
    out
}
