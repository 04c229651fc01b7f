//! The paged KV cache: where an element lies, the store, and attention over the visible positions.

use super::memory::Memory;
use super::ops::index;
use minfer_graph::{Attention, BackendError, KvPair, KvShape, KvType, PAGE};

/// Element of K at (page, KV head, dimension, slot).
pub fn k_index(kv: &KvShape, page: usize, head: usize, dim: usize, slot: usize) -> usize {
    page * kv.n_kv_head * kv.head_dim * PAGE + (head * kv.head_dim + dim) * PAGE + slot
}

/// Element of V at (page, KV head, dimension, slot).
pub fn v_index(kv: &KvShape, page: usize, head: usize, dim: usize, slot: usize) -> usize {
    page * kv.n_kv_head * PAGE * kv.v_dim + (head * PAGE + slot) * kv.v_dim + dim
}

/// Elements of K and of V in one page.
pub fn page_elements(kv: &KvShape) -> (usize, usize) {
    (kv.n_kv_head * kv.head_dim * PAGE, kv.n_kv_head * PAGE * kv.v_dim)
}

/// Reads an element of a region.
pub fn get(bytes: &[u8], ty: KvType, i: usize) -> f32 {
    match ty {
        KvType::F16 => half::f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        KvType::F32 => {
            f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        }
    }
}

/// Writes an element of a region, rounded to its type.
pub fn set(bytes: &mut [u8], ty: KvType, i: usize, value: f32) {
    match ty {
        KvType::F16 => {
            bytes[2 * i..2 * i + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
        }
        KvType::F32 => bytes[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

/// Checks that the regions hold what the shape says.
fn check_regions(pair: &KvPair, kv: &KvShape) -> Result<(), BackendError> {
    let (k, v) = page_elements(kv);
    let bytes = pair.n_pages * pair.ty.bytes();
    if pair.k.len == k * bytes && pair.v.len == v * bytes {
        return Ok(());
    }
    let found = (pair.k.len, pair.v.len);
    Err(BackendError::BadBuffer(format!("KV regions of {found:?} bytes, needs {:?}", (k * bytes, v * bytes))))
}

/// Writes rows of `k` and `v` to the KV rows (`page * PAGE + slot`) of `rows`.
pub fn store(
    memory: &mut Memory,
    pair: &KvPair,
    kv: &KvShape,
    k: &[f32],
    v: &[f32],
    rows: &[i32],
) -> Result<(), BackendError> {
    check_regions(pair, kv)?;
    let rows: Vec<usize> =
        rows.iter().map(|&r| index("KV row", r, pair.n_pages * PAGE)).collect::<Result<_, _>>()?;
    let bytes = memory.bytes_mut(pair.k)?;
    for (&row, k) in rows.iter().zip(k.chunks_exact(kv.n_kv_head * kv.head_dim)) {
        for (i, &value) in k.iter().enumerate() {
            let at = k_index(kv, row / PAGE, i / kv.head_dim, i % kv.head_dim, row % PAGE);
            set(bytes, pair.ty, at, value);
        }
    }
    let bytes = memory.bytes_mut(pair.v)?;
    for (&row, v) in rows.iter().zip(v.chunks_exact(kv.n_kv_head * kv.v_dim)) {
        for (i, &value) in v.iter().enumerate() {
            let at = v_index(kv, row / PAGE, i / kv.v_dim, i % kv.v_dim, row % PAGE);
            set(bytes, pair.ty, at, value);
        }
    }
    Ok(())
}

/// One token's place: its position and its sequence's page table.
struct Place<'a> {
    position: usize,
    pages: &'a [i32],
}

/// The place of each token of the batch.
fn places<'a>(
    tokens: usize,
    extents: &[i32],
    table: &'a [i32],
    max_pages: usize,
) -> Result<Vec<Place<'a>>, BackendError> {
    let mut places: Vec<Option<Place<'a>>> = (0..tokens).map(|_| None).collect();
    for (extent, pages) in extents.chunks_exact(3).zip(table.chunks_exact(max_pages)) {
        let first = index("first token of a sequence", extent[0], tokens + 1)?;
        let count = index("tokens of a sequence", extent[1], tokens - first + 1)?;
        let past = index("position", extent[2], max_pages * PAGE)?;
        for i in 0..count {
            let limit = max_pages * PAGE;
            let position = past + i;
            if position >= limit {
                return Err(BackendError::OutOfRange { what: "position", value: position as i64, limit });
            }
            places[first + i] = Some(Place { position, pages });
        }
    }
    let missing = |t: usize| BackendError::Device(format!("token {t} belongs to no sequence"));
    places.into_iter().enumerate().map(|(t, p)| p.ok_or_else(|| missing(t))).collect()
}

/// What attention reads besides the queries.
pub struct Cache<'a> {
    /// The layer's regions.
    pub pair: &'a KvPair,
    /// `[Seqs, 3]`.
    pub extents: &'a [i32],
    /// `[Seqs, max_pages]`.
    pub table: &'a [i32],
    /// Columns of the table.
    pub max_pages: usize,
    /// `[n_head]` scores without a value.
    pub sinks: Option<&'a [f32]>,
}

/// Causal attention of each row of `q`: softmax of the scaled scores over the visible positions, in f64.
pub fn attention(
    memory: &Memory,
    a: &Attention,
    q: &[f32],
    cache: &Cache<'_>,
) -> Result<Vec<f32>, BackendError> {
    let kv = KvShape { layer: a.layer, n_kv_head: a.n_kv_head, head_dim: a.head_dim, v_dim: a.v_dim };
    check_regions(cache.pair, &kv)?;
    let q: Vec<&[f32]> = q.chunks_exact(a.n_head * a.head_dim).collect();
    let mut out = Vec::with_capacity(q.len() * a.n_head * a.v_dim);
    let places = places(q.len(), cache.extents, cache.table, cache.max_pages)?;
    for (q, place) in q.iter().zip(places) {
        let first = a.window.map_or(0, |w| (place.position + 1).saturating_sub(w));
        let mut rows = Vec::new();
        for position in first..=place.position {
            let page = index("page", place.pages[position / PAGE], cache.pair.n_pages)?;
            rows.push((page, position % PAGE));
        }
        for (h, q) in q.chunks_exact(a.head_dim).enumerate() {
            let head = h / (a.n_head / a.n_kv_head);
            let sink = cache.sinks.map(|s| f64::from(s[h]));
            out.extend(attend(memory, a, &kv, cache.pair, head, (q, sink), &rows)?);
        }
    }
    Ok(out)
}

/// One query head and its sink over the visible `(page, slot)` rows of one KV head.
fn attend(
    memory: &Memory,
    a: &Attention,
    kv: &KvShape,
    pair: &KvPair,
    head: usize,
    (q, sink): (&[f32], Option<f64>),
    rows: &[(usize, usize)],
) -> Result<Vec<f32>, BackendError> {
    let (k, v) = (memory.bytes(pair.k)?, memory.bytes(pair.v)?);
    let score = |&(page, slot): &(usize, usize)| {
        let product = |(d, &q): (usize, &f32)| {
            f64::from(q) * f64::from(get(k, pair.ty, k_index(kv, page, head, d, slot)))
        };
        let score = f64::from(a.scale) * q.iter().enumerate().map(product).sum::<f64>();
        a.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = rows.iter().map(score).collect();
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    let value = |d: usize| {
        let term = |(&(page, slot), w): (&(usize, usize), &f64)| {
            w * f64::from(get(v, pair.ty, v_index(kv, page, head, d, slot)))
        };
        (rows.iter().zip(&weights).map(term).sum::<f64>() / total) as f32
    };
    Ok((0..a.v_dim).map(value).collect())
}
