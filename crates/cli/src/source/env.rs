//! What the environment says: where models are kept, whether the network may be used, the hub and its token.
//!
//! Variables that begin with `HF_` are those of Hugging Face's own libraries and mean what they mean there, so that
//! a machine set up for them needs nothing more.

use std::path::{Path, PathBuf};

use super::error::SourceError;

/// A variable's value as a path; an empty one counts as unset.
fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// A variable's value as trimmed text; a blank one counts as unset.
pub(super) fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}

fn home() -> Option<PathBuf> {
    path("HOME").or_else(|| path("USERPROFILE"))
}

/// The XDG rules say that a relative path is to be ignored.
fn xdg_cache() -> Option<PathBuf> {
    path("XDG_CACHE_HOME").filter(|p| p.is_absolute())
}

/// The folder of this user for models that are not the hub's: `MINFER_MODEL_DIR`, else `minfer/models` in the
/// platform's cache folder.
///
/// # Errors
/// [`SourceError::NoCacheDir`] if the environment names neither.
pub(super) fn model_dir() -> Result<PathBuf, SourceError> {
    if let Some(dir) = path("MINFER_MODEL_DIR") {
        return Ok(dir);
    }
    let (base, hint) = if cfg!(windows) {
        (path("LOCALAPPDATA"), "LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        (path("HOME").map(|h| h.join("Library/Caches")), "HOME")
    } else {
        (xdg_cache().or_else(|| path("HOME").map(|h| h.join(".cache"))), "HOME or XDG_CACHE_HOME")
    };
    base.map(|b| b.join("minfer").join("models")).ok_or(SourceError::NoCacheDir(hint))
}

/// `HF_HOME`, else `huggingface` in the cache folder, which is `~/.cache` on every platform.
fn hf_home() -> Option<PathBuf> {
    let cache = || xdg_cache().or_else(|| home().map(|h| h.join(".cache")));
    path("HF_HOME").map(at_home).or_else(|| cache().map(|c| c.join("huggingface")))
}

/// A leading `~` is the home folder, as in Python's `expanduser`; shells leave it in quoted values.
fn at_home(path: PathBuf) -> PathBuf {
    match (path.strip_prefix("~"), home()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// The cache that Hugging Face's libraries share: `HF_HUB_CACHE`, else `hub` in `HF_HOME`. `None` without a home.
pub(super) fn hub_cache() -> Option<PathBuf> {
    let named = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
    named.map(at_home).or_else(|| hf_home().map(|h| h.join("hub")))
}

/// The token: `HF_TOKEN`, else the first line of the file that logging in leaves.
pub(super) fn hf_token() -> Option<String> {
    let file = || path("HF_TOKEN_PATH").map(at_home).or_else(|| hf_home().map(|h| h.join("token")));
    text("HF_TOKEN").or_else(|| token_in(&file()?))
}

fn token_in(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().next().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty())
}

/// Whether `MINFER_OFFLINE` or `HF_HUB_OFFLINE` forbids the network.
pub(super) fn offline() -> bool {
    let is_set = |name| text(name).is_some_and(|v| is_yes(&v));
    is_set("MINFER_OFFLINE") || is_set("HF_HUB_OFFLINE")
}

fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|yes| yes.eq_ignore_ascii_case(value))
}
