//! Cases of the ops that work on rows: tables, elementwise ops, norms, rotation, gathering.

use super::{CaseBuilder, OpCase, Tolerance};
use minfer_gguf::{TensorType, can_encode};
use minfer_graph::{InputKind, Norm, Op, Rope, RopeStyle, Yarn};

/// Sizes around vector widths and the 64 lanes of sums.
const COLS: [usize; 9] = [1, 3, 31, 63, 64, 65, 130, 576, 1027];

/// Sums in another order and a polynomial `exp`.
const CLOSE: Tolerance = Tolerance::Nmse(1e-12);

/// Results of half precision: an error of f32 may now and then round the other way.
const HALF: Tolerance = Tolerance::Nmse(1e-6);

pub(super) fn cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for (i, cols) in COLS.into_iter().enumerate() {
        let tokens = [1, 5, 2, 33][i % 4];
        elementwise(&mut list, tokens, cols);
        norms(&mut list, tokens, cols);
    }
    list.push(special_values());
    list.push(special_gelu());
    embeds(&mut list);
    ropes(&mut list);
    position_scales(&mut list);
    gathers(&mut list);
    list
}

/// Every elementwise op and AddBias, each alone and over each source that allows it.
fn elementwise(list: &mut Vec<OpCase>, tokens: usize, cols: usize) {
    let ops = [
        (Op::Add, Tolerance::Bits),
        (Op::Mul, Tolerance::Bits),
        (Op::SwiGlu, CLOSE),
        (Op::Silu, CLOSE),
        (Op::Gelu, HALF),
        (Op::GeGlu, HALF),
        (Op::ClampedGlu { alpha: 1.702, limit: 2.0 }, CLOSE),
        (Op::Scale { factor: -0.3 }, Tolerance::Bits),
        (Op::SoftCap { cap: 3.0 }, CLOSE),
    ];
    for (op, tolerance) in ops {
        for alias in [None, Some(0), Some(1)] {
            if alias >= Some(op.arity()) {
                continue;
            }
            let name = format!("{} {tokens}x{cols}{}", op.name(), alias_name(alias));
            let mut c = CaseBuilder::new(name, tokens, 0, 1);
            let a = c.rows_scaled("a", cols, 4.0);
            let b = c.rows("b", cols);
            let y = c.push("y", op, &[a, b][..op.arity()]);
            if let Some(source) = alias {
                c.alias(y, source);
            }
            list.push(c.finish(&[y], tolerance));
        }
    }
    for alias in [None, Some(0)] {
        let mut c = CaseBuilder::new(format!("AddBias {tokens}x{cols}{}", alias_name(alias)), tokens, 0, 1);
        let x = c.rows("x", cols);
        let bias = c.vector("bias", cols, 0.0);
        let y = c.push("y", Op::AddBias { bias }, &[x]);
        if let Some(source) = alias {
            c.alias(y, source);
        }
        list.push(c.finish(&[y], Tolerance::Bits));
    }
    let mut c = CaseBuilder::new(format!("Add {tokens}x{cols} twice the same, in place"), tokens, 0, 1);
    let x = c.rows("x", cols);
    let y = c.push("y", Op::Add, &[x, x]);
    c.alias(y, 0);
    list.push(c.finish(&[y], Tolerance::Bits));
}

fn alias_name(alias: Option<usize>) -> String {
    alias.map_or(String::new(), |source| format!(" in place of {source}"))
}

fn norms(list: &mut Vec<OpCase>, tokens: usize, cols: usize) {
    for (weighted, eps, alias) in
        [(true, 1e-6, None), (true, 1e-5, Some(0)), (false, 1e-6, None), (false, 0.5, Some(0))]
    {
        let parts = if weighted && cols.is_multiple_of(3) { 3 } else { 1 };
        let name =
            format!("RmsNorm {tokens}x{cols} weight {weighted} eps {eps} parts {parts}{}", alias_name(alias));
        let mut c = CaseBuilder::new(name, tokens, 0, 1);
        let x = c.rows_scaled("x", cols, 3.0);
        let weight = weighted.then(|| c.vector("w", cols / parts, 1.0));
        let y = c.push("y", Op::RmsNorm { weight, eps, parts }, &[x]);
        if let Some(source) = alias {
            c.alias(y, source);
        }
        list.push(c.finish(&[y], CLOSE));
        list.push(norm_add(tokens, cols, Norm { weight: None, eps, parts }, weighted, alias));
    }
    let norm = Norm { weight: None, eps: 1e-6, parts: 1 };
    list.push(norm_add(tokens, cols, norm, true, Some(1)));
}

/// A norm and a sum; the norm gets a weight of its own.
fn norm_add(tokens: usize, cols: usize, norm: Norm, weighted: bool, alias: Option<usize>) -> OpCase {
    let name = format!("NormAdd {tokens}x{cols} weight {weighted} {norm:?}{}", alias_name(alias));
    let mut c = CaseBuilder::new(name, tokens, 0, 1);
    let (x, r) = (c.rows_scaled("x", cols, 3.0), c.rows("r", cols));
    let weight = weighted.then(|| c.vector("w", cols / norm.parts, 1.0));
    let y = c.push("y", Op::NormAdd(Norm { weight, ..norm }), &[x, r]);
    if let Some(source) = alias {
        c.alias(y, source);
    }
    c.finish(&[y], CLOSE)
}

/// A row of zeros, one with a NaN, one with large and tiny values: rows don't touch each other.
fn special_values() -> OpCase {
    let cols = 70;
    let mut c = CaseBuilder::new("special values", 4, 0, 1);
    let mut values = c.rng().normals(4 * cols, 1.0);
    values[..cols].fill(0.0);
    values[cols + 7] = f32::NAN;
    values[2 * cols] = 90.0;
    values[2 * cols + 1] = -90.0;
    values[2 * cols + 2] = 1e-30;
    values[2 * cols + 3] = 1000.0;
    values[2 * cols + 4] = -1000.0;
    let x = c.values("x", cols, &values);
    let weight = Some(c.vector("w", cols, 1.0));
    let outputs = [
        c.push("norm", Op::RmsNorm { weight, eps: 1e-6, parts: 1 }, &[x]),
        c.push("silu", Op::Silu, &[x]),
        c.push("swiglu", Op::SwiGlu, &[x, x]),
        c.push("clamped", Op::ClampedGlu { alpha: 1.702, limit: 7.0 }, &[x, x]),
        c.push("norm_add", Op::NormAdd(Norm { weight, eps: 1e-6, parts: 1 }), &[x, x]),
        c.push("softcap", Op::SoftCap { cap: 30.0 }, &[x]),
        c.push("add", Op::Add, &[x, x]),
        c.push("mul", Op::Mul, &[x, x]),
    ];
    c.finish(&outputs, CLOSE)
}

/// GELU at the ends of its table-like form, and beyond f16.
fn special_gelu() -> OpCase {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let values = [0., -0., nan, inf, -inf, 10., -10., 10.01, -10.01, 9.99, -9.99, 1e6, -1e6, 1e-8, -6., 3.];
    let mut c = CaseBuilder::new("Gelu of special values", 1, 0, 1);
    let x = c.values("x", values.len(), &values);
    let y = c.push("y", Op::Gelu, &[x]);
    c.finish(&[y], HALF)
}

fn embeds(list: &mut Vec<OpCase>) {
    for &ty in TensorType::ALL.iter().filter(|ty| can_encode(**ty)) {
        let cols = if ty.is_quantized() { 3 * ty.block_len() } else { 77 };
        for ids in [&[36][..], &[0, 36, 5, 5, 17, 0, 1]] {
            let mut c = CaseBuilder::new(format!("Embed {ty} of {}", ids.len()), ids.len(), 0, 1);
            let weight = c.weight("table", ty, 37, cols);
            let ids = c.ints("ids", InputKind::TokenIds, 1, ids);
            let y = c.push("y", Op::Embed { weight }, &[ids]);
            list.push(c.finish(&[y], Tolerance::Bits));
        }
    }
}

fn ropes(list: &mut Vec<OpCase>) {
    // head_dim, n_rot, heads, base, freq_scale, with factors
    let shapes = [
        (16, 16, 6, 10_000.0, 1.0, false),
        (64, 64, 9, 10_000.0, 1.0, true),
        (64, 64, 1, 1_000_000.0, 0.25, false),
        (32, 32, 2, 10_000.0, 0.25, true),
        (80, 32, 3, 10_000.0, 1.0, false),
        (96, 6, 2, 10_000.0, 1.0, true),
        (128, 128, 5, 500_000.0, 1.0, true),
        (256, 256, 1, 1_000_000.0, 0.125, false),
    ];
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        for (head_dim, n_rot, heads, base, freq_scale, factors) in shapes {
            for (positions, limit) in [(&[0, 1, 2, 63, 64, 500, 7][..], 1e-8), (&[100_000], 1e-4)] {
                for alias in [None, Some(0)] {
                    let name = format!(
                        "Rope {style:?} {heads}x{head_dim} rot {n_rot} at {}{}",
                        positions[positions.len() - 1],
                        alias_name(alias)
                    );
                    let mut c = CaseBuilder::new(name, positions.len(), 0, 1);
                    let x = c.rows("x", heads * head_dim);
                    let positions = c.ints("positions", InputKind::Positions, 1, positions);
                    let factors = factors.then(|| c.vector("factors", n_rot / 2, 3.0));
                    let turns = Yarn {
                        n_ctx_orig: 256,
                        ext_factor: 1.0,
                        beta_fast: 8.0,
                        beta_slow: 1.0,
                        whole_ends: style == RopeStyle::Halves,
                    };
                    let yarn = (freq_scale < 1.0).then_some(turns);
                    let magnitude = if yarn.is_some() { 1.2 } else { 1.0 };
                    let rope = Rope { style, head_dim, n_rot, base, freq_scale, factors, yarn, magnitude };
                    let y = c.push("y", Op::Rope(rope), &[x, positions]);
                    if let Some(source) = alias {
                        c.alias(y, source);
                    }
                    list.push(c.finish(&[y], Tolerance::Nmse(limit)));
                }
            }
        }
    }
}

fn position_scales(list: &mut Vec<OpCase>) {
    for (interval, alias) in [(1, None), (16, Some(0)), (8192, None)] {
        let name = format!("PositionScale every {interval}{}", alias_name(alias));
        let mut c = CaseBuilder::new(name, 5, 0, 1);
        let x = c.rows("x", 67);
        let positions = c.ints("positions", InputKind::Positions, 1, &[0, 1, 15, 16, 100_000]);
        let y = c.push("y", Op::PositionScale { gain: 0.1, interval }, &[x, positions]);
        if let Some(source) = alias {
            c.alias(y, source);
        }
        list.push(c.finish(&[y], CLOSE));
    }
}

fn gathers(list: &mut Vec<OpCase>) {
    for (tokens, rows) in [(1, &[0][..]), (5, &[4]), (7, &[6, 0, 3, 3]), (3, &[]), (4, &[0, 1, 2, 3, 0, 1])] {
        for cols in [1, 33, 576] {
            let name = format!("GatherRows {} of {tokens}x{cols}", rows.len());
            let mut c = CaseBuilder::new(name, tokens, rows.len(), 1);
            let x = c.rows("x", cols);
            let rows = c.ints("rows", InputKind::OutputRows, 1, rows);
            let y = c.push("y", Op::GatherRows, &[x, rows]);
            list.push(c.finish(&[y], Tolerance::Bits));
        }
    }
}

pub(super) fn error_cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for id in [-1, 37, i32::MAX, i32::MIN] {
        let mut c = CaseBuilder::new(format!("Embed of token {id}"), 3, 0, 1);
        let weight = c.weight("table", TensorType::Q8_0, 37, 64);
        let ids = c.ints("ids", InputKind::TokenIds, 1, &[1, id, 2]);
        let y = c.push("y", Op::Embed { weight }, &[ids]);
        list.push(c.finish(&[y], Tolerance::Bits));

        let mut c = CaseBuilder::new(format!("GatherRows of row {id}"), 5, 2, 1);
        let x = c.rows("x", 8);
        let rows = c.ints("rows", InputKind::OutputRows, 1, &[4, id]);
        let y = c.push("y", Op::GatherRows, &[x, rows]);
        list.push(c.finish(&[y], Tolerance::Bits));
    }
    list
}
