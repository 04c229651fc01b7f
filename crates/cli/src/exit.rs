//! Exit codes: 0 done, 1 failed, 2 usage, 3 model unusable, 4 device unusable, 5 not enough memory,
//! 130 interrupted, 141 the reader of the output went away.
//!
//! Usage is what the command line says: options that do not exist, contradict each other or are out of their range, a
//! missing argument, a conversation that the chat template refuses. What a file or stdin holds, or that a file is not
//! there, is a failure; the model's file has a code of its own.

use crate::source::SourceError;
use minfer::ErrorKind;
use minfer::text::TemplateError;
use std::io;

pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const MODEL: u8 = 3;
pub const DEVICE: u8 = 4;
pub const MEMORY: u8 = 5;
pub const INTERRUPTED: u8 = 130;
/// What a shell reports of a program that SIGPIPE ended.
pub const CLOSED_PIPE: u8 = 141;

/// A mistake in the arguments that only shows after parsing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// What a command needs of a model, and this one lacks.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Lacking(pub String);

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    if is_closed_pipe(error) {
        return CLOSED_PIPE;
    }
    for cause in error.chain() {
        if cause.is::<Usage>() {
            return USAGE;
        }
        if let Some(e) = cause.downcast_ref::<SourceError>() {
            let usage = matches!(
                e,
                SourceError::Unknown { .. }
                    | SourceError::BadSpec { .. }
                    | SourceError::BadVariable { .. }
                    | SourceError::BadToken
            );
            return if usage { USAGE } else { MODEL };
        }
        if cause.is::<TemplateError>() || cause.is::<Lacking>() {
            return MODEL;
        }
        if let Some(e) = cause.downcast_ref::<minfer::Error>() {
            return match e.kind() {
                ErrorKind::Model | ErrorKind::NonFinite => MODEL,
                ErrorKind::Input => USAGE,
                ErrorKind::Device => DEVICE,
                ErrorKind::Memory => MEMORY,
                ErrorKind::Cancelled => INTERRUPTED,
                _ => FAILED,
            };
        }
    }
    FAILED
}

/// One line: the error and what lies behind it, without repeating a cause that its effect already quotes.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    printable(&text)
}

/// A text with its control characters escaped: names in a file must not move the cursor or make a line two.
pub fn printable(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Whether the reader of our output went away: nobody is left to be told. A server that went away is something else.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    !error.chain().any(|c| c.is::<SourceError>())
        && error.chain().any(|c| c.downcast_ref::<io::Error>().is_some_and(closed))
}
