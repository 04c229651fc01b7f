//! One file per command.

mod bench;
mod chat;
mod eval;
mod graph;
mod info;
mod models;
mod plan;
mod run;
mod serve;
mod tables;
mod tokenize;

use crate::args::Command;
use crate::console::megabytes;
use anyhow::{Context, Result};
use std::io::{self, Write};

/// Runs a command.
pub fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::run(args),
        Command::Serve(args) => serve::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Pull(args) => models::pull(&args),
        Command::List(args) => models::list(&args),
        Command::Rm(args) => models::remove(&args),
        Command::Devices(args) => tables::devices(args.json),
        Command::Knobs(args) => tables::knobs(args.json),
        Command::Completions(args) => tables::completions(args.shell),
    }
}

/// Writes to stdout; a reader that went away is an error like any other.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let end: &[u8] = if text.ends_with('\n') { b"" } else { b"\n" };
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(end))
        .and_then(|()| out.flush())
        .context("stdout")
}

/// Writes a value as JSON to stdout.
fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// A number of things: `1 token`, `2 tokens`.
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
