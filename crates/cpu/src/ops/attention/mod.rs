//! Grouped-query attention over the paged cache.
//!
//! A work item is a tile of queries of one sequence and one KV head; it reads each page once for all
//! its query heads. Prefill has many items. With few (decode), items are cut by pages as well: a
//! page's partial result doesn't depend on who computes it, and partials are merged in page order.

mod item;
mod page;
mod spans;

use super::kv::{Region, RotateQuery, kv_regions};
use super::parallel::{SharedMut, for_each_row};
use super::vector::{Pairwise, zip};
use super::weights::check_vector;
use super::{Ctx, Kernel};
use crate::buffers::typed;
use crate::dispatch;
use crate::simd::{Isa, Simd};
use crate::team::Team;
use item::{Item, Sequence, Shape, State, Workspace};
use minfer_graph::{Attention, BackendError, Graph, KvShape, PAGE, Unsupported, room};
use std::ops::Range;

/// Query rows (tokens times query heads per KV head) of a tile, roughly.
const TILE_ROWS: usize = 126;
/// Fewest multiply-adds worth dividing: those of less than two microseconds, most of which is not the multiply-adds.
const MIN_WORK: usize = 1 << 13;
/// Fewest pages worth a work item of their own.
const MIN_PAGES: usize = 4;

/// Memory that attention keeps from call to call.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    workspace: Workspace,
    /// Partial results of items that are cut by pages.
    partials: State,
    /// Queries rotated for a cache that keeps rotated keys.
    queries: Vec<f32>,
}

impl Kernel for Attention {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        super::kv::check_shape(&kv_shape(self))?;
        self.sinks.map_or(Ok(()), |sinks| check_vector(graph.weight(sinks)))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let kv = kv_regions(&ctx, &kv_shape(self))?;
        let sinks = self.sinks.map(|sinks| ctx.weights.vector(ctx.call.graph, sinks)).transpose()?;
        let reads = [ctx.input(0)?, ctx.input(2)?, ctx.input(3)?, kv.k, kv.v];
        let ([q, extents, table, k, v], [out]) = ctx.views(reads, [ctx.output()?])?;
        let (q, out): (&[f32], SharedMut<'_, f32>) = (typed(q)?, out.cast()?);
        let rows = ctx.call.node.shape.n_rows(ctx.call.dims);
        let sequences = sequences(self, rows, typed(extents)?, typed(table)?, kv.n_pages)?;
        let AttentionScratch { workspace, partials, queries } = &mut ctx.scratch.attention;
        let q = match kv.ty.k.key_rotation(self.head_dim) {
            1 => q,
            chunk => rotate(ctx.isa, ctx.team, q, self.head_dim, chunk, queries)?,
        };
        let engine = Engine { isa: ctx.isa, team: ctx.team, workspace, partials };
        let shape = Shape::new(self, sinks, q, Region::new(k, kv.ty.k)?, Region::new(v, kv.ty.v)?);
        engine.run(&shape, &sequences, out)
    }
}

/// Queries as they meet rotated keys.
fn rotate<'a>(
    isa: Isa,
    team: &Team<'_>,
    q: &[f32],
    head_dim: usize,
    chunk: usize,
    rotated: &'a mut Vec<f32>,
) -> Result<&'a [f32], BackendError> {
    // SAFETY: all members rotate the same queries.
    let rotated = unsafe {
        team.try_share(|| {
            room::resize(rotated, q.len(), 0.0)?;
            rotated.copy_from_slice(q);
            Ok(SharedMut::new(rotated))
        })
    }?;
    for_each_row(team, rotated, head_dim, |_, q| dispatch!(isa, s => s.run(RotateQuery { q, chunk })));
    // SAFETY: the members have met since the last write.
    Ok(unsafe { rotated.read() })
}

fn kv_shape(a: &Attention) -> KvShape {
    KvShape { layer: a.layer, n_kv_head: a.n_kv_head, head_dim: a.head_dim, v_dim: a.v_dim }
}

/// Reads extents and page tables and checks every page that will be read. The sequences must cover
/// each row of the batch exactly once.
fn sequences<'a>(
    a: &Attention,
    rows: usize,
    extents: &[i32],
    table: &'a [i32],
    n_pages: usize,
) -> Result<Vec<Sequence<'a>>, BackendError> {
    let count = extents.len() / 3;
    let width = table.len().checked_div(count).unwrap_or(0);
    let mut list = Vec::with_capacity(count);
    let mut covered = vec![false; rows];
    for (extent, pages) in extents.chunks_exact(3).zip(table.chunks(width.max(1))) {
        let first = index("first row of a sequence", extent[0], rows + 1)?;
        let len = index("tokens of a sequence", extent[1], rows - first + 1)?;
        if len == 0 {
            continue;
        }
        let start = index("position of a sequence", extent[2], (width * PAGE + 1).saturating_sub(len))?;
        for row in &mut covered[first..first + len] {
            if std::mem::replace(row, true) {
                return Err(BackendError::Device("two sequences share a row of the batch".into()));
            }
        }
        let sequence = Sequence { first, len, start, pages };
        for &page in &pages[sequence.pages_read(a.window)] {
            index("KV page", page, n_pages)?;
        }
        list.push(sequence);
    }
    match covered.iter().position(|c| !c) {
        Some(row) => Err(BackendError::Device(format!("row {row} of the batch belongs to no sequence"))),
        None => Ok(list),
    }
}

fn index(what: &'static str, value: i32, limit: usize) -> Result<usize, BackendError> {
    match usize::try_from(value) {
        Ok(i) if i < limit => Ok(i),
        _ => Err(BackendError::OutOfRange { what, value: value.into(), limit }),
    }
}

/// Who computes.
struct Engine<'a> {
    isa: Isa,
    team: &'a Team<'a>,
    /// This member's.
    workspace: &'a mut Workspace,
    /// Those of member 0 are used by all.
    partials: &'a mut State,
}

impl Engine<'_> {
    fn run(
        self,
        shape: &Shape<'_>,
        sequences: &[Sequence<'_>],
        out: SharedMut<'_, f32>,
    ) -> Result<(), BackendError> {
        let items = items(shape, sequences);
        let rows = items.iter().map(|i| i.rows(shape.group)).max().unwrap_or(0);
        self.workspace.reserve(shape, rows)?;
        let pages: usize = items.iter().map(|i| i.pages.len()).sum();
        let threads = self.team.threads();
        let span = pages.div_ceil(4 * threads).max(MIN_PAGES);
        let can_split = items.iter().any(|i| i.pages.len() > span);
        let work = items.iter().fold(0usize, |sum, i| sum.saturating_add(i.work(shape)));
        if work < MIN_WORK {
            self.whole(shape, &items, items.len(), out);
        } else if threads > 1 && items.len() < 4 * threads && can_split {
            self.split(shape, &items, span, out)?;
        } else {
            self.whole(shape, &items, 1, out);
        }
        Ok(())
    }

    /// All pages of an item in order, `chunk` items at a time.
    fn whole(self, shape: &Shape<'_>, items: &[Item<'_>], chunk: usize, out: SharedMut<'_, f32>) {
        let ws = self.workspace;
        self.team.chunks(items.len(), chunk, |range| {
            for item in &items[range] {
                dispatch!(self.isa, s => whole_item(s, shape, item, ws, &out));
            }
        });
    }

    /// First every page range of every item, then the merges.
    fn split(
        self,
        shape: &Shape<'_>,
        items: &[Item<'_>],
        span: usize,
        out: SharedMut<'_, f32>,
    ) -> Result<(), BackendError> {
        let mut units: Vec<(usize, Range<usize>, usize)> = Vec::new();
        let mut slots = 0;
        let mut first_slot = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            first_slot.push(slots);
            for start in item.pages.clone().step_by(span) {
                let pages = start..item.pages.end.min(start + span);
                units.push((i, pages.clone(), slots));
                slots += pages.len() * item.rows(shape.group);
            }
        }
        let (partials, v_padded) = (self.partials, shape.v_padded);
        // SAFETY: all members share the same slots.
        let shared = unsafe {
            self.team.try_share(|| {
                partials.reserve(slots, v_padded)?;
                partials.resize(slots, v_padded);
                Ok(partials.share())
            })
        }?;
        let ws = self.workspace;
        self.team.chunks(units.len(), 1, |range| {
            for (i, pages, slot) in &units[range] {
                let item = &items[*i];
                let slots = *slot..slot + pages.len() * item.rows(shape.group);
                // SAFETY: each unit has slots of its own.
                let mut state = unsafe { shared.range(slots, shape.v_padded) };
                dispatch!(self.isa, s => {
                    item::compute(s, shape, item, pages.clone(), &mut ws.page, &mut state, false);
                });
            }
        });
        self.team.chunks(items.len(), 1, |range| {
            for i in range {
                let (item, slot) = (&items[i], first_slot[i]);
                let slots = slot..slot + item.pages.len() * item.rows(shape.group);
                // SAFETY: each item has slots of its own.
                let mut state = unsafe { shared.range(slots, shape.v_padded) };
                dispatch!(self.isa, s => {
                    item::merge_pages(s, shape, item, &mut state);
                    write_item(s, shape, item, &state, &out);
                });
            }
        });
        Ok(())
    }
}

/// Tiles of all sequences; the latest queries, which see most, come first.
fn items<'a>(shape: &Shape<'_>, sequences: &'a [Sequence<'a>]) -> Vec<Item<'a>> {
    let tile = (TILE_ROWS / shape.group).max(1);
    let mut items = Vec::new();
    for sequence in sequences {
        for first in (0..sequence.len).step_by(tile) {
            let tokens = first..sequence.len.min(first + tile);
            items.extend(
                (0..shape.n_kv_head).map(|head| Item::new(sequence, head, tokens.clone(), shape.window)),
            );
        }
    }
    items.sort_by_key(|i| std::cmp::Reverse(i.pages.len()));
    items
}

fn whole_item<S: Simd>(
    s: S,
    shape: &Shape<'_>,
    item: &Item<'_>,
    ws: &mut Workspace,
    out: &SharedMut<'_, f32>,
) {
    let rows = item.rows(shape.group);
    ws.state.resize(rows, shape.v_padded);
    let mut state = ws.state.view();
    item::compute(s, shape, item, item.pages.clone(), &mut ws.page, &mut state, true);
    write_item(s, shape, item, &state, out);
}

/// `a / sum`.
struct DividedBy(f32);

impl Pairwise for DividedBy {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        s.div(a, s.splat(self.0))
    }
}

/// `a * c / sum`.
struct ScaledDividedBy {
    c: f32,
    sum: f32,
}

impl Pairwise for ScaledDividedBy {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, _: S::F) -> S::F {
        s.div(s.mul(a, s.splat(self.c)), s.splat(self.sum))
    }
}

/// Merges the sinks, divides by the sums and writes the rows of an item, whose first slots are its final state.
fn write_item<S: Simd>(
    s: S,
    shape: &Shape<'_>,
    item: &Item<'_>,
    state: &item::StateView<'_>,
    out: &SharedMut<'_, f32>,
) {
    for row in 0..item.rows(shape.group) {
        let start = item.head_index(shape, row) * shape.v_dim;
        // SAFETY: an item is the only one with its rows of the batch and its KV head, and `row`
        // names each query head of them once; sequences don't share rows (`sequences`).
        let out = unsafe { out.range(start..start + shape.v_dim) };
        let a = &state.a[row * shape.v_padded..][..shape.v_dim];
        let Some(sink) = shape.sink(item, row) else {
            s.vectorize(|| zip(s, out, Some(a), Some(a), &DividedBy(state.l[row])));
            continue;
        };
        s.vectorize(|| {
            let (c, sum) = item::merge_sink(s, (state.m[row], state.l[row]), sink);
            zip(s, out, Some(a), Some(a), &ScaledDividedBy { c, sum });
        });
    }
}
