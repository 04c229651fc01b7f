//! The cache that Hugging Face's libraries share, so that a model fetched by one program is there for all.
//!
//! A repository is the folder `models--owner--repo` with `blobs/` (contents, named by their sha256), `snapshots/COMMIT/`
//! (the repository's tree as links into `blobs/`) and `refs/` (which commit a branch or tag was last seen at). What is
//! being fetched is `blobs/NAME.part`, which the other programs pass over; `.locks/models--owner--repo/NAME.lock` is
//! the lock that they take too. A link is made only when its blob is whole and checked.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::cache::{CachedModel, Place, Slot, file_names, read_json, size_and_time};
use super::choose::group;
use super::error::SourceError;
use super::hf::{as_sha256, is_commit};
use super::http::PartMeta;

/// The branch that is meant when none is named.
pub(super) const MAIN: &str = "main";

/// Folders of a repository are not searched deeper than this.
const MAX_DEPTH: usize = 8;

/// A repository's part of the cache.
#[derive(Debug, Clone)]
pub(super) struct Repo {
    cache: PathBuf,
    folder: String,
    /// `owner/repo`.
    pub name: String,
}

impl Repo {
    /// The repository `owner/repo` in the cache folder; nothing needs to be there yet.
    pub fn new(cache: &Path, name: &str) -> Self {
        let folder = format!("models--{}", name.replace('/', "--"));
        Self { cache: cache.to_owned(), folder, name: name.to_owned() }
    }

    /// All repositories that the cache has a folder for.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn all(cache: &Path) -> Result<Vec<Self>, SourceError> {
        let name = |folder: &String| {
            let (owner, repo) = folder.strip_prefix("models--")?.split_once("--")?;
            Some(Self::new(cache, &format!("{owner}/{repo}")))
        };
        Ok(file_names(cache)?.iter().filter_map(name).collect())
    }

    fn dir(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    fn blobs(&self) -> PathBuf {
        self.dir().join("blobs")
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir().join("snapshots").join(commit)
    }

    /// Where a file of a commit is, if it is there.
    pub fn path(&self, commit: &str, file: &str) -> PathBuf {
        self.snapshot(commit).join(file)
    }

    /// Where a content is, if it is there.
    pub fn blob(&self, sha256: &str) -> PathBuf {
        self.blobs().join(sha256)
    }

    /// The slot in which the content `key`, for messages `label`, is fetched.
    pub fn slot(&self, key: &str, label: &str) -> Slot {
        let lock = self.cache.join(".locks").join(&self.folder).join(format!("{key}.lock"));
        Slot::labelled(&self.blobs(), key, lock, label)
    }

    /// The commit that a branch or tag was last seen at, or the commit itself.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.dir().join("refs").join(revision)).ok();
        let known = text.map(|t| t.trim().to_owned()).filter(|t| is_commit(t));
        known.or_else(|| is_commit(revision).then(|| revision.to_owned()))
    }

    /// Remembers that `revision` is at `commit`.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn set_ref(&self, revision: &str, commit: &str) -> Result<(), SourceError> {
        if revision == commit || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.dir().join("refs").join(revision);
        make_parent(&path)?;
        // Not next to it, where it would be another reference.
        static TIMES: AtomicU64 = AtomicU64::new(0);
        let times = TIMES.fetch_add(1, Ordering::Relaxed);
        let temp = self.dir().join(format!(".ref.{}.{times}", std::process::id()));
        fs::write(&temp, commit).map_err(SourceError::io("writing", &temp))?;
        fs::rename(&temp, &path).map_err(SourceError::io("renaming to", &path))
    }

    /// Makes the content `sha256`, which must be in `blobs`, the file `file` of `commit`.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn link(&self, commit: &str, file: &str, sha256: &str) -> Result<PathBuf, SourceError> {
        let path = self.path(commit, file);
        make_parent(&path)?;
        // The link that is there leads nowhere, or to another content.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(SourceError::io("replacing", &path)(e)),
            _ => {}
        }
        // Up from the file's folder past the snapshot and `snapshots`.
        let up = "../".repeat(file.split('/').count() + 1);
        match symlink(Path::new(&format!("{up}blobs/{sha256}")), &path) {
            Ok(()) => {}
            // Another process was faster.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            // Without links the file itself goes there, as with the hub's own libraries.
            Err(_) => {
                let blob = self.blob(sha256);
                fs::rename(&blob, &path).map_err(SourceError::io("renaming to", &path))?;
            }
        }
        Ok(path)
    }

    /// The complete models of all snapshots.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn models(&self) -> Result<Vec<CachedModel>, SourceError> {
        let refs = self.refs();
        let mut models = Vec::new();
        for commit in file_names(&self.dir().join("snapshots"))? {
            let root = self.snapshot(&commit);
            let files = files_below(&root);
            let paths: Vec<&str> = files.iter().map(String::as_str).collect();
            for model in group(&paths).into_iter().filter(|g| g.missing.is_none()) {
                models.extend(self.cached_model(&commit, &refs, &model.files));
            }
        }
        Ok(models)
    }

    fn cached_model(&self, commit: &str, refs: &[(String, String)], files: &[&str]) -> Option<CachedModel> {
        let (size, modified) = size_and_time(files.iter().map(|f| self.path(commit, f)))?;
        let mut of_commit = refs.iter().filter(|(_, c)| c == commit).map(|(r, _)| r.as_str());
        let revision = match of_commit.clone().find(|r| *r == MAIN).or_else(|| of_commit.next()) {
            Some(MAIN) => String::new(),
            Some(revision) => format!("@{revision}"),
            None => format!("@{commit}"),
        };
        let name = format!("hf:{}{revision}/{}", self.name, files[0]);
        let path = self.path(commit, files[0]);
        let sha256 = if files.len() == 1 { self.blob_of(&path).and_then(|b| as_sha256(&b)) } else { None };
        let place = Place::Hub {
            repo: self.name.clone(),
            commit: commit.to_owned(),
            files: files.iter().map(|f| (*f).to_owned()).collect(),
        };
        let (source, files) = (Some(name.clone()), files.len());
        Some(CachedModel { name, size, path, files, modified, source, sha256, place })
    }

    /// Branches and tags with their commits.
    fn refs(&self) -> Vec<(String, String)> {
        let names = files_below(&self.dir().join("refs"));
        names.into_iter().filter_map(|name| Some((name.clone(), self.commit(&name)?))).collect()
    }

    /// Name of the blob that a snapshot's file is a link to.
    fn blob_of(&self, path: &Path) -> Option<String> {
        let target = fs::read_link(path).ok()?;
        let in_blobs = target.parent()?.file_name()? == "blobs";
        in_blobs.then(|| target.file_name()?.to_str().map(str::to_owned)).flatten()
    }

    /// Deletes files of a snapshot, and their contents where no other snapshot has them. Returns the paths deleted and
    /// those of contents that had to stay.
    ///
    /// # Errors
    /// [`SourceError::Busy`] while one is being fetched, [`SourceError::Io`].
    pub fn remove(
        &self,
        commit: &str,
        files: &[String],
    ) -> Result<(Vec<PathBuf>, Vec<PathBuf>), SourceError> {
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for file in files {
            let path = self.path(commit, file);
            let blob = self.blob_of(&path);
            let _lock = blob.as_ref().map(|key| self.slot(key, file).lock_now()).transpose()?;
            fs::remove_file(&path).map_err(SourceError::io("deleting", &path))?;
            gone.push(path);
            let Some(key) = blob else { continue };
            if self.is_linked(&key)? {
                kept.push(self.blob(&key));
            } else {
                let path = self.blob(&key);
                fs::remove_file(&path).map_err(SourceError::io("deleting", &path))?;
                gone.push(path);
            }
        }
        self.sweep(commit, files);
        Ok((gone, kept))
    }

    /// Whether a snapshot has a link to the blob, under whatever name.
    fn is_linked(&self, key: &str) -> Result<bool, SourceError> {
        let commits = file_names(&self.dir().join("snapshots"))?;
        Ok(commits.iter().any(|commit| {
            let root = self.snapshot(commit);
            all_below(&root).iter().any(|file| self.blob_of(&root.join(file)).as_deref() == Some(key))
        }))
    }

    /// Deletes folders that have become empty, and references to a snapshot that is no more.
    fn sweep(&self, commit: &str, files: &[String]) {
        // Deleting a folder with something in it fails, and that is what is wanted.
        let remove = |path: &Path| fs::remove_dir(path).is_ok();
        for file in files {
            let path = self.path(commit, file);
            let folders = path.ancestors().skip(1).take(file.split('/').count() - 1);
            folders.take_while(|folder| remove(folder)).for_each(drop);
        }
        if !remove(&self.snapshot(commit)) {
            return;
        }
        for (revision, _) in self.refs().iter().filter(|(_, c)| c == commit) {
            // A reference to nothing would only be a warning of the other programs.
            let _ = fs::remove_file(self.dir().join("refs").join(revision));
        }
        for name in ["refs", "blobs", "snapshots", ""] {
            remove(&self.dir().join(name));
        }
    }

    /// Deletes what broken downloads have left of the models for which `is_meant` is true of their names. Returns the
    /// paths deleted.
    ///
    /// # Errors
    /// [`SourceError::Busy`], [`SourceError::Io`].
    pub fn remove_parts(&self, is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, SourceError> {
        let mut gone = Vec::new();
        for file in file_names(&self.blobs())? {
            let Some(key) = file.strip_suffix(".part") else { continue };
            let Some(meta) = read_json::<PartMeta>(&self.slot(key, key).part_meta()) else { continue };
            let slot = self.slot(key, &meta.name);
            if is_meant(&meta.name) {
                let _lock = slot.lock_now()?;
                slot.discard_part();
                gone.push(slot.part());
            }
        }
        Ok(gone)
    }
}

/// GGUF files, or in `refs` all, below a folder: paths with `/`, of files that are there.
fn files_below(root: &Path) -> Vec<String> {
    let is_ref = root.ends_with("refs");
    let mut files = all_below(root);
    files.retain(|f| (is_ref || f.ends_with(".gguf")) && root.join(f).is_file());
    files
}

/// Everything below a folder that is no folder, as paths with `/`.
fn all_below(root: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![(String::new(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(root.join(&folder)) else { continue };
        for entry in entries.filter_map(Result::ok) {
            // Names that are no text cannot be a model of a repository.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            // A link to a folder is none: it could lead in a circle.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
                Ok(kind) if kind.is_dir() => {}
                _ => found.push(path),
            }
        }
    }
    found.sort();
    found
}

fn make_parent(path: &Path) -> Result<(), SourceError> {
    match path.parent() {
        Some(dir) => fs::create_dir_all(dir).map_err(SourceError::io("making the folder", dir)),
        None => Ok(()),
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
