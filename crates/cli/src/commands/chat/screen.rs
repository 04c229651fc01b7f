//! What a chat shows: answers on stdout, everything else on stderr.

use crate::commands::counted;
use crate::exit::printable;
use minfer::text::Thought;
use minfer::{Finish, Turn};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Nobody can read the answers any more.
#[derive(Debug, thiserror::Error)]
#[error("stdout")]
pub struct Closed(#[from] io::Error);

/// The two streams.
pub struct Screen {
    /// Leave out statistics and greetings.
    pub quiet: bool,
    /// Whether stdout shows what a control character means.
    terminal: bool,
    /// Whether what comes is a thought.
    thinking: bool,
    /// Whether what was shown ends a line.
    at_line_start: bool,
    /// Why stdout can't be written any more.
    closed: Option<io::Error>,
}

impl Screen {
    pub fn new(quiet: bool) -> Self {
        Screen {
            quiet,
            terminal: io::stdout().is_terminal(),
            thinking: false,
            at_line_start: true,
            closed: None,
        }
    }

    /// A piece of an answer, or of the thoughts before it; `false` if nobody can read it.
    pub fn said(&mut self, said: &Thought) -> bool {
        let (text, thought) = match said {
            Thought::Answer(text) => (text, false),
            Thought::Reasoning(text) => (text, true),
        };
        if self.thinking != thought {
            self.end_line();
            self.thinking = thought;
        }
        self.write(text);
        self.closed.is_none()
    }

    /// Thoughts are dim on a terminal. Otherwise stdout is for answers alone, and they go to stderr like notes.
    fn write(&mut self, text: &str) {
        if text.is_empty() || self.closed.is_some() {
            return;
        }
        self.at_line_start = text.ends_with('\n');
        if self.thinking && !self.terminal {
            if !self.quiet {
                let _ = io::stderr().write_all(text.as_bytes());
            }
            return;
        }
        let shown = if self.terminal { harmless(text) } else { text.into() };
        let shown = if self.thinking { console::style(shown).dim().to_string().into() } else { shown };
        let mut out = io::stdout().lock();
        self.closed = out.write_all(shown.as_bytes()).and_then(|()| out.flush()).err();
    }

    fn end_line(&mut self) {
        if !self.at_line_start {
            self.write("\n");
        }
    }

    /// Ends the line of an answer.
    ///
    /// # Errors
    /// Stdout can't be written.
    pub fn end_answer(&mut self) -> Result<(), Closed> {
        self.end_line();
        self.thinking = false;
        self.closed.take().map_or(Ok(()), |e| Err(Closed(e)))
    }

    /// Something that must be said.
    pub fn say(&self, text: &str) {
        self.stderr(text, false);
    }

    /// Something that is nice to know.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.stderr(text, true);
        }
    }

    /// What went wrong.
    pub fn error(&self, text: &str) {
        self.stderr(&format!("error: {text}"), false);
    }

    fn stderr(&self, text: &str, dim: bool) {
        for line in text.lines().map(printable) {
            let styled = console::style(&line).for_stderr();
            let styled = if dim { styled.dim() } else { styled };
            crate::console::note!("{styled}");
        }
    }
}

/// A model's text for a terminal: control characters could move the cursor or worse.
fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(harmful) { text.replace(harmful, "\u{FFFD}").into() } else { text.into() }
}

/// What an answer cost, and why it ended if the model did not end it.
pub fn statistics(turn: &Turn, used: usize, n_ctx: usize) -> String {
    let answer = &turn.answer;
    let rate = |n: usize, t: Duration| n as f64 / t.as_secs_f64().max(1e-9);
    let mut text = format!("prompt {}", counted(turn.prefilled, "token"));
    let cached: Vec<String> = [(turn.reused, "reused"), (turn.rewritten, "replaced")]
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    if !cached.is_empty() {
        text += &format!(" ({})", cached.join(", "));
    }
    text += &format!(", {:.1} tokens/s; ", rate(turn.prefilled, answer.prompt_time));
    // The first token comes from the prompt's logits; the decode steps make the others.
    text += &match answer.tokens.len() {
        n @ 0..2 => format!("answer {}", counted(n, "token")),
        n => format!("answer {n} tokens, {:.1} tokens/s", rate(n - 1, answer.decode_time)),
    };
    text += &match &answer.finish {
        Finish::StopString(stop) => format!(", stop text {stop:?}"),
        Finish::MaxTokens => ", token limit".to_owned(),
        Finish::Cancelled => ", stopped".to_owned(),
        Finish::ContextFull | Finish::EndToken(_) => String::new(),
    };
    text + &format!("; context {used} of {n_ctx}")
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        assert_eq!(harmless("a\tb\né"), "a\tb\né");
        assert_eq!(harmless("\x1b[2J\r\u{9b}x"), "\u{FFFD}[2J\u{FFFD}\u{FFFD}x");
    }
}
