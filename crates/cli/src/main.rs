//! The `minfer` command: parses arguments, dispatches, and maps errors to exit codes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command talks to its user")]

mod args;
mod commands;
mod console;
mod exit;
mod inputs;
mod sampling;
mod source;
mod tensors_io;
mod terminal;

use anyhow::{Context, Result};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = match args::long_names(std::env::args_os()) {
        Ok(words) => words,
        Err(refused) => return ended(Err(exit::Usage(refused).into())),
    };
    match args::Cli::try_parse_from(words) {
        Ok(cli) => {
            if let Err(e) = minfer::prepare_memory() {
                return ended(Err(e.into()));
            }
            // A server ends in its own way.
            if !matches!(cli.command, args::Command::Serve(_)) {
                terminal::restore_on_termination();
            }
            console::end_on_interrupt();
            ended(commands::dispatch(cli.command))
        }
        // Help and version are answers, not errors; clap knows which stream each belongs to.
        Err(e) if e.use_stderr() => {
            let _ = args::without_guesses(e).print();
            ExitCode::from(exit::USAGE)
        }
        Err(e) => ended(e.print().context("stdout")),
    }
}

/// Says what went wrong, if anything did, and ends with its exit code.
fn ended(result: Result<()>) -> ExitCode {
    let Err(e) = result else { return ExitCode::SUCCESS };
    if !exit::is_closed_pipe(&e) {
        console::note!("error: {}", exit::message(&e));
    }
    ExitCode::from(exit::code(&e))
}
