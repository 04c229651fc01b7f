//! Prompts from a terminal or a pipe.

use anyhow::{Context, Result};
use minfer::knob_value;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount,
};
use std::io::{BufRead, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Marks the ends of a block of lines.
const FENCE: &str = "\"\"\"";

/// A line, or why there is none.
pub enum Raw {
    Line(String),
    /// One that begins with a paste, which has line ends in it if it is one of several lines.
    Paste(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input.
    End,
}

/// What somebody said.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A prompt or a command.
    Text(String),
    /// A prompt, whatever it begins with.
    Block(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input.
    End,
}

/// Where lines come from.
pub trait Lines {
    /// The next line; `more` if it belongs to the one before.
    fn line(&mut self, more: bool) -> Result<Raw>;

    /// Told about every finished input, for the history.
    fn remember(&mut self, _text: &str) {}
}

/// Reads one input, which may span lines: a line that ends in `\` goes on, and so does a block between `"""`. Pasted
/// lines are a prompt as they are.
pub fn next(lines: &mut dyn Lines) -> Result<Input> {
    let mut text = String::new();
    let mut more = false;
    loop {
        match lines.line(more)? {
            Raw::Interrupted => return Ok(Input::Interrupted),
            Raw::End if text.is_empty() => return Ok(Input::End),
            // What an unfinished input has is said: nothing typed is lost.
            Raw::End => return Ok(finished(lines, &text)),
            Raw::Paste(pasted) if !more && stays_as_it_is(&pasted) => {
                // Taken out of the history it comes as if typed, so one line needs its further slash.
                let typed =
                    if pasted.trim_end().contains('\n') { pasted.clone() } else { format!("/{pasted}") };
                lines.remember(&typed);
                return Ok(Input::Block(pasted));
            }
            Raw::Line(line) | Raw::Paste(line) => text.push_str(&line),
        }
        let block = text.trim_start().starts_with(FENCE);
        if block && !is_closed(&text) {
            text.push('\n');
        } else if !block && text.ends_with('\\') {
            text.pop();
            text.push('\n');
        } else {
            return Ok(finished(lines, &text));
        }
        more = true;
    }
}

/// Whether a paste is no command, no beginning of a block, and means itself by `//`. A line alone may be a command.
fn stays_as_it_is(pasted: &str) -> bool {
    pasted.trim_end().contains('\n') || pasted.starts_with("//")
}

fn is_closed(text: &str) -> bool {
    let inside = text.trim().strip_prefix(FENCE);
    inside.is_some_and(|t| t.ends_with(FENCE))
}

fn finished(lines: &mut dyn Lines, text: &str) -> Input {
    lines.remember(text);
    let Some(inside) = text.trim().strip_prefix(FENCE) else { return Input::Text(text.to_owned()) };
    let inside = inside.strip_suffix(FENCE).unwrap_or(inside);
    Input::Block(inside.trim_matches('\n').to_owned())
}

/// Lines of a pipe or a file.
pub struct Piped<R>(pub R);

impl<R: BufRead> Lines for Piped<R> {
    fn line(&mut self, _more: bool) -> Result<Raw> {
        let mut bytes = Vec::new();
        if self.0.read_until(b'\n', &mut bytes).context("stdin")? == 0 {
            return Ok(Raw::End);
        }
        let line = String::from_utf8(bytes).context("stdin: not UTF-8 text")?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        Ok(Raw::Line(line.strip_suffix('\r').unwrap_or(line).to_owned()))
    }
}

/// Completes the names of commands.
struct Names;

impl Completer for Names {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let start = line[..at].strip_prefix('/').filter(|name| !name.contains(char::is_whitespace));
        let names = start.into_iter().flat_map(super::verbs::names);
        Ok((0, names.map(|name| format!("/{name}")).collect()))
    }
}

impl Hinter for Names {
    type Hint = String;
}
impl Highlighter for Names {}
impl Validator for Names {}
impl Helper for Names {}

/// Notes when a paste begins a line.
struct Pastes(Arc<AtomicBool>);

impl ConditionalEventHandler for Pastes {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext) -> Option<Cmd> {
        if at.line().is_empty() {
            self.0.store(true, Ordering::Relaxed);
        }
        // The editor does with it what it does without this.
        None
    }
}

/// A person at a terminal, with a line editor and a history.
pub struct Terminal {
    editor: Editor<Names, FileHistory>,
    /// Whether the line begins with a paste.
    pasted: Arc<AtomicBool>,
    history: Option<PathBuf>,
}

impl Terminal {
    pub fn new() -> Result<Self> {
        crate::terminal::remember();
        let config = Config::builder().bracketed_paste(true).history_ignore_space(true).build();
        let mut editor = Editor::with_config(config).context("terminal")?;
        editor.set_helper(Some(Names));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let pasted = Arc::new(AtomicBool::new(false));
        let pastes = EventHandler::Conditional(Box::new(Pastes(Arc::clone(&pasted))));
        editor.bind_sequence(KeyEvent(KeyCode::BracketedPasteStart, Modifiers::NONE), pastes);
        let history = history_file();
        if let Some(path) = history.as_ref().filter(|path| path.exists())
            && let Err(e) = editor.load_history(path)
        {
            crate::console::note!("warning: {}: {e}", path.display());
        }
        Ok(Terminal { editor, pasted, history })
    }

    fn append_to_history(&mut self, text: &str) -> Result<()> {
        let added = self.editor.add_history_entry(text)?;
        if let Some(path) = self.history.as_ref().filter(|_| added) {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            self.editor.append_history(path)?;
        }
        Ok(())
    }
}

impl Lines for Terminal {
    fn line(&mut self, more: bool) -> Result<Raw> {
        let read = loop {
            self.pasted.store(false, Ordering::Relaxed);
            match self.editor.readline(if more { "... " } else { ">>> " }) {
                Err(e) if is_no_text(&e) => {
                    // The rest of a paste would be read as lines that somebody typed.
                    crate::terminal::discard_input();
                    crate::console::note!("error: that is not UTF-8 text; none of the line is taken");
                }
                read => break read,
            }
        };
        match read {
            Ok(line) if self.pasted.load(Ordering::Relaxed) => Ok(Raw::Paste(line)),
            Ok(line) => Ok(Raw::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Raw::Interrupted),
            Err(ReadlineError::Eof) => Ok(Raw::End),
            Err(e) => Err(e).context("terminal"),
        }
    }

    /// A history that cannot be kept is no reason to end a chat; it is said once.
    fn remember(&mut self, text: &str) {
        if let Err(e) = self.append_to_history(text) {
            let path = self.history.take().unwrap_or_default();
            crate::console::note!("warning: no history is kept in {}: {e:#}", path.display());
        }
    }
}

/// Whether bytes came that are no text, as when a file in another encoding is pasted.
fn is_no_text(error: &ReadlineError) -> bool {
    match error {
        ReadlineError::Io(e) => e.kind() == ErrorKind::InvalidData,
        #[cfg(windows)]
        ReadlineError::Decode(_) => true,
        _ => false,
    }
}

/// Where the history is kept: `MINFER_HISTORY`, else in the platform's folder for a program's state.
fn history_file() -> Option<PathBuf> {
    match knob_value("MINFER_HISTORY").as_deref() {
        Some("off") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => Some(state_folder()?.join("minfer").join("chat-history")),
    }
}

fn state_folder() -> Option<PathBuf> {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    if cfg!(windows) {
        return Some(home?.join("AppData").join("Local"));
    }
    if cfg!(target_os = "macos") {
        return Some(home?.join("Library").join("Application Support"));
    }
    // The XDG rules say that a relative path is to be ignored.
    let xdg = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    xdg.or_else(|| Some(home?.join(".local").join("state")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(text: &str) -> Vec<Input> {
        let mut piped = Piped(text.as_bytes());
        let mut all = Vec::new();
        loop {
            match next(&mut piped).unwrap() {
                Input::End => return all,
                input => all.push(input),
            }
        }
    }

    fn text(s: &str) -> Input {
        Input::Text(s.to_owned())
    }

    fn block(s: &str) -> Input {
        Input::Block(s.to_owned())
    }

    #[test]
    fn a_line_is_an_input() {
        assert_eq!(inputs("a\r\n b\n\nc"), [text("a"), text(" b"), text(""), text("c")]);
        assert_eq!(inputs(""), []);
        assert!(next(&mut Piped(&b"\xff\n"[..])).is_err());
    }

    #[test]
    fn a_backslash_and_a_block_go_on() {
        assert_eq!(inputs("a \\\nb\\\n\nc"), [text("a \nb\n"), text("c")]);
        assert_eq!(inputs("a\\"), [text("a\n")]);
        assert_eq!(inputs("\"\"\"\n/a \\\n\n b\n\"\"\"\nc"), [block("/a \\\n\n b"), text("c")]);
        assert_eq!(inputs("\"\"\"a\"\"\"\n\"\"\"\"\"\"\n"), [block("a"), block("")]);
        assert_eq!(inputs("\"\"\"a\nb"), [block("a\nb")]);
    }

    /// What a paste gives.
    struct Once(Option<&'static str>);

    impl Lines for Once {
        fn line(&mut self, _: bool) -> Result<Raw> {
            Ok(self.0.take().map_or(Raw::End, |line| Raw::Paste(line.to_owned())))
        }
    }

    #[test]
    fn a_paste_stays_as_it_is() {
        let given = |pasted| next(&mut Once(Some(pasted))).unwrap();
        for pasted in ["make \\\n  all\nend", "/usr\n/bin\\", "/help\nme", "//a", "\"\"\"doc\"\"\"\na = 1\n"]
        {
            assert_eq!(given(pasted), block(pasted));
        }
        // A line alone is as if typed.
        for pasted in ["/help", "/help\n", "a"] {
            assert_eq!(given(pasted), text(pasted));
        }
    }
}
