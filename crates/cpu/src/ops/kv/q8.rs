//! The `q8_0` cache: signed bytes with an f16 scale per block of up to 32 values of a head at a position.
//!
//! Keys are rotated before. A head page is the bytes, ordered like the floats of other types, then the scales `[block][pos]`.

use super::format::KvFormat;
use super::rotate::Rotate;
use crate::matmul::acts::{levels, scale};
use crate::simd::{Kernel, Simd};
use minfer_graph::{KV_BLOCK, KvType, MAX_ROTATION, PAGE};
use std::ops::Range;

/// The format. Its word is 16 bits wide: a scale, or two bytes.
pub struct Q8_0;

impl KvFormat for Q8_0 {
    type Word = u16;

    fn head_page(dim: usize) -> usize {
        PAGE / 2 * dim + PAGE * dim.div_ceil(KV_BLOCK)
    }

    fn load_k<S: Simd>(s: S, page: &[u16], out: &mut [f32]) {
        let (q, d) = page.split_at(out.len() / 2);
        s.run(LoadK { q: bytemuck::cast_slice(q), d, out });
    }

    fn load_v<S: Simd>(
        s: S,
        page: &[u16],
        dim: usize,
        positions: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        let (q, d) = page.split_at(PAGE / 2 * dim);
        s.run(LoadV { q: bytemuck::cast_slice(q), d, dim, positions, width, out });
    }

    #[inline(always)]
    fn store_k<S: Simd>(s: S, x: &[f32], page: &mut [u16], slot: usize) {
        let (q, d) = page.split_at_mut(PAGE / 2 * x.len());
        let q: &mut [u8] = bytemuck::cast_slice_mut(q);
        let chunk = KvType::Q8_0.key_rotation(x.len());
        // Whole chunks and whole blocks: both are powers of two.
        let piece = chunk.max(KV_BLOCK);
        let mut rotated = [0.0; MAX_ROTATION];
        for (x, (q, d)) in
            x.chunks(piece).zip(q.chunks_mut(piece * PAGE).zip(d.chunks_mut(piece / KV_BLOCK * PAGE)))
        {
            let rotated = &mut rotated[..x.len()];
            rotated.copy_from_slice(x);
            Rotate { x: rotated, chunk }.run(s);
            let blocks = rotated.chunks(KV_BLOCK).zip(q.chunks_mut(KV_BLOCK * PAGE));
            for ((x, q), d) in blocks.zip(d.chunks_exact_mut(PAGE)) {
                let levels = quantize(s, x, &mut d[slot]);
                for (lane, level) in q.chunks_exact_mut(PAGE).zip(levels) {
                    lane[slot] = level;
                }
            }
        }
    }

    #[inline(always)]
    fn store_v<S: Simd>(s: S, x: &[f32], page: &mut [u16], slot: usize) {
        let (q, d) = page.split_at_mut(PAGE / 2 * x.len());
        let q: &mut [u8] = bytemuck::cast_slice_mut(q);
        for (block, x_block) in x.chunks(KV_BLOCK).enumerate() {
            let levels = quantize(s, x_block, &mut d[block * PAGE + slot]);
            let at = slot * x.len() + block * KV_BLOCK;
            q[at..at + x_block.len()].copy_from_slice(&levels[..x_block.len()]);
        }
    }
}

/// Quantises a block of at most 32 values; writes its scale and returns its levels as bytes.
#[inline(always)]
fn quantize<S: Simd>(s: S, x: &[f32], d: &mut u16) -> [u8; KV_BLOCK] {
    let mut padded = [0.0; KV_BLOCK];
    padded[..x.len()].copy_from_slice(x);
    let x = [s.load(&padded), s.load(&padded[8..]), s.load(&padded[16..]), s.load(&padded[24..])];
    let mut stored = [0; 8];
    s.store_f16(s.splat(scale(s, &x)), &mut stored);
    *d = stored[0];
    // Levels belong to the scale that is read back.
    let d = s.to_array(s.load_f16(&stored))[0];
    let mut out = [0; KV_BLOCK];
    if d.is_finite() && d > 0.0 {
        let q = levels(s, x, d);
        let q = [s.to_i32(q[0]), s.to_i32(q[1]), s.to_i32(q[2]), s.to_i32(q[3])];
        s.store_bytes(s.pack_i8(q), &mut out);
    }
    out
}

/// Reads `[dim][pos]`: a vector of scales serves all dimensions of its block.
struct LoadK<'a> {
    q: &'a [u8],
    d: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for LoadK<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.q.chunks(KV_BLOCK * PAGE).zip(self.out.chunks_mut(KV_BLOCK * PAGE));
        for ((q, out), d) in blocks.zip(self.d.chunks_exact(PAGE)) {
            let mut scales = [s.zero(); PAGE / 8];
            for (scale, d) in scales.iter_mut().zip(d.chunks_exact(8)) {
                *scale = s.load_f16(d);
            }
            for (q, out) in q.chunks_exact(PAGE).zip(out.chunks_exact_mut(PAGE)) {
                for (i, scale) in scales.iter().enumerate() {
                    let x = s.from_i32(s.load_i8_i32(&q[8 * i..]));
                    s.store(s.mul(x, *scale), &mut out[8 * i..]);
                }
            }
        }
    }
}

/// Reads `[pos][dim]` into rows of `width`, block by block.
struct LoadV<'a> {
    q: &'a [u8],
    d: &'a [u16],
    dim: usize,
    positions: Range<usize>,
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for LoadV<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoadV { q, d, dim, positions, width, out } = self;
        for (block, d) in d.chunks_exact(PAGE).enumerate() {
            let mut scales = [0.0; PAGE];
            for (scale, d) in scales.chunks_exact_mut(8).zip(d.chunks_exact(8)) {
                s.store(s.load_f16(d), scale);
            }
            let first = block * KV_BLOCK;
            let len = KV_BLOCK.min(dim - first);
            for p in positions.clone() {
                let (q, scale) = (&q[p * dim + first..][..len], s.splat(scales[p]));
                let out = &mut out[p * width + first..];
                let whole = len - len % 8;
                for i in (0..whole).step_by(8) {
                    s.store(s.mul(s.from_i32(s.load_i8_i32(&q[i..])), scale), &mut out[i..]);
                }
                if whole < len {
                    // The row has room: `width` is a multiple of a vector.
                    let mut padded = [0; 8];
                    padded[..len - whole].copy_from_slice(&q[whole..]);
                    s.store(s.mul(s.from_i32(s.load_i8_i32(&padded)), scale), &mut out[whole..]);
                }
            }
        }
        // What the last vector of each row did not reach.
        for p in positions {
            out[p * width + dim..(p + 1) * width].fill(0.0);
        }
    }
}
