//! Cases of matrix products: every type, one row and many, biases, both activation precisions.

use super::{CaseBuilder, OpCase, Tolerance};
use minfer_gguf::{TensorType, can_encode};
use minfer_graph::{ActPrecision, GatedMatMul, Gating, InputKind, Norm, Op};

/// `(weight rows, blocks or values per row, tokens)`; blocks of the type for quantised types.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (5, 1, 3),
    (8, 2, 1),
    (33, 3, 1),
    (16, 2, 4),
    (17, 1, 9),
    (40, 3, 33),
    (7, 2, 70),
    (64, 5, 2),
];

/// Activations of 8 or 16 bits against the exact product. Rounding to 8 bits costs 3e-5 as a rule, and more than 1e-4 in one of a
/// thousand small cases.
fn tolerance(ty: TensorType, act: ActPrecision) -> Tolerance {
    Tolerance::Nmse(match act {
        _ if !ty.is_quantized() => 1e-10,
        ActPrecision::Int8 => 2e-4,
        ActPrecision::Int16 => 1e-7,
    })
}

pub(super) fn cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for &ty in TensorType::ALL.iter().filter(|ty| can_encode(**ty)) {
        // Values per row of plain types follow the shapes' third number to become odd.
        let unit = if ty.is_quantized() { ty.block_len() } else { 37 };
        for (i, (rows, units, tokens)) in SHAPES.into_iter().enumerate() {
            // The single output of the first shape may be small by chance: it wants the higher precision.
            let act = [ActPrecision::Int16, ActPrecision::Int8][i % 2];
            list.push(product(ty, act, rows, units * unit, tokens, i % 3 == 1));
        }
        list.push(product(ty, ActPrecision::Int8, 33, 3 * unit, 5, true));
        list.push(special_rows(ty, 3 * unit));
        list.push(added(ty, [9, 3 * unit, 4], true));
        list.push(gated(
            [ty, TensorType::Q8_0],
            Gating::Silu,
            [24, 3 * unit.next_multiple_of(32), 17],
            true,
            false,
        ));
        list.push(gated(
            [TensorType::Q8_0, ty],
            Gating::Gelu,
            [16, 2 * unit.next_multiple_of(32), 3],
            false,
            true,
        ));
    }
    for tokens in [1, 2, 20] {
        list.push(added(TensorType::Q4K, [35, 512, tokens], false));
        list.push(gated(
            [TensorType::Q4K, TensorType::Q6K],
            Gating::Gelu,
            [35, 512, tokens],
            false,
            tokens == 2,
        ));
    }
    for outputs in [0, 1, 3] {
        list.push(head(outputs));
    }
    list
}

fn product(ty: TensorType, act: ActPrecision, rows: usize, cols: usize, tokens: usize, bias: bool) -> OpCase {
    let name = format!("MatMul {ty} {act:?} [{rows}, {cols}] x {tokens} bias {bias}");
    let mut c = CaseBuilder::new(name, tokens, 0, 1);
    let x = c.rows("x", cols);
    let weight = c.weight("w", ty, rows, cols);
    let bias = bias.then(|| c.vector("b", rows, 0.0));
    let y = c.push("y", Op::MatMul { weight, bias, act }, &[x]);
    c.finish(&[y], tolerance(ty, act))
}

/// A product that is added to a residual. Shapes are `[rows, cols, tokens]`.
fn added(ty: TensorType, [rows, cols, tokens]: [usize; 3], bias: bool) -> OpCase {
    let mut c =
        CaseBuilder::new(format!("MatMulAdd {ty} [{rows}, {cols}] x {tokens} bias {bias}"), tokens, 0, 1);
    let (x, r) = (c.rows("x", cols), c.rows("r", rows));
    let weight = c.weight("w", ty, rows, cols);
    let bias = bias.then(|| c.vector("b", rows, 0.0));
    let act = ActPrecision::Int8;
    let y = c.push("y", Op::MatMulAdd { weight, bias, act }, &[x, r]);
    c.finish(&[y], tolerance(ty, act))
}

/// Two products, one the gate of the other, perhaps behind a norm.
fn gated(
    types: [TensorType; 2],
    gating: Gating,
    [rows, cols, tokens]: [usize; 3],
    biased: bool,
    normed: bool,
) -> OpCase {
    let [gate_ty, up_ty] = types;
    let name = format!("GatedMatMul {gate_ty} {up_ty} {gating:?} [{rows}, {cols}] x {tokens} norm {normed}");
    let mut c = CaseBuilder::new(name, tokens, 0, 1);
    let x = c.rows("x", cols);
    let weight = normed.then(|| c.vector("norm", cols, 1.0));
    let op = GatedMatMul {
        norm: normed.then_some(Norm { weight, eps: 1e-5, parts: 1 }),
        gate: c.weight("gate", gate_ty, rows, cols),
        up: c.weight("up", up_ty, rows, cols),
        gate_bias: biased.then(|| c.vector("gate_bias", rows, 0.0)),
        up_bias: biased.then(|| c.vector("up_bias", rows, 0.0)),
        gating,
        act: ActPrecision::Int8,
    };
    let y = c.push("y", Op::GatedMatMul(op), &[x]);
    // The error of two products, through an activation that is steep for large values.
    c.finish(&[y], Tolerance::Nmse(1e-3))
}

/// Rows of zeros, with a zero stretch, with a NaN, with a large value, of subnormal values: the others
/// don't notice. The subnormal row may come out as zero, which the large row's size hides.
fn special_rows(ty: TensorType, cols: usize) -> OpCase {
    let mut c = CaseBuilder::new(format!("MatMul {ty} of special rows"), 6, 0, 1);
    let mut x = c.rng().normals(6 * cols, 1.0);
    x[..cols].fill(0.0);
    x[cols..cols + cols.min(32)].fill(0.0);
    x[3 * cols - 1] = f32::NAN;
    x[3 * cols] = 100.0;
    x[4 * cols..5 * cols].fill(1e-40);
    let x = c.values("x", cols, &x);
    let weight = c.weight("w", ty, 9, cols);
    let act = ActPrecision::Int8;
    let y = c.push("y", Op::MatMul { weight, bias: None, act }, &[x]);
    // The large value takes the precision of its block.
    let limit = if ty.is_quantized() { Tolerance::Nmse(1e-3) } else { tolerance(ty, act) };
    c.finish(&[y], limit)
}

/// The output head: gathered rows, a norm, a product; nothing at all when no output is wanted.
fn head(outputs: usize) -> OpCase {
    let mut c = CaseBuilder::new(format!("head with {outputs} outputs"), 4, outputs, 1);
    let x = c.rows("x", 96);
    let rows = c.ints("rows", InputKind::OutputRows, 1, &[3, 0, 1][..outputs]);
    let picked = c.push("picked", Op::GatherRows, &[x, rows]);
    let norm = c.vector("norm", 96, 1.0);
    let normed = c.push("normed", Op::RmsNorm { weight: Some(norm), eps: 1e-6, parts: 1 }, &[picked]);
    c.alias(normed, 0);
    let weight = c.weight("w", TensorType::Q8_0, 51, 96);
    let act = ActPrecision::Int16;
    let y = c.push("y", Op::MatMul { weight, bias: None, act }, &[normed]);
    c.finish(&[y], tolerance(TensorType::Q8_0, act))
}
