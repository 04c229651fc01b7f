//! The stored forms of a head page, behind one interface; [`KvType`] says how each is laid out.

use super::q8::Q8_0;
use crate::buffers::{typed, typed_mut};
use crate::ops::parallel::SharedMut;
use crate::ops::vector::load_tail;
use crate::simd::{Kernel, Simd};
use minfer_graph::{BackendError, KvType, PAGE};
use std::ops::Range;

/// Values that lie together when they are read: positions of K, columns of V.
pub const PANEL: usize = 16;
/// A dimension of a panel of K, or a position of a panel of V.
pub type Line = [f32; PANEL];

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
        for panel in positions.start / PANEL..positions.end.div_ceil(PANEL) {
            let out = &mut out[panel * dim..][..dim];
            for (line, out) in page.as_chunks::<PAGE>().0.iter().zip(out) {
                let line = &line[panel * PANEL..][..PANEL];
                s.store(E::load8(s, line), out);
                s.store(E::load8(s, &line[8..]), &mut out[8..]);
            }
        }
    }
}

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
        let panels = out.as_chunks_mut::<PAGE>().0;
        for p in positions {
            let (whole, rest) = page[p * dim..][..dim].as_chunks::<PANEL>();
            for (x, out) in whole.iter().zip(panels.iter_mut()) {
                s.store(E::load8(s, x), &mut out[p]);
                s.store(E::load8(s, &x[8..]), &mut out[p][8..]);
            }
            if !rest.is_empty() {
                let mut padded = [E::zeroed(); PANEL];
                padded[..rest.len()].copy_from_slice(rest);
                let out = &mut panels[whole.len()][p];
                s.store(E::load8(s, &padded), out);
                s.store(E::load8(s, &padded[8..]), &mut out[8..]);
            }
        }
    }
}

/// The K or the V region of a layer, to be read.
#[derive(Clone, Copy, Debug)]
pub enum Region<'a> {
    /// f16 bits.
    F16(&'a [u16]),
    /// f32.
    F32(&'a [f32]),
    /// Blocks of signed bytes.
    Q8_0(&'a [u16]),
}

impl<'a> Region<'a> {
    /// The region's bytes as its type.
    pub fn new(bytes: &'a [u8], ty: KvType) -> Result<Self, BackendError> {
        Ok(match ty {
            KvType::F16 => Region::F16(typed(bytes)?),
            KvType::F32 => Region::F32(typed(bytes)?),
            KvType::Q8_0 => Region::Q8_0(typed(bytes)?),
        })
    }

    /// Reads some positions of a head page of K, by its index in the region; see [`KvFormat::load_k`].
    pub fn load_k<S: Simd>(&self, s: S, index: usize, dim: usize, positions: Range<usize>, out: &mut [Line]) {
        match self {
            Region::F16(w) => u16::load_k(s, head_page::<u16>(w, index, dim), dim, positions, out),
            Region::F32(w) => f32::load_k(s, head_page::<f32>(w, index, dim), dim, positions, out),
            Region::Q8_0(w) => Q8_0::load_k(s, head_page::<Q8_0>(w, index, dim), dim, positions, out),
        }
    }

    /// Reads some positions of a head page of V, by its index in the region; see [`KvFormat::load_v`].
    pub fn load_v<S: Simd>(&self, s: S, index: usize, dim: usize, positions: Range<usize>, out: &mut [Line]) {
        match self {
            Region::F16(w) => u16::load_v(s, head_page::<u16>(w, index, dim), dim, positions, out),
            Region::F32(w) => f32::load_v(s, head_page::<f32>(w, index, dim), dim, positions, out),
            Region::Q8_0(w) => Q8_0::load_v(s, head_page::<Q8_0>(w, index, dim), dim, positions, out),
        }
    }
}

/// Cache line.
const CACHE_LINE: usize = 64;

/// A head page that will be read soon: a part of it is asked for at a time, while something else is computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead<'a> {
    bytes: &'a [u8],
    /// Bytes to ask for in a step.
    step: usize,
}

impl Ahead<'_> {
    /// The same in a number of steps.
    pub fn in_steps(self, steps: usize) -> Self {
        let step = self.bytes.len().div_ceil(steps.max(1)).next_multiple_of(CACHE_LINE);
        Ahead { step, ..self }
    }

    /// Asks for the next part.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, s: S) {
        let (now, later) = self.bytes.split_at(self.step.min(self.bytes.len()));
        for at in (0..now.len()).step_by(CACHE_LINE) {
            s.prefetch(now, at);
        }
        self.bytes = later;
    }
}

impl<'a> Region<'a> {
    /// A head page that is read later.
    pub fn ahead(&self, index: usize, dim: usize) -> Ahead<'a> {
        let bytes: &[u8] = match self {
            Region::F16(w) => bytemuck::cast_slice(head_page::<u16>(w, index, dim)),
            Region::F32(w) => bytemuck::cast_slice(head_page::<f32>(w, index, dim)),
            Region::Q8_0(w) => bytemuck::cast_slice(head_page::<Q8_0>(w, index, dim)),
        };
        Ahead { bytes, step: bytes.len() }
    }
}

fn head_page<F: KvFormat>(words: &[F::Word], index: usize, dim: usize) -> &[F::Word] {
    let len = F::head_page(dim);
    &words[index * len..][..len]
}

/// The K or the V region of a layer, to be written by several threads.
pub enum RegionMut<'a> {
    /// f16 bits.
    F16(SharedMut<'a, u16>),
    /// f32.
    F32(SharedMut<'a, f32>),
    /// Blocks of signed bytes.
    Q8_0(SharedMut<'a, u16>),
}

/// Which of the two layouts.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// Positions are neighbours.
    K,
    /// Dimensions are neighbours.
    V,
}

impl<'a> RegionMut<'a> {
    /// The region's bytes as its type.
    pub fn new(bytes: &'a mut [u8], ty: KvType) -> Result<Self, BackendError> {
        Ok(match ty {
            KvType::F16 => RegionMut::F16(SharedMut::new(typed_mut(bytes)?)),
            KvType::F32 => RegionMut::F32(SharedMut::new(typed_mut(bytes)?)),
            KvType::Q8_0 => RegionMut::Q8_0(SharedMut::new(typed_mut(bytes)?)),
        })
    }

    /// Writes one position of a head page, by its index in the region.
    ///
    /// # Safety
    /// No two threads may write to the same head page at the same time.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(&self, s: S, side: Side, index: usize, x: &[f32], slot: usize) {
        // SAFETY: the caller keeps head pages apart, and each is a range of its own.
        unsafe {
            match self {
                RegionMut::F16(words) => store::<S, u16>(s, words, side, index, x, slot),
                RegionMut::F32(words) => store::<S, f32>(s, words, side, index, x, slot),
                RegionMut::Q8_0(words) => store::<S, Q8_0>(s, words, side, index, x, slot),
            }
        }
    }
}

/// # Safety
/// As [`RegionMut::store`].
#[inline(always)]
unsafe fn store<S: Simd, F: KvFormat>(
    s: S,
    words: &SharedMut<'_, F::Word>,
    side: Side,
    index: usize,
    x: &[f32],
    slot: usize,
) {
    let len = F::head_page(x.len());
    // SAFETY: the range is one head page, which the caller writes from one thread alone.
    let page = unsafe { words.range(index * len..(index + 1) * len) };
    match side {
        Side::K => F::store_k(s, x, page, slot),
        Side::V => F::store_v(s, x, page, slot),
    }
}
