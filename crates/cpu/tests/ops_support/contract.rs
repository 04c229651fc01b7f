//! docs/numerics.md as plain scalar loops, independent of the kernels. Only `exp` and
//! `tanh` are the crate's own scalar functions, because the contract names no bits for them.

use minfer_cpu::simd::{exp_f32 as exp, tanh_f32 as tanh};
use minfer_graph::PAGE;

fn fold_lanes(mut lanes: [f32; 64]) -> f32 {
    let mut half = 32;
    while half >= 1 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// RMS norm of one row.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mut lanes = [0f32; 64];
    for (i, v) in x.iter().enumerate() {
        lanes[i % 64] = v.mul_add(*v, lanes[i % 64]);
    }
    let mean = fold_lanes(lanes) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    let scaled = |(i, v): (usize, &f32)| match weight {
        Some(w) => v * factor * w[i],
        None => v * factor,
    };
    x.iter().enumerate().map(scaled).collect()
}

/// SiLU of a value.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Visible positions of a query at `position`.
pub fn visible(position: usize, window: Option<usize>) -> std::ops::Range<usize> {
    let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
    first..position + 1
}

/// How scores come from products.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    pub scale: f32,
    pub softcap: Option<f32>,
    pub sink: Option<f32>,
}

/// One query head's attention. `k(p, d)` and `v(p, i)` read the cache at a position.
pub fn attention(
    q: &[f32],
    v_dim: usize,
    rule: Scores,
    visible: std::ops::Range<usize>,
    k: impl Fn(usize, usize) -> f32,
    v: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let mut merged: Option<(f32, f32, Vec<f32>)> = None;
    for page in visible.start / PAGE..=(visible.end - 1) / PAGE {
        let (from, to) = (visible.start.max(page * PAGE), visible.end.min((page + 1) * PAGE));
        let mut scores = [f32::NEG_INFINITY; PAGE];
        for p in from..to {
            let mut dot = 0f32;
            for (d, q) in q.iter().enumerate() {
                dot = q.mul_add(k(p, d), dot);
            }
            let score = rule.scale * dot;
            scores[p % PAGE] = rule.softcap.map_or(score, |cap| cap * tanh(score / cap));
        }
        let m_p = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut e = [0f32; PAGE];
        for p in from..to {
            e[p % PAGE] = exp(scores[p % PAGE] - m_p);
        }
        let l_p = fold_lanes(e);
        let mut a_p = vec![0f32; v_dim];
        for p in from..to {
            for (i, a) in a_p.iter_mut().enumerate() {
                *a = e[p % PAGE].mul_add(v(p, i), *a);
            }
        }
        merged = Some(match merged {
            None => (m_p, l_p, a_p),
            Some((m, l, a)) => {
                let top = m.max(m_p);
                let (c, c_p) = (exp(m - top), exp(m_p - top));
                let a = a.iter().zip(&a_p).map(|(a, a_p)| a.mul_add(c, a_p * c_p)).collect();
                (top, l.mul_add(c, l_p * c_p), a)
            }
        });
    }
    let (m, mut l, mut a) = merged.unwrap();
    if let Some(sink) = rule.sink {
        let top = m.max(sink);
        let c = exp(m - top);
        l = l.mul_add(c, exp(sink - top));
        a.iter_mut().for_each(|a| *a *= c);
    }
    a.iter().map(|a| a / l).collect()
}

/// The same in f64 with one softmax over all positions.
pub fn attention_f64(
    q: &[f32],
    v_dim: usize,
    rule: Scores,
    visible: std::ops::Range<usize>,
    k: impl Fn(usize, usize) -> f32,
    v: impl Fn(usize, usize) -> f32,
) -> Vec<f64> {
    let dot = |p: usize| -> f64 {
        let dot: f64 = q.iter().enumerate().map(|(d, &q)| f64::from(q) * f64::from(k(p, d))).sum();
        let score = dot * f64::from(rule.scale);
        rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let sink = rule.sink.map(f64::from);
    let scores: Vec<f64> = visible.clone().map(dot).collect();
    let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - top).exp());
    let value = |i: usize| -> f64 {
        visible.clone().zip(&weights).map(|(p, w)| w * f64::from(v(p, i))).sum::<f64>() / total
    };
    (0..v_dim).map(value).collect()
}
