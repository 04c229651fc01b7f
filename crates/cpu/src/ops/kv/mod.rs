//! The paged KV cache: the layout of its pages, and the ops that store to it and load from it.

mod format;
mod panels;
mod q8;
mod region;
mod rotate;

use super::{Ctx, Kernel};
use crate::buffers::{BufferPool, typed};
use crate::dispatch;
use crate::matmul::SharedMut;
use crate::simd::{Isa, Simd};
use crate::team::Team;
use minfer_graph::{BackendError, BufferSlice, Graph, KvPair, KvShape, KvTypes, PAGE, Unsupported};
pub use panels::{Line, PANEL, Panel, PanelKernel, Panels};
pub use region::{Ahead, Part, Region, RegionMut, Side};
pub use rotate::RotateQuery;

/// A shape without values has no kernel.
pub fn check_shape(shape: &KvShape) -> Result<(), Unsupported> {
    if shape.n_kv_head > 0 && shape.head_dim > 0 && shape.v_dim > 0 {
        return Ok(());
    }
    Err(Unsupported(format!("an empty KV shape: {shape:?}")))
}

/// The regions of a call that touches the cache, after checking their sizes.
pub fn kv_regions(ctx: &Ctx<'_>, shape: &KvShape) -> Result<KvPair, BackendError> {
    let kv = ctx.call.kv.ok_or_else(|| BackendError::BadBuffer(format!("no KV region for {shape:?}")))?;
    let (k, v) = kv.ty.page_bytes(shape);
    if kv.k.len != k * kv.n_pages || kv.v.len != v * kv.n_pages {
        let KvPair { k, v, ty, n_pages } = kv;
        return Err(BackendError::BadBuffer(format!(
            "KV regions of {} and {} bytes don't hold {n_pages} pages of {shape:?} in {ty}",
            k.len, v.len
        )));
    }
    Ok(kv)
}

/// Checks the KV rows of a batch and returns them as (page, slot).
pub fn locate_rows(rows: &[i32], n_pages: usize) -> Result<Vec<(usize, usize)>, BackendError> {
    let limit = n_pages * PAGE;
    let locate = |&row: &i32| match usize::try_from(row) {
        Ok(r) if r < limit => Ok((r / PAGE, r % PAGE)),
        _ => Err(BackendError::OutOfRange { what: "KV row", value: row.into(), limit }),
    };
    rows.iter().map(locate).collect()
}

/// The regions of a layer, to be written.
pub fn regions_mut<'a>(
    [k, v]: [SharedMut<'a, u8>; 2],
    ty: KvTypes,
) -> Result<[RegionMut<'a>; 2], BackendError> {
    Ok([RegionMut::new(k, ty.k)?, RegionMut::new(v, ty.v)?])
}

/// Writes rows of k (`[rows, n_kv_head * head_dim]`) and v to their slots in the regions.
pub fn store_rows(
    isa: Isa,
    team: &Team<'_>,
    shape: &KvShape,
    rows: &[(usize, usize)],
    [k, v]: [&[f32]; 2],
    regions: &[RegionMut<'_>; 2],
) {
    team.chunks(2 * shape.n_kv_head, 1, |units| {
        for unit in units {
            let (side, x) = if unit % 2 == 0 { (Side::K, k) } else { (Side::V, v) };
            // SAFETY: each head of a side is one unit.
            unsafe { store_head(isa, shape, side, unit / 2, rows, x, regions) };
        }
    });
}

/// Writes the rows of one head.
///
/// # Safety
/// No other thread may do this with the same head of the same side.
pub unsafe fn store_head(
    isa: Isa,
    shape: &KvShape,
    side: Side,
    head: usize,
    rows: &[(usize, usize)],
    x: &[f32],
    regions: &[RegionMut<'_>; 2],
) {
    let (region, dim) = match side {
        Side::K => (&regions[0], shape.head_dim),
        Side::V => (&regions[1], shape.v_dim),
    };
    let store = StoreHead { region, side, rows, x, dim, head, n_kv_head: shape.n_kv_head };
    // SAFETY: the caller's promise; a head's pages are no other head's.
    dispatch!(isa, s => s.vectorize(|| unsafe { store.run(s) }));
}

/// One KV head of a batch on its way to the cache.
struct StoreHead<'a> {
    region: &'a RegionMut<'a>,
    side: Side,
    /// Page and slot of each row.
    rows: &'a [(usize, usize)],
    /// `[rows, n_kv_head * dim]`.
    x: &'a [f32],
    dim: usize,
    head: usize,
    n_kv_head: usize,
}

impl StoreHead<'_> {
    /// # Safety
    /// No other thread may write to this head's pages.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S) {
        let cols = self.n_kv_head * self.dim;
        for (x, &(page, slot)) in self.x.chunks_exact(cols).zip(self.rows) {
            let x = &x[self.head * self.dim..][..self.dim];
            // SAFETY: the caller's promise.
            unsafe { self.region.store(s, self.side, page * self.n_kv_head + self.head, x, slot) };
        }
    }
}

/// Writes rows to the cache.
pub struct KvStore(pub KvShape);

impl Kernel for KvStore {
    fn check(&self, _graph: &Graph) -> Result<(), Unsupported> {
        check_shape(&self.0)
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let kv = kv_regions(&ctx, &self.0)?;
        let reads = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
        let ([k, v, rows], [k_region, v_region]) = ctx.views(reads, [kv.k, kv.v])?;
        let rows = locate_rows(typed(rows)?, kv.n_pages)?;
        let regions = regions_mut([k_region, v_region], kv.ty)?;
        store_rows(ctx.isa, ctx.team, &self.0, &rows, [typed(k)?, typed(v)?], &regions);
        Ok(())
    }
}

/// Makes the cache available to attention: nothing to do where it lives.
pub struct KvLoad(pub KvShape);

impl Kernel for KvLoad {
    fn check(&self, _graph: &Graph) -> Result<(), Unsupported> {
        check_shape(&self.0)
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        kv_regions(&ctx, &self.0).map(|_| ())
    }
}

/// Copies whole pages within a layer's regions, in the order given.
pub fn copy_pages(
    buffers: &mut BufferPool,
    kv: KvPair,
    pages: &[(usize, usize)],
) -> Result<(), BackendError> {
    let check = |page: usize| match page < kv.n_pages {
        true => Ok(()),
        false => Err(BackendError::OutOfRange {
            what: "KV page",
            value: i64::try_from(page).unwrap_or(i64::MAX),
            limit: kv.n_pages,
        }),
    };
    pages.iter().try_for_each(|&(from, to)| check(from).and(check(to)))?;
    copy_region(buffers, kv.k, kv.n_pages, pages)?;
    copy_region(buffers, kv.v, kv.n_pages, pages)
}

fn copy_region(
    buffers: &mut BufferPool,
    region: BufferSlice,
    n_pages: usize,
    pages: &[(usize, usize)],
) -> Result<(), BackendError> {
    let bytes = buffers.write(region)?;
    if pages.is_empty() {
        return Ok(());
    }
    let page = bytes.len() / n_pages;
    for &(from, to) in pages {
        bytes.copy_within(from * page..(from + 1) * page, to * page);
    }
    Ok(())
}
