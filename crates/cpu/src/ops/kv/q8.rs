//! The `q8_0` cache: signed bytes with an f16 scale per block of up to 32 values of a head at a position.
//!
//! Keys are rotated before. A head page is the bytes, ordered like the floats of other types, then the scales `[block][pos]`.

use super::format::KvFormat;
use super::panels::{Line, PANEL};
use super::rotate::Rotate;
use crate::matmul::acts::scale;
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

    fn load_k<S: Simd>(s: S, page: &[u16], dim: usize, positions: Range<usize>, out: &mut [Line]) {
        let (q, d) = page.split_at(PAGE / 2 * dim);
        s.run(LoadK { q: bytemuck::cast_slice(q), d, dim, positions, out });
    }

    fn load_v<S: Simd>(s: S, page: &[u16], dim: usize, positions: Range<usize>, out: &mut [Line]) {
        let (q, d) = page.split_at(PAGE / 2 * dim);
        s.run(LoadV { q: bytemuck::cast_slice(q), d, dim, positions, out });
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
        let d = s.splat(d);
        let q = [level(s, x[0], d), level(s, x[1], d), level(s, x[2], d), level(s, x[3], d)];
        s.store_bytes(s.pack_i8(q), &mut out);
    }
    out
}

/// `clamp(round(x / d), -127, 127)`: a scale rounded to f16 may be too small.
#[inline(always)]
fn level<S: Simd>(s: S, x: S::F, d: S::F) -> S::I {
    s.to_i32(s.max(s.min(s.div(x, d), s.splat(127.0)), s.splat(-127.0)))
}

/// [`KvFormat::load_k`]: two vectors of scales serve all dimensions of a block.
struct LoadK<'a> {
    q: &'a [u8],
    d: &'a [u16],
    dim: usize,
    positions: Range<usize>,
    out: &'a mut [Line],
}

impl Kernel for LoadK<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoadK { q, d, dim, positions, out } = self;
        let lanes = q.as_chunks::<PAGE>().0;
        for panel in positions.start / PANEL..positions.end.div_ceil(PANEL) {
            let at = panel * PANEL;
            let out = &mut out[panel * dim..][..dim];
            let blocks = lanes.chunks(KV_BLOCK).zip(out.chunks_mut(KV_BLOCK));
            for ((lanes, out), d) in blocks.zip(d.as_chunks::<PAGE>().0) {
                let scales = [s.load_f16(&d[at..]), s.load_f16(&d[at + 8..])];
                for (q, out) in lanes.iter().zip(out) {
                    let q = &q[at..][..PANEL];
                    s.store(s.mul(s.from_i32(s.load_i8_i32(q)), scales[0]), out);
                    s.store(s.mul(s.from_i32(s.load_i8_i32(&q[8..])), scales[1]), &mut out[8..]);
                }
            }
        }
    }
}

/// [`KvFormat::load_v`], block by block.
struct LoadV<'a> {
    q: &'a [u8],
    d: &'a [u16],
    dim: usize,
    positions: Range<usize>,
    out: &'a mut [Line],
}

/// Panels that a block reaches.
const BLOCK_PANELS: usize = KV_BLOCK / PANEL;

impl Kernel for LoadV<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoadV { q, d, dim, positions, out } = self;
        let panels = out.as_chunks_mut::<PAGE>().0.chunks_mut(BLOCK_PANELS);
        for ((block, d), panels) in d.as_chunks::<PAGE>().0.iter().enumerate().zip(panels) {
            let mut scales = [0.0; PAGE];
            for (scale, d) in scales.chunks_exact_mut(8).zip(d.chunks_exact(8)) {
                s.store(s.load_f16(d), scale);
            }
            let first = block * KV_BLOCK;
            let len = KV_BLOCK.min(dim - first);
            for p in positions.clone() {
                let (whole, rest) = q[p * dim + first..][..len].as_chunks::<PANEL>();
                let scale = s.splat(scales[p]);
                for (q, panel) in whole.iter().zip(panels.iter_mut()) {
                    read_line(s, q, scale, &mut panel[p]);
                }
                if !rest.is_empty() {
                    let mut padded = [0; PANEL];
                    padded[..rest.len()].copy_from_slice(rest);
                    let line = &mut panels[whole.len()][p];
                    read_line(s, &padded, scale, line);
                    // Not 0 times a scale that may be NaN.
                    line[rest.len()..].fill(0.0);
                }
            }
        }
    }
}

#[inline(always)]
fn read_line<S: Simd>(s: S, q: &[u8; PANEL], scale: S::F, out: &mut Line) {
    s.store(s.mul(s.from_i32(s.load_i8_i32(q)), scale), out);
    s.store(s.mul(s.from_i32(s.load_i8_i32(&q[8..])), scale), &mut out[8..]);
}
