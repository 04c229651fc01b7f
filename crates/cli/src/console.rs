//! What goes to the terminal besides a command's output.

/// A line on stderr. Unlike `eprintln!` it does not panic where stderr cannot be written: the answer and the exit
/// code matter more.
macro_rules! note {
    ($($arg:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use note;

use crate::exit::INTERRUPTED;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use minfer::LoadProgress;
use minfer::gguf::printable;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes for people.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// A path for people: what is no visible character is escaped, as in names out of a file.
pub fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy(), usize::MAX)
}

/// The file name of a path, as [`shown`].
pub fn shown_name(path: &Path) -> String {
    shown(path.file_name().unwrap_or_default().as_ref())
}

/// A style for bars over bytes: `{done}`, `{size}` and `{rate}` are in [`megabytes`].
pub fn byte_style(template: &str) -> ProgressStyle {
    // The templates are constants; if indicatif ever rejects one, its default style is as good.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    fn put(w: &mut dyn Write, text: &str) {
        // Writing to a bar's line cannot fail.
        let _ = w.write_str(text);
    }
    let done = |s: &ProgressState, w: &mut dyn Write| put(w, &megabytes(s.pos()));
    let size = |s: &ProgressState, w: &mut dyn Write| put(w, &megabytes(s.len().unwrap_or(0)));
    let rate = |s: &ProgressState, w: &mut dyn Write| put(w, &format!("{}/s", megabytes(s.per_sec() as u64)));
    style.with_key("done", done).with_key("size", size).with_key("rate", rate)
}

/// Whether Ctrl-C is noted instead of ending the program.
static NOTE: AtomicBool = AtomicBool::new(false);
/// Whether it was pressed since somebody cleared this.
static PRESSED: AtomicBool = AtomicBool::new(false);

/// Ctrl-C ends the program at once with its own exit code, wherever it is: text that was shown stays,
/// and a download leaves a part that the next one resumes. Until [`note_interrupts`].
pub fn end_on_interrupt() {
    let end = || {
        PRESSED.store(true, Ordering::Relaxed);
        if !NOTE.load(Ordering::Relaxed) {
            let _ended = crate::source::end_children();
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    if let Err(e) = ctrlc::set_handler(end) {
        note!("warning: Ctrl-C will not give exit code {INTERRUPTED}: {e}");
    }
}

/// From now on Ctrl-C only sets the flag.
pub fn note_interrupts() -> &'static AtomicBool {
    NOTE.store(true, Ordering::Relaxed);
    &PRESSED
}

/// Shows a load that takes longer than a moment, if stderr is a terminal.
pub struct LoadBar {
    started: Instant,
    bar: Option<ProgressBar>,
}

impl LoadBar {
    pub fn new() -> Self {
        LoadBar { started: Instant::now(), bar: None }
    }

    pub fn update(&mut self, progress: LoadProgress) {
        const MOMENT: Duration = Duration::from_millis(300);
        if self.bar.is_none() && self.started.elapsed() > MOMENT && io::stderr().is_terminal() {
            let style = byte_style("loading {bar:30} {done} of {size}");
            self.bar = Some(ProgressBar::new(progress.total).with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.done);
        }
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
