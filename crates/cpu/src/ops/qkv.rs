//! Norms, projections, biases, rotation and KV store in one call: the same functions as the separate ops, so
//! the same bits, with the input quantised once and k and v never leaving the scratch memory.

use super::kv::{RegionMut, Side};
use super::matmul::{self, project};
use super::norm::{self, LoadedNorm};
use super::parallel::for_each_row;
use super::rope::{RopeTable, rope_factors};
use super::{Ctx, Kernel, kv};
use crate::buffers::typed;
use crate::matmul::{Job, Raw, SharedMut};
use crate::simd::Isa;
use crate::team::Team;
use minfer_graph::{BackendError, Graph, KvShape, NodeCall, QkvRopeStore, Rope, Unsupported, WeightId};

/// Up to so many rows the keys are finished by one member, which saves two meetings.
const FEW: usize = 16;

/// Values of k and of v per row.
fn kv_cols(kv: &KvShape) -> [usize; 2] {
    [kv.n_kv_head * kv.head_dim, kv.n_kv_head * kv.v_dim]
}

impl Kernel for QkvRopeStore {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        kv::check_shape(&self.kv)?;
        for (weight, bias) in [(self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv)] {
            matmul::check(graph, weight, bias)?;
        }
        [self.norm, self.q_norm, self.k_norm].into_iter().try_for_each(|norm| norm::check(graph, norm))?;
        self.rope.check(graph)
    }

    /// The rows of k and v before they are stored.
    fn common(&self, call: &NodeCall<'_>) -> usize {
        call.node.shape.n_rows(call.dims) * kv_cols(&self.kv).iter().sum::<usize>()
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let graph = ctx.call.graph;
        let kv = kv::kv_regions(&ctx, &self.kv)?;
        let factors = rope_factors(&ctx, self.rope.factors)?;
        let norm = |norm| LoadedNorm::optional(&ctx, norm);
        let (x_norm, q_norm, k_norm) = (norm(self.norm)?, norm(self.q_norm)?, norm(self.k_norm)?);
        let reads = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
        let ([x, positions, kv_rows], [q, k_region, v_region]) =
            ctx.views(reads, [ctx.output()?, kv.k, kv.v])?;
        let q: SharedMut<'_, f32> = q.cast()?;
        // Checked before anything is written.
        let rows = kv::locate_rows(typed(kv_rows)?, kv.n_pages)?;
        let [k_len, v_len] = kv_cols(&self.kv).map(|cols| rows.len() * cols);
        let (k, v) = (ctx.common.part(0..k_len), ctx.common.part(k_len..k_len + v_len));
        let job = |weight, bias: Option<WeightId>, out| -> Result<Job<'_>, BackendError> {
            let bias = bias.map(|b| ctx.weights.vector(graph, b)).transpose()?;
            Ok(Job::new(ctx.weights.matrix(graph, weight, ctx.pool)?, bias, out))
        };
        let jobs = [job(self.wq, self.bq, q)?, job(self.wk, self.bk, k)?, job(self.wv, self.bv, v)?];
        let raw = Raw { x: typed(x)?, rows: rows.len(), cols: jobs[0].weight.cols(), norm: x_norm };
        project(ctx.isa, ctx.team, ctx.scratch, &raw, self.act, &jobs)?;
        let finish = Finish {
            isa: ctx.isa,
            rope: &self.rope,
            table: ctx.scratch.rope.table(&self.rope, factors, typed(positions)?)?,
            norms: [q_norm, k_norm],
            kv: &self.kv,
            rows: &rows,
            regions: kv::regions_mut([k_region, v_region], kv.ty)?,
        };
        finish.run(ctx.team, q, k, v);
        Ok(())
    }
}

/// What is done to projected rows.
struct Finish<'a> {
    isa: Isa,
    rope: &'a Rope,
    table: &'a RopeTable,
    /// Of q and of k.
    norms: [Option<LoadedNorm<'a>>; 2],
    kv: &'a KvShape,
    /// Page and slot of each row.
    rows: &'a [(usize, usize)],
    regions: [RegionMut<'a>; 2],
}

impl Finish<'_> {
    /// Normalises and rotates q and k, and stores k and v.
    fn run(&self, team: &Team<'_>, q: SharedMut<'_, f32>, k: SharedMut<'_, f32>, v: SharedMut<'_, f32>) {
        let n = self.rows.len();
        if n == 0 {
            return;
        }
        let [q_cols, k_cols] = [q.len() / n, k.len() / n];
        let [q_norm, k_norm] = &self.norms;
        if n > FEW {
            for_each_row(team, q, q_cols, |row, q| self.rotate(q_norm, row, q));
            for_each_row(team, k, k_cols, |row, k| self.rotate(k_norm, row, k));
            // SAFETY: the members have met since the last write, and write no more.
            let kv = unsafe { [k.read(), v.read()] };
            return kv::store_rows(self.isa, team, self.kv, self.rows, kv, &self.regions);
        }
        team.chunks(2 + n, 1, |units| {
            for unit in units {
                match unit {
                    0 => {
                        // SAFETY: nobody else works on k.
                        let k = unsafe { k.range(0..k.len()) };
                        k.chunks_exact_mut(k_cols)
                            .enumerate()
                            .for_each(|(row, k)| self.rotate(k_norm, row, k));
                        self.store(Side::K, k);
                    }
                    // SAFETY: nobody writes v.
                    1 => self.store(Side::V, unsafe { v.read() }),
                    _ => {
                        let row = unit - 2;
                        // SAFETY: each row is one unit.
                        self.rotate(q_norm, row, unsafe { q.range(row * q_cols..(row + 1) * q_cols) });
                    }
                }
            }
        });
    }

    fn rotate(&self, norm: &Option<LoadedNorm<'_>>, row: usize, x: &mut [f32]) {
        if let Some(norm) = norm {
            norm.row(self.isa, x, None);
        }
        self.table.rotate_row(self.isa, self.rope, row, x);
    }

    /// Stores all heads of a side.
    fn store(&self, side: Side, x: &[f32]) {
        for head in 0..self.kv.n_kv_head {
            // SAFETY: a side is one unit of work.
            unsafe { kv::store_head(self.isa, self.kv, side, head, self.rows, x, &self.regions) };
        }
    }
}
