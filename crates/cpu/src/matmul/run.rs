//! Division of products among threads and into tiles.
//!
//! A work item is a range of groups of 8 rows. With one token its groups are read in four streams, which
//! keeps enough loads in flight. With many, tokens are taken in blocks whose activations stay in the L2 cache, and within a
//! block each group stays in L1 while all tokens pass by.

use super::acts::ActRows;
use super::float::{self, Float, with_float};
use super::format::{Format, with_format};
use super::job::{ExpertJob, Input, Job, Then, Up, check, check_input};
use super::kernel;
use super::outputs::{Rows, Shared};
use super::panel;
use super::shared::SharedMut;
use super::weight::{GROUP, PackedWeight};
use crate::ops::elementwise::{GeGlu, SwiGlu};
use crate::ops::vector::{Pairwise, zip};
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Rows16, Simd};
use crate::team::Team;
use crate::{dispatch, dispatch_products};
use minfer_graph::{BackendError, Gating, room};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of activations per block of tokens: half of a small L2 cache.
const TOKEN_BLOCK: usize = 256 << 10;
/// Most groups per work item with several tokens.
const ITEM: usize = 8;
/// From this many tokens on, weights are expanded into panels first: with tiles of 4 tokens, and of 8, which is fewer.
const MANY: [usize; 2] = [16, 12];
/// Streams with one token.
const STREAMS: usize = 4;
/// Bytes of a thread's share with one token from which on it is cut.
const LARGE: usize = 512 << 10;
/// Where its pieces end, in eighths: beginning a piece costs a microsecond, so most of a share is one, and the last are for
/// whoever is done first.
const PIECES: [usize; 3] = [5, 7, 8];
/// A share in one piece.
const WHOLE: [usize; 1] = [8];

/// Product with one weight; see [`matmul_many`].
///
/// # Errors
///
/// As [`matmul_many`].
pub fn matmul(
    isa: Isa,
    pool: &Pool,
    weight: &PackedWeight,
    input: &Input<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    matmul_many(isa, pool, input, &[Job::new(weight, bias, SharedMut::new(out))])
}

/// Products of one input with several weights, in one parallel region.
///
/// # Errors
///
/// [`BackendError::BadBuffer`] where lengths don't fit, or a quantised weight finds no quantised input.
pub fn matmul_many(isa: Isa, pool: &Pool, input: &Input<'_>, jobs: &[Job<'_>]) -> Result<(), BackendError> {
    let jobs = check_all(input, jobs)?;
    pool.try_team_on(1, |team, _| run_all(isa, team, input, &jobs)).map_err(|(_, e)| e)
}

/// [`matmul_many`] by the members of a team.
///
/// # Errors
///
/// As there.
pub(crate) fn matmul_together(
    isa: Isa,
    team: &Team<'_>,
    input: &Input<'_>,
    jobs: &[Job<'_>],
) -> Result<(), BackendError> {
    run_all(isa, team, input, &check_all(input, jobs)?)
}

fn check_all<'a>(input: &Input<'_>, jobs: &[Job<'a>]) -> Result<Vec<Shared<'a>>, BackendError> {
    jobs.iter().try_for_each(|job| check(input, job))?;
    let meet = |i: usize| jobs[..i].iter().any(|job| job.out.overlaps(&jobs[i].out));
    if (1..jobs.len()).any(meet) {
        return Err(BackendError::BadBuffer("two products with one output".into()));
    }
    Ok(jobs.iter().map(|job| Shared::new(job, input.rows)).collect())
}

/// Products of chosen rows with chosen experts, by the members of a team.
///
/// # Errors
///
/// As [`matmul_many`]; also an expert or a row that is not there.
pub(crate) fn matmul_experts(
    isa: Isa,
    team: &Team<'_>,
    input: &Input<'_>,
    job: ExpertJob<'_>,
) -> Result<(), BackendError> {
    check_input(input, job.weight)?;
    let ExpertJob { weight, n_out, experts, out } = job;
    let bad = |what: String| Err(BackendError::BadBuffer(format!("product with experts: {what}")));
    if n_out == 0 || !n_out.is_multiple_of(GROUP) || !weight.rows().is_multiple_of(n_out) {
        return bad(format!("{n_out} of {} rows", weight.rows()));
    }
    let mut taken = Vec::new();
    room::resize(&mut taken, out.len() / n_out, false)?;
    for e in &experts {
        if e.expert >= weight.rows() / n_out || e.bias.is_some_and(|b| b.len() != n_out) {
            return bad(format!("expert {} or its bias", e.expert));
        }
        for pair in e.rows {
            let free = taken.get_mut(pair.output).is_some_and(|t| !std::mem::replace(t, true));
            if pair.input >= input.rows || !free {
                return bad(format!("{pair:?}"));
            }
        }
    }
    let mut jobs = room::with_room(experts.len())?;
    for e in &experts {
        let (first, rows) = (e.expert * n_out / GROUP, Rows::Some(e.rows));
        let held = weight.groups();
        jobs.push(Shared { weight, held, first, n_out, bias: e.bias, rows, out, then: Then::Keep });
    }
    run_all(isa, team, input, &jobs)
}

/// Hands out the groups of all jobs.
fn run_all(isa: Isa, team: &Team<'_>, input: &Input<'_>, jobs: &[Shared<'_>]) -> Result<(), BackendError> {
    let groups: usize = jobs.iter().map(Shared::groups).sum();
    let rows = jobs.iter().map(|j| j.rows.len()).max().unwrap_or(0);
    if rows == 0 || groups == 0 {
        return Ok(());
    }
    let chunk = match rows {
        1 => groups.div_ceil(STREAMS).div_ceil(team.threads()) * STREAMS,
        _ => groups.div_ceil(8 * team.threads()).next_multiple_of(panel::GROUPS).min(ITEM),
    };
    jobs.iter().try_for_each(|job| reserve(job, chunk))?;
    let parts = |range: Range<usize>| {
        let mut first = 0;
        for job in jobs {
            let end = first + job.groups();
            let part = range.start.max(first)..range.end.min(end);
            if !part.is_empty() {
                run(isa, input, job, part.start - first..part.end - first);
            }
            first = end;
        }
    };
    if rows == 1 {
        let bytes: usize = jobs.iter().map(|job| job.groups() * job.weight.group_bytes()).sum();
        let ends = if bytes / team.threads() < LARGE { &WHOLE[..] } else { &PIECES };
        team.shares(groups, STREAMS, ends, parts);
    } else {
        team.chunks(groups, chunk, parts);
    }
    Ok(())
}

/// Takes this thread's memory for up to so many groups of a job at a time: where there is too little, it shows before
/// anything is computed.
fn reserve(job: &Shared<'_>, groups: usize) -> Result<(), BackendError> {
    let mut weights = [Some((job.weight, job.held)), None];
    let groups = groups.min(job.groups());
    if let Then::Gate(_, up) = job.then {
        UP.with_borrow_mut(|scratch| room::grow(scratch, job.rows.len() * groups * GROUP, 0.0))?;
        weights[1] = Some((up.weight, up.weight.groups()));
    }
    for (weight, held) in weights.into_iter().flatten() {
        if weight.is_quantized() && job.rows.len() >= MANY[1] {
            panel::reserve(weight.cols(), groups)?;
        }
        if held.is_none() {
            PACKED.with_borrow_mut(|buffer| room::reserve(buffer, weight.piece_bytes(groups)))?;
        }
    }
    Ok(())
}

/// What computes a tile: a format with planes of activations, or plain numbers.
trait Tiles {
    /// Bytes of activations per token.
    fn token_bytes(&self) -> usize;

    /// Sums of `G` groups and of `T` rows of the input.
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        rows: [usize; T],
    ) -> [[S::F; T]; G];

    /// Computes a range of a job's groups for many rows; false if there is no better way than tile by tile.
    fn many<S: Simd>(&self, _s: S, _job: &Shared<'_>, _groups: Range<usize>, _tokens: Range<usize>) -> bool {
        false
    }
}

/// Products with quantised weights.
struct Quantised<'a, F, const P: usize> {
    acts: ActRows<'a>,
    format: PhantomData<F>,
}

impl<F: Format, const P: usize> Tiles for Quantised<'_, F, P> {
    fn token_bytes(&self) -> usize {
        self.acts.cols() * 2 * P
    }

    #[inline(always)]
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        rows: [usize; T],
    ) -> [[S::F; T]; G] {
        kernel::tile::<S, F, G, T, P>(s, groups, std::array::from_fn(|t| self.acts.row::<P>(rows[t])))
    }

    fn many<S: Simd>(&self, s: S, job: &Shared<'_>, groups: Range<usize>, tokens: Range<usize>) -> bool {
        panel::item::<S, F, P>(s, self.acts, job, groups, tokens);
        true
    }
}

/// Products with plain numbers.
struct Plain<'a, F> {
    x: &'a [f32],
    cols: usize,
    format: PhantomData<F>,
}

impl<F: Float> Tiles for Plain<'_, F> {
    fn token_bytes(&self) -> usize {
        4 * self.cols
    }

    #[inline(always)]
    fn tile<S: Simd, const G: usize, const T: usize>(
        &self,
        s: S,
        groups: [&[u8]; G],
        rows: [usize; T],
    ) -> [[S::F; T]; G] {
        let tokens = std::array::from_fn(|t| &self.x[rows[t] * self.cols..][..self.cols]);
        float::tile::<S, F, G, T>(s, groups, tokens)
    }
}

thread_local! {
    /// The second products of the columns that a thread works on.
    static UP: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Where a thread packs groups of a weight that is as in the file.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Computes a range of a job's groups for all its rows.
fn run(isa: Isa, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    product(isa, input, job, groups.clone());
    if let Then::Gate(gating, up) = job.then {
        UP.with_borrow_mut(|scratch| gate(isa, input, job, gating, up, groups, scratch));
    }
}

/// Makes finished products the gate of the second ones, which stay in this thread's memory: `[rows, columns]` of the
/// groups at hand.
fn gate(
    isa: Isa,
    input: &Input<'_>,
    job: &Shared<'_>,
    gating: Gating,
    up: Up<'_>,
    groups: Range<usize>,
    scratch: &mut [f32],
) {
    let columns = groups.start * GROUP..(groups.end * GROUP).min(job.n_out);
    let (n, rows) = (columns.len(), job.rows.len());
    // `reserve` made it long enough.
    let scratch = &mut scratch[..rows * n];
    let second = Shared {
        weight: up.weight,
        held: up.weight.groups(),
        first: groups.start,
        n_out: n,
        bias: up.bias.map(|bias| &bias[columns.clone()]),
        rows: job.rows,
        out: SharedMut::new(scratch),
        then: Then::Keep,
    };
    product(isa, input, &second, 0..groups.len());
    match gating {
        Gating::Silu => dispatch!(isa, s => s.run(Gate { job, columns, up: scratch, gating: &SwiGlu })),
        Gating::Gelu => dispatch!(isa, s => s.run(Gate { job, columns, up: scratch, gating: &GeGlu })),
    }
}

/// Applies a gating to some columns of all rows of a job's output.
struct Gate<'a, 'j, G> {
    job: &'a Shared<'j>,
    columns: Range<usize>,
    /// The second products, `[rows, columns]`.
    up: &'a [f32],
    gating: &'a G,
}

impl<G: Pairwise> Kernel for Gate<'_, '_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, up) in self.up.chunks_exact(self.columns.len()).enumerate() {
            let start = row * self.job.n_out;
            // SAFETY: the columns of these groups belong to the calling thread.
            let out = unsafe { self.job.out.range(start + self.columns.start..start + self.columns.end) };
            zip(s, out, None, Some(up), self.gating);
        }
    }
}

/// The products of a range of a job's groups, bias and residual added. Groups that are not packed are packed first.
fn product(isa: Isa, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    if job.held.is_some() {
        return packed_product(isa, input, job, groups);
    }
    PACKED.with_borrow_mut(|buffer| {
        for first in groups.clone().step_by(job.weight.groups_per_piece()) {
            let piece = first..groups.end.min(first + job.weight.groups_per_piece());
            let (start, end) = (job.first + piece.start, job.first + piece.end);
            let held = dispatch!(isa, s => job.weight.pack_groups(s, start..end, buffer));
            packed_product(isa, input, &Shared { held: Some(held), ..*job }, piece);
        }
    });
}

/// The same of groups that are packed.
fn packed_product(isa: Isa, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    if job.weight.is_quantized() {
        dispatch_products!(isa, s => quantised(s, input, job, groups));
    } else {
        dispatch!(isa, s => plain(s, input, job, groups));
    }
}

fn quantised<S: Simd>(s: S, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    let tokens = 0..job.rows.len();
    with_format!(job.weight.ty(), F => if let Some(acts) = input.quant {
        match acts.planes() {
            1 => item(s, &Quantised::<F, 1> { acts, format: PhantomData }, job, groups, tokens),
            _ => item(s, &Quantised::<F, 2> { acts, format: PhantomData }, job, groups, tokens),
        }
    }, else => ());
}

fn plain<S: Simd>(s: S, input: &Input<'_>, job: &Shared<'_>, groups: Range<usize>) {
    let tokens = 0..job.rows.len();
    with_float!(job.weight.ty(), F => {
        item(s, &Plain::<F> { x: input.x, cols: input.cols, format: PhantomData }, job, groups, tokens);
    }, else => ());
}

fn item<S: Simd, K: Tiles>(s: S, tiles: &K, job: &Shared<'_>, groups: Range<usize>, tokens: Range<usize>) {
    if tokens.len() == 1 {
        let (mut rest, token) = (groups.clone(), tokens.start);
        if S::WIDE {
            let part = groups.len() / STREAMS;
            let streams = std::array::from_fn(|i| groups.start + i * part);
            s.run(Strip::<K, STREAMS, 1> { tiles, job, groups: streams, token, count: part, down: true });
            rest.start += STREAMS * part;
        }
        s.run(Strip::<K, 1, 1> { tiles, job, groups: [rest.start], token, count: rest.len(), down: true });
        return;
    }
    if S::WIDE
        && tokens.len() >= MANY[usize::from(S::Rows16::MANY)]
        && tiles.many(s, job, groups.clone(), tokens.clone())
    {
        return;
    }
    let block = (TOKEN_BLOCK / tiles.token_bytes().max(1)).max(8).next_multiple_of(8);
    for first in tokens.clone().step_by(block) {
        let end = tokens.end.min(first + block);
        for g in groups.clone() {
            let mut token = first;
            if S::WIDE {
                token = across::<S, K, 8>(s, tiles, job, g, token..end);
                token = across::<S, K, 4>(s, tiles, job, g, token..end);
                token = across::<S, K, 2>(s, tiles, job, g, token..end);
            }
            across::<S, K, 1>(s, tiles, job, g, token..end);
        }
    }
}

/// Computes as many tiles of `T` tokens as fit; returns the first token left.
fn across<S: Simd, K: Tiles, const T: usize>(
    s: S,
    tiles: &K,
    job: &Shared<'_>,
    group: usize,
    tokens: Range<usize>,
) -> usize {
    let count = tokens.len() / T;
    if count > 0 {
        s.run(Strip::<K, 1, T> { tiles, job, groups: [group], token: tokens.start, count, down: false });
    }
    tokens.start + count * T
}

/// Neighbouring tiles, computed one after another.
struct Strip<'a, 'j, K, const G: usize, const T: usize> {
    tiles: &'a K,
    job: &'a Shared<'j>,
    /// Groups of the first tile.
    groups: [usize; G],
    /// First token of the first tile.
    token: usize,
    count: usize,
    /// Whether the next tile is one group further down, or `T` tokens across.
    down: bool,
}

impl<K: Tiles, const G: usize, const T: usize> Kernel for Strip<'_, '_, K, G, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut groups, mut token) = (self.groups, self.token);
        for _ in 0..self.count {
            let mut packed: [&[u8]; G] = [&[]; G];
            for (packed, &g) in packed.iter_mut().zip(&groups) {
                *packed = self.job.packed(g);
            }
            let mut inputs = [0; T];
            for (t, input) in inputs.iter_mut().enumerate() {
                *input = self.job.rows.at(token + t).input;
            }
            let sums = self.tiles.tile::<S, G, T>(s, packed, inputs);
            for (&g, sums) in groups.iter().zip(&sums) {
                for (t, &sum) in sums.iter().enumerate() {
                    let row = self.job.rows.at(token + t).output;
                    // SAFETY: work items are disjoint ranges of groups, each run by one thread, and two jobs
                    // on one output have no row in common.
                    unsafe { self.job.put(s, g, row, sum, true) };
                }
            }
            if self.down {
                for g in &mut groups {
                    *g += 1;
                }
            } else {
                token += T;
            }
        }
    }
}
