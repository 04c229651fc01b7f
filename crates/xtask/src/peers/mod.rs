//! `cargo xtask bench-peers`: minfer's speed beside that of llama.cpp and ik_llama.cpp.
//!
//! A virtual machine's speed drifts with its neighbours, so that only what was measured in the same minute can be compared.
//! Every round runs each engine once, in turn, between two probes of the memory's speed; a round whose probes differ is
//! dropped and done again. What is reported are medians, and medians of the rounds' ratios.

mod options;
mod results;
mod rows;
mod run;

use anyhow::{Context, Result};
use options::Options;
use results::Results;
use std::path::Path;

/// Measures, or reads what was measured, and prints the table.
///
/// # Errors
/// A wrong option, no models or engines, or one of them fails.
pub fn bench(root: &Path, words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let results = match &options.from {
        Some(path) => {
            Results::parse(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)?
        }
        None => run::measure(root, &options)?,
    };
    println!("{}", results.markdown());
    if let Some(path) = &options.json {
        std::fs::write(path, results.to_json()?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
