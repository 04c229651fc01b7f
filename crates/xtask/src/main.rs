//! Repository chores: `cargo xtask tidy` checks the rules of the project that no compiler checks,
//! `cargo xtask docs [--check]` writes (or compares) the documents that the program itself can tell,
//! `cargo xtask bench-peers` measures minfer beside other engines.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command talks to its user")]

mod code;
mod docs;
mod peers;
mod requirements;
mod tidy;
mod tree;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match command(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(words: &[&str]) -> Result<()> {
    match words {
        ["tidy"] => tidy(),
        ["docs"] => docs::write(&root()),
        ["docs", "--check"] => docs::check(&root()),
        ["bench-peers", options @ ..] => peers::bench(&root(), options),
        _ => bail!("usage: cargo xtask tidy | docs [--check] | bench-peers [OPTIONS]"),
    }
}

fn tidy() -> Result<()> {
    let problems = tidy::run(&tree::Tree::load(&root())?);
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        n => bail!("{n} problem(s)"),
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
