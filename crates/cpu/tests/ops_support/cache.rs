//! Pages of a KV cache as bytes, written out once more from the page layout's description.

use super::Bench;
use half::f16;
use minfer_graph::{Backend, BufferSlice, KvPair, KvShape, KvType, KvTypes, PAGE};

/// A block's scale and levels; NaN in a block makes its scale NaN.
fn quantize(x: &[f32]) -> (f16, Vec<i8>) {
    let amax = x.iter().fold(0.0, |m: f32, x| if x.is_finite() { m.max(x.abs()) } else { f32::NAN });
    let amax = if x.iter().all(|x| x.is_finite()) { amax } else { f32::NAN };
    let d = f16::from_f32(amax / 127.0);
    let level = |x: &f32| {
        let q = (x / d.to_f32()).round_ties_even();
        if d.is_finite() && d.to_f32() > 0.0 { q.clamp(-127.0, 127.0) as i8 } else { 0 }
    };
    (d, x.iter().map(level).collect())
}

/// Rows of `dim` values of a head as a cache keeps them.
pub fn rounded(ty: KvType, dim: usize, rows: &[f32]) -> Vec<f32> {
    match ty {
        KvType::F32 => rows.to_vec(),
        KvType::F16 => rows.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        KvType::Q8_0 => {
            let block = |x: &[f32]| {
                let (d, q) = quantize(x);
                q.into_iter().map(move |q| d.to_f32() * f32::from(q)).collect::<Vec<_>>()
            };
            rows.chunks(dim).flat_map(|row| row.chunks(32)).flat_map(block).collect()
        }
    }
}

/// Keys of one head as a cache of the type keeps them before it rounds them, or a query that meets them.
pub fn hadamard(ty: KvType, rows: &[f32], dim: usize, query: bool) -> Vec<f32> {
    if ty != KvType::Q8_0 {
        return rows.to_vec();
    }
    let n = (1..=256).rev().find(|n: &usize| n.is_power_of_two() && dim.is_multiple_of(*n)).unwrap();
    let mut x = rows.to_vec();
    for bit in (0..n.ilog2()).rev() {
        for i in (0..x.len()).filter(|i| i >> bit & 1 == 0) {
            let (a, b) = (x[i], x[i + (1 << bit)]);
            (x[i], x[i + (1 << bit)]) = (a + b, a - b);
        }
    }
    x.iter().map(|x| if query { x / n as f32 } else { *x }).collect()
}

/// The K or the V of a cache.
#[derive(Clone, Copy)]
pub struct Side {
    pub ty: KvType,
    /// Values per head.
    pub dim: usize,
    /// Whether a head page is `[dim][pos]` (K) or `[pos][dim]` (V).
    pub is_k: bool,
}

impl Side {
    fn index(&self, pos: usize, d: usize) -> usize {
        if self.is_k { d * PAGE + pos } else { pos * self.dim + d }
    }

    /// Bytes of head pages whose values are given in the layout of floats.
    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        match self.ty {
            KvType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            KvType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            KvType::Q8_0 => values.chunks(PAGE * self.dim).flat_map(|page| self.encode_q8(page)).collect(),
        }
    }

    fn encode_q8(&self, page: &[f32]) -> Vec<u8> {
        let blocks = self.dim.div_ceil(32);
        let mut bytes = vec![0; page.len() + 2 * blocks * PAGE];
        for pos in 0..PAGE {
            let row: Vec<f32> = (0..self.dim).map(|d| page[self.index(pos, d)]).collect();
            for (b, x) in row.chunks(32).enumerate() {
                let (d, q) = quantize(x);
                for (i, q) in q.into_iter().enumerate() {
                    bytes[self.index(pos, 32 * b + i)] = q.cast_unsigned();
                }
                bytes[page.len() + 2 * (b * PAGE + pos)..][..2].copy_from_slice(&d.to_le_bytes());
            }
        }
        bytes
    }

    /// Values of head pages in the layout of floats.
    pub fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        match self.ty {
            KvType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            KvType::F16 => bytes.chunks_exact(2).map(half).collect(),
            KvType::Q8_0 => {
                let len = PAGE * self.dim;
                let page = |bytes: &[u8]| {
                    let mut out = vec![0.0; len];
                    for (pos, d) in (0..PAGE).flat_map(|p| (0..self.dim).map(move |d| (p, d))) {
                        let scale = half(&bytes[len + 2 * (d / 32 * PAGE + pos)..]);
                        out[self.index(pos, d)] = scale * f32::from(bytes[self.index(pos, d)].cast_signed());
                    }
                    out
                };
                bytes.chunks(len + 2 * PAGE * self.dim.div_ceil(32)).flat_map(page).collect()
            }
        }
    }
}

/// K and V of a layer's cache.
pub fn sides(kv: &KvShape, ty: KvTypes) -> [Side; 2] {
    [Side { ty: ty.k, dim: kv.head_dim, is_k: true }, Side { ty: ty.v, dim: kv.v_dim, is_k: false }]
}

/// Writes a cache's pages, given in the layout of floats, to the device.
pub fn region(bench: &mut Bench, kv: &KvShape, ty: KvTypes, n_pages: usize, k: &[f32], v: &[f32]) -> KvPair {
    let [k, v] = [0, 1].map(|i| {
        let bytes = sides(kv, ty)[i].encode([k, v][i]);
        let len = bytes.len();
        let slice = BufferSlice { buffer: bench.backend.alloc_buffer(len).unwrap(), offset: 0, len };
        bench.backend.write_host(slice, &bytes).unwrap();
        slice
    });
    KvPair { k, v, ty, n_pages }
}

/// Reads K and V back in the layout of floats.
pub fn read_regions(bench: &mut Bench, kv: &KvShape) -> [Vec<f32>; 2] {
    let pair = bench.kv.unwrap();
    [0, 1].map(|i| {
        let slice = [pair.k, pair.v][i];
        let mut bytes = vec![0; slice.len];
        bench.backend.read_host(slice, &mut bytes).unwrap();
        sides(kv, pair.ty)[i].decode(&bytes)
    })
}

/// All pairs of types that the tests go through.
pub const TYPES: [KvTypes; 5] = [
    KvTypes { k: KvType::F16, v: KvType::F16 },
    KvTypes { k: KvType::F32, v: KvType::F32 },
    KvTypes { k: KvType::Q8_0, v: KvType::Q8_0 },
    KvTypes { k: KvType::Q8_0, v: KvType::F16 },
    KvTypes { k: KvType::F32, v: KvType::Q8_0 },
];
