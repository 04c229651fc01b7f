//! Runs the built program and looks at what it says.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use minfer_testkit::tiny::{TinySpec, Tokenizer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program with an empty model cache and no network.
pub fn minfer(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minfer"));
    command.args(args).stdin(Stdio::null());
    for name in ["MINFER_CHAOS_FAULT", "MINFER_GRAPH_TRACE", "MINFER_GRAPH_DUMP", "MINFER_ISA"] {
        command.env_remove(name);
    }
    command
}

pub fn output(args: &[&str]) -> Output {
    minfer(args).output().unwrap()
}

pub fn with_stdin(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        minfer(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

pub fn stdout(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

pub fn stderr(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// Checks the exit code and that there is exactly one line that says what is wrong; returns it.
#[track_caller]
pub fn fails(o: &Output, code: i32) -> String {
    let text = stderr(o);
    assert_eq!(o.status.code(), Some(code), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_string()
}

#[track_caller]
pub fn succeeds(o: &Output) -> String {
    assert!(o.status.success(), "{}", stderr(o));
    stdout(o)
}

/// A small model that speaks: byte-level vocabulary and a chat template.
pub fn speaking() -> TinySpec {
    let mut spec = TinySpec::named("llama").unwrap();
    spec.tokenizer = Tokenizer::Gpt2("smollm");
    spec
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A real model of the test set, or a loud line that it is not there.
pub fn real_model(name: &str) -> Option<String> {
    let folder = std::env::var_os("MINFER_TEST_MODELS")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/minfer/test-models")))?;
    let path = folder.join(name);
    if path.is_file() {
        return Some(path.to_string_lossy().into_owned());
    }
    eprintln!("SKIPPED: {} is not there", path.display());
    None
}
