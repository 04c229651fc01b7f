//! The stored forms of a head page, behind one interface; `KvType` says how each is laid out.

use super::panels::{Line, PANEL};
use crate::ops::vector::load_tail;
use crate::simd::{Kernel, Simd};
use minfer_graph::PAGE;
use std::ops::Range;

/// A stored form. A head page is [`PAGE`] positions of one KV head.
pub trait KvFormat {
    /// Unit that regions are divided into.
    type Word: bytemuck::Pod + Send + Sync;
    /// Words of a head page.
    fn head_page(dim: usize) -> usize;
    /// Reads K of the panels of 16 positions that hold some positions into `[panel][dim][16]`.
    fn load_k<S: Simd>(s: S, page: &[Self::Word], dim: usize, positions: Range<usize>, out: &mut [Line]);
    /// Reads V at some positions into `[dim / 16][pos][16]`, zeros behind each position's `dim` values.
    fn load_v<S: Simd>(s: S, page: &[Self::Word], dim: usize, positions: Range<usize>, out: &mut [Line]);
    /// Writes K of one position.
    fn store_k<S: Simd>(s: S, x: &[f32], page: &mut [Self::Word], slot: usize);
    /// Writes V of one position.
    fn store_v<S: Simd>(s: S, x: &[f32], page: &mut [Self::Word], slot: usize);
}

/// A float as stored: f32, or f16 as bits.
pub trait KvElement: bytemuck::Pod + Send + Sync {
    /// Reads the first eight values.
    fn load8<S: Simd>(s: S, src: &[Self]) -> S::F;
    /// Rounds a vector to the first eight stored values.
    fn store8<S: Simd>(s: S, v: S::F, dst: &mut [Self]);
}

impl KvElement for u16 {
    #[inline(always)]
    fn load8<S: Simd>(s: S, src: &[u16]) -> S::F {
        s.load_f16(src)
    }

    #[inline(always)]
    fn store8<S: Simd>(s: S, v: S::F, dst: &mut [u16]) {
        s.store_f16(v, dst);
    }
}

impl KvElement for f32 {
    #[inline(always)]
    fn load8<S: Simd>(s: S, src: &[f32]) -> S::F {
        s.load(src)
    }

    #[inline(always)]
    fn store8<S: Simd>(s: S, v: S::F, dst: &mut [f32]) {
        s.store(v, dst);
    }
}

impl<E: KvElement> KvFormat for E {
    type Word = E;

    fn head_page(dim: usize) -> usize {
        dim * PAGE
    }

    fn load_k<S: Simd>(s: S, page: &[E], dim: usize, positions: Range<usize>, out: &mut [Line]) {
        s.run(LoadK { page, dim, positions, out });
    }

    fn load_v<S: Simd>(s: S, page: &[E], dim: usize, positions: Range<usize>, out: &mut [Line]) {
        s.run(LoadV { page, dim, positions, out });
    }

    #[inline(always)]
    fn store_k<S: Simd>(s: S, x: &[f32], page: &mut [E], slot: usize) {
        for (x, lanes) in x.chunks(8).zip(page.chunks_mut(8 * PAGE)) {
            let mut stored = [E::zeroed(); 8];
            E::store8(s, load_tail(s, x), &mut stored);
            for (lane, value) in lanes.chunks_exact_mut(PAGE).zip(stored) {
                lane[slot] = value;
            }
        }
    }

    #[inline(always)]
    fn store_v<S: Simd>(s: S, x: &[f32], page: &mut [E], slot: usize) {
        let row = &mut page[slot * x.len()..][..x.len()];
        for (x, out) in x.chunks(8).zip(row.chunks_mut(8)) {
            let mut stored = [E::zeroed(); 8];
            E::store8(s, load_tail(s, x), &mut stored);
            out.copy_from_slice(&stored[..out.len()]);
        }
    }
}

/// [`KvFormat::load_k`] of floats.
struct LoadK<'a, E> {
    page: &'a [E],
    dim: usize,
    positions: Range<usize>,
    out: &'a mut [Line],
}

impl<E: KvElement> Kernel for LoadK<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoadK { page, dim, positions, out } = self;
        let rows = page.as_chunks::<PAGE>().0;
        for panel in positions.start / PANEL..positions.end.div_ceil(PANEL) {
            let out = &mut out[panel * dim..][..dim];
            for (row, out) in rows.iter().zip(out) {
                store_line(s, &row[panel * PANEL..], out);
            }
        }
    }
}

/// Reads 16 values.
#[inline(always)]
fn store_line<S: Simd, E: KvElement>(s: S, values: &[E], out: &mut Line) {
    let [a, b] = load_line(s, values);
    s.store(a, out);
    s.store(b, &mut out[8..]);
}

/// The first 16 values.
#[inline(always)]
pub fn load_line<S: Simd, E: KvElement>(s: S, values: &[E]) -> [S::F; 2] {
    let values = &values[..PANEL];
    [E::load8(s, values), E::load8(s, &values[8..])]
}

/// Panels that [`LoadV`] fills at a time.
const PANELS_AT_ONCE: usize = 4;

/// [`KvFormat::load_v`] of floats.
struct LoadV<'a, E> {
    page: &'a [E],
    dim: usize,
    positions: Range<usize>,
    out: &'a mut [Line],
}

impl<E: KvElement> Kernel for LoadV<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoadV { page, dim, positions, out } = self;
        // A few panels at a time: the same line of many panels would take the same place in the first-level cache.
        for (first, panels) in out.as_chunks_mut::<PAGE>().0.chunks_mut(PANELS_AT_ONCE).enumerate() {
            let first = first * PANELS_AT_ONCE * PANEL;
            for p in positions.clone() {
                let row = &page[p * dim..][first..dim.min(first + PANELS_AT_ONCE * PANEL)];
                let (whole, rest) = row.as_chunks::<PANEL>();
                for (x, out) in whole.iter().zip(panels.iter_mut()) {
                    store_line(s, x, &mut out[p]);
                }
                if !rest.is_empty() {
                    let mut padded = [E::zeroed(); PANEL];
                    padded[..rest.len()].copy_from_slice(rest);
                    store_line(s, &padded, &mut panels[whole.len()][p]);
                }
            }
        }
    }
}
