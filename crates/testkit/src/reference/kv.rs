//! The paged KV cache: where an element lies, the store, and attention over the visible positions.

use super::memory::Memory;
use super::ops::index;
use minfer_graph::{Attention, BackendError, KV_BLOCK, KvPair, KvShape, KvType, KvTypes, PAGE};
use std::ops::Range;

/// The K or the V of a layer: where a head's values at a position lie, and how they are read and written.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    ty: KvType,
    n_kv_head: usize,
    /// Values per head.
    dim: usize,
    /// Whether the positions of a dimension are neighbours (K), or the dimensions of a position (V).
    positions_last: bool,
}

/// One KV head at one position.
#[derive(Clone, Copy, Debug)]
pub struct HeadRow {
    /// Physical page.
    pub page: usize,
    /// KV head.
    pub head: usize,
    /// Position within the page.
    pub slot: usize,
}

impl Side {
    /// K and V of a layer.
    pub fn both(kv: &KvShape, ty: KvTypes) -> [Side; 2] {
        let n_kv_head = kv.n_kv_head;
        [
            Side { ty: ty.k, n_kv_head, dim: kv.head_dim, positions_last: true },
            Side { ty: ty.v, n_kv_head, dim: kv.v_dim, positions_last: false },
        ]
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.n_kv_head * self.head_page_bytes()
    }

    fn head_page_bytes(&self) -> usize {
        PAGE * self.ty.head_bytes(self.dim)
    }

    /// Byte ranges of a row's values, then of its scales.
    pub fn ranges(&self, row: HeadRow) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let start = (row.page * self.n_kv_head + row.head) * self.head_page_bytes();
        let size = match self.ty {
            KvType::F16 => 2,
            KvType::F32 => 4,
            KvType::Q8_0 => 1,
        };
        let value = |d: usize| {
            let i = if self.positions_last { d * PAGE + row.slot } else { row.slot * self.dim + d };
            start + i * size..start + (i + 1) * size
        };
        let scales = start + self.dim * PAGE;
        let scale = |block: usize| {
            let i = scales + 2 * (block * PAGE + row.slot);
            i..i + 2
        };
        let blocks = if self.ty == KvType::Q8_0 { self.dim.div_ceil(KV_BLOCK) } else { 0 };
        ((0..self.dim).map(value).collect(), (0..blocks).map(scale).collect())
    }

    /// Values that are rotated together.
    fn rotation(&self) -> usize {
        if self.positions_last { self.ty.key_rotation(self.dim) } else { 1 }
    }

    /// A row's values.
    pub fn get(&self, bytes: &[u8], row: HeadRow) -> Vec<f32> {
        let mut x = self.get_stored(bytes, row);
        // The rotation is its own inverse but for a factor.
        let n = self.rotation();
        rotate(&mut x, n);
        x.iter().map(|x| x / n as f32).collect()
    }

    /// A row's values as they are stored.
    fn get_stored(&self, bytes: &[u8], row: HeadRow) -> Vec<f32> {
        let (values, scales) = self.ranges(row);
        let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
        let get = |(d, range): (usize, Range<usize>)| {
            let b = &bytes[range];
            match self.ty {
                KvType::F16 => half(b),
                KvType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                KvType::Q8_0 => half(&bytes[scales[d / KV_BLOCK].clone()]) * f32::from(b[0].cast_signed()),
            }
        };
        values.into_iter().enumerate().map(get).collect()
    }

    /// Writes a row, rounded to the type.
    pub fn set(&self, bytes: &mut [u8], row: HeadRow, x: &[f32]) {
        let (values, scales) = self.ranges(row);
        if self.ty == KvType::Q8_0 {
            let mut x = x.to_vec();
            rotate(&mut x, self.rotation());
            let blocks = x.chunks(KV_BLOCK).zip(values.chunks(KV_BLOCK));
            for ((x, values), scale) in blocks.zip(scales) {
                let (d, q) = quantize(x);
                bytes[scale].copy_from_slice(&d.to_le_bytes());
                values.iter().zip(q).for_each(|(at, q)| bytes[at.start] = q.cast_unsigned());
            }
            return;
        }
        for (&x, at) in x.iter().zip(values) {
            match self.ty {
                KvType::F16 => bytes[at].copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
                KvType::F32 | KvType::Q8_0 => bytes[at].copy_from_slice(&x.to_le_bytes()),
            }
        }
    }
}

/// Multiplies each `n` values by the Hadamard matrix.
fn rotate(x: &mut [f32], n: usize) {
    let mut half = n / 2;
    while half > 0 {
        for i in (0..x.len()).filter(|i| i & half == 0) {
            (x[i], x[i + half]) = (x[i] + x[i + half], x[i] - x[i + half]);
        }
        half /= 2;
    }
}

/// A block's scale and levels. A NaN or an infinity makes the whole block NaN.
fn quantize(x: &[f32]) -> (half::f16, Vec<i8>) {
    let finite = x.iter().all(|x| x.is_finite());
    let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let d = half::f16::from_f32(if finite { amax / 127.0 } else { f32::NAN });
    let scale = d.to_f32();
    let level = |x: &f32| match scale.is_finite() && scale > 0.0 {
        true => (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8,
        false => 0,
    };
    (d, x.iter().map(level).collect())
}

/// Checks that the regions hold what the shape says.
fn check_regions(pair: &KvPair, kv: &KvShape) -> Result<[Side; 2], BackendError> {
    let sides = Side::both(kv, pair.ty);
    let wanted = sides.map(|side| side.page_bytes() * pair.n_pages);
    let found = [pair.k.len, pair.v.len];
    if found == wanted {
        return Ok(sides);
    }
    Err(BackendError::BadBuffer(format!("KV regions of {found:?} bytes, needs {wanted:?}")))
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
    let sides = check_regions(pair, kv)?;
    let rows: Vec<usize> =
        rows.iter().map(|&r| index("KV row", r, pair.n_pages * PAGE)).collect::<Result<_, _>>()?;
    for ((side, region), x) in sides.iter().zip([pair.k, pair.v]).zip([k, v]) {
        let bytes = memory.bytes_mut(region)?;
        for (&row, x) in rows.iter().zip(x.chunks_exact(kv.n_kv_head * side.dim)) {
            for (head, x) in x.chunks_exact(side.dim).enumerate() {
                side.set(bytes, HeadRow { page: row / PAGE, head, slot: row % PAGE }, x);
            }
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
    let [k_side, v_side] = check_regions(cache.pair, &kv)?;
    let (k, v) = (memory.bytes(cache.pair.k)?, memory.bytes(cache.pair.v)?);
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
            let row = |&(page, slot): &(usize, usize)| HeadRow { page, head, slot };
            let k: Vec<Vec<f32>> = rows.iter().map(|r| k_side.get(k, row(r))).collect();
            let v: Vec<Vec<f32>> = rows.iter().map(|r| v_side.get(v, row(r))).collect();
            out.extend(attend(a, q, cache.sinks.map(|s| f64::from(s[h])), &k, &v));
        }
    }
    Ok(out)
}

/// One query head and its sink over the rows of K and V that it sees.
fn attend(a: &Attention, q: &[f32], sink: Option<f64>, k: &[Vec<f32>], v: &[Vec<f32>]) -> Vec<f32> {
    let score = |k: &Vec<f32>| {
        let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
        let score = f64::from(a.scale) * dot;
        a.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = k.iter().map(score).collect();
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    let value =
        |d: usize| (weights.iter().zip(v).map(|(w, v)| w * f64::from(v[d])).sum::<f64>() / total) as f32;
    (0..a.v_dim).map(value).collect()
}
