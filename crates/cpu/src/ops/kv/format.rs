//! The stored forms of a head page, behind one interface; [`KvType`] says how each is laid out.

use super::q8::Q8_0;
use crate::buffers::{typed, typed_mut};
use crate::ops::parallel::SharedMut;
use crate::ops::vector::{load_tail, store_tail};
use crate::simd::Simd;
use minfer_graph::{BackendError, KvType, PAGE};
use std::ops::Range;

/// A stored form. A head page is [`PAGE`] positions of one KV head.
pub trait KvFormat {
    /// Unit that regions are divided into.
    type Word: bytemuck::Pod + Send + Sync;
    /// Words of a head page.
    fn head_page(dim: usize) -> usize;
    /// Reads K into `[dim][pos]`.
    fn load_k<S: Simd>(s: S, page: &[Self::Word], out: &mut [f32]);
    /// Reads V at some positions into `[pos][width]`, zeros behind each position's `dim` values.
    fn load_v<S: Simd>(
        s: S,
        page: &[Self::Word],
        dim: usize,
        positions: Range<usize>,
        width: usize,
        out: &mut [f32],
    );
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

    /// Reads stored values.
    #[inline(always)]
    fn load<S: Simd>(s: S, src: &[Self], dst: &mut [f32]) {
        let whole = dst.len() - dst.len() % 8;
        for i in (0..whole).step_by(8) {
            s.store(Self::load8(s, &src[i..]), &mut dst[i..]);
        }
        if whole < dst.len() {
            let mut padded = [Self::zeroed(); 8];
            padded[..dst.len() - whole].copy_from_slice(&src[whole..dst.len()]);
            store_tail(s, Self::load8(s, &padded), &mut dst[whole..]);
        }
    }
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

    fn load_k<S: Simd>(s: S, page: &[E], out: &mut [f32]) {
        s.vectorize(|| E::load(s, page, out));
    }

    fn load_v<S: Simd>(s: S, page: &[E], dim: usize, positions: Range<usize>, width: usize, out: &mut [f32]) {
        s.vectorize(|| {
            for p in positions {
                let row = &mut out[p * width..][..width];
                E::load(s, &page[p * dim..][..dim], &mut row[..dim]);
                row[dim..].fill(0.0);
            }
        });
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

    /// Reads a head page of K, by its index in the region.
    pub fn load_k<S: Simd>(&self, s: S, index: usize, dim: usize, out: &mut [f32]) {
        match self {
            Region::F16(words) => u16::load_k(s, head_page::<u16>(words, index, dim), out),
            Region::F32(words) => f32::load_k(s, head_page::<f32>(words, index, dim), out),
            Region::Q8_0(words) => Q8_0::load_k(s, head_page::<Q8_0>(words, index, dim), out),
        }
    }

    /// Reads some positions of a head page of V, by its index in the region.
    pub fn load_v<S: Simd>(
        &self,
        s: S,
        index: usize,
        dim: usize,
        positions: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        match self {
            Region::F16(w) => u16::load_v(s, head_page::<u16>(w, index, dim), dim, positions, width, out),
            Region::F32(w) => f32::load_v(s, head_page::<f32>(w, index, dim), dim, positions, width, out),
            Region::Q8_0(w) => Q8_0::load_v(s, head_page::<Q8_0>(w, index, dim), dim, positions, width, out),
        }
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
