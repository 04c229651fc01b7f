//! Cases of the KV cache: stores and attention over several sequences whose pages lie shuffled in the
//! region, with windows, grouped heads, both element types. Slots that no token wrote hold NaN, and page
//! table entries that no query needs are -1.

use super::{CaseBuilder, OpCase, Tolerance};
use crate::reference::kv::{HeadRow, Side};
use minfer_gguf::TensorType;
use minfer_graph::{
    ActPrecision, Attention, InputKind, KvShape, KvType, KvTypes, NodeId, Norm, Op, PAGE, QkvRopeStore, Rope,
    RopeStyle,
};

/// Softmax sums in f32 and a polynomial `exp`.
const CLOSE: Tolerance = Tolerance::Nmse(1e-9);

/// A sequence of the batch: positions in the cache, new tokens.
type Seq = (usize, usize);

/// Heads and sizes of an attention.
#[derive(Clone, Copy)]
struct Heads {
    n_head: usize,
    n_kv_head: usize,
    head_dim: usize,
    v_dim: usize,
}

const fn heads(n_head: usize, n_kv_head: usize, head_dim: usize, v_dim: usize) -> Heads {
    Heads { n_head, n_kv_head, head_dim, v_dim }
}

const HEADS: [Heads; 9] = [
    heads(6, 2, 16, 16),
    heads(1, 1, 32, 32),
    heads(9, 3, 64, 64),
    heads(14, 2, 64, 64),
    heads(4, 4, 80, 80),
    heads(4, 1, 96, 96),
    heads(8, 2, 128, 128),
    heads(4, 1, 256, 256),
    heads(2, 1, 48, 32),
];

const BATCHES: [&[Seq]; 8] = [
    &[(0, 1)],
    &[(63, 1)],
    &[(64, 1)],
    &[(126, 3)],
    &[(0, 70)],
    &[(300, 2)],
    &[(130, 1), (0, 5), (60, 9), (64, 1)],
    &[(5, 1), (70, 1), (0, 1), (191, 1), (192, 1)],
];

const fn types(k: KvType, v: KvType) -> KvTypes {
    KvTypes { k, v }
}

const TYPES: [KvTypes; 5] = [
    types(KvType::F16, KvType::F16),
    types(KvType::F32, KvType::F32),
    types(KvType::Q8_0, KvType::Q8_0),
    types(KvType::Q8_0, KvType::F16),
    types(KvType::F32, KvType::Q8_0),
];

pub(super) fn cases() -> Vec<OpCase> {
    let mut list = Vec::new();
    for (i, heads) in HEADS.into_iter().enumerate() {
        for (j, batch) in BATCHES.into_iter().enumerate() {
            let ty = TYPES[(i + j) % TYPES.len()];
            list.push(attention(Variant { heads, ty, ..PLAIN }, batch));
        }
    }
    for (i, window) in [1, 2, 24, 63, 64, 65, 100, 1000].into_iter().enumerate() {
        for (j, batch) in
            [&[(0, 70)][..], &[(200, 3)], &[(130, 1), (0, 30), (190, 9)]].into_iter().enumerate()
        {
            for k in 0..2 {
                let ty = TYPES[(i + j + 2 * k) % TYPES.len()];
                list.push(attention(Variant { ty, window: Some(window), ..PLAIN }, batch));
            }
        }
    }
    // Scores that differ by hundreds: all but one weight vanish.
    list.push(attention(Variant { heads: HEADS[2], gain: 12.0, ..PLAIN }, &[(100, 4)]));
    for (i, softcap) in [None, Some(0.5), Some(5.0), Some(50.0)].into_iter().enumerate() {
        for (j, window) in [None, Some(1), Some(65)].into_iter().enumerate() {
            let ty = TYPES[(i + j) % TYPES.len()];
            for sinks in [false, true] {
                for batch in [&[(0, 70)][..], &[(200, 3)], &[(130, 1), (0, 30), (190, 9)]] {
                    let heads = HEADS[2 + j];
                    list.push(attention(Variant { heads, ty, window, softcap, sinks, gain: 3.0 }, batch));
                }
            }
        }
    }
    for ty in TYPES {
        for weights in [TensorType::F32, TensorType::Q8_0] {
            for biased in [false, true] {
                list.push(fused(ty, weights, biased, 0));
            }
            for norms in 1..8 {
                list.push(fused(ty, weights, norms % 2 == 0, norms));
            }
        }
    }
    list
}

/// What an attention case varies.
#[derive(Clone, Copy)]
struct Variant {
    heads: Heads,
    ty: KvTypes,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    /// Size of q and k.
    gain: f64,
}

const F32: KvTypes = KvTypes { k: KvType::F32, v: KvType::F32 };

const PLAIN: Variant =
    Variant { heads: HEADS[0], ty: F32, window: None, softcap: None, sinks: false, gain: 1.0 };

/// Where a batch lies in the cache, and the inputs that say so.
struct Layout {
    n_pages: usize,
    max_pages: usize,
    /// `[Seqs, max_pages]`.
    table: Vec<i32>,
    extents: Vec<i32>,
    positions: Vec<i32>,
    kv_rows: Vec<i32>,
    /// KV rows of the positions that were there before.
    past: Vec<usize>,
}

fn layout(c: &mut CaseBuilder, batch: &[Seq], window: Option<usize>) -> Layout {
    let pages_of = |&(past, new): &Seq| (past + new).div_ceil(PAGE);
    let max_pages = batch.iter().map(pages_of).max().unwrap_or(0) + 1;
    let n_pages = batch.iter().map(pages_of).sum::<usize>() + 2;
    let mut free: Vec<usize> = (0..n_pages).collect();
    c.rng().shuffle(&mut free);
    let mut out = Layout {
        n_pages,
        max_pages,
        table: vec![-1; batch.len() * max_pages],
        extents: Vec::new(),
        positions: Vec::new(),
        kv_rows: Vec::new(),
        past: Vec::new(),
    };
    for (s, &(past, new)) in batch.iter().enumerate() {
        // The first position that the oldest query sees; whole pages before it are gone.
        let first = window.map_or(0, |w| (past + 1).saturating_sub(w)) / PAGE * PAGE;
        let mut page = 0;
        for position in first..past + new {
            if position % PAGE == 0 {
                page = free.pop().unwrap_or_default();
                out.table[s * max_pages + position / PAGE] = page as i32;
            }
            let row = page * PAGE + position % PAGE;
            if position < past {
                out.past.push(row);
            } else {
                out.kv_rows.push(row as i32);
            }
        }
        out.extents.extend([out.positions.len() as i32, new as i32, past as i32]);
        out.positions.extend((past..past + new).map(|p| p as i32));
    }
    out
}

/// Makes the layer's regions and fills the positions before the step.
fn fill(c: &mut CaseBuilder, shape: KvShape, ty: KvTypes, layout: &Layout) {
    c.kv(shape, ty, layout.n_pages);
    let (contents, rng) = c.kv_and_rng();
    let Some(content) = contents.last_mut() else { return };
    let [k, v] = Side::both(&shape, ty);
    for &row in &layout.past {
        for head in 0..shape.n_kv_head {
            let row = HeadRow { page: row / PAGE, head, slot: row % PAGE };
            k.set(&mut content.k, row, &rng.normals(shape.head_dim, 1.0));
            v.set(&mut content.v, row, &rng.normals(shape.v_dim, 1.0));
        }
    }
}

fn new_case(name: String, batch: &[Seq]) -> CaseBuilder {
    CaseBuilder::new(name, batch.iter().map(|s| s.1).sum(), 0, batch.len())
}

/// Layer 3 on purpose: a region is found by its layer, not by its place in a list.
fn kv_shape(h: Heads) -> KvShape {
    KvShape { layer: 3, n_kv_head: h.n_kv_head, head_dim: h.head_dim, v_dim: h.v_dim }
}

/// Store, load and attention nodes.
fn attend(c: &mut CaseBuilder, variant: Variant, layout: &Layout, q: NodeId, stored: NodeId) -> NodeId {
    let Variant { heads: h, window, softcap, sinks, .. } = variant;
    let load = c.push("load", Op::KvLoad(kv_shape(h)), &[stored]);
    let extents = c.ints("extents", InputKind::Extents, 1, &layout.extents);
    let table = c.ints("table", InputKind::PageTable { group: 0 }, layout.max_pages, &layout.table);
    let attention = Attention {
        layer: 3,
        n_head: h.n_head,
        n_kv_head: h.n_kv_head,
        head_dim: h.head_dim,
        v_dim: h.v_dim,
        scale: 1.0 / (h.head_dim as f32).sqrt(),
        window,
        softcap,
        sinks: sinks.then(|| c.vector("sinks", h.n_head, 1.0)),
    };
    c.push("y", Op::Attention(attention), &[q, load, extents, table])
}

fn attention(variant: Variant, batch: &[Seq]) -> OpCase {
    let Variant { heads: h, ty, window, softcap, sinks, gain } = variant;
    let Heads { n_head, n_kv_head, head_dim, v_dim } = h;
    let mut name = format!("Attention {n_head}/{n_kv_head}x{head_dim}:{v_dim} {ty}");
    name += &window.map_or(" full".into(), |w| format!(" window {w}"));
    name += &softcap.map_or(String::new(), |cap| format!(" cap {cap}"));
    name += if sinks { " sinks" } else { "" };
    name += &format!(" {batch:?} gain {gain}");
    let mut c = new_case(name, batch);
    let layout = layout(&mut c, batch, window);
    fill(&mut c, kv_shape(h), ty, &layout);
    let k = c.rows_scaled("k", n_kv_head * head_dim, gain);
    let v = c.rows("v", n_kv_head * v_dim);
    let q = c.rows_scaled("q", n_head * head_dim, gain);
    let rows = c.ints("kv_rows", InputKind::KvRows { group: 0 }, 1, &layout.kv_rows);
    let store = c.push("store", Op::KvStore(kv_shape(h)), &[k, v, rows]);
    let y = attend(&mut c, variant, &layout, q, store);
    c.finish(&[y], CLOSE)
}

/// Projections, rotation and store in one node, then attention over what it stored. The bits of `norms`: a norm of the input,
/// of each head of q, of k as a whole.
fn fused(ty: KvTypes, weights: TensorType, biased: bool, norms: usize) -> OpCase {
    let (h, n_embd, batch) = (HEADS[0], 96, &[(70, 1), (0, 3), (62, 5)][..]);
    let mut c = new_case(format!("QkvRopeStore {weights} {ty} bias {biased} norms {norms}"), batch);
    let layout = layout(&mut c, batch, None);
    fill(&mut c, kv_shape(h), ty, &layout);
    let x = c.rows("x", n_embd);
    let positions = c.ints("positions", InputKind::Positions, 1, &layout.positions);
    let rows = c.ints("kv_rows", InputKind::KvRows { group: 0 }, 1, &layout.kv_rows);
    let (q_dim, k_dim, v_dim) = (h.n_head * h.head_dim, h.n_kv_head * h.head_dim, h.n_kv_head * h.v_dim);
    let style = if biased { RopeStyle::Halves } else { RopeStyle::Interleaved };
    let rope = Rope {
        style,
        head_dim: h.head_dim,
        n_rot: h.head_dim,
        base: 10_000.0,
        freq_scale: 1.0,
        factors: biased.then(|| c.vector("factors", h.head_dim / 2, 3.0)),
        yarn: None,
        magnitude: 1.0,
    };
    let mut norm = |i: usize, name: &str, cols: usize, parts: usize| {
        (norms >> i & 1 == 1).then(|| Norm {
            weight: Some(c.vector(name, cols / parts, 1.0)),
            eps: 1e-5,
            parts,
        })
    };
    let op = QkvRopeStore {
        norm: norm(0, "norm", n_embd, 1),
        q_norm: norm(1, "q_norm", q_dim, h.n_head),
        k_norm: norm(2, "k_norm", k_dim, 1),
        wq: c.weight("wq", weights, q_dim, n_embd),
        wk: c.weight("wk", weights, k_dim, n_embd),
        wv: c.weight("wv", weights, v_dim, n_embd),
        bq: biased.then(|| c.vector("bq", q_dim, 0.0)),
        bk: biased.then(|| c.vector("bk", k_dim, 0.0)),
        bv: biased.then(|| c.vector("bv", v_dim, 0.0)),
        rope,
        kv: kv_shape(h),
        act: ActPrecision::Int8,
    };
    let q = c.push("q", Op::QkvRopeStore(op), &[x, positions, rows]);
    let y = attend(&mut c, PLAIN, &layout, q, q);
    // A value next to a rounding border of the cache type may land on either side.
    let coarse = if ty.k == KvType::Q8_0 || ty.v == KvType::Q8_0 { 1e-5 } else { 1e-7 };
    let limit = if weights.is_quantized() { 4e-4 } else { coarse };
    c.kv_tolerance(Tolerance::Nmse(limit));
    c.finish(&[q, y], Tolerance::Nmse(limit))
}

pub(super) fn error_cases() -> Vec<OpCase> {
    type Change = fn(&mut Layout);
    let changes: [(&str, Change); 5] = [
        ("a negative KV row", |l| l.kv_rows[1] = -1),
        ("a KV row past the region", |l| l.kv_rows[1] = (l.n_pages * PAGE) as i32),
        ("a negative page", |l| l.table[0] = -1),
        ("a page past the region", |l| l.table[0] = l.n_pages as i32),
        ("positions past the page table", |l| l.extents[2] = (l.max_pages * PAGE) as i32 - 1),
    ];
    let mut list = Vec::new();
    for (what, change) in changes {
        let h = HEADS[0];
        let batch = &[(10, 2)][..];
        let mut c = new_case(format!("attention with {what}"), batch);
        let mut layout = layout(&mut c, batch, None);
        fill(&mut c, kv_shape(h), KvType::F16.into(), &layout);
        change(&mut layout);
        let k = c.rows("k", h.n_kv_head * h.head_dim);
        let v = c.rows("v", h.n_kv_head * h.v_dim);
        let q = c.rows("q", h.n_head * h.head_dim);
        let rows = c.ints("kv_rows", InputKind::KvRows { group: 0 }, 1, &layout.kv_rows);
        let store = c.push("store", Op::KvStore(kv_shape(h)), &[k, v, rows]);
        let y = attend(&mut c, PLAIN, &layout, q, store);
        list.push(c.finish(&[y], CLOSE));
    }
    list
}
