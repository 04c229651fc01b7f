//! `minfer pull`, `list` and `rm`: the caches of models.

use super::{megabytes, print};
use crate::args::{ListArgs, PullArgs, RmArgs};
use crate::console::shown;
use crate::exit::printable;
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
    let models = source::list(&options)?;
    if args.json {
        return print(&serde_json::to_string_pretty(&models)?);
    }
    if models.is_empty() {
        let folders = [Some(&options.cache_dir), options.hub_cache.as_ref()]
            .map(|dir| Some(dir?.display().to_string()));
        let folders: Vec<String> = folders.into_iter().flatten().collect();
        crate::console::note!("no models in {}", folders.join(" or "));
        return Ok(());
    }
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let line = |m: &source::CachedModel| {
        let more = if m.files > 1 { format!(" (and {} more)", m.files - 1) } else { String::new() };
        let (size, path) = (megabytes(m.size), shown(&m.path));
        format!("{:width$}  {size:>10}  {}  {path}{more}\n", printable(&m.name), m.modified)
    };
    print(&models.iter().map(line).collect::<String>())
}

pub fn remove(args: &RmArgs) -> Result<()> {
    let removed = source::remove(&args.name, &options()?)?;
    let lines: String = removed.iter().map(|p| format!("removed {}\n", shown(p))).collect();
    print(&lines)
}
