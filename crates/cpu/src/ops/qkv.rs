//! Projections, biases, rotation and KV store in one call: the same functions as the separate ops, so
//! the same bits, with the input quantised once and k and v never leaving the scratch memory.

use super::matmul::{self, project};
use super::parallel::for_each_row;
use super::rope::rope_factors;
use super::{Ctx, Kernel, Scratch, kv};
use crate::buffers::typed;
use crate::matmul::{Job, SharedMut};
use minfer_graph::{BackendError, Graph, QkvRopeStore, Unsupported, WeightId, room};

impl Kernel for QkvRopeStore {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        kv::check_shape(&self.kv)?;
        for (weight, bias) in [(self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv)] {
            matmul::check(graph, weight, bias)?;
        }
        self.rope.check(graph)
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let graph = ctx.call.graph;
        let kv = kv::kv_regions(&ctx, &self.kv)?;
        let factors = rope_factors(&ctx, self.rope.factors)?;
        let reads = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
        let ([x, positions, kv_rows], [q, k_region, v_region]) =
            ctx.views(reads, [ctx.output()?, kv.k, kv.v])?;
        let (x, q): (&[f32], SharedMut<'_, f32>) = (typed(x)?, q.cast()?);
        // Checked before anything is written.
        let rows = kv::locate_rows(typed(kv_rows)?, kv.n_pages)?;
        let (k_cols, v_cols) = (self.kv.n_kv_head * self.kv.head_dim, self.kv.n_kv_head * self.kv.v_dim);
        let Scratch { kv_rows, activations, rope, .. } = ctx.scratch;
        // SAFETY: all members run this node.
        let [k, v] = unsafe {
            ctx.team.try_share(|| {
                let [k, v] = kv_rows;
                room::resize(k, rows.len() * k_cols, 0.0)?;
                room::resize(v, rows.len() * v_cols, 0.0)?;
                Ok([SharedMut::new(k), SharedMut::new(v)])
            })
        }?;
        let job = |weight, bias: Option<WeightId>, out| -> Result<Job<'_>, BackendError> {
            let bias = bias.map(|b| ctx.weights.vector(graph, b)).transpose()?;
            Ok(Job::new(ctx.weights.matrix(graph, weight, ctx.pool)?, bias, out))
        };
        let jobs = [job(self.wq, self.bq, q)?, job(self.wk, self.bk, k)?, job(self.wv, self.bv, v)?];
        project(ctx.isa, ctx.team, activations, x, rows.len(), self.act, &jobs)?;
        let table = rope.table(&self.rope, factors, typed(positions)?)?;
        let rotate = |row: usize, x: &mut [f32]| table.rotate_row(ctx.isa, &self.rope, row, x);
        for_each_row(ctx.team, q, ctx.call.node.shape.cols, rotate);
        for_each_row(ctx.team, k, k_cols, rotate);
        // SAFETY: the members have met since the last write, and write no more.
        let kv_rows = unsafe { [k.read(), v.read()] };
        let regions = kv::regions_mut([k_region, v_region], kv.ty)?;
        kv::store_rows(ctx.isa, ctx.team, &self.kv, &rows, kv_rows, &regions);
        Ok(())
    }
}
