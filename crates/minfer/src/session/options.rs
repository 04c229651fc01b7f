//! Sizes and switches of a session.

use crate::error::Error;
use minfer_graph::{FusionSwitches, KvType, KvTypes, PAGE, StepDims};
use minfer_models::{ModelSpec, Stage};
use std::sync::Arc;

/// Rows of logits that the head graph computes at a time.
pub(super) const HEAD_SLICE: usize = 32;

/// Receives the text form of a plan.
pub type GraphTrace = Arc<dyn Fn(&str) + Send + Sync>;

/// Sizes and switches of a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Positions per sequence.
    pub n_ctx: usize,
    /// Largest number of tokens in one step; longer prompts are cut into chunks.
    pub n_batch: usize,
    /// Sequences that can exist at once.
    pub max_seqs: usize,
    /// Pages of 64 positions in the KV cache; `None`: as many as `max_seqs` whole contexts take. With fewer, sequences
    /// share what there is.
    pub kv_pages: Option<usize>,
    /// Element type of the KV cache.
    pub kv_types: KvTypes,
    /// Which fusions may be applied.
    pub fusions: FusionSwitches,
    /// Receives the text form of each new plan.
    pub graph_trace: Option<GraphTrace>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            n_ctx: 8192,
            n_batch: 512,
            max_seqs: 1,
            kv_pages: None,
            kv_types: KvType::F16.into(),
            fusions: FusionSwitches::default(),
            graph_trace: None,
        }
    }
}

impl SessionOptions {
    /// Whether the sizes make sense for a model.
    ///
    /// # Errors
    /// A size of zero, a context beyond the model's, or a step or number of sequences beyond what indices hold.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), Error> {
        const MOST_ROWS: usize = i32::MAX as usize;
        const MOST_SEQS: usize = 1 << 16;
        if self.n_ctx > spec.n_ctx_train {
            return Err(Error::input(self.too_long(spec)));
        }
        let limits = [
            ("a number of pages", self.kv_pages.unwrap_or(1), MOST_ROWS / PAGE),
            ("a context", self.n_ctx, MOST_ROWS),
            ("a batch size", self.n_batch, MOST_ROWS),
            ("a number of sequences", self.max_seqs, MOST_SEQS),
        ];
        match limits.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            Some((what, value, most)) => {
                Err(Error::input(format!("{what} of {value}; it must be from 1 to {most}")))
            }
            None => Ok(()),
        }
    }
}

impl SessionOptions {
    /// Pages of the KV cache.
    pub fn n_pages(&self) -> usize {
        self.kv_pages.unwrap_or_else(|| self.n_ctx.div_ceil(PAGE).saturating_mul(self.max_seqs))
    }

    /// What is wrong with a context beyond the model's, and that memory would not allow it either.
    fn too_long(&self, spec: &ModelSpec) -> String {
        let (n_ctx, trained) = (self.n_ctx, spec.n_ctx_train);
        let per_page = spec.kv_shapes().map(|shape| {
            let (k, v) = self.kv_types.page_bytes(&shape);
            (k + v) as u64
        });
        let whole = (n_ctx.div_ceil(PAGE) as u64).checked_mul(self.max_seqs as u64);
        let pages = self.kv_pages.map_or(whole, |pages| Some(pages as u64));
        let cache = pages.and_then(|pages| pages.checked_mul(per_page.sum()));
        // No number of bytes has more digits: there is nothing to say of its memory.
        let Some(cache) = cache.map(|bytes| bytes >> 20) else {
            return format!(
                "a context of {n_ctx}: the largest usable is {trained}, which the model was trained on"
            );
        };
        let host = crate::devices::devices().unwrap_or_default().into_iter().next();
        let free = host.and_then(|host| host.memory.free);
        let free = free.map_or(String::new(), |free| format!("; {} MiB are free", free >> 20));
        format!(
            "a context of {n_ctx} exceeds the {trained} that the model was trained on \
             (its KV cache would take {cache} MiB{free})"
        )
    }
}

/// Most rows whose logits one step gives.
pub(super) fn max_outputs(options: &SessionOptions) -> usize {
    options.max_seqs.max(HEAD_SLICE.min(options.n_batch))
}

/// The largest step of a stage's plan.
pub(crate) fn stage_capacity(options: &SessionOptions, stage: Stage) -> StepDims {
    let SessionOptions { n_batch, max_seqs, .. } = *options;
    match stage {
        Stage::Full => StepDims { tokens: n_batch, outputs: max_outputs(options), seqs: max_seqs },
        Stage::Body => StepDims { tokens: n_batch, outputs: n_batch, seqs: max_seqs },
        Stage::Head => StepDims { tokens: HEAD_SLICE, outputs: HEAD_SLICE, seqs: 1 },
    }
}
