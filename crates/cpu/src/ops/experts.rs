//! Mixture of experts: the choice of experts, their shares, products with their weights, and the sum.

use super::parallel::for_each_row;
use super::{Ctx, Kernel, Scratch};
use crate::buffers::typed;
use crate::dispatch;
use crate::matmul::{ExpertJob, ExpertRows, GROUP, Input, Pair, Raw, matmul_experts};
use crate::simd::{Simd, exp_f32};
use minfer_graph::{BackendError, ExpertMatMul, Graph, Node, Unsupported, room};
use std::cmp::Ordering;

/// Lists that a member of a team reuses: who is chosen, and for which rows.
#[derive(Default)]
pub struct ExpertLists {
    /// All experts of a row, best first.
    order: Vec<usize>,
    /// Where each expert's pairs end; those of the first begin at 0.
    ends: Vec<usize>,
    /// The places of chosen experts, by expert and in their order.
    pairs: Vec<Pair>,
}

impl ExpertLists {
    /// Sorts the places `0..experts.len()` by the expert chosen there, each below `n_expert`. `input` is the row of the
    /// input for a place.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn sort(
        &mut self,
        experts: &[i32],
        n_expert: usize,
        input: impl Fn(usize) -> usize,
    ) -> Result<(), BackendError> {
        let Self { ends, pairs, .. } = self;
        ends.clear();
        pairs.clear();
        room::resize(ends, n_expert, 0)?;
        room::resize(pairs, experts.len(), Pair { input: 0, output: 0 })?;
        for &expert in experts {
            ends[expert as usize] += 1;
        }
        // From numbers of pairs to where they begin; each start then moves to the end while its pairs are put down.
        let mut start = 0;
        for place in ends.iter_mut() {
            start += std::mem::replace(place, start);
        }
        for (i, &expert) in experts.iter().enumerate() {
            let place = &mut ends[expert as usize];
            pairs[*place] = Pair { input: input(i), output: i };
            *place += 1;
        }
        Ok(())
    }

    /// The pairs of one expert.
    fn of(&self, expert: usize) -> &[Pair] {
        let start = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pairs[start..self.ends[expert]]
    }
}

/// Indices of each row's largest values, best first.
pub struct TopExperts {
    /// Experts per token.
    pub n_used: usize,
}

/// NaN first, then by falling value; the lower index among equals.
fn by_rank(logits: &[f32], a: usize, b: usize) -> Ordering {
    let (x, y) = (logits[a], logits[b]);
    let order = match (x.is_nan(), y.is_nan()) {
        (false, false) => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
        (nan, other) => other.cmp(&nan),
    };
    order.then(a.cmp(&b))
}

impl Kernel for TopExperts {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let n_expert = source(&ctx, 0)?.shape.cols;
        let ([logits], [out]) = ctx.views([ctx.input(0)?], [ctx.output()?])?;
        let logits: &[f32] = typed(logits)?;
        let order = &mut ctx.scratch.experts.order;
        room::reserve(order, n_expert)?;
        for_each_row(ctx.team, out.cast::<i32>()?, self.n_used, |row, out| {
            let logits = &logits[row * n_expert..][..n_expert];
            order.clear();
            order.extend(0..n_expert);
            order.sort_unstable_by(|&a, &b| by_rank(logits, a, b));
            for (out, &expert) in out.iter_mut().zip(order.iter()) {
                *out = i32::try_from(expert).unwrap_or(i32::MAX);
            }
        });
        Ok(())
    }
}

/// Shares of the chosen experts.
pub struct ExpertShares {
    /// Whether they sum up to 1.
    pub over_chosen: bool,
    /// Factor on the shares.
    pub scale: f32,
}

impl ExpertShares {
    /// `exp(x - max)` over its sum; sums run in ascending order of experts, or of ranks.
    fn shares(&self, logits: &[f32], chosen: &[i32], out: &mut [f32]) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (out, &expert) in out.iter_mut().zip(chosen) {
            *out = exp_f32(logits[expert as usize] - max);
        }
        let sum: f32 = match self.over_chosen {
            true => out.iter().sum(),
            false => logits.iter().map(|x| exp_f32(x - max)).sum(),
        };
        for out in out {
            *out = *out / sum * self.scale;
        }
    }
}

impl Kernel for ExpertShares {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let (n_expert, n_used) = (source(&ctx, 0)?.shape.cols, ctx.call.node.shape.cols);
        let ([logits, experts], [out]) = ctx.views([ctx.input(0)?, ctx.input(1)?], [ctx.output()?])?;
        let (logits, experts): (&[f32], &[i32]) = (typed(logits)?, typed(experts)?);
        check_experts(experts, n_expert)?;
        for_each_row(ctx.team, out.cast()?, n_used, |row, out| {
            self.shares(&logits[row * n_expert..][..n_expert], &experts[row * n_used..][..n_used], out);
        });
        Ok(())
    }
}

impl Kernel for ExpertMatMul {
    fn check(&self, graph: &Graph) -> Result<(), Unsupported> {
        let weight = graph.weight(self.weight);
        super::weights::check_matrix(weight)?;
        if !(weight.rows / self.n_expert).is_multiple_of(GROUP) {
            let n_out = weight.rows / self.n_expert;
            return Err(Unsupported(format!(
                "{n_out} rows per expert of `{}`: no multiple of 8",
                weight.name
            )));
        }
        self.bias.map_or(Ok(()), |b| super::weights::check_matrix(graph.weight(b)))
    }

    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let graph = ctx.call.graph;
        let weight = ctx.weights.matrix(graph, self.weight, ctx.pool)?;
        let bias = self.bias.map(|b| ctx.weights.matrix(graph, b, ctx.pool)).transpose()?;
        let (x_cols, n_used) = (source(&ctx, 0)?.shape.cols, source(&ctx, 1)?.shape.cols);
        let n_out = weight.rows() / self.n_expert;
        let ([x, experts], [out]) = ctx.views([ctx.input(0)?, ctx.input(1)?], [ctx.output()?])?;
        let (x, experts): (&[f32], &[i32]) = (typed(x)?, typed(experts)?);
        check_experts(experts, self.n_expert)?;
        let shared = x_cols == weight.cols();
        let Scratch { activations, experts: lists, .. } = ctx.scratch;
        lists.sort(experts, self.n_expert, |i| if shared { i / n_used } else { i })?;
        let rows = |expert: usize| lists.of(expert);

        let mut biases = Vec::new();
        room::resize(&mut biases, if bias.is_some() { self.n_expert * n_out } else { 0 }, 0.0)?;
        if let Some(bias) = bias {
            for (e, out) in biases.chunks_exact_mut(n_out).enumerate().filter(|(e, _)| !rows(*e).is_empty()) {
                bias.row(e, out)?;
            }
        }
        let mut used = room::with_room(self.n_expert)?;
        used.extend((0..self.n_expert).filter(|&e| !rows(e).is_empty()).map(|expert| ExpertRows {
            expert,
            bias: bias.map(|_| &biases[expert * n_out..][..n_out]),
            rows: rows(expert),
        }));

        let cols = weight.cols();
        let n_rows = x.len() / cols;
        let raw = Raw { x, rows: n_rows, cols, norm: None };
        let quant = match weight.is_quantized() {
            true => Some(activations.quantize_together(ctx.isa, ctx.team, &raw, self.act)?),
            false => None,
        };
        let input = Input { x, rows: n_rows, cols, quant };
        let job = ExpertJob { weight, n_out, experts: used, out: out.cast()? };
        matmul_experts(ctx.isa, ctx.team, &input, job)
    }
}

/// `out[t] = sum_r shares[t, r] * x[t, r]` in rank order, by fma.
pub struct ExpertSum;

impl Kernel for ExpertSum {
    fn run(&self, ctx: Ctx<'_>) -> Result<(), BackendError> {
        let (cols, n_used) = (ctx.call.node.shape.cols, source(&ctx, 1)?.shape.cols);
        let ([x, shares], [out]) = ctx.views([ctx.input(0)?, ctx.input(1)?], [ctx.output()?])?;
        let (x, shares): (&[f32], &[f32]) = (typed(x)?, typed(shares)?);
        for_each_row(ctx.team, out.cast()?, cols, |row, out| {
            let parts = &x[row * n_used * cols..][..n_used * cols];
            let shares = &shares[row * n_used..][..n_used];
            dispatch!(ctx.isa, s => s.vectorize(|| weighted_sum(s, parts, shares, out)));
        });
        Ok(())
    }
}

#[inline(always)]
fn weighted_sum<S: Simd>(s: S, parts: &[f32], shares: &[f32], out: &mut [f32]) {
    let cols = out.len();
    let whole = cols - cols % 8;
    for i in (0..whole).step_by(8) {
        let mut acc = s.zero();
        for (r, &share) in shares.iter().enumerate() {
            acc = s.fma(s.splat(share), s.load(&parts[r * cols + i..]), acc);
        }
        s.store(acc, &mut out[i..]);
    }
    for i in whole..cols {
        let mut acc = 0.0f32;
        for (r, &share) in shares.iter().enumerate() {
            acc = share.mul_add(parts[r * cols + i], acc);
        }
        out[i] = acc;
    }
}

fn source<'a>(ctx: &Ctx<'a>, i: usize) -> Result<&'a Node, BackendError> {
    let call = ctx.call;
    let node = call.node.src.get(i).and_then(|&s| call.graph.nodes.get(s));
    node.ok_or_else(|| BackendError::BadBuffer(format!("source {i} is missing")))
}

fn check_experts(experts: &[i32], n_expert: usize) -> Result<(), BackendError> {
    match experts.iter().find(|&&e| usize::try_from(e).map_or(true, |e| e >= n_expert)) {
        Some(&e) => Err(BackendError::OutOfRange { what: "expert", value: e.into(), limit: n_expert }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpertLists, Pair};

    #[test]
    fn places_are_sorted_by_expert() {
        let mut lists = ExpertLists::default();
        for (experts, n_expert) in [(vec![2, 0, 2, 3, 0, 2], 5), (vec![], 3), (vec![0], 1)] {
            lists.sort(&experts, n_expert, |i| i / 2).unwrap();
            for expert in 0..n_expert {
                let chosen = experts.iter().enumerate().filter(|&(_, &e)| e as usize == expert);
                let wanted: Vec<_> = chosen.map(|(i, _)| Pair { input: i / 2, output: i }).collect();
                assert_eq!(lists.of(expert), wanted, "{expert} of {experts:?}");
            }
        }
    }
}
