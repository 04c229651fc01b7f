//! Runs batches of tokens of several sequences over a paged KV cache.

mod options;
mod pieces;

pub(crate) use options::stage_capacity;
pub use options::{GraphTrace, SessionOptions};

use crate::batch::{Batch, Wanted};
use crate::error::{Error, ErrorKind};
use crate::kv_cache::{KvCache, PageCounts, SeqId};
use crate::model::Model;
use crate::plans::stage_plan;
use minfer_graph::{
    BackendScheduler, BackendTag, Counters, Graph, GraphAllocator, InputKind, KvStorage, NodeId,
    NodeObserver, NodeRun, PAGE, Plan, SchedulerOptions, Step, StepDims, room, trace_plan,
};
use minfer_models::Stage;
use options::{HEAD_SLICE, max_outputs};
use pieces::{Piece, cut_batch};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes a token's index and its logits, `[n_vocab]`.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) -> Result<(), Error> + 'a;

/// Told of every node of a step after it ran, with the step's extents: three numbers for each sequence, the first of its
/// tokens in the batch, their number, and the position of the first.
pub type StepObserver<'a> = dyn Fn(&NodeRun<'_>, &[i32]) + 'a;

/// What a caller can say and see while a call runs.
#[derive(Clone, Copy, Default)]
pub struct Control<'a> {
    /// Set from elsewhere to stop between nodes; the sequences are then as before the call.
    pub cancel: Option<&'a AtomicBool>,
    /// Called with tokens done and tokens in all after each step.
    pub progress: Option<&'a dyn Fn(usize, usize)>,
    /// Told of every node, which is then run by itself: what profiles are made of. Bits don't change, times do a little.
    pub observe: Option<&'a StepObserver<'a>>,
}

impl Control<'_> {
    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.is_some_and(|c| c.load(Ordering::Relaxed))
    }
}

/// Logits of the wanted rows of a batch, in the batch's order.
pub struct Logits {
    n_vocab: usize,
    values: Vec<f32>,
    rows: Vec<(SeqId, usize)>,
}

impl Logits {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Row `i`, `[n_vocab]`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n_vocab..][..self.n_vocab]
    }

    /// Sequence and position of row `i`.
    pub fn origin(&self, i: usize) -> (SeqId, usize) {
        self.rows[i]
    }
}

/// A planned graph with its buffers.
struct Compiled {
    plan: Plan,
    alloc: GraphAllocator,
    inputs: Inputs,
    result: NodeId,
}

/// Input nodes of a graph, looked up once.
struct Inputs {
    token_ids: Option<NodeId>,
    positions: Option<NodeId>,
    extents: Option<NodeId>,
    output_rows: Option<NodeId>,
    kv_rows: Vec<NodeId>,
    page_tables: Vec<NodeId>,
    value: Option<NodeId>,
}

impl Inputs {
    fn of(graph: &Graph, groups: usize) -> Self {
        let group_inputs = |kind: fn(usize) -> InputKind| {
            (0..groups).filter_map(|g| graph.input(kind(g))).collect::<Vec<_>>()
        };
        Inputs {
            token_ids: graph.input(InputKind::TokenIds),
            positions: graph.input(InputKind::Positions),
            extents: graph.input(InputKind::Extents),
            output_rows: graph.input(InputKind::OutputRows),
            kv_rows: group_inputs(|group| InputKind::KvRows { group }),
            page_tables: group_inputs(|group| InputKind::PageTable { group }),
            value: graph.input(InputKind::Value),
        }
    }
}

/// Host data of one step, reused from step to step.
#[derive(Default)]
struct StepData {
    token_ids: Vec<i32>,
    positions: Vec<i32>,
    kv_rows: Vec<i32>,
    extents: Vec<i32>,
    page_table: Vec<i32>,
    output_rows: Vec<i32>,
    origins: Vec<(SeqId, usize)>,
    kv_pages: usize,
}

/// A KV cache and the plans that fill and read it.
pub struct Session {
    model: Model,
    options: SessionOptions,
    max_pages: usize,
    kv: KvCache,
    compiled: HashMap<Stage, Compiled>,
    scheduler: BackendScheduler,
    data: StepData,
    logits: Logits,
    hidden: Vec<f32>,
}

impl Session {
    /// Allocates the KV cache and plans the graph.
    ///
    /// # Errors
    /// Sizes that make no sense, a node that no device can run, or not enough memory.
    pub fn new(model: &Model, options: SessionOptions) -> Result<Session, Error> {
        options.check(model.spec())?;
        let max_pages = options.n_ctx.div_ceil(PAGE);
        let n_pages = options.n_pages();
        let mut backends = model.backends()?;
        let storage = KvStorage::new(&mut backends, model.kv_layers(), n_pages, options.kv_types)?;
        drop(backends);
        let kv = KvCache::new(storage, n_pages, options.max_seqs, options.n_ctx);
        let logits = Logits { n_vocab: model.spec().n_vocab, values: Vec::new(), rows: Vec::new() };
        let mut session = Session {
            model: model.clone(),
            options,
            max_pages,
            kv,
            compiled: HashMap::new(),
            scheduler: BackendScheduler::new(SchedulerOptions::default()),
            data: StepData::default(),
            logits,
            hidden: Vec::new(),
        };
        session.compile(Stage::Full)?;
        Ok(session)
    }

    /// The model it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its options.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Bytes of the KV cache on all devices.
    pub fn kv_bytes(&self) -> u64 {
        self.kv.storage.bytes() as u64
    }

    /// What the scheduler has counted so far.
    pub fn counters(&self) -> &Counters {
        &self.scheduler.counters
    }

    /// The plan of a stage.
    ///
    /// # Errors
    /// As [`Session::new`], on the first call for the stage.
    pub fn plan(&mut self, stage: Stage) -> Result<&Plan, Error> {
        self.compile(stage)?;
        Ok(&self.compiled[&stage].plan)
    }

    /// The last step's logits.
    pub fn logits(&self) -> &Logits {
        &self.logits
    }

    /// The last step's logits and layer 0's KV regions, as the devices hold them, for comparing runs.
    ///
    /// # Errors
    /// What a device reports.
    pub fn dump(&self) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
        let logits = self.logits.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut files = vec![("logits.f32", logits)];
        if let Some(region) = self.kv.storage.region(0) {
            let mut backends = self.model.backends()?;
            for (name, slice) in [("layer0.k", region.pair.k), ("layer0.v", region.pair.v)] {
                let mut bytes = vec![0; slice.len];
                let read = backends.get_mut(region.backend)?.read_host(slice, &mut bytes);
                let backend = region.backend;
                read.map_err(|source| minfer_graph::GraphError::Backend { backend, source })?;
                files.push((name, bytes));
            }
        }
        Ok(files)
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// All `max_seqs` are in use.
    pub fn new_sequence(&mut self) -> Result<SeqId, Error> {
        self.kv.create()
    }

    /// Ends a sequence and frees its pages.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn remove_sequence(&mut self, seq: SeqId) -> Result<(), Error> {
        self.kv.remove(seq)
    }

    /// Positions of a sequence that are in the cache.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn sequence_len(&self, seq: SeqId) -> Result<usize, Error> {
        self.kv.len(seq)
    }

    /// Forgets a sequence's positions from `len` on.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), Error> {
        self.kv.truncate(seq, len)
    }

    /// A new sequence that begins with all positions of another. What they share is computed and kept once.
    ///
    /// # Errors
    /// The sequence does not exist, or all `max_seqs` are in use.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        self.kv.fork(seq)
    }

    /// Gives an empty sequence what is kept of a beginning of `tokens`, in whole pages and at least one token short of all;
    /// returns how many tokens need not be computed.
    ///
    /// # Errors
    /// The sequence does not exist or is not empty.
    pub fn adopt_prefix(&mut self, seq: SeqId, tokens: &[u32]) -> Result<usize, Error> {
        self.kv.adopt(seq, tokens)
    }

    /// Keeps a sequence's full pages for [`Session::adopt_prefix`], until they are needed for something else. `tokens` are
    /// those that were appended to it, in order.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn keep_prefix(&mut self, seq: SeqId, tokens: &[u32]) -> Result<(), Error> {
        self.kv.keep(seq, tokens)
    }

    /// Forgets all that [`Session::keep_prefix`] kept.
    pub fn clear_prefixes(&mut self) {
        self.kv.clear_kept();
    }

    /// The pages of the KV cache.
    pub fn page_counts(&self) -> PageCounts {
        self.kv.counts()
    }

    /// Pages that `n` more positions of a sequence would take.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn pages_for(&self, seq: SeqId, n: usize) -> Result<usize, Error> {
        self.kv.missing(seq, n)
    }

    /// Appends the batch's tokens to their sequences and computes the wanted logits. A batch larger than
    /// `n_batch` runs in several steps. After an error every sequence is as before the call.
    ///
    /// # Errors
    /// [`ErrorKind::Context`] if a sequence would pass the context, [`ErrorKind::Input`] for a token
    /// outside the vocabulary, [`ErrorKind::Cancelled`], or what a device reports.
    pub fn step(&mut self, batch: &Batch, control: &Control<'_>) -> Result<&Logits, Error> {
        self.check_batch(batch)?;
        let before: Vec<(SeqId, usize)> =
            batch.items.iter().map(|i| Ok((i.seq, self.kv.len(i.seq)?))).collect::<Result<_, Error>>()?;
        let done = self.run_batch(batch, control);
        if let Err(e) = done {
            for (seq, len) in before {
                self.kv.truncate(seq, len)?;
            }
            return Err(e);
        }
        Ok(&self.logits)
    }

    /// Appends tokens to a sequence and hands over the logits of every one of them, in order, without
    /// ever holding more than a few rows.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn evaluate(
        &mut self,
        seq: SeqId,
        tokens: &[u32],
        control: &Control<'_>,
        each: &mut EachRow<'_>,
    ) -> Result<(), Error> {
        let mut whole = Batch::new();
        whole.add(seq, tokens, Wanted::All);
        self.check_batch(&whole)?;
        let start = self.kv.len(seq)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.options.n_batch) {
            let piece = Piece { item: 0, seq, range: done..done + chunk.len(), wanted: Wanted::All };
            let result = self
                .run_pieces(Stage::Body, &whole, &[piece], control)
                .and_then(|()| self.slices_of_logits(control, done, each));
            if let Err(e) = result {
                self.kv.truncate(seq, start)?;
                return Err(e);
            }
            done += chunk.len();
            if let Some(progress) = control.progress {
                progress(done, tokens.len());
            }
        }
        Ok(())
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), Error> {
        let n_vocab = self.model.spec().n_vocab;
        for (i, item) in batch.items.iter().enumerate() {
            if batch.items[..i].iter().any(|other| other.seq == item.seq) {
                return Err(Error::input(format!("sequence {} occurs twice in a batch", item.seq.0)));
            }
            if item.tokens.is_empty() {
                return Err(Error::input("no tokens for a sequence"));
            }
            if let Some(id) = item.tokens.iter().find(|&&id| id as usize >= n_vocab) {
                return Err(Error::input(format!("token {id} is outside the vocabulary of {n_vocab}")));
            }
            let needed = self.kv.len(item.seq)? + item.tokens.len();
            if needed > self.options.n_ctx {
                return Err(Error::context(needed, self.options.n_ctx));
            }
        }
        Ok(())
    }

    fn run_batch(&mut self, batch: &Batch, control: &Control<'_>) -> Result<(), Error> {
        self.logits.values.clear();
        self.logits.rows.clear();
        let total = batch.len();
        let mut done = 0;
        for pieces in cut_batch(batch, self.options.n_batch, max_outputs(&self.options)) {
            self.run_pieces(Stage::Full, batch, &pieces, control)?;
            self.take_logits()?;
            done += pieces.iter().map(|p| p.range.len()).sum::<usize>();
            if let Some(progress) = control.progress {
                progress(done, total);
            }
        }
        Ok(())
    }

    /// One step: tokens of one or more sequences, each at most once.
    fn run_pieces(
        &mut self,
        stage: Stage,
        batch: &Batch,
        pieces: &[Piece],
        control: &Control<'_>,
    ) -> Result<(), Error> {
        if control.cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
        }
        for piece in pieces {
            if let Some(copy) = self.kv.reserve(piece.seq, piece.range.len())? {
                self.copy_page(copy)?;
            }
        }
        self.fill_step(batch, pieces)?;
        self.compile(stage)?;
        let dims = StepDims {
            tokens: self.data.token_ids.len(),
            outputs: self.data.output_rows.len(),
            seqs: pieces.len(),
        };
        let c = self.compiled.get_mut(&stage).ok_or_else(missing_plan)?;
        let mut backends = self.model.backends()?;
        let (d, i) = (&self.data, &c.inputs);
        let fills = [
            (i.token_ids, &d.token_ids),
            (i.positions, &d.positions),
            (i.extents, &d.extents),
            (i.output_rows, &d.output_rows),
        ];
        let per_group = i.kv_rows.iter().map(|&n| (Some(n), &d.kv_rows));
        let tables = i.page_tables.iter().map(|&n| (Some(n), &d.page_table));
        for (node, values) in fills.into_iter().chain(per_group).chain(tables) {
            if let Some(node) = node {
                c.alloc.fill_input_i32(&c.plan, &mut backends, node, values)?;
            }
        }
        let told = |run: &NodeRun<'_>| {
            if let Some(observe) = control.observe {
                observe(run, &d.extents);
            }
        };
        let observe = control.observe.is_some().then_some(&told as &NodeObserver<'_>);
        let step = Step { kv_pages: d.kv_pages, cancel: control.cancel, observe, ..Step::new(dims) };
        let done = self.scheduler.execute(&c.plan, &mut c.alloc, &mut backends, step);
        done.map_err(|e| Error::in_step(e, self.scheduler.progress(), &c.plan))?;
        drop(backends);
        for piece in pieces {
            self.kv.advance(piece.seq, piece.range.len())?;
        }
        Ok(())
    }

    /// Copies a page of every layer, from and to.
    fn copy_page(&mut self, copy: (usize, usize)) -> Result<(), Error> {
        let mut backends = self.model.backends()?;
        for region in self.kv.storage.regions() {
            let backend = region.backend;
            let copied = backends.get_mut(backend)?.copy_pages(region.pair, &[copy]);
            copied.map_err(|source| minfer_graph::GraphError::Backend { backend, source })?;
        }
        Ok(())
    }

    /// Host data of a step from its pieces.
    fn fill_step(&mut self, batch: &Batch, pieces: &[Piece]) -> Result<(), Error> {
        let d = &mut self.data;
        for list in [&mut d.token_ids, &mut d.positions, &mut d.kv_rows, &mut d.extents, &mut d.output_rows] {
            list.clear();
        }
        d.page_table.clear();
        d.page_table.resize(pieces.len() * self.max_pages, 0);
        d.origins.clear();
        d.kv_pages = 0;
        for (slot, piece) in pieces.iter().enumerate() {
            let start = self.kv.len(piece.seq)?;
            let pages = self.kv.pages(piece.seq)?;
            let first = d.token_ids.len();
            let tokens = &batch.items[piece.item].tokens[piece.range.clone()];
            for (i, &id) in tokens.iter().enumerate() {
                let pos = start + i;
                d.token_ids.push(id as i32);
                d.positions.push(pos as i32);
                d.kv_rows.push((pages[pos / PAGE] * PAGE + pos % PAGE) as i32);
                let last = i + 1 == tokens.len();
                if piece.wanted == Wanted::All || (piece.wanted == Wanted::Last && last) {
                    d.output_rows.push((first + i) as i32);
                    d.origins.push((piece.seq, pos));
                }
            }
            d.extents.extend([first as i32, tokens.len() as i32, start as i32]);
            let row = &mut d.page_table[slot * self.max_pages..][..pages.len()];
            row.iter_mut().zip(pages).for_each(|(to, &page)| *to = page as i32);
            d.kv_pages = d.kv_pages.max((start + tokens.len()).div_ceil(PAGE));
        }
        Ok(())
    }

    /// Appends the last step's logits to the result.
    fn take_logits(&mut self) -> Result<(), Error> {
        let n = self.data.origins.len();
        if n == 0 {
            return Ok(());
        }
        let c = self.compiled.get_mut(&Stage::Full).ok_or_else(missing_plan)?;
        let start = self.logits.values.len();
        host_room(&mut self.logits.values, start + n * self.logits.n_vocab)?;
        let out = &mut self.logits.values[start..];
        c.alloc.read_f32(&c.plan, &mut *self.model.backends()?, c.result, 0..n, out)?;
        self.logits.rows.extend(&self.data.origins);
        Ok(())
    }

    /// Runs the head over the hidden rows of the last body step, slice by slice.
    fn slices_of_logits(
        &mut self,
        control: &Control<'_>,
        done: usize,
        each: &mut EachRow<'_>,
    ) -> Result<(), Error> {
        self.compile(Stage::Head)?;
        let (n, n_embd) = (self.data.origins.len(), self.model.spec().n_embd);
        let mut backends = self.model.backends()?;
        host_room(&mut self.hidden, n * n_embd)?;
        let body = self.compiled.get_mut(&Stage::Body).ok_or_else(missing_plan)?;
        body.alloc.read_f32(&body.plan, &mut backends, body.result, 0..n, &mut self.hidden)?;
        let head = self.compiled.get_mut(&Stage::Head).ok_or_else(missing_plan)?;
        let n_vocab = self.logits.n_vocab;
        let mut row = done;
        for slice in self.hidden.chunks(HEAD_SLICE * n_embd) {
            let rows = slice.len() / n_embd;
            let input = head.inputs.value.ok_or_else(missing_plan)?;
            head.alloc.fill_input_f32(&head.plan, &mut backends, input, slice)?;
            let dims = StepDims { tokens: rows, outputs: rows, seqs: 1 };
            let step = Step { cancel: control.cancel, ..Step::new(dims) };
            let done = self.scheduler.execute(&head.plan, &mut head.alloc, &mut backends, step);
            done.map_err(|e| Error::in_step(e, self.scheduler.progress(), &head.plan))?;
            host_room(&mut self.logits.values, rows * n_vocab)?;
            let out = &mut self.logits.values;
            head.alloc.read_f32(&head.plan, &mut backends, head.result, 0..rows, out)?;
            for logits in self.logits.values.chunks(n_vocab) {
                each(row, logits)?;
                row += 1;
            }
        }
        Ok(())
    }

    fn compile(&mut self, stage: Stage) -> Result<(), Error> {
        if self.compiled.contains_key(&stage) {
            return Ok(());
        }
        let mut backends = self.model.backends()?;
        let (spec, layout, id) = (self.model.spec(), self.model.layout(), self.model.id());
        let plan = stage_plan(spec, &self.options, layout, &backends, stage, id)?;
        if let Some(trace) = &self.options.graph_trace {
            trace(&trace_plan(&plan));
        }
        let alloc = GraphAllocator::new(&plan, &mut backends, Some(&self.kv.storage))?;
        let inputs = Inputs::of(&plan.graph, self.model.spec().n_kv_groups());
        let result = *plan.graph.outputs.first().ok_or_else(missing_plan)?;
        self.compiled.insert(stage, Compiled { plan, alloc, inputs, result });
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A poisoned lock means the devices are gone with the thread that used them.
        if let Ok(mut backends) = self.model.backends() {
            for (_, c) in self.compiled.drain() {
                c.alloc.release(&mut backends);
            }
            self.kv.storage.free(&mut backends);
        }
    }
}

/// Makes a list of the host's `len` long.
fn host_room(list: &mut Vec<f32>, len: usize) -> Result<(), Error> {
    room::resize(list, len, 0.0).map_err(|e| e.on(BackendTag::CPU).into())
}

fn missing_plan() -> Error {
    Error::new(ErrorKind::Internal, "a stage has no plan")
}
