//! What the environment says: where models are kept, whether the network may be used, the hub and its token.
//!
//! Variables that begin with `HF_` are those of Hugging Face's own libraries and mean what they mean there, so that
//! a machine set up for them needs nothing more.

use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::report::Reporter;

/// A variable's value as a path; an empty one counts as unset.
fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// A variable's value as trimmed text; a blank one counts as unset. What is no text stays visible as such.
pub(super) fn text(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.to_string_lossy().trim().to_owned()).filter(|v| !v.is_empty())
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
///
/// # Errors
/// [`SourceError::BadVariable`] if the first is neither true nor false: a typing error must not mean the network. The
/// second is for Hugging Face to define, where every other value is false; that is said.
pub(super) fn offline(reporter: &dyn Reporter) -> Result<bool, SourceError> {
    let own = text("MINFER_OFFLINE").map_or(Ok(false), |value| {
        truth(&value).ok_or_else(|| SourceError::BadVariable {
            name: "MINFER_OFFLINE",
            why: format!("{value:?} is neither true ({}) nor false ({})", TRUE.join(", "), FALSE.join(", ")),
        })
    })?;
    let hub = text("HF_HUB_OFFLINE").is_some_and(|value| {
        truth(&value).unwrap_or_else(|| {
            let (yes, no) = (TRUE.join(", "), "counts as false, as in Hugging Face's libraries");
            reporter.note(&format!("warning: HF_HUB_OFFLINE={value} {no} (true: {yes})"));
            false
        })
    });
    Ok(own || hub)
}

const TRUE: [&str; 4] = ["1", "on", "yes", "true"];
const FALSE: [&str; 4] = ["0", "off", "no", "false"];

fn truth(value: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(value));
    if is_one_of(TRUE) { Some(true) } else { is_one_of(FALSE).then_some(false) }
}
