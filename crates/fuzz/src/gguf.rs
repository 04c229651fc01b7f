//! Damaged model files: each loads and runs a step, or is refused with an error that names what is wrong; without
//! a panic, a hang, or an allocation that the file's size does not justify.

use minfer::{
    Batch, Control, Error, ErrorKind, Layout, LoadMode, LoadOptions, Model, ModelFile, Session,
    SessionOptions, Wanted,
};
use minfer_testkit::tiny::{FAMILIES, TinySpec, mutate};
use peak_alloc::PeakAlloc;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

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

/// What became of the files.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Files that ran a step.
    pub ran: usize,
    /// Those of them that could not read or write text.
    pub without_text: usize,
    /// Files that were refused.
    pub refused: usize,
    /// Most bytes held for one.
    pub most: usize,
    /// Longest time for one.
    pub slowest: Duration,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { ran, without_text, refused, most, slowest } = self;
        write!(
            f,
            "{ran} damaged files ran ({without_text} without text), {refused} were refused by name; \
             at most {most} bytes and {slowest:.1?} for one"
        )
    }
}

/// Runs files one after the other, because memory is counted for the whole process. `alloc` is the process's
/// allocator. Case `n` damages a file of family `n` modulo their number.
///
/// # Errors
/// Every fault, with its case.
pub fn run(alloc: &PeakAlloc, first: u64, cases: u64, time: Option<Duration>) -> Result<Tally, String> {
    let families = FAMILIES
        .iter()
        .map(|f| Ok((f.name, small(TinySpec::new(*f))?)))
        .collect::<Result<Vec<(&str, Vec<u8>)>, String>>()?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("damaged.gguf");
    let (mut tally, mut faults) = (Tally::default(), Vec::new());
    let beats = watch();
    collect_panics();
    let started = Instant::now();
    for seed in first..first.saturating_add(cases) {
        if time.is_some_and(|most| started.elapsed() >= most) {
            break;
        }
        let (name, whole) = &families[seed as usize % families.len()];
        let damaged = mutate::mutation(whole, seed);
        std::fs::write(&path, &damaged.bytes).map_err(|e| e.to_string())?;
        let case = format!("{name}, seed {seed}, {:?}", damaged.changes);
        // A watcher that is gone cannot be told; it does not matter.
        let _ = beats.send(case.clone());
        if let Err(fault) = check(alloc, &path, damaged.bytes.len(), &mut tally) {
            faults.push(format!("{case}: {fault}"));
        }
    }
    drop(std::panic::take_hook());
    match faults.is_empty() {
        true => Ok(tally),
        false => Err(format!("{} faults:\n{}", faults.len(), faults.join("\n"))),
    }
}

/// A file as small as a family allows, with a vocabulary.
fn small(spec: TinySpec) -> Result<Vec<u8>, String> {
    let n_layer = spec.family.shape.min_layers;
    spec.with_vocab().with_layers(n_layer).to_bytes().map_err(|e| e.to_string())
}

/// Takes one file all the way, and looks at how that ended.
fn check(alloc: &PeakAlloc, path: &Path, len: usize, tally: &mut Tally) -> Result<(), String> {
    alloc.reset_peak_usage();
    let before = alloc.current_usage();
    let started = Instant::now();
    let end = catch_unwind(AssertUnwindSafe(|| run_file(path)));
    let took = started.elapsed();
    let held = alloc.peak_usage() - before;
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
fn run_file(path: &Path) -> Result<Result<(), Error>, Error> {
    let file = ModelFile::open(path)?;
    let spec = file.spec()?;
    let n_ctx = N_CTX.min(spec.n_ctx_train);
    let options = SessionOptions { n_ctx, n_batch: 16.min(n_ctx), ..SessionOptions::default() };
    minfer::check_memory(&file, &options, &Layout::default(), LoadMode::Read)?;
    let text = text(&file);
    let load = LoadOptions { threads: Some(1), ..LoadOptions::default() };
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
    const PARTS: [&str; 10] = [
        "big-endian GGUF",
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
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tell(&case);
                    std::process::abort();
                }
            }
        }
    });
    sender
}

/// The process is about to end, so that nobody can be handed an error.
#[allow(clippy::print_stderr, reason = "a hang is told before the process ends")]
fn tell(case: &str) {
    eprintln!("hung: {case}");
}
