//! Long runs do not grow: neither the devices' buffers nor the memory of the process, over steps of all
//! lengths and sequences that come and go. One test, because the process is measured.

mod common;

use common::{load, session, tiny};
use minfer::graph::BackendTag;
use minfer::models::Stage;
use minfer::{
    Batch, Control, DeviceChoice, GpuLayers, LoadOptions, Model, ModelFile, Placement, SeqId, Session,
    SessionOptions, Wanted,
};
use minfer_testkit::rng::Rng;
use std::collections::BTreeMap;

const N_CTX: usize = 256;
const N_BATCH: usize = 32;
const MAX_SEQS: usize = 4;

#[test]
fn long_runs_do_not_grow() {
    let file = tiny("llama");
    let model = load(&file, 2);
    steps(&model);
    sessions(&model);
    // Two devices that queue, with a block each; the rest stays on the CPU.
    let devices = [0, 1].map(|index| DeviceChoice::Chaos { index, kib: None });
    let opened = ModelFile::open(&file.path).unwrap();
    let placement = Placement::new(devices, GpuLayers::Count(2));
    let layout = placement.resolve(&opened, &SessionOptions::default()).unwrap();
    let split =
        Model::from_file(opened, LoadOptions { threads: Some(2), layout, ..Default::default() }).unwrap();
    assert_eq!(held(&split).len(), 3);
    steps(&split);
    sessions(&split);
}

/// 1,000 steps of 1 to 60 tokens of up to 3 sequences, all their logits or none; sequences are created,
/// cut back and removed on the way.
fn steps(model: &Model) {
    let mut run = Run::new(model);
    let mut at_step_10 = BTreeMap::new();
    let mut resident = None;
    for i in 1..=1_000 {
        run.step(i);
        match i {
            10 => at_step_10 = held(model),
            // By then every vector has had its longest content.
            100 => resident = resident_bytes(),
            _ => {}
        }
    }
    assert_eq!(held(model), at_step_10, "buffers at step 1,000 and at step 10");
    let plans = [Stage::Full, Stage::Body, Stage::Head]
        .map(|stage| run.session.plan(stage).unwrap().memory.total())
        .into_iter()
        .sum::<usize>();
    assert_eq!(
        at_step_10.values().sum::<usize>(),
        plans + run.session.kv_bytes() as usize,
        "what is held and what was planned"
    );
    assert!(run.removed > 20 && run.cut > 20, "{} {}", run.removed, run.cut);
    not_grown(resident, "1,000 steps");
}

/// 200 sessions one after the other.
fn sessions(model: &Model) {
    let (mut after_10, mut resident) = (BTreeMap::new(), None);
    for i in 1..=200 {
        let mut run = Run::new(model);
        run.step(i);
        drop(run);
        if i == 10 {
            after_10 = held(model);
            resident = resident_bytes();
        }
    }
    assert_eq!(held(model), after_10, "buffers after 200 sessions and after 10");
    not_grown(resident, "200 sessions");
}

fn held(model: &Model) -> BTreeMap<BackendTag, usize> {
    model.buffer_bytes().unwrap()
}

/// Resident bytes of the process, where the system tells.
fn resident_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

fn not_grown(before: Option<usize>, what: &str) {
    const SLACK: usize = 1 << 20;
    let (Some(before), Some(now)) = (before, resident_bytes()) else { return };
    assert!(now <= before + SLACK, "{what}: from {before} to {now} resident bytes");
}

/// A session whose sequences come and go.
struct Run {
    session: Session,
    seqs: Vec<SeqId>,
    n_vocab: usize,
    removed: usize,
    cut: usize,
}

impl Run {
    fn new(model: &Model) -> Run {
        let session = session(model, N_BATCH, MAX_SEQS);
        Run { session, seqs: Vec::new(), n_vocab: model.spec().n_vocab, removed: 0, cut: 0 }
    }

    fn step(&mut self, i: usize) {
        let mut rng = Rng::labelled(i as u64, "step");
        self.change_sequences(&mut rng);
        if i % 5 == 1 {
            let tokens = self.tokens(&mut rng, 40);
            let seq = self.with_room(0, tokens.len());
            self.session.evaluate(seq, &tokens, &Control::default(), &mut |_, _| Ok(())).unwrap();
        }
        let mut batch = Batch::new();
        for at in 0..self.seqs.len().min(1 + rng.below(3)) {
            let most = if i == 1 { 20 } else { 1 + rng.below(20) };
            let tokens = self.tokens(&mut rng, most);
            let wanted = [Wanted::All, Wanted::Last, Wanted::Nothing][(i + at) % 3];
            batch.add(self.with_room(at, tokens.len()), &tokens, wanted);
        }
        self.session.step(&batch, &Control::default()).unwrap();
    }

    fn change_sequences(&mut self, rng: &mut Rng) {
        if self.seqs.len() < MAX_SEQS && (self.seqs.is_empty() || rng.below(4) == 0) {
            self.seqs.push(self.session.new_sequence().unwrap());
        } else if self.seqs.len() > 1 && rng.below(6) == 0 {
            let seq = self.seqs.swap_remove(rng.below(self.seqs.len()));
            self.session.remove_sequence(seq).unwrap();
            self.removed += 1;
        }
    }

    fn tokens(&self, rng: &mut Rng, n: usize) -> Vec<u32> {
        (0..n).map(|_| rng.below(self.n_vocab) as u32).collect()
    }

    /// A sequence, cut back if `n` more tokens would pass the context.
    fn with_room(&mut self, at: usize, n: usize) -> SeqId {
        let seq = self.seqs[at];
        let len = self.session.sequence_len(seq).unwrap();
        if len + n > N_CTX {
            self.session.truncate(seq, len / 3).unwrap();
            self.cut += 1;
        }
        seq
    }
}
