//! What `cargo xtask bench-peers` can be told.

use super::rows::{ENGINES, MODELS, Model, ROWS, Row};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;

/// How it is called.
const USAGE: &str = "usage: cargo xtask bench-peers [--models smollm2,gemma3,qwen2.5] \
[--rows plain,deep,one,batch,start] [--engines ik,ik-rtr,llamacpp] [--rounds 7] [--threads 2] [--drift 10] [--minfer FILE] \
[--folder DIR] [--json FILE] [--from FILE]";

/// The options.
pub struct Options {
    /// Which models.
    pub models: Vec<&'static Model>,
    /// Which tests.
    pub rows: Vec<&'static Row>,
    /// Which peers.
    pub engines: Vec<&'static str>,
    /// Rounds that count, per model and row.
    pub rounds: usize,
    /// Threads of every engine, but where the row has its own.
    pub threads: usize,
    /// Most that a round's two probes may differ, in percent of the faster one.
    pub drift: usize,
    /// The program; built if absent.
    pub minfer: Option<PathBuf>,
    /// Folder of the models, else that of `scripts/test-models.sh`.
    pub folder: Option<PathBuf>,
    /// Where to write all rounds.
    pub json: Option<PathBuf>,
    /// Measure nothing, print the table of a file that `--json` wrote.
    pub from: Option<PathBuf>,
}

impl Options {
    /// From the command line.
    ///
    /// # Errors
    /// What is unknown, with the usage.
    pub fn parse(words: &[&str]) -> Result<Options> {
        let mut o = Options {
            models: MODELS.iter().collect(),
            rows: ROWS.iter().collect(),
            engines: ENGINES.to_vec(),
            rounds: 7,
            threads: 2,
            drift: 10,
            minfer: None,
            folder: None,
            json: None,
            from: None,
        };
        let mut words = words.iter();
        while let Some(&name) = words.next() {
            let value = *words.next().with_context(|| format!("{name} needs a value; {USAGE}"))?;
            match name {
                "--models" => o.models = chosen(value, MODELS, |m| m.key)?,
                "--rows" => o.rows = chosen(value, ROWS, |r| r.key)?,
                "--engines" => o.engines = chosen(value, ENGINES, |e| e)?.into_iter().copied().collect(),
                "--rounds" => o.rounds = number(value)?,
                "--threads" => o.threads = number(value)?,
                "--drift" => o.drift = number(value)?,
                "--minfer" => o.minfer = Some(value.into()),
                "--folder" => o.folder = Some(value.into()),
                "--json" => o.json = Some(value.into()),
                "--from" => o.from = Some(value.into()),
                _ => bail!("{name} is no option; {USAGE}"),
            }
        }
        Ok(o)
    }
}

fn number(text: &str) -> Result<usize> {
    let n = text.parse().with_context(|| format!("`{text}` is no number"))?;
    ensure!((1..=1024).contains(&n), "{n} is not from 1 to 1024");
    Ok(n)
}

/// Those of a list that are named, in the list's order.
fn chosen<T>(names: &str, all: &'static [T], key: fn(&T) -> &'static str) -> Result<Vec<&'static T>> {
    let names: Vec<&str> = names.split(',').collect();
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|x| key(x) != **name)) {
        let known: Vec<&str> = all.iter().map(key).collect();
        bail!("`{unknown}` is none of {}", known.join(", "));
    }
    Ok(all.iter().filter(|x| names.contains(&key(x))).collect())
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn parts_can_be_chosen() {
        let o = Options::parse(&["--rows", "one,plain", "--models", "qwen2.5", "--rounds", "2"]).unwrap();
        assert_eq!(o.rows.iter().map(|r| r.key).collect::<Vec<_>>(), ["plain", "one"]);
        assert_eq!((o.models.len(), o.rounds, o.engines.len()), (1, 2, 3));
        for bad in [&["--rows", "x"][..], &["--rounds", "0"], &["--rounds"], &["--what", "1"]] {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }
}
