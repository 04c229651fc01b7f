//! From a specification to a compute graph. Building is pure: equal parameters, equal graph.

use crate::blocks::{StepInputs, attention, feed_forward, linear, norm, optional_norm, scaled};
use crate::spec::ModelSpec;
use minfer_graph::{
    ActPrecision, Dim, Graph, GraphBuilder, GraphError, InputKind, Op, PAGE, Shape, StepDims,
};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Which part of the model a graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Tokens to logits of the output rows.
    Full,
    /// Tokens to the normed hidden state of the output rows.
    Body,
    /// Normed hidden state to logits, so that logits of many rows can be taken in slices.
    Head,
}

/// Everything a graph depends on besides the model. `n_past` is data and never here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphParams {
    /// Part of the model.
    pub stage: Stage,
    /// Largest step.
    pub capacity: StepDims,
    /// Pages per sequence that a page table can name.
    pub max_pages: usize,
}

/// Names of nodes that callers look up.
pub mod node_names {
    /// The logits, `[Outputs, n_vocab]`.
    pub const LOGITS: &str = "output";
    /// The normed hidden state, `[Outputs, n_embd]`.
    pub const HIDDEN: &str = "output_norm";
    /// The head graph's input, `[Outputs, n_embd]`.
    pub const HEAD_INPUT: &str = "hidden";
}

/// Builds the plain graph of a stage. `model_id` tells models apart in the graph's uid.
pub fn build_graph(spec: &ModelSpec, params: &GraphParams, model_id: u64) -> Result<Graph, GraphError> {
    let mut hasher = DefaultHasher::new();
    (model_id, params).hash(&mut hasher);
    let seed = hasher.finish();
    let mut b = GraphBuilder::new();
    let hidden = match params.stage {
        Stage::Full | Stage::Body => body(&mut b, spec, params)?,
        Stage::Head => b.input_value(node_names::HEAD_INPUT, Shape::new(Dim::Outputs, spec.n_embd)),
    };
    match params.stage {
        Stage::Body => b.output(hidden),
        Stage::Full | Stage::Head => {
            let logits = head(&mut b, spec, hidden)?;
            b.output(logits);
        }
    }
    Ok(b.finish(seed))
}

fn body(b: &mut GraphBuilder, spec: &ModelSpec, params: &GraphParams) -> Result<usize, GraphError> {
    let ids = b.input("token_ids", InputKind::TokenIds, 1);
    let positions = b.input("positions", InputKind::Positions, 1);
    let extents = b.input("extents", InputKind::Extents, 3);
    let output_rows = b.input("output_rows", InputKind::OutputRows, 1);
    let groups = 0..spec.n_kv_groups();
    let kv_rows = groups.clone().map(|group| b.input("kv_rows", InputKind::KvRows { group }, 1)).collect();
    let page_tables =
        groups.map(|group| b.input("page_table", InputKind::PageTable { group }, params.max_pages)).collect();
    let n_ctx = params.max_pages * PAGE;
    let inputs = StepInputs { positions, extents, kv_rows, page_tables, n_ctx };

    let table = b.weight(spec.token_embd.clone());
    let embedded = b.embed("token_embd", table, ids)?;
    let mut x = scaled(b, "embd_scaled", spec.embedding_scale, embedded)?;
    for (i, layer) in spec.layers.iter().enumerate() {
        b.enter_block(Some(i));
        let name = |part: &str| format!("blk.{i}.{part}");
        let eps = spec.norm_eps;
        let normed = optional_norm(b, layer.attn_norm.as_ref(), eps, x)?;
        let mut mixed = attention(b, i, &layer.attention, eps, normed, &inputs)?;
        // Nothing after the last attention mixes rows: only the rows somebody wants go on.
        if i + 1 == spec.layers.len() {
            mixed = b.gather_rows(&name("attn_rows"), mixed, output_rows)?;
            x = b.gather_rows(&name("residual_rows"), x, output_rows)?;
        }
        let projected = linear(b, &layer.attention.output, ActPrecision::Int8, mixed)?;
        let added = optional_norm(b, layer.attn_post_norm.as_ref(), eps, projected)?;
        let added = scaled(b, &name("attn_scaled"), spec.residual_scale, added)?;
        x = b.add(&name("attn_residual"), x, added)?;
        let normed = optional_norm(b, layer.ffn_norm.as_ref(), eps, x)?;
        let ffn = feed_forward(b, i, &layer.ffn, normed)?;
        let added = optional_norm(b, layer.ffn_post_norm.as_ref(), eps, ffn)?;
        let added = scaled(b, &name("ffn_scaled"), spec.residual_scale, added)?;
        x = b.add(&name("ffn_residual"), x, added)?;
    }
    b.enter_block(Some(spec.layers.len()));
    norm(b, &spec.output_norm, spec.norm_eps, x)
}

fn head(b: &mut GraphBuilder, spec: &ModelSpec, hidden: usize) -> Result<usize, GraphError> {
    b.enter_block(Some(spec.layers.len()));
    let weight = b.weight(spec.output.weight.clone());
    let mut logits = b.matmul(node_names::LOGITS, weight, ActPrecision::Int16, hidden)?;
    if let Some(bias) = &spec.output.bias {
        let bias = b.weight(bias.clone());
        logits = b.add_bias("output.bias", bias, logits)?;
    }
    logits = scaled(b, "output_scaled", spec.logit_scale, logits)?;
    match spec.logit_softcap {
        None => Ok(logits),
        Some(cap) => b.push("output_capped", Op::SoftCap { cap }, &[logits]),
    }
}
