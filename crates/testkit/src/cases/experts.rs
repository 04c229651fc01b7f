//! Cases of mixtures of experts: choice, shares, products, sums, and all of them as one block.

use super::{CaseBuilder, OpCase, Tolerance};
use minfer_gguf::{TensorType, can_encode};
use minfer_graph::{ActPrecision, ExpertMatMul, InputKind, Op};

const CLOSE: Tolerance = Tolerance::Nmse(1e-12);

pub(super) fn cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for (tokens, n_expert, n_used) in [(1, 1, 1), (3, 8, 2), (33, 128, 8), (5, 7, 7)] {
        list.push(choice(tokens, n_expert, n_used));
        for over_chosen in [true, false] {
            list.push(shares(tokens, n_expert, n_used, over_chosen));
        }
    }
    list.push(ties());
    for &ty in TensorType::ALL.iter().filter(|ty| can_encode(**ty)) {
        let cols = if ty.is_quantized() { 2 * ty.block_len() } else { 37 };
        for (tokens, n_used, split, bias) in [(1, 2, false, false), (9, 3, true, true), (70, 1, false, true)]
        {
            list.push(product(ty, cols, tokens, n_used, split, bias));
        }
    }
    for (tokens, n_used, cols) in [(1, 1, 5), (4, 2, 64), (3, 8, 131)] {
        let mut c = CaseBuilder::new(format!("ExpertSum {tokens}x{cols} of {n_used}"), tokens, 0, 1);
        let x = c.rows("x", n_used * cols);
        let shares = c.rows("shares", n_used);
        let y = c.push("y", Op::ExpertSum, &[x, shares]);
        list.push(c.finish(&[y], CLOSE));
    }
    list.push(block());
    list
}

fn choice(tokens: usize, n_expert: usize, n_used: usize) -> OpCase {
    let mut c = CaseBuilder::new(format!("TopExperts {n_used} of {n_expert} x {tokens}"), tokens, 0, 1);
    let logits = c.rows("logits", n_expert);
    let y = c.push("y", Op::TopExperts { n_used }, &[logits]);
    c.finish(&[y], Tolerance::Bits)
}

/// Equal values, zeros of both signs, infinities and NaN.
fn ties() -> OpCase {
    let mut c = CaseBuilder::new("TopExperts of ties", 4, 0, 1);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let values = [1., 2., 2., 1., 2., -0., 0., -0., 0., -1., nan, 3., nan, inf, 4., -inf, inf, -inf, 0., inf];
    let logits = c.values("logits", 5, &values);
    let y = c.push("y", Op::TopExperts { n_used: 4 }, &[logits]);
    c.finish(&[y], Tolerance::Bits)
}

fn shares(tokens: usize, n_expert: usize, n_used: usize, over_chosen: bool) -> OpCase {
    let name = format!("ExpertShares {n_used} of {n_expert} x {tokens} over chosen {over_chosen}");
    let mut c = CaseBuilder::new(name, tokens, 0, 1);
    let logits = c.rows_scaled("logits", n_expert, 5.0);
    let experts = c.push("experts", Op::TopExperts { n_used }, &[logits]);
    let y = c.push("y", Op::ExpertShares { over_chosen, scale: 2.5 }, &[logits, experts]);
    c.finish(&[y], CLOSE)
}

fn product(ty: TensorType, cols: usize, tokens: usize, n_used: usize, split: bool, bias: bool) -> OpCase {
    const N_EXPERT: usize = 5;
    let n_out = 24;
    let name = format!("ExpertMatMul {ty} {n_used} of {N_EXPERT} x {tokens} split {split} bias {bias}");
    let mut c = CaseBuilder::new(name, tokens, 0, 1);
    let x = c.rows("x", if split { n_used * cols } else { cols });
    let logits = c.rows("logits", N_EXPERT);
    let experts = c.push("experts", Op::TopExperts { n_used }, &[logits]);
    let weight = c.weight("w", ty, N_EXPERT * n_out, cols);
    let bias = bias.then(|| c.weight("b", TensorType::F32, N_EXPERT, n_out));
    let act = ActPrecision::Int8;
    let op = Op::ExpertMatMul(ExpertMatMul { weight, bias, n_expert: N_EXPERT, act });
    let y = c.push("y", op, &[x, experts]);
    c.finish(&[y], Tolerance::Nmse(if ty.is_quantized() { 1e-4 } else { 1e-10 }))
}

/// A whole block: router, choice, gate and up, gating, down, sum.
fn block() -> OpCase {
    let (n_embd, n_ff, n_expert, n_used, act) = (40, 24, 6, 2, ActPrecision::Int8);
    let mut c = CaseBuilder::new("mixture of experts", 11, 0, 1);
    let x = c.rows("x", n_embd);
    let weight = c.weight("router", TensorType::F32, n_expert, n_embd);
    let logits = c.push("logits", Op::MatMul { weight, bias: None, act }, &[x]);
    let experts = c.push("experts", Op::TopExperts { n_used }, &[logits]);
    let shares = c.push("shares", Op::ExpertShares { over_chosen: true, scale: 1.0 }, &[logits, experts]);
    let mut product = |name: &str, rows, cols, x| {
        let weight = c.weight(name, TensorType::F32, n_expert * rows, cols);
        let op = Op::ExpertMatMul(ExpertMatMul { weight, bias: None, n_expert, act });
        c.push(&format!("{name}_out"), op, &[x, experts])
    };
    let (gate, up) = (product("gate", n_ff, n_embd, x), product("up", n_ff, n_embd, x));
    let gated = c.push("gated", Op::SwiGlu, &[gate, up]);
    let weight = c.weight("down", TensorType::F32, n_expert * n_embd, n_ff);
    let op = Op::ExpertMatMul(ExpertMatMul { weight, bias: None, n_expert, act });
    let down = c.push("down_out", op, &[gated, experts]);
    let y = c.push("y", Op::ExpertSum, &[down, shares]);
    c.finish(&[y], Tolerance::Nmse(1e-10))
}

/// An expert that is not there can't come from a choice: it comes as an input.
pub(super) fn error_cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for id in [-1, 3, i32::MAX] {
        let mut c = CaseBuilder::new(format!("ExpertShares of expert {id}"), 2, 0, 1);
        let logits = c.rows("logits", 3);
        let experts = c.ints("experts", InputKind::TokenIds, 1, &[0, id]);
        let y = c.push("y", Op::ExpertShares { over_chosen: true, scale: 1.0 }, &[logits, experts]);
        list.push(c.finish(&[y], Tolerance::Bits));

        let mut c = CaseBuilder::new(format!("ExpertMatMul of expert {id}"), 2, 0, 1);
        let x = c.rows("x", 8);
        let experts = c.ints("experts", InputKind::TokenIds, 1, &[id, 2]);
        let weight = c.weight("w", TensorType::F32, 3 * 8, 8);
        let op = ExpertMatMul { weight, bias: None, n_expert: 3, act: ActPrecision::Int8 };
        let y = c.push("y", Op::ExpertMatMul(op), &[x, experts]);
        list.push(c.finish(&[y], Tolerance::Bits));
    }
    list
}
