//! Ops that copy whole rows: the embedding table and the choice of output rows.

use super::parallel::for_each_row;
use super::{Ctx, Kernel};
use crate::buffers::typed;
use minfer_graph::{BackendError, Graph, Unsupported, WeightId};
use std::sync::OnceLock;

/// Checks indices read from an input against the table they point into.
fn check_indices(what: &'static str, indices: &[i32], limit: usize) -> Result<(), BackendError> {
    let outside = |&&i: &&i32| usize::try_from(i).map_or(true, |i| i >= limit);
    match indices.iter().find(outside) {
        Some(&i) => Err(BackendError::OutOfRange { what, value: i.into(), limit }),
        None => Ok(()),
    }
}

/// Rows of an embedding table as f32.
pub struct Embed {
    /// The table.
    pub weight: WeightId,
}

impl Kernel for Embed {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        super::weights::check_matrix(graph.weight(self.weight))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let table = ctx.weights.matrix(ctx.call.graph, self.weight, ctx.pool)?;
        let spec = ctx.call.graph.weight(self.weight);
        let ([ids], [out]) = ctx.views([ctx.input(0)?], [ctx.output()?])?;
        let ids: &[i32] = typed(ids)?;
        check_indices("token id", ids, spec.rows)?;
        let failed = OnceLock::new();
        for_each_row(ctx.team, out.cast()?, spec.cols, |i, row| {
            if let Err(e) = table.row(ids[i] as usize, row) {
                failed.get_or_init(|| e);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }
}

/// Rows picked by index.
pub struct GatherRows;

impl Kernel for GatherRows {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let cols = ctx.call.node.shape.cols;
        let ([x, rows], [out]) = ctx.views([ctx.input(0)?, ctx.input(1)?], [ctx.output()?])?;
        let (x, rows): (&[f32], &[i32]) = (typed(x)?, typed(rows)?);
        check_indices("output row", rows, x.len().checked_div(cols).unwrap_or(0))?;
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            out.copy_from_slice(&x[rows[row] as usize * cols..][..cols]);
        });
        Ok(())
    }
}
