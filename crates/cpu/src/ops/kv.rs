//! The paged KV cache: the layout of its pages, and the ops that store to it and load from it.

use super::vector::{load_tail, store_tail};
use super::{Ctx, Kernel};
use crate::buffers::{BufferPool, typed, typed_mut};
use crate::dispatch;
use crate::simd::{Isa, Simd};
use minfer_graph::{BackendError, BufferSlice, Graph, KvPair, KvShape, KvType, PAGE, Unsupported};

/// Stored form of a cached value: f32, or f16 as bits.
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

    /// Rounds values to the stored form.
    #[inline(always)]
    fn store<S: Simd>(s: S, src: &[f32], dst: &mut [Self]) {
        let whole = src.len() - src.len() % 8;
        for i in (0..whole).step_by(8) {
            Self::store8(s, s.load(&src[i..]), &mut dst[i..]);
        }
        if whole < src.len() {
            let mut padded = [Self::zeroed(); 8];
            Self::store8(s, load_tail(s, &src[whole..]), &mut padded);
            dst[whole..src.len()].copy_from_slice(&padded[..src.len() - whole]);
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

/// A shape without values has no kernel.
pub fn check_shape(shape: &KvShape) -> Result<(), Unsupported> {
    if shape.n_kv_head > 0 && shape.head_dim > 0 && shape.v_dim > 0 {
        return Ok(());
    }
    Err(Unsupported(format!("an empty KV shape: {shape:?}")))
}

/// Elements of a K page and of a V page of one KV head.
pub fn head_page_len(shape: &KvShape) -> (usize, usize) {
    (shape.head_dim * PAGE, shape.v_dim * PAGE)
}

/// The regions of a call that touches the cache, after checking their sizes.
pub fn kv_regions(ctx: &Ctx<'_>, shape: &KvShape) -> Result<KvPair, BackendError> {
    let kv = ctx.call.kv.ok_or_else(|| BackendError::BadBuffer(format!("no KV region for {shape:?}")))?;
    let (k, v) = head_page_len(shape);
    let bytes = |len: usize| len * shape.n_kv_head * kv.n_pages * kv.ty.bytes();
    if kv.k.len != bytes(k) || kv.v.len != bytes(v) {
        return Err(BackendError::BadBuffer(format!(
            "KV regions of {} and {} bytes don't hold {} pages of {shape:?} in {}",
            kv.k.len,
            kv.v.len,
            kv.n_pages,
            kv.ty.name()
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

/// Writes rows of k (`[rows, n_kv_head * head_dim]`) and v to their slots in the regions.
pub fn store_rows(
    isa: Isa,
    shape: &KvShape,
    ty: KvType,
    rows: &[(usize, usize)],
    [k, v]: [&[f32]; 2],
    [k_region, v_region]: [&mut [u8]; 2],
) -> Result<(), BackendError> {
    match ty {
        KvType::F16 => {
            let regions: [&mut [u16]; 2] = [typed_mut(k_region)?, typed_mut(v_region)?];
            dispatch!(isa, s => s.vectorize(|| store_typed(s, shape, rows, [k, v], regions)));
        }
        KvType::F32 => {
            let regions: [&mut [f32]; 2] = [typed_mut(k_region)?, typed_mut(v_region)?];
            dispatch!(isa, s => s.vectorize(|| store_typed(s, shape, rows, [k, v], regions)));
        }
    }
    Ok(())
}

#[inline(always)]
fn store_typed<S: Simd, E: KvElement>(
    s: S,
    shape: &KvShape,
    rows: &[(usize, usize)],
    [k, v]: [&[f32]; 2],
    [k_region, v_region]: [&mut [E]; 2],
) {
    let (k_cols, v_cols) = (shape.n_kv_head * shape.head_dim, shape.n_kv_head * shape.v_dim);
    let mut stored = vec![E::zeroed(); k_cols];
    for (i, &(page, slot)) in rows.iter().enumerate() {
        E::store(s, &k[i * k_cols..][..k_cols], &mut stored);
        // `[kv_head][dim][pos]`: the values of one position are PAGE apart.
        let page_k = &mut k_region[page * k_cols * PAGE..][..k_cols * PAGE];
        for (lane, &value) in page_k.chunks_exact_mut(PAGE).zip(&stored) {
            lane[slot] = value;
        }
        let page_v = &mut v_region[page * v_cols * PAGE..][..v_cols * PAGE];
        let heads = v[i * v_cols..][..v_cols].chunks_exact(shape.v_dim);
        for (head, values) in page_v.chunks_exact_mut(PAGE * shape.v_dim).zip(heads) {
            E::store(s, values, &mut head[slot * shape.v_dim..][..shape.v_dim]);
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
        let ([k, v, rows], [k_region, v_region]) = ctx.buffers.access(reads, [kv.k, kv.v])?;
        let rows = locate_rows(typed(rows)?, kv.n_pages)?;
        store_rows(ctx.isa, &self.0, kv.ty, &rows, [typed(k)?, typed(v)?], [k_region, v_region])
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
