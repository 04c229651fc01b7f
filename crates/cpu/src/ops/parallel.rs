//! Safe division of an output among the threads.

pub use crate::matmul::shared::SharedMut;
use crate::pool::Pool;

/// Outputs smaller than this many values are not worth waking a thread for.
pub const MIN_PARALLEL: usize = 8192;

/// Runs `f(row, values)` for each row of `out`, on all threads if there is enough to do.
pub fn for_each_row<T: Send>(pool: &Pool, out: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if cols == 0 {
        return;
    }
    for_each_span(pool, out, cols, |first, span| {
        for (i, row) in span.chunks_exact_mut(cols).enumerate() {
            f(first / cols + i, row);
        }
    });
}

/// Runs `f(first_index, values)` for spans of `out`, each a multiple of `unit` values long.
pub fn for_each_span<T: Send>(pool: &Pool, out: &mut [T], unit: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let units = out.len() / unit;
    if out.len() < MIN_PARALLEL || units < 2 || pool.threads() < 2 {
        if !out.is_empty() {
            f(0, out);
        }
        return;
    }
    let len = out.len();
    let shared = SharedMut::new(out);
    let chunk = units.div_ceil(4 * pool.threads()).max(1);
    pool.chunks(units, chunk, |range| {
        let end = if range.end == units { len } else { range.end * unit };
        let span = range.start * unit..end;
        // SAFETY: the pool hands out disjoint ranges of units, so the spans are disjoint.
        f(span.start, unsafe { shared.range(span) });
    });
}
