//! Safe division of an output among the threads.

pub use crate::matmul::shared::SharedMut;
use crate::team::Team;

/// Outputs smaller than this many values are left to one thread.
const MIN_PARALLEL: usize = 2048;

/// Runs `f(row, values)` for each row of `out`, on all members if there is enough to do.
pub fn for_each_row<T: Send>(
    team: &Team<'_>,
    out: SharedMut<'_, T>,
    cols: usize,
    mut f: impl FnMut(usize, &mut [T]),
) {
    if cols == 0 {
        return;
    }
    for_each_span(team, out, cols, |first, span| {
        for (i, row) in span.chunks_exact_mut(cols).enumerate() {
            f(first / cols + i, row);
        }
    });
}

/// Runs `f(first_index, values)` for spans of `out`, each a multiple of `unit` values long.
pub fn for_each_span<T: Send>(
    team: &Team<'_>,
    out: SharedMut<'_, T>,
    unit: usize,
    mut f: impl FnMut(usize, &mut [T]),
) {
    let len = out.len();
    if len == 0 {
        return;
    }
    let units = (len / unit).max(1);
    let chunk = if len < MIN_PARALLEL { units } else { units.div_ceil(4 * team.threads()) };
    team.chunks(units, chunk, |range| {
        let end = if range.end == units { len } else { range.end * unit };
        let span = range.start * unit..end;
        // SAFETY: members get disjoint ranges of units, so the spans are disjoint.
        f(span.start, unsafe { out.range(span) });
    });
}
