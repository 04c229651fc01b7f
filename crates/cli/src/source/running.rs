//! Programs that run for a fetch: they end when this one is told to.
//!
//! Ctrl-C in a terminal reaches them too; a signal to this process alone does not, so its handlers call
//! [`end_children`].

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A program and the folder it writes into.
struct Running {
    child: Child,
    folder: PathBuf,
}

/// All that run now.
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program that writes into `folder` to its end. Returns how it ended and what it said on stderr.
///
/// # Errors
/// It cannot be started or waited for.
pub(super) fn run(command: &mut Command, folder: &Path) -> io::Result<(ExitStatus, Vec<u8>)> {
    let (id, stderr) = {
        // Held while it starts: `end_children` sees it or keeps it from starting.
        let mut running = all();
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let (id, stderr) = (child.id(), child.stderr.take());
        running.push(Running { child, folder: folder.to_owned() });
        (id, stderr)
    };
    let mut said = Vec::new();
    let read = stderr.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut said));
    let status = wait(id)?;
    read.map(|_| (status, said))
}

/// Waits for a program, leaving it within the reach of [`end_children`].
fn wait(id: u32) -> io::Result<ExitStatus> {
    loop {
        let mut running = all();
        let at = running.iter().position(|r| r.child.id() == id);
        let at = at.ok_or_else(|| io::Error::other("it was ended"))?;
        match running[at].child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                running.swap_remove(at);
                return Ok(status);
            }
            Err(e) => {
                running.swap_remove(at);
                return Err(e);
            }
        }
        drop(running);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends all programs that run for a fetch and deletes what they wrote: to be called before this process ends. No other
/// starts while the caller keeps the result.
#[must_use]
pub fn end_children() -> impl Sized {
    let mut running = all();
    for Running { child, folder } in running.iter_mut() {
        // It may have ended by itself; what cannot be deleted now is deleted by the next fetch.
        let _ = child.kill();
        let _ = child.wait();
        let _ = fs::remove_dir_all(folder);
    }
    running
}
