//! One work item: a tile of queries of a sequence that share a KV head, over a range of pages.

use super::page::{GROUP, PageSpace};
use crate::ops::kv::Region;
use crate::ops::parallel::SharedMut;
use crate::ops::vector::{Pairwise, zip};
use crate::simd::{Simd, exp};
use minfer_graph::{Attention, PAGE};
use std::array::from_fn;
use std::ops::Range;

/// A sequence of the batch.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// First row of the batch.
    pub first: usize,
    /// Rows of the batch.
    pub len: usize,
    /// Position of the first row.
    pub start: usize,
    /// Physical page of each logical page.
    pub pages: &'a [i32],
}

impl Sequence<'_> {
    /// Logical pages that the sequence's queries see.
    pub fn pages_read(&self, window: Option<usize>) -> Range<usize> {
        page_range(self.start, self.start + self.len, window)
    }
}

/// First position that a query at `position` sees.
fn first_visible(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w))
}

/// Pages that queries at positions `start..end` see.
fn page_range(start: usize, end: usize, window: Option<usize>) -> Range<usize> {
    first_visible(start, window) / PAGE..end.div_ceil(PAGE)
}

/// The op's sizes and data.
pub struct Shape<'a> {
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_kv_head: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Values per query and key head.
    pub head_dim: usize,
    /// Values per value head.
    pub v_dim: usize,
    /// `v_dim` rounded up to two vectors.
    pub v_padded: usize,
    /// Factor on the dot products.
    pub scale: f32,
    /// Sliding window.
    pub window: Option<usize>,
    /// Bound on the scores.
    pub softcap: Option<f32>,
    /// One more score per query head.
    pub sinks: Option<&'a [f32]>,
    q: &'a [f32],
    k: Region<'a>,
    v: Region<'a>,
}

impl<'a> Shape<'a> {
    /// Sizes of an op with its queries and KV regions.
    pub fn new(a: &Attention, sinks: Option<&'a [f32]>, q: &'a [f32], k: Region<'a>, v: Region<'a>) -> Self {
        let Attention { n_head, n_kv_head, head_dim, v_dim, scale, window, softcap, sinks: _, layer: _ } = *a;
        let v_padded = v_dim.next_multiple_of(16);
        let group = n_head / n_kv_head;
        Shape { n_head, n_kv_head, group, head_dim, v_dim, v_padded, scale, window, softcap, sinks, q, k, v }
    }

    /// Query head of a row of an item.
    fn query(&self, item: &Item<'_>, row: usize) -> &'a [f32] {
        &self.q[item.head_index(self, row) * self.head_dim..][..self.head_dim]
    }

    /// Sink of a row of an item.
    pub fn sink(&self, item: &Item<'_>, row: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[item.head_index(self, row) % self.n_head])
    }

    /// Reads one head of a physical page, V at the positions that some row sees.
    fn load_page<S: Simd>(
        &self,
        s: S,
        page: usize,
        head: usize,
        visible: Range<usize>,
        space: &mut PageSpace,
    ) {
        let index = page * self.n_kv_head + head;
        self.k.load_k(s, index, self.head_dim, &mut space.k);
        self.v.load_v(s, index, self.v_dim, visible, self.v_padded, &mut space.v);
    }
}

/// A tile of queries. Its rows are (token, query head of the group), token by token.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    table: &'a [i32],
    kv_head: usize,
    /// First row of the batch.
    first: usize,
    tokens: usize,
    /// Position of the first token.
    start: usize,
    /// Logical pages that the tile sees.
    pub pages: Range<usize>,
}

impl<'a> Item<'a> {
    /// The tile of some tokens of a sequence.
    pub fn new(sequence: &Sequence<'a>, kv_head: usize, tokens: Range<usize>, window: Option<usize>) -> Self {
        let start = sequence.start + tokens.start;
        Item {
            table: sequence.pages,
            kv_head,
            first: sequence.first + tokens.start,
            tokens: tokens.len(),
            start,
            pages: page_range(start, start + tokens.len(), window),
        }
    }

    /// Number of rows.
    pub fn rows(&self, group: usize) -> usize {
        self.tokens * group
    }

    /// Index of a row's head among all heads of the batch.
    pub fn head_index(&self, shape: &Shape<'_>, row: usize) -> usize {
        (self.first + row / shape.group) * shape.n_head + self.kv_head * shape.group + row % shape.group
    }

    /// Rows that see a page, and what they see of it.
    fn rows_on_page(&self, shape: &Shape<'_>, page: usize) -> Range<usize> {
        let (from, to) = (page * PAGE, (page + 1) * PAGE);
        let first = from.saturating_sub(self.start).min(self.tokens);
        // The last query that sees position `to - 1` is at `to - 1 + window - 1`.
        let end = shape
            .window
            .map_or(self.tokens, |w| (to - 1).saturating_add(w).saturating_sub(self.start).min(self.tokens));
        first * shape.group..end.max(first) * shape.group
    }

    /// Positions of a page that a row sees, relative to the page.
    fn visible(&self, shape: &Shape<'_>, page: usize, row: usize) -> Range<usize> {
        let position = self.start + row / shape.group;
        let from = first_visible(position, shape.window).saturating_sub(page * PAGE).min(PAGE);
        from..(position + 1).saturating_sub(page * PAGE).min(PAGE)
    }

    /// First page that a row sees.
    fn first_page(&self, shape: &Shape<'_>, row: usize) -> usize {
        first_visible(self.start + row / shape.group, shape.window) / PAGE
    }
}

/// Maximum, sum and weighted values of a number of slots.
#[derive(Debug, Default)]
pub struct State {
    m: Vec<f32>,
    l: Vec<f32>,
    a: Vec<f32>,
}

/// Slots in use. Slot `i` has `v_padded` values of `a`.
pub struct StateView<'a> {
    /// Maximum score.
    pub m: &'a mut [f32],
    /// Sum of exponentials.
    pub l: &'a mut [f32],
    /// Weighted sum of values.
    pub a: &'a mut [f32],
}

/// Slots that several threads fill.
pub struct SharedState<'a> {
    m: SharedMut<'a, f32>,
    l: SharedMut<'a, f32>,
    a: SharedMut<'a, f32>,
}

impl State {
    /// Room for some slots; their content is arbitrary.
    pub fn resize(&mut self, slots: usize, v_padded: usize) {
        self.m.resize(slots, 0.0);
        self.l.resize(slots, 0.0);
        self.a.resize(slots * v_padded, 0.0);
    }

    /// All slots.
    pub fn view(&mut self) -> StateView<'_> {
        StateView { m: &mut self.m, l: &mut self.l, a: &mut self.a }
    }

    /// All slots, to be divided among threads.
    pub fn share(&mut self) -> SharedState<'_> {
        let State { m, l, a } = self;
        SharedState { m: SharedMut::new(m), l: SharedMut::new(l), a: SharedMut::new(a) }
    }
}

impl SharedState<'_> {
    /// Some slots.
    ///
    /// # Safety
    /// No two ranges that are alive at the same time may overlap.
    pub unsafe fn range(&self, slots: Range<usize>, v_padded: usize) -> StateView<'_> {
        let values = slots.start * v_padded..slots.end * v_padded;
        // SAFETY: disjoint slots are disjoint ranges of all three; the caller keeps slots disjoint.
        unsafe {
            StateView { m: self.m.range(slots.clone()), l: self.l.range(slots), a: self.a.range(values) }
        }
    }
}

/// What one thread works in.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Running state of an item's rows.
    pub state: State,
    /// The page at hand.
    pub page: PageSpace,
}

/// Computes the rows of an item over a range of its pages.
///
/// With `merge`, slot = row holds the merged result. Without, slot = (page, row) holds each page's own.
pub fn compute<S: Simd>(
    s: S,
    shape: &Shape<'_>,
    item: &Item<'_>,
    pages: Range<usize>,
    space: &mut PageSpace,
    state: &mut StateView<'_>,
    merge: bool,
) {
    let rows = item.rows(shape.group);
    space.resize(shape.head_dim, shape.v_padded);
    for page in pages.clone() {
        let on_page = item.rows_on_page(shape, page);
        if on_page.is_empty() {
            continue;
        }
        // `sequences` checked the table's entries, so none is negative.
        let physical = item.table[page] as usize;
        let last = item.visible(shape, page, on_page.end - 1).end;
        let first = item.visible(shape, page, on_page.start).start;
        shape.load_page(s, physical, item.kv_head, first..last, space);
        for start in on_page.clone().step_by(GROUP) {
            let group = start..on_page.end.min(start + GROUP);
            let q: [&[f32]; GROUP] = from_fn(|i| match group.start + i {
                row if row < group.end => shape.query(item, row),
                _ => &[],
            });
            let visible: [Range<usize>; GROUP] = from_fn(|i| item.visible(shape, page, group.start + i));
            space.compute(s, &q[..group.len()], &visible[..group.len()], shape.scale, shape.softcap);
            for (i, row) in group.clone().enumerate() {
                let first = !merge || page == item.first_page(shape, row);
                let slot = if merge { row } else { (page - pages.start) * rows + row };
                let (m, l, a) = space.partial(i);
                s.vectorize(|| put(s, state, slot, (m, l, a), first));
            }
        }
    }
}

/// `a * c + a_p * c_p`.
struct Merge {
    c: f32,
    c_p: f32,
}

impl Pairwise for Merge {
    #[inline(always)]
    fn apply<S: Simd>(&self, s: S, a: S::F, a_p: S::F) -> S::F {
        s.fma(a, s.splat(self.c), s.mul(a_p, s.splat(self.c_p)))
    }
}

/// Enters a page's partial result into a slot: as it is if it is the first, merged otherwise.
#[inline(always)]
fn put<S: Simd>(
    s: S,
    state: &mut StateView<'_>,
    slot: usize,
    (m_p, l_p, a_p): (f32, f32, &[f32]),
    first: bool,
) {
    let a = &mut state.a[slot * a_p.len()..][..a_p.len()];
    if first {
        state.m[slot] = m_p;
        state.l[slot] = l_p;
        a.copy_from_slice(a_p);
        return;
    }
    let (top, c, c_p) = merge_scales(s, state.m[slot], m_p);
    state.m[slot] = top;
    state.l[slot] = state.l[slot].mul_add(c, l_p * c_p);
    zip(s, a, None, Some(a_p), &Merge { c, c_p });
}

/// The larger of two maxima, and the factors that bring both sides to it.
#[inline(always)]
fn merge_scales<S: Simd>(s: S, m: f32, m_p: f32) -> (f32, f32, f32) {
    let top = m.max(m_p);
    let scales = [m - top, m_p - top, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let [c, c_p, ..] = s.to_array(exp(s, s.load(&scales)));
    (top, c, c_p)
}

/// Factor on a row's values, and its sum, once its sink is merged: like a last page whose only
/// position has that score and the value 0.
#[inline(always)]
pub fn merge_sink<S: Simd>(s: S, (m, l): (f32, f32), sink: f32) -> (f32, f32) {
    let (_, c, c_sink) = merge_scales(s, m, sink);
    (c, l.mul_add(c, c_sink))
}

/// Merges the slots (page, row) of an item into its first slots, one per row.
pub fn merge_pages<S: Simd>(s: S, shape: &Shape<'_>, item: &Item<'_>, state: &mut StateView<'_>) {
    let rows = item.rows(shape.group);
    let mut a_p = vec![0.0; shape.v_padded];
    for page in item.pages.clone() {
        for row in item.rows_on_page(shape, page) {
            let from = (page - item.pages.start) * rows + row;
            a_p.copy_from_slice(&state.a[from * shape.v_padded..][..shape.v_padded]);
            let partial = (state.m[from], state.l[from], &a_p[..]);
            s.vectorize(|| put(s, state, row, partial, page == item.first_page(shape, row)));
        }
    }
}
