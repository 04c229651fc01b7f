//! The terminal as others should find it: a line editor changes its modes, and a signal may end the program meanwhile.

#[cfg(unix)]
pub use unix::{discard_input, remember, restore_on_termination};

#[cfg(unix)]
mod unix {
    use nix::poll::{PollFd, PollFlags, poll};
    use nix::sys::signal::{SigSet, Signal, raise};
    use nix::sys::termios::{FlushArg, SetArg, Termios, cfmakeraw, tcflush, tcgetattr, tcsetattr};
    use nix::unistd::{getpgrp, tcgetpgrp, write};
    use std::io;
    use std::os::fd::AsFd;
    use std::sync::{Mutex, PoisonError};
    use std::thread;

    /// The modes before a line editor changed them.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
    /// Ends bracketed paste, and the line that was being typed.
    const LEAVE: &[u8] = b"\x1b[?2004l\n";
    /// Milliseconds without input after which a paste has ended.
    const PAUSE: u8 = 100;

    /// Notes the modes of the terminal, for [`restore_on_termination`].
    pub fn remember() {
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = tcgetattr(io::stdin()).ok();
    }

    /// From now on SIGTERM ends the program as ever, but the terminal is first as it was. To be called before there
    /// are other threads: those that this one starts leave the signal to the one that waits for it.
    pub fn restore_on_termination() {
        let signals = SigSet::from(Signal::SIGTERM);
        let wait = move || {
            while signals.wait().is_ok() {
                restore();
                let _ended = crate::source::end_children();
                // By the signal itself, so that a shell or a supervisor sees what ended the program. It goes on where
                // the one who started it said that this signal is to be ignored.
                let _ = signals.thread_unblock();
                let _ = raise(Signal::SIGTERM);
                let _ = signals.thread_block();
            }
        };
        let spawned = signals
            .thread_block()
            .map_err(io::Error::from)
            .and_then(|()| thread::Builder::new().name("sigterm".into()).spawn(wait));
        if let Err(e) = spawned {
            let _ = signals.thread_unblock();
            crate::console::note!("warning: SIGTERM may leave the terminal in another mode: {e}");
        }
    }

    fn restore() {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(modes) = before.as_ref() else { return };
        // In the background the terminal is somebody else's.
        if tcgetpgrp(io::stdin()) != Ok(getpgrp()) {
            return;
        }
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, modes);
        // One that takes no output, as after Ctrl-S, must not keep the program alive. Past the lock of stdout, which
        // a thread may hold that waits for the same.
        let out = io::stdout();
        if waits(&out, PollFlags::POLLOUT, PAUSE) {
            let _ = write(&out, LEAVE);
        }
    }

    /// Reads to its end what is being pasted, and forgets it.
    pub fn discard_input() {
        let input = io::stdin();
        let Ok(modes) = tcgetattr(&input) else { return };
        // Else the terminal would show it, and take some of its bytes for Ctrl-C and the like.
        let mut raw = modes.clone();
        cfmakeraw(&mut raw);
        let _ = tcsetattr(&input, SetArg::TCSANOW, &raw);
        while waits(&input, PollFlags::POLLIN, PAUSE) && tcflush(&input, FlushArg::TCIFLUSH).is_ok() {}
        let _ = tcsetattr(&input, SetArg::TCSANOW, &modes);
    }

    /// Whether a file is ready for something, and nothing is wrong with it, before a time in milliseconds has passed.
    fn waits(file: &impl AsFd, what: PollFlags, time: u8) -> bool {
        let mut files = [PollFd::new(file.as_fd(), what)];
        poll(&mut files, time).is_ok() && files[0].revents() == Some(what)
    }
}

/// Nothing to note: here the editor has modes of its own.
#[cfg(not(unix))]
pub fn remember() {}

/// There are no signals here.
#[cfg(not(unix))]
pub fn restore_on_termination() {}

/// Here what follows is read as it comes.
#[cfg(not(unix))]
pub fn discard_input() {}
