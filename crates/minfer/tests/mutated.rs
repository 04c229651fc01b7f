//! Thousands of damaged model files: each loads and runs a step, or is refused with an error that names what is
//! wrong; without a panic, a hang, or an allocation that the file's size does not justify.

#![allow(clippy::print_stderr, reason = "a hang is told before the process ends")]

use minfer::{
    Batch, Control, DeviceChoice, Error, ErrorKind, LoadMode, LoadOptions, Model, ModelFile, Session,
    SessionOptions, Wanted,
};
use minfer_testkit::tiny::{FAMILIES, TinySpec, mutate};
use peak_alloc::PeakAlloc;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

/// Files per run.
const FILES: u64 = 5000;
/// Positions of the sessions.
const N_CTX: usize = 64;
/// Tokens of the step.
const STEP: [u32; 4] = [1, 5, 2, 7];
/// No case may take longer, on a machine that does other things too.
const SLOWEST: Duration = Duration::from_secs(5);
/// After this a case counts as hung and the process ends.
const HUNG: Duration = Duration::from_secs(60);

/// Most bytes that a file may make the program hold at once: a multiple of its size for what it describes (weights
/// as the kernels want them, a cache row per row of K and V, tables of the vocabulary), and what any model takes.
fn bound(file_len: usize) -> usize {
    16 * file_len + (8 << 20)
}

/// What became of a file.
#[derive(Default)]
struct Tally {
    ran: usize,
    refused: usize,
    without_text: usize,
    most: usize,
    slowest: Duration,
}

#[test]
fn damaged_files_run_or_are_refused_by_name() {
    let families: Vec<(&str, Vec<u8>)> =
        FAMILIES.iter().map(|family| (family.name, small(TinySpec::new(*family)))).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    let (mut tally, mut faults) = (Tally::default(), Vec::new());
    let beats = watch();
    collect_panics();
    for seed in 0..FILES {
        let (name, whole) = &families[seed as usize % families.len()];
        let damaged = mutate::mutation(whole, seed);
        std::fs::write(&path, &damaged.bytes).unwrap();
        let case = format!("{name}, seed {seed}, {:?}", damaged.changes);
        beats.send(case.clone()).unwrap();
        if let Err(fault) = check(&path, damaged.bytes.len(), &mut tally) {
            faults.push(format!("{case}: {fault}"));
        }
    }
    drop(std::panic::take_hook());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let Tally { ran, refused, without_text, .. } = tally;
    // Both ways out are taken, and some files run by ids only.
    assert!(ran > 500 && refused > 2000 && without_text > 50, "{ran} ran, {refused} refused, {without_text}");
}

/// A file as small as a family allows, with a vocabulary.
fn small(spec: TinySpec) -> Vec<u8> {
    let n_layer = spec.family.shape.min_layers;
    TinySpec { n_layer, ..spec.with_vocab() }.to_bytes().unwrap()
}

/// Takes one file all the way, and looks at how that ended.
fn check(path: &Path, len: usize, tally: &mut Tally) -> Result<(), String> {
    ALLOC.reset_peak_usage();
    let before = ALLOC.current_usage();
    let started = Instant::now();
    let end = catch_unwind(AssertUnwindSafe(|| run(path)));
    let took = started.elapsed();
    let held = ALLOC.peak_usage() - before;
    (tally.most, tally.slowest) = (tally.most.max(held), tally.slowest.max(took));
    if held > bound(len) {
        return Err(format!("{held} bytes were held for a file of {len}"));
    }
    if took > SLOWEST {
        return Err(format!("took {took:?}"));
    }
    match end {
        Err(_) => return Err(format!("panic: {}", LAST_PANIC.take())),
        Ok(Ok(text)) => {
            tally.ran += 1;
            text.or_else(|e| {
                tally.without_text += 1;
                names_its_reason(&e)
            })?;
        }
        Ok(Err(e)) => {
            tally.refused += 1;
            names_its_reason(&e)?;
        }
    }
    Ok(())
}

/// All that `minfer run` does up to the first step; inside, whether the model reads and writes text.
fn run(path: &Path) -> Result<Result<(), Error>, Error> {
    let file = ModelFile::open(path)?;
    let spec = file.spec()?;
    let n_ctx = N_CTX.min(spec.n_ctx_train);
    let options = SessionOptions { n_ctx, n_batch: 16.min(n_ctx), ..SessionOptions::default() };
    minfer::check_memory(&file, &options, DeviceChoice::Cpu, LoadMode::Read)?;
    let text = text(&file);
    let load = LoadOptions { threads: Some(1), device: DeviceChoice::Cpu, ..LoadOptions::default() };
    let model = Model::from_file(file, load)?;
    let mut session = Session::new(&model, options)?;
    let seq = session.new_sequence()?;
    let mut batch = Batch::new();
    let tokens = STEP.map(|id| id % spec.n_vocab as u32);
    batch.add(seq, &tokens[..n_ctx.min(STEP.len())], Wanted::Last);
    let logits = session.step(&batch, &Control::default())?;
    assert_eq!((logits.len(), logits.row(0).len()), (1, spec.n_vocab));
    Ok(text)
}

/// The tokenizer there and back, and a rendered conversation.
fn text(file: &ModelFile) -> Result<(), Error> {
    let tokenizer = file.tokenizer()?;
    let ids = tokenizer.encode("Hello, wörld!\n 123", Default::default());
    tokenizer.decode(&ids);
    file.chat_template().map(drop)
}

/// The error is about the file, or about memory, and says which part of the file it is about.
fn names_its_reason(e: &Error) -> Result<(), String> {
    const PARTS: [&str; 9] = [
        "metadata \"",
        "tensor \"",
        "truncated: ",
        "GGUF version",
        "not a GGUF file",
        "header",
        "tokenizer model \"",
        "\"tokenizer.ggml.model\"",
        "chat template, line ",
    ];
    let message = e.to_string();
    if !matches!(e.kind(), ErrorKind::Model | ErrorKind::Memory) {
        return Err(format!("{:?}: {message}", e.kind()));
    }
    let named = message.matches('`').count() >= 2 || PARTS.iter().any(|p| message.contains(p));
    let one_line = !message.chars().any(char::is_control) && message.len() < 1000;
    if named && one_line { Ok(()) } else { Err(format!("names nothing: {message:?}")) }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics are kept for the report, with their place, and not printed.
fn collect_panics() {
    std::panic::set_hook(Box::new(|info| LAST_PANIC.set(info.to_string())));
}

/// Ends the process, with the case's name, when the next case is late. The test's end drops the sender.
fn watch() -> Sender<String> {
    let (sender, receiver): (_, Receiver<String>) = channel();
    std::thread::spawn(move || {
        let Ok(mut case) = receiver.recv() else { return };
        loop {
            match receiver.recv_timeout(HUNG) {
                Ok(next) => case = next,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("hung: {case}");
                    std::process::abort();
                }
            }
        }
    });
    sender
}
