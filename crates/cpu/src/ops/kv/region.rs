//! The K or the V of a layer in memory, of whichever type.

use super::format::{KvElement, KvFormat};
use super::panels::{Line, Lines, On, PANEL, PanelKernel, Stored};
use super::q8::Q8_0;
use crate::buffers::typed;
use crate::ops::parallel::SharedMut;
use crate::simd::Simd;
use minfer_graph::{BackendError, KvType, PAGE};
use std::ops::Range;

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
    fn load_k<S: Simd>(&self, s: S, index: usize, dim: usize, positions: Range<usize>, out: &mut [Line]) {
        match self {
            Region::F16(w) => u16::load_k(s, head_page::<u16>(w, index, dim), dim, positions, out),
            Region::F32(w) => f32::load_k(s, head_page::<f32>(w, index, dim), dim, positions, out),
            Region::Q8_0(w) => Q8_0::load_k(s, head_page::<Q8_0>(w, index, dim), dim, positions, out),
        }
    }

    /// Reads some positions of a head page of V, by its index in the region; see [`KvFormat::load_v`].
    fn load_v<S: Simd>(&self, s: S, index: usize, dim: usize, positions: Range<usize>, out: &mut [Line]) {
        match self {
            Region::F16(w) => u16::load_v(s, head_page::<u16>(w, index, dim), dim, positions, out),
            Region::F32(w) => f32::load_v(s, head_page::<f32>(w, index, dim), dim, positions, out),
            Region::Q8_0(w) => Q8_0::load_v(s, head_page::<Q8_0>(w, index, dim), dim, positions, out),
        }
    }
}

/// What to read of a region, and how.
#[derive(Clone, Debug)]
pub struct Part {
    /// The head page, by its index in the region.
    pub index: usize,
    /// Values of a head.
    pub dim: usize,
    /// The positions that are needed.
    pub positions: Range<usize>,
    /// Whether it is read once or twice, so that floats are better read from where they are than copied first.
    pub once: bool,
}

impl Region<'_> {
    /// Runs a kernel on the panels of K, `[pos / 16][dim][16]`; `space` has room for them. Positions beside
    /// the needed ones may hold anything.
    pub fn with_k<S: Simd>(&self, s: S, part: &Part, space: &mut [Line], kernel: impl PanelKernel) {
        let &Part { index, dim, ref positions, once } = part;
        match self {
            Region::F16(w) if once => with_stored(s, head_page::<u16>(w, index, dim), PAGE, kernel),
            Region::F32(w) if once => with_stored(s, head_page::<f32>(w, index, dim), PAGE, kernel),
            _ => {
                self.load_k(s, index, dim, positions.clone(), space);
                s.run(On { kernel, panels: Lines { lines: space, len: dim } });
            }
        }
    }

    /// Runs a kernel on the panels of V, `[dim / 16][pos][16]`, of which it may read the needed positions.
    pub fn with_v<S: Simd>(&self, s: S, part: &Part, space: &mut [Line], kernel: impl PanelKernel) {
        let &Part { index, dim, ref positions, once } = part;
        let once = once && dim.is_multiple_of(PANEL);
        match self {
            Region::F16(w) if once => with_stored(s, head_page::<u16>(w, index, dim), dim, kernel),
            Region::F32(w) if once => with_stored(s, head_page::<f32>(w, index, dim), dim, kernel),
            _ => {
                self.load_v(s, index, dim, positions.clone(), space);
                s.run(On { kernel, panels: Lines { lines: space, len: PAGE } });
            }
        }
    }
}

fn with_stored<S: Simd>(s: S, values: &[impl KvElement], stride: usize, kernel: impl PanelKernel) {
    s.run(On { kernel, panels: Stored { values, stride } });
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
            s.prefetch(now.as_ptr().wrapping_add(at));
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
    pub fn new(bytes: SharedMut<'a, u8>, ty: KvType) -> Result<Self, BackendError> {
        Ok(match ty {
            KvType::F16 => RegionMut::F16(bytes.cast()?),
            KvType::F32 => RegionMut::F32(bytes.cast()?),
            KvType::Q8_0 => RegionMut::Q8_0(bytes.cast()?),
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
