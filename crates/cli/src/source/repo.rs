//! `hf:` models: found in a cache or chosen from the repository, then fetched file by file into the hub's cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::cache::{CachedModel, Place};
use super::choose::{choose, has_quant, parts};
use super::error::SourceError;
use super::hf::{self, HfFile, HfFiles};
use super::hub::{MAIN, Repo};
use super::part::hex;
use super::report::SetReporter;
use super::spec::HfPick;
use super::{ModelSpec, SourceOptions, Target, complete, fetch, http, offline};

/// What an `hf:` argument names.
pub(super) struct Wanted<'a> {
    /// `owner/repo`.
    pub repo: &'a str,
    /// `None` is the branch `main`.
    pub revision: Option<&'a str>,
    /// Which file.
    pub pick: &'a HfPick,
}

impl Wanted<'_> {
    fn revision(&self) -> &str {
        self.revision.unwrap_or(MAIN)
    }

    /// `hf:owner/repo[@revision]`.
    fn name(&self) -> String {
        let revision = self.revision.map_or(String::new(), |r| format!("@{r}"));
        format!("hf:{}{revision}", self.repo)
    }

    /// [`name`](Self::name) and `/`, with which the names of its files begin.
    fn prefix(&self) -> String {
        format!("{}/", self.name())
    }

    /// The models of this repository and revision in the caches, by path in the repository.
    fn cached(&self, opts: &SourceOptions) -> Result<Vec<(String, CachedModel)>, SourceError> {
        let mut found = Vec::new();
        if let Some(cache) = &opts.hub_cache {
            let repo = Repo::new(cache, self.repo);
            if let Some(current) = repo.commit(self.revision()) {
                for model in repo.models()? {
                    if let Place::Hub { commit, files, .. } = &model.place
                        && *commit == current
                    {
                        found.push((files[0].clone(), model));
                    }
                }
            }
        }
        for model in super::cache::list(&opts.cache_dir)? {
            if let Some(file) = model.name.strip_prefix(&self.prefix()) {
                found.push((file.to_owned(), model));
            }
        }
        Ok(found)
    }

    /// The one of the cached models that is meant.
    fn find(&self, opts: &SourceOptions) -> Result<Option<CachedModel>, SourceError> {
        let mut cached = self.cached(opts)?;
        let first = match self.pick {
            HfPick::File(file) => Some(parts(file).swap_remove(0)),
            // A set counts by its first part, as if that were a model of its own.
            pick => {
                let paths: Vec<String> = cached
                    .iter()
                    .flat_map(|(file, m)| if m.files > 1 { parts(file) } else { vec![file.clone()] })
                    .collect();
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                choose(&paths, quant(pick)).ok().map(|files| files[0].to_owned())
            }
        };
        let at = cached.iter().position(|(file, _)| Some(file) == first.as_ref());
        Ok(at.map(|i| cached.swap_remove(i).1))
    }

    /// Asks the hub which files the model has.
    fn look_up(&self, opts: &SourceOptions) -> Result<HfFiles, SourceError> {
        match self.pick {
            HfPick::File(file) => {
                let mut found = HfFiles::default();
                for path in parts(file) {
                    // The other parts must be of the commit of the first.
                    let revision = found.commit.as_deref().unwrap_or(self.revision());
                    let (what, url) = (self.prefix() + &path, hf::file_url(opts, self.repo, revision, &path));
                    let (expect, commit) = hf::file_info(opts, &what, &url)?;
                    found.commit = found.commit.or(commit);
                    found.files.push(HfFile { path, expect });
                }
                Ok(found)
            }
            pick => {
                let all = hf::list_files(opts, &self.name(), self.repo, self.revision())?;
                let paths: Vec<&str> = all.files.iter().map(|f| f.path.as_str()).collect();
                let chosen = choose(&paths, quant(pick))
                    .map_err(|why| SourceError::NoChoice { repo: self.repo.to_owned(), why })?;
                let of = |path: &&str| all.files.iter().find(|f| f.path == **path).cloned();
                Ok(HfFiles { files: chosen.iter().filter_map(of).collect(), commit: all.commit.clone() })
            }
        }
    }
}

fn quant(pick: &HfPick) -> Option<&str> {
    if let HfPick::Quant(quant) = pick { Some(quant) } else { None }
}

/// Delivers the (first) file of an `hf:` model.
///
/// # Errors
/// Any [`SourceError`].
pub(super) fn resolve(
    spec: &ModelSpec,
    wanted: &Wanted<'_>,
    opts: &SourceOptions,
) -> Result<PathBuf, SourceError> {
    if let Some(model) = wanted.find(opts)? {
        return Ok(model.path);
    }
    if opts.offline {
        return Err(offline(&spec.to_string(), opts));
    }
    let found = wanted.look_up(opts)?;
    let name = |file: &HfFile| format!("{}{}", wanted.prefix(), file.path);
    match (&opts.hub_cache, &found.commit) {
        (Some(cache), Some(commit)) => {
            let repo = Repo::new(cache, wanted.repo);
            let path = fetch_all(&found.files, &name, opts, |file, name, opts| {
                fetch_blob(&repo, commit, file, name, opts)
            })?;
            repo.set_ref(wanted.revision(), commit)?;
            Ok(path)
        }
        // A cache without snapshots cannot tell revisions apart but by name.
        _ => fetch_all(&found.files, &name, opts, |file, name, opts| {
            fetch(&Target::of_hub(wanted.repo, wanted.revision(), file, name), opts)
        }),
    }
}

/// Fetches the files of a model one after the other and shows the progress of the whole. Returns the first one's path.
fn fetch_all(
    files: &[HfFile],
    name: &dyn Fn(&HfFile) -> String,
    opts: &SourceOptions,
    fetch: impl Fn(&HfFile, &str, &SourceOptions) -> Result<PathBuf, SourceError>,
) -> Result<PathBuf, SourceError> {
    let [first, rest @ ..] = files else {
        return Err(SourceError::NoChoice { repo: String::new(), why: "no file was chosen".to_owned() });
    };
    if rest.is_empty() {
        return fetch(first, &name(first), opts);
    }
    let total = files.iter().map(|f| f.expect.size).sum();
    let what = format!("{} and {} more", name(first), rest.len());
    let progress = Arc::new(SetReporter::new(Arc::clone(&opts.reporter), &what, total));
    let opts = SourceOptions { reporter: Arc::clone(&progress) as _, ..opts.clone() };
    let result = files.iter().try_fold(None, |path: Option<PathBuf>, file| {
        let fetched = fetch(file, &name(file), &opts)?;
        progress.part_done(std::fs::metadata(&fetched).map_or(0, |m| m.len()));
        Ok(path.or(Some(fetched)))
    });
    progress.finish(result.is_ok());
    result.map(Option::unwrap_or_default)
}

/// Brings one file into the hub's cache, if it is not there, and returns its path in the snapshot.
fn fetch_blob(
    repo: &Repo,
    commit: &str,
    file: &HfFile,
    name: &str,
    opts: &SourceOptions,
) -> Result<PathBuf, SourceError> {
    let is_whole = |path: &Path| {
        let size = std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
        size.is_some_and(|size| file.expect.size.is_none_or(|expected| expected == size))
    };
    let path = repo.path(commit, &file.path);
    if is_whole(&path) {
        return Ok(path);
    }
    let key = file.expect.sha256.clone();
    // Without a digest the part is named by what it is a part of.
    let key = key.unwrap_or_else(|| hex(&Sha256::digest(format!("{commit}/{}", file.path))));
    let slot = repo.slot(&key, name);
    let _lock = slot.lock(opts.reporter.as_ref())?;
    // Another process may have finished it while this one waited.
    if is_whole(&path) {
        return Ok(path);
    }
    // The content may be there from another commit, or from another program.
    if let Some(sha256) = file.expect.sha256.as_ref().filter(|sha256| is_whole(&repo.blob(sha256))) {
        return repo.link(commit, &file.path, sha256);
    }
    let url = hf::file_url(opts, &repo.name, commit, &file.path);
    let what = file.path.rsplit('/').next().unwrap_or(&file.path);
    let (sha256, _) = complete(&slot, what, opts, |part| {
        let get = http::Download {
            what: name,
            url: &url,
            token: opts.hf_token.as_deref(),
            expect: &file.expect,
            meta: &slot.part_meta(),
        };
        http::download(&get, part, opts)?;
        Ok((part.finish(&file.expect)?, part.len()))
    })?;
    slot.publish_as(&sha256)?;
    repo.link(commit, &file.path, &sha256)
}

/// Deletes the cached model that is meant and what broken downloads of it have left in the hub's cache. Returns the
/// paths deleted and the name of the model in the own cache, if it is there.
///
/// # Errors
/// [`SourceError::Busy`], [`SourceError::Io`], [`SourceError::NoChoice`] if it is not clear which.
pub(super) fn remove(
    wanted: &Wanted<'_>,
    opts: &SourceOptions,
) -> Result<(Vec<PathBuf>, Option<String>), SourceError> {
    let cached = wanted.cached(opts)?;
    if matches!(wanted.pick, HfPick::Default) && cached.len() > 1 {
        let names: Vec<&str> = cached.iter().map(|(_, m)| m.name.as_str()).collect();
        let why = format!("several models of it are in the cache; name one: {}", names.join(", "));
        return Err(SourceError::NoChoice { repo: wanted.repo.to_owned(), why });
    }
    let (mut gone, mut own) = (Vec::new(), None);
    match wanted.find(opts)? {
        Some(CachedModel { place: Place::Own, name, .. }) => own = Some(name),
        Some(model) => gone.extend(remove_from_hub(&model, opts)?),
        None => {}
    }
    if let Some(cache) = &opts.hub_cache {
        let prefix = wanted.prefix();
        let is_meant = |name: &str| {
            let Some(file) = name.strip_prefix(&prefix) else { return false };
            match wanted.pick {
                HfPick::Default => true,
                HfPick::Quant(quant) => has_quant(file, quant),
                HfPick::File(wanted) => parts(wanted).iter().any(|part| part == file),
            }
        };
        gone.extend(Repo::new(cache, wanted.repo).remove_parts(is_meant)?);
    }
    Ok((gone, own))
}

/// Deletes a model of the hub's cache and says which contents had to stay.
///
/// # Errors
/// [`SourceError::Busy`], [`SourceError::Io`].
pub(super) fn remove_from_hub(
    model: &CachedModel,
    opts: &SourceOptions,
) -> Result<Vec<PathBuf>, SourceError> {
    let (Some(cache), Place::Hub { repo, commit, files }) = (&opts.hub_cache, &model.place) else {
        return Ok(Vec::new());
    };
    let (gone, kept) = Repo::new(cache, repo).remove(commit, files)?;
    for path in kept {
        opts.reporter.note(&format!("kept {}: another snapshot has it too", path.display()));
    }
    Ok(gone)
}
