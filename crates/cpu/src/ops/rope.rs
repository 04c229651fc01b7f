//! Rotary position embedding, in place on the rows of the output.
//!
//! Angles are computed in f64, once per row and pair, and kept for the other heads and layers of the step.

use super::parallel::for_each_row;
use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::dispatch;
use crate::simd::{self, Isa, Simd};
use minfer_graph::room::with_room;
use minfer_graph::{BackendError, Rope, RopeStyle, WeightId};

/// Tables kept at a time: models have one or two sets of parameters (full and sliding layers).
const MAX_TABLES: usize = 4;

/// What a table depends on.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    /// Without its factors, which have a name in one model only.
    rope: Rope,
    factors: Option<Vec<u32>>,
    positions: Vec<i32>,
}

/// Cosines and sines of a batch: `[rows, n_rot / 2]` each.
#[derive(Debug)]
pub struct RopeTable {
    key: Key,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The tables of recent steps, newest last.
#[derive(Debug, Default)]
pub struct RopeCache {
    tables: Vec<RopeTable>,
}

impl RopeCache {
    /// The table of a batch's positions.
    pub fn table(
        &mut self,
        rope: &Rope,
        factors: Option<&[f32]>,
        positions: &[i32],
    ) -> Result<&RopeTable, BackendError> {
        let fits = |k: &Key| {
            k.rope == Rope { factors: None, ..*rope }
                && k.positions == positions
                && match (&k.factors, factors) {
                    (None, None) => true,
                    (Some(a), Some(b)) => a.iter().copied().eq(b.iter().map(|f| f.to_bits())),
                    _ => false,
                }
        };
        let last = self.tables.len();
        match self.tables.iter().position(|t| fits(&t.key)) {
            Some(i) => self.tables[i..].rotate_left(1),
            None => {
                if last == MAX_TABLES {
                    self.tables.remove(0);
                }
                let table = RopeTable::new(rope, factors, positions)?;
                self.tables.push(table);
            }
        }
        Ok(&self.tables[self.tables.len() - 1])
    }
}

impl RopeTable {
    fn new(rope: &Rope, factors: Option<&[f32]>, positions: &[i32]) -> Result<RopeTable, BackendError> {
        let half = rope.n_rot / 2;
        let frequency = |i: usize| rope.frequency(i, factors.map_or(1.0, |f| f[i]));
        let magnitude = f64::from(rope.magnitude);
        let frequencies: Vec<f64> = (0..half).map(frequency).collect();
        let mut cos = with_room(positions.len() * half)?;
        let mut sin = with_room(positions.len() * half)?;
        for &position in positions {
            for f in &frequencies {
                let (s, c) = (f64::from(position) * f).sin_cos();
                cos.push((magnitude * c) as f32);
                sin.push((magnitude * s) as f32);
            }
        }
        let key = Key {
            rope: Rope { factors: None, ..*rope },
            factors: factors.map(|f| f.iter().map(|f| f.to_bits()).collect()),
            positions: positions.to_vec(),
        };
        Ok(RopeTable { key, cos, sin })
    }

    /// Rotates all heads of one row of the batch.
    pub fn rotate_row(&self, isa: Isa, rope: &Rope, row: usize, values: &mut [f32]) {
        let half = rope.n_rot / 2;
        let cos = &self.cos[row * half..][..half];
        let sin = &self.sin[row * half..][..half];
        dispatch!(isa, s => s.run(RotateHeads { rope, cos, sin, values }));
    }
}

/// Rotates heads, all by the same angles. The loops are plain: the compiler makes vectors of them.
struct RotateHeads<'a> {
    rope: &'a Rope,
    cos: &'a [f32],
    sin: &'a [f32],
    values: &'a mut [f32],
}

impl simd::Kernel for RotateHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        let RotateHeads { rope, cos, sin, values } = self;
        for head in values.chunks_exact_mut(rope.head_dim) {
            let rotated = &mut head[..rope.n_rot];
            match rope.style {
                RopeStyle::Interleaved => {
                    for ((pair, &c), &s) in rotated.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        (pair[0], pair[1]) = rotate(pair[0], pair[1], c, s);
                    }
                }
                RopeStyle::Halves => {
                    let (a, b) = rotated.split_at_mut(cos.len());
                    for (((a, b), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                        (*a, *b) = rotate(*a, *b, c, s);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotate(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, a * sin + b * cos)
}

impl Kernel for Rope {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let factors = rope_factors(&ctx, self.factors)?;
        let cols = ctx.call.node.shape.cols;
        let aliased = ctx.in_place(0);
        let ([x, positions], [out]) = ctx.views([ctx.beside(0)?, ctx.input(1)?], [ctx.output()?])?;
        let x: &[f32] = typed(x)?;
        let table = ctx.scratch.rope.table(self, factors, typed(positions)?)?;
        let isa = ctx.isa;
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            if !aliased {
                out.copy_from_slice(&x[row * cols..][..cols]);
            }
            table.rotate_row(isa, self, row, out);
        });
        Ok(())
    }
}

/// The frequency divisors of a rotation, if it has any.
pub fn rope_factors<'a>(ctx: &Ctx<'a>, id: Option<WeightId>) -> Result<Option<&'a [f32]>, BackendError> {
    id.map(|id| ctx.weights.vector(ctx.call.graph, id)).transpose()
}
