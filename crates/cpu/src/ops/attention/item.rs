//! One work item: a tile of queries of a sequence that share a KV head, over a range of pages.

use super::page::{GROUP, PackQueries, Row, Scores, Softmax, Values};
use super::spans::{Spans, groups};
use crate::ops::kv::{Ahead, Line, PANEL, Part, Region};
use crate::ops::parallel::SharedMut;
use crate::ops::vector::{Pairwise, load_tail, store_tail, zip};
use crate::simd::{Kernel, Simd, exp_nonpositive};
use minfer_graph::room::reserve;
use minfer_graph::{Attention, BackendError, PAGE};
use std::ops::Range;

/// Rows of an item that reads pages from where they are: two groups.
const MOST_ONCE: usize = 2 * GROUP;

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
    /// `v_dim` rounded up to whole panels.
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
        let v_padded = v_dim.next_multiple_of(PANEL);
        let group = n_head / n_kv_head;
        Shape { n_head, n_kv_head, group, head_dim, v_dim, v_padded, scale, window, softcap, sinks, q, k, v }
    }

    /// Query head of a row of an item.
    fn query(&self, item: &Item<'_>, row: usize) -> &'a [f32] {
        &self.q[item.head_index(self, row) * self.head_dim..][..self.head_dim]
    }

    /// Index of the item's part of a logical page in the regions.
    fn head_page(&self, item: &Item<'_>, page: usize) -> usize {
        // `sequences` checked the table's entries, so none is negative.
        item.table[page] as usize * self.n_kv_head + item.kv_head
    }

    /// K and V of a logical page, to be asked for before they are read.
    fn ahead(&self, item: &Item<'_>, page: usize) -> [Ahead<'a>; 2] {
        let index = self.head_page(item, page);
        [self.k.ahead(index, self.head_dim), self.v.ahead(index, self.v_dim)]
    }

    /// Sink of a row of an item.
    pub fn sink(&self, item: &Item<'_>, row: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[item.head_index(self, row) % self.n_head])
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

    /// Multiply-adds of the item, if no position were masked.
    pub fn work(&self, shape: &Shape<'_>) -> usize {
        let positions = self.start + self.tokens - first_visible(self.start, shape.window);
        self.rows(shape.group) * positions * (shape.head_dim + shape.v_dim)
    }

    /// Index of a row's head among all heads of the batch.
    pub fn head_index(&self, shape: &Shape<'_>, row: usize) -> usize {
        (self.first + row / shape.group) * shape.n_head + self.kv_head * shape.group + row % shape.group
    }

    /// Rows that see some of a page.
    fn rows_on_page(&self, shape: &Shape<'_>, page: usize) -> Range<usize> {
        let (from, to) = (page * PAGE, (page + 1) * PAGE);
        let first = from.saturating_sub(self.start).min(self.tokens);
        // The last query that sees position `to - 1` is at `to - 1 + window - 1`.
        let end = shape
            .window
            .map_or(self.tokens, |w| (to - 1).saturating_add(w).saturating_sub(self.start).min(self.tokens));
        first * shape.group..end.max(first) * shape.group
    }

    /// Positions that a token sees of a page, relative to the page, and whether the page is the first that it sees.
    fn visible(&self, shape: &Shape<'_>, page: usize, token: usize) -> (Range<usize>, bool) {
        let position = self.start + token;
        let first = first_visible(position, shape.window);
        let from = first.saturating_sub(page * PAGE).min(PAGE);
        let to = (position + 1).saturating_sub(page * PAGE).min(PAGE);
        (from..to.max(from), first / PAGE == page)
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
#[derive(Clone, Copy)]
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

    /// Takes the memory for up to so many slots.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn reserve(&mut self, slots: usize, v_padded: usize) -> Result<(), BackendError> {
        reserve(&mut self.m, slots)?;
        reserve(&mut self.l, slots)?;
        reserve(&mut self.a, slots.saturating_mul(v_padded))
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

impl StateView<'_> {
    /// Some of the slots.
    fn slots(&mut self, slots: Range<usize>, v_padded: usize) -> StateView<'_> {
        StateView {
            m: &mut self.m[slots.clone()],
            l: &mut self.l[slots.clone()],
            a: &mut self.a[slots.start * v_padded..slots.end * v_padded],
        }
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

/// A tile's queries, a page as f32 and what the rows make of it.
#[derive(Debug, Default)]
pub struct PageSpace {
    /// Group after group `[dim][row]`, see [`Scores`].
    q: Vec<f32>,
    /// `[panel][dim]`. Positions that a row does not see may hold anything; they are computed with the others
    /// and masked.
    k: Vec<Line>,
    /// `[panel][pos]`; only the visible positions are up to date.
    v: Vec<Line>,
    /// `[row][pos]`: scores, then their exponentials.
    e: Vec<Row>,
    spans: Spans,
    /// Maximum, sum and factors of each row.
    m: Vec<f32>,
    l: Vec<f32>,
    c: Vec<f32>,
    c_p: Vec<f32>,
}

impl Workspace {
    /// Takes the memory for items of up to so many rows: they find it in place.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn reserve(&mut self, shape: &Shape<'_>, rows: usize) -> Result<(), BackendError> {
        let Workspace { state, page } = self;
        state.reserve(rows, shape.v_padded)?;
        reserve(&mut page.q, rows.saturating_mul(shape.head_dim))?;
        reserve(&mut page.k, PAGE / PANEL * shape.head_dim)?;
        reserve(&mut page.v, PAGE * shape.v_padded / PANEL)?;
        reserve(&mut page.e, rows)?;
        [&mut page.m, &mut page.l, &mut page.c, &mut page.c_p].into_iter().try_for_each(|x| reserve(x, rows))
    }
}

impl PageSpace {
    /// Takes the queries of an item in and makes room for its pages.
    fn start<S: Simd>(&mut self, s: S, shape: &Shape<'_>, item: &Item<'_>) {
        let rows = item.rows(shape.group);
        let dims = shape.head_dim;
        self.q.resize(rows * dims, 0.0);
        for group in groups(0..rows) {
            let mut queries: [&[f32]; GROUP] = [&[]; GROUP];
            for (q, row) in queries.iter_mut().zip(group.clone()) {
                *q = shape.query(item, row);
            }
            let out = &mut self.q[group.start * dims..group.end * dims];
            s.run(PackQueries { queries: &queries[..group.len()], out });
        }
        self.k.resize(PAGE / PANEL * shape.head_dim, [0.0; PANEL]);
        self.v.resize(PAGE * shape.v_padded / PANEL, [0.0; PANEL]);
        self.e.resize(rows, [0.0; PAGE]);
        for of_rows in [&mut self.m, &mut self.l, &mut self.c, &mut self.c_p] {
            of_rows.resize(rows, 0.0);
        }
    }

    /// Computes the rows of a page and merges them into the state, or enters them if `alone`; `next` comes after it.
    fn page<S: Simd>(
        &mut self,
        s: S,
        shape: &Shape<'_>,
        item: &Item<'_>,
        (page, next): (usize, Option<usize>),
        state: &mut StateView<'_>,
        alone: bool,
    ) {
        let PageSpace { q, k, v, e, spans, m, l, c, c_p } = self;
        spans.fill(item.tokens, shape.group, |token| {
            let (seen, first) = item.visible(shape, page, token);
            (seen, first || alone)
        });
        let seen = spans.union();
        if seen.is_empty() {
            return;
        }
        let index = shape.head_page(item, page);
        let [k_ahead, v_ahead] = match next {
            Some(page) => shape.ahead(item, page),
            None => [Ahead::default(); 2],
        };
        let Shape { head_dim: dims, v_dim, scale, softcap, .. } = *shape;
        let once = item.rows(shape.group) <= MOST_ONCE;
        let part = Part { index, dim: dims, positions: seen, once };
        shape.k.with_k(s, &part, k, Scores { dims, q, scale, groups: &spans.groups, e, ahead: k_ahead });
        s.run(Softmax { e, seen: &spans.seen, softcap, m, l });
        s.run(MergeSums { spans, m, l, state, c, c_p });
        let (a, width) = (state.a.as_chunks_mut().0, shape.v_padded / PANEL);
        let values = Values { width, e, runs: &spans.runs, c, c_p, a, ahead: v_ahead };
        shape.v.with_v(s, &Part { dim: v_dim, ..part }, v, values);
    }
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
    space.start(s, shape, item);
    if !pages.is_empty() {
        // The keys come first and are asked for by whoever reads them.
        let [_, mut v] = shape.ahead(item, pages.start);
        v.step(s);
    }
    for page in pages.clone() {
        let first = if merge { 0 } else { (page - pages.start) * rows };
        let state = &mut state.slots(first..first + rows, shape.v_padded);
        let next = Some(page + 1).filter(|next| pages.contains(next));
        space.page(s, shape, item, (page, next), state, !merge);
    }
}

/// Merges the maxima and sums of a page's rows into the state, and works out the factors on their values.
struct MergeSums<'a, 's> {
    spans: &'a Spans,
    m: &'a [f32],
    l: &'a [f32],
    state: &'a mut StateView<'s>,
    /// Factor on the earlier pages' values.
    c: &'a mut [f32],
    /// Factor on this page's values.
    c_p: &'a mut [f32],
}

impl Kernel for MergeSums<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let MergeSums { spans, m, l, state, c, c_p } = self;
        for (rows, first) in &spans.merges {
            let (m, l) = (&m[rows.clone()], &l[rows.clone()]);
            let (m_all, l_all) = (&mut state.m[rows.clone()], &mut state.l[rows.clone()]);
            if *first {
                m_all.copy_from_slice(m);
                l_all.copy_from_slice(l);
                continue;
            }
            let (c, c_p) = (&mut c[rows.clone()], &mut c_p[rows.clone()]);
            let whole = m.len() - m.len() % 8;
            for i in (0..whole).step_by(8) {
                let old = (s.load(&m_all[i..]), s.load(&l_all[i..]));
                let merged = merge_sums(s, old, (s.load(&m[i..]), s.load(&l[i..])));
                for (of_rows, x) in [&mut *m_all, &mut *l_all, &mut *c, &mut *c_p].into_iter().zip(merged) {
                    s.store(x, &mut of_rows[i..]);
                }
            }
            if whole < m.len() {
                let old = (load_tail(s, &m_all[whole..]), load_tail(s, &l_all[whole..]));
                let merged = merge_sums(s, old, (load_tail(s, &m[whole..]), load_tail(s, &l[whole..])));
                for (of_rows, x) in [m_all, l_all, c, c_p].into_iter().zip(merged) {
                    store_tail(s, x, &mut of_rows[whole..]);
                }
            }
        }
    }
}

/// Maximum, sum and the factors on both sides' values of rows whose maxima and sums are merged.
#[inline(always)]
fn merge_sums<S: Simd>(s: S, (m, l): (S::F, S::F), (m_p, l_p): (S::F, S::F)) -> [S::F; 4] {
    let (top, c, c_p) = merge_scales(s, m, m_p);
    [top, s.fma(l, c, s.mul(l_p, c_p)), c, c_p]
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
    let (top, c, c_p) = merge_scales_of(s, state.m[slot], m_p);
    state.m[slot] = top;
    state.l[slot] = state.l[slot].mul_add(c, l_p * c_p);
    zip(s, a, None, Some(a_p), &Merge { c, c_p });
}

/// The larger of two maxima, and the factors that bring both sides to it.
#[inline(always)]
fn merge_scales<S: Simd>(s: S, m: S::F, m_p: S::F) -> (S::F, S::F, S::F) {
    let top = s.max(m, m_p);
    (top, exp_nonpositive(s, s.sub(m, top)), exp_nonpositive(s, s.sub(m_p, top)))
}

/// [`merge_scales`] of one row.
#[inline(always)]
fn merge_scales_of<S: Simd>(s: S, m: f32, m_p: f32) -> (f32, f32, f32) {
    let (top, c, c_p) = merge_scales(s, s.splat(m), s.splat(m_p));
    (s.to_array(top)[0], s.to_array(c)[0], s.to_array(c_p)[0])
}

/// Factor on a row's values, and its sum, once its sink is merged: like a last page whose only
/// position has that score and the value 0.
#[inline(always)]
pub fn merge_sink<S: Simd>(s: S, (m, l): (f32, f32), sink: f32) -> (f32, f32) {
    let (_, c, c_sink) = merge_scales_of(s, m, sink);
    (c, l.mul_add(c, c_sink))
}

/// Merges the slots (page, row) of an item into its first slots, one per row.
pub fn merge_pages<S: Simd>(s: S, shape: &Shape<'_>, item: &Item<'_>, state: &mut StateView<'_>) {
    s.run(MergePages { shape, item, state });
}

struct MergePages<'a, 's> {
    shape: &'a Shape<'a>,
    item: &'a Item<'a>,
    state: &'a mut StateView<'s>,
}

impl Kernel for MergePages<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let MergePages { shape, item, state } = self;
        let (rows, width) = (item.rows(shape.group), shape.v_padded);
        for page in item.pages.clone() {
            for row in item.rows_on_page(shape, page) {
                let from = (page - item.pages.start) * rows + row;
                let first = page == item.first_page(shape, row);
                if from == row {
                    // The first of the item's pages is in place, and is the first of whoever sees it.
                    continue;
                }
                let (m, l) = (state.m[from], state.l[from]);
                let (to, rest) = state.a.split_at_mut(from * width);
                let mut to = StateView { m: state.m, l: state.l, a: to };
                put(s, &mut to, row, (m, l, &rest[..width]), first);
            }
        }
    }
}
