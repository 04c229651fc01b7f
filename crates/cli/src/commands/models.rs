//! `minfer pull`, `list` and `rm`: the cache of models.

use super::{megabytes, print};
use crate::args::{ListArgs, PullArgs, RmArgs};
use crate::inputs;
use crate::source::{self, SourceOptions, StderrReporter};
use anyhow::Result;
use std::sync::Arc;

fn options() -> Result<SourceOptions> {
    Ok(SourceOptions::from_env(Arc::new(StderrReporter::new()))?)
}

pub fn pull(args: &PullArgs) -> Result<()> {
    let path = inputs::resolve(args.name.as_deref(), args.offline)?;
    print(&path.display().to_string())
}

pub fn list(args: &ListArgs) -> Result<()> {
    let options = options()?;
    let models = source::list(&options.cache_dir)?;
    if args.json {
        return print(&serde_json::to_string_pretty(&models)?);
    }
    if models.is_empty() {
        crate::console::note!("no models in {}", options.cache_dir.display());
        return Ok(());
    }
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let line = |m: &source::CachedModel| {
        format!("{:width$}  {:>10}  {}  {}\n", m.name, megabytes(m.size), m.modified, m.path.display())
    };
    print(&models.iter().map(line).collect::<String>())
}

pub fn remove(args: &RmArgs) -> Result<()> {
    let removed = source::remove(&args.name, &options()?)?;
    let lines: String = removed.iter().map(|p| format!("removed {}\n", p.display())).collect();
    print(&lines)
}
