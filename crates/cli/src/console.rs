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
use indicatif::{ProgressBar, ProgressStyle};
use minfer::LoadProgress;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
            crate::source::end_children();
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
            let bar = ProgressBar::new(progress.total);
            if let Ok(style) = ProgressStyle::with_template("loading {bar:30} {bytes}/{total_bytes}") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
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
