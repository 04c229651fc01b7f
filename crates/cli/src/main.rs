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

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse_from(args::long_names(std::env::args_os())) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are answers, not errors; clap knows which stream each belongs to.
            let code = if e.use_stderr() { exit::USAGE } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    terminal::restore_on_termination();
    console::end_on_interrupt();
    match commands::dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if !exit::is_closed_pipe(&e) {
                crate::console::note!("error: {}", exit::message(&e));
            }
            ExitCode::from(exit::code(&e))
        }
    }
}
