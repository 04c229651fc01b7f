//! Activations of a matmul with quantised weights: 32 signed bytes and their scale, one cache line each.

use super::shared::SharedMut;
use crate::dispatch;
use crate::ops::norm::LoadedNorm;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd, Sums};
use crate::team::Team;
use minfer_graph::{ActPrecision, BackendError, room};
use std::ops::Range;

/// Values of a row that are quantised at a time; whole blocks.
const PIECE: usize = 2048;
/// Up to so many values every member of a team normalises and quantises for itself: that takes less than to share the
/// work.
pub(crate) const ALONE: usize = 5120;
/// Values per block.
pub const BLOCK: usize = 32;

/// A block of 32 quantised activations with the sums that formats with a zero point start from.
///
/// An instruction set that adds products in 16-bit lanes keeps two lanes per row: one for the values
/// 0 and 1 of each four, one for 2 and 3. So "the sum" of a block is a pair of i16 here.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct ActBlock {
    /// The values, four signed bytes each.
    pub q: [i32; 8],
    /// -8 times the pair of sums.
    pub start8: i32,
    /// -16 times the pair of sums.
    pub start16: i32,
    /// -32 times the pair of sums over the first half, and over the second.
    pub start32: [i32; 2],
    /// 16 times the sum.
    pub sum16: i32,
    /// The sum over the first half and over the second, as a pair of i16.
    pub halves: i32,
    /// Scale.
    pub d: f32,
    /// Scale times sum; in the first of two planes the total of both.
    pub s: f32,
}

/// The input of products before it is quantised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    /// `[rows, cols]`.
    pub x: &'a [f32],
    /// Rows (tokens).
    pub rows: usize,
    /// Values per row.
    pub cols: usize,
    /// What each row passes through first.
    pub norm: Option<LoadedNorm<'a>>,
}

impl<'a> Raw<'a> {
    /// Row `i`, as it is.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.x[i * self.cols..][..self.cols]
    }
}

/// Quantised rows of a matmul's input. Its memory is kept from use to use.
#[derive(Debug, Default)]
pub struct Activations {
    blocks: Vec<ActBlock>,
    layout: Layout,
    /// A row behind its norm, on its way into the blocks.
    normed: Vec<f32>,
}

impl Activations {
    /// No rows yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the content by the quantised rows of `x` (`[rows, cols]`). A row's result depends on nothing but the row.
    ///
    /// # Errors
    ///
    /// [`BackendError::BadBuffer`] if `cols` is no multiple of 32 or `x` has another length than `rows * cols`;
    /// [`BackendError::OutOfMemory`].
    pub fn quantize(
        &mut self,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        rows: usize,
        cols: usize,
        precision: ActPrecision,
    ) -> Result<(), BackendError> {
        let layout = Layout::new(x, rows, cols, precision)?;
        self.layout = layout;
        let blocks = make_room(&mut self.blocks, layout)?;
        pool.team(|team| layout.fill(isa, team, x, blocks));
        Ok(())
    }

    /// [`Activations::quantize`] by the members of a team, each of which gets the rows, which pass through their norm
    /// first. They stay until one of the members does this again.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn quantize_together<'s>(
        &'s mut self,
        isa: Isa,
        team: &Team<'_>,
        raw: &Raw<'_>,
        precision: ActPrecision,
    ) -> Result<ActRows<'s>, BackendError> {
        let layout = Layout::new(raw.x, raw.rows, raw.cols, precision)?;
        let Activations { blocks, layout: own, normed } = self;
        *own = layout;
        let alone = raw.x.len() <= ALONE;
        let blocks = if alone {
            make_room(blocks, layout)?
        } else {
            // SAFETY: all members quantise the same rows.
            unsafe { team.try_share(|| make_room(blocks, layout)) }?
        };
        if let Some(norm) = &raw.norm {
            room::grow(normed, raw.cols, 0.0)?;
            let normed = &mut normed[..raw.cols];
            let mut fill = |row: usize| {
                norm.row(isa, normed, Some(raw.row(row)));
                layout.fill_part(isa, normed, row, 0..raw.cols, blocks);
            };
            if alone {
                (0..raw.rows).for_each(fill);
            } else {
                let chunk = raw.rows.div_ceil(4 * team.threads()).min(4);
                team.chunks(raw.rows, chunk, |rows| rows.for_each(&mut fill));
            }
        } else if alone {
            (0..raw.rows).for_each(|row| layout.fill_part(isa, raw.row(row), row, 0..raw.cols, blocks));
        } else {
            layout.fill(isa, team, raw.x, blocks);
        }
        // SAFETY: the blocks are this member's own, or all have met since the last write.
        Ok(ActRows { layout, blocks: unsafe { blocks.read() } })
    }

    /// The rows.
    pub fn rows(&self) -> ActRows<'_> {
        ActRows { layout: self.layout, blocks: &self.blocks[..self.layout.len()] }
    }
}

fn make_room(blocks: &mut Vec<ActBlock>, layout: Layout) -> Result<SharedMut<'_, ActBlock>, BackendError> {
    room::grow(blocks, layout.len(), ActBlock::default())?;
    Ok(SharedMut::new(&mut blocks[..layout.len()]))
}

/// Where the blocks of the rows are.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    rows: usize,
    cols: usize,
    /// Blocks between the starts of neighbouring rows.
    stride: usize,
    planes: usize,
}

impl Layout {
    fn new(x: &[f32], rows: usize, cols: usize, precision: ActPrecision) -> Result<Self, BackendError> {
        if !cols.is_multiple_of(BLOCK) || rows.checked_mul(cols) != Some(x.len()) {
            return Err(BackendError::BadBuffer(format!("{} activations as {rows} rows of {cols}", x.len())));
        }
        let planes = match precision {
            ActPrecision::Int8 => 1,
            ActPrecision::Int16 => 2,
        };
        // An odd number of cache lines between rows spreads a column over the sets of the L1 cache.
        Ok(Layout { rows, cols, stride: (cols / BLOCK * planes) | 1, planes })
    }

    fn len(self) -> usize {
        self.rows * self.stride
    }

    /// The blocks of some columns of a row.
    fn place(self, row: usize, cols: Range<usize>) -> Range<usize> {
        let start = row * self.stride;
        start + cols.start / BLOCK * self.planes..start + cols.end / BLOCK * self.planes
    }

    /// Quantises all rows.
    fn fill(self, isa: Isa, team: &Team<'_>, x: &[f32], out: SharedMut<'_, ActBlock>) {
        let pieces = self.cols.div_ceil(PIECE);
        let chunk = (4 * pieces).min((self.rows * pieces).div_ceil(2 * team.threads()));
        team.chunks(self.rows * pieces, chunk, |range| {
            for piece in range {
                let start = piece % pieces * PIECE;
                let (row, cols) = (piece / pieces, start..self.cols.min(start + PIECE));
                self.fill_part(isa, &x[row * self.cols..][cols.clone()], row, cols, out);
            }
        });
    }

    /// Quantises `x`, which are some columns of a row.
    fn fill_part(self, isa: Isa, x: &[f32], row: usize, cols: Range<usize>, out: SharedMut<'_, ActBlock>) {
        // SAFETY: parts of rows don't overlap, and each is filled once by those who share the blocks.
        let out = unsafe { out.range(self.place(row, cols)) };
        match self.planes {
            1 => dispatch!(isa, s => s.run(QuantizeRow::<1> { x, out })),
            _ => dispatch!(isa, s => s.run(QuantizeRow::<2> { x, out })),
        }
    }
}

/// Quantised rows.
#[derive(Clone, Copy, Debug)]
pub struct ActRows<'a> {
    layout: Layout,
    blocks: &'a [ActBlock],
}

impl<'a> ActRows<'a> {
    /// Number of rows.
    pub fn rows(self) -> usize {
        self.layout.rows
    }

    /// Values per row.
    pub fn cols(self) -> usize {
        self.layout.cols
    }

    /// Number of planes (1 or 2).
    pub(super) fn planes(self) -> usize {
        self.layout.planes
    }

    /// The blocks of a row, all planes of a block together.
    #[inline(always)]
    pub(super) fn row<const P: usize>(self, row: usize) -> &'a [[ActBlock; P]] {
        self.part(row, 0..self.layout.cols / BLOCK)
    }

    /// Some blocks of a row.
    #[inline(always)]
    pub(super) fn part<const P: usize>(self, row: usize, blocks: Range<usize>) -> &'a [[ActBlock; P]] {
        let start = row * self.layout.stride;
        self.blocks[start + P * blocks.start..start + P * blocks.end].as_chunks().0
    }

    /// The same blocks of `T` rows from `first` on.
    #[inline(always)]
    pub(super) fn parts<const P: usize, const T: usize>(
        self,
        first: usize,
        blocks: Range<usize>,
    ) -> [&'a [[ActBlock; P]]; T] {
        let (stride, len) = (self.layout.stride, P * blocks.len());
        let rest = &self.blocks[first * stride + P * blocks.start..];
        let mut parts: [&[[ActBlock; P]]; T] = [&[]; T];
        for (t, part) in parts.iter_mut().enumerate() {
            *part = rest[t * stride..][..len].as_chunks().0;
        }
        parts
    }
}

/// Quantises a row into blocks of `P` planes.
struct QuantizeRow<'a, const P: usize> {
    x: &'a [f32],
    out: &'a mut [ActBlock],
}

impl<const P: usize> Kernel for QuantizeRow<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks_exact(BLOCK).zip(self.out.as_chunks_mut::<P>().0) {
            let x = [s.load(x), s.load(&x[8..]), s.load(&x[16..]), s.load(&x[24..])];
            let d = scale(s, &x);
            let usable = d.is_finite() && d > 0.0;
            let q = if usable { nearest(s, x, d) } else { [s.splat_i32(0); 4] };
            out[0] = block(s, q, d);
            if P == 2 {
                let d2 = d * (1.0 / 254.0f32);
                let mut q2 = [s.splat_i32(0); 4];
                if usable && d2 >= f32::MIN_POSITIVE {
                    let neg_d = s.splat(-d);
                    let mut rest = x;
                    for i in 0..4 {
                        rest[i] = s.fma(neg_d, s.from_i32(q[i]), x[i]);
                    }
                    q2 = nearest(s, rest, d2);
                }
                out[1] = block(s, q2, d2);
                out[0].s += out[1].s;
            }
        }
    }
}

/// `round(x / d)`. It is at most 127 in magnitude: with its roundings `d` is normal and `x / d` exceeds 127 by millionths
/// at most, whether `d` is the 127th part of the largest `x`, or the 254th of the step from which `x` is what rounding left over.
#[inline(always)]
fn nearest<S: Simd>(s: S, x: [S::F; 4], d: f32) -> [S::I; 4] {
    let d = s.splat(d);
    [s.to_i32(s.div(x[0], d)), s.to_i32(s.div(x[1], d)), s.to_i32(s.div(x[2], d)), s.to_i32(s.div(x[3], d))]
}

/// `amax / 127`, 0 if that is subnormal. NaN and infinities have the largest magnitudes as integers.
#[inline(always)]
pub fn scale<S: Simd>(s: S, x: &[S::F; 4]) -> f32 {
    let mut m = s.splat_i32(0);
    for x in x {
        m = s.max_i32(m, s.to_bits(s.abs(*x)));
    }
    let d = f32::from_bits(s.fold_max_i32(m).cast_unsigned()) / 127.0;
    if d < f32::MIN_POSITIVE { 0.0 } else { d }
}

/// Stores levels with their sums.
#[inline(always)]
fn block<S: Simd>(s: S, q: [S::I; 4], d: f32) -> ActBlock {
    let mut bytes = [0u8; BLOCK];
    let q = s.pack_i8(q);
    s.store_bytes(q, &mut bytes);
    let Sums { starts: [start8, start16, low, high], halves, total } = s.sums(q);
    let mut words = [0; 8];
    for (word, four) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = i32::from_le_bytes(*four);
    }
    let (start32, sum16, s) = ([low, high], 16 * total, d * total as f32);
    ActBlock { q: words, start8, start16, start32, sum16, halves, d, s }
}
