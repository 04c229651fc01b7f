//! Hugging Face repositories: choosing a file and learning its length and digest.

use serde::Deserialize;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::SourceOptions;
use super::error::SourceError;
use super::http::{client, status_text, text};
use super::part::Expect;
use super::spec::is_inner_path;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HfFile {
    /// Path in the repository.
    pub path: String,
    /// What the repository says about it.
    pub expect: Expect,
}

/// Quantisations by preference when none is asked for.
const PREFERRED: &[&str] = &[
    "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L",
    "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "F32",
];

/// The address of a file.
pub(super) fn file_url(opts: &SourceOptions, repo: &str, file: &str) -> String {
    format!("{}/{repo}/resolve/main/{}", opts.hf_endpoint, encode(file))
}

/// Percent-encodes all but unreserved characters and `/`.
fn encode(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    path.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

#[derive(Deserialize)]
struct TreeEntry {
    path: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: Option<String>,
    size: Option<u64>,
}

/// Lists the GGUF files of a repository.
pub(super) fn list_files(opts: &SourceOptions, repo: &str) -> Result<Vec<HfFile>, SourceError> {
    let url = format!("{}/api/models/{repo}/tree/main?recursive=true", opts.hf_endpoint);
    let http = |why| SourceError::Http { url: url.clone(), why };
    let mut request = client(opts).get(&url);
    if let Some(token) = &opts.hf_token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().map_err(|e| http(e.to_string()))?;
    if response.status() != StatusCode::OK {
        return Err(http(status_text(response.status())));
    }
    let body = response.body_mut().read_to_string().map_err(|e| http(e.to_string()))?;
    let tree: Vec<TreeEntry> =
        serde_json::from_str(&body).map_err(|e| http(format!("not the expected list of files: {e}")))?;
    let files = tree.into_iter().filter(|f| f.path.ends_with(".gguf") && is_inner_path(&f.path));
    Ok(files.map(hf_file).collect())
}

fn hf_file(entry: TreeEntry) -> HfFile {
    let (oid, lfs_size) = entry.lfs.map_or((None, None), |l| (l.oid, l.size));
    let expect = Expect { size: lfs_size.or(entry.size), sha256: oid.as_deref().and_then(as_sha256) };
    HfFile { path: entry.path, expect }
}

/// Asks for a file's length and digest. Servers that do not say (mirrors) give an empty answer, not an error.
pub(super) fn file_info(opts: &SourceOptions, url: &str) -> Result<Expect, SourceError> {
    // The digest is in the first answer, which usually redirects elsewhere; only redirects within the host
    // (a renamed repository) are followed.
    let (client, mut url) = (client(opts), url.to_owned());
    for _ in 0..5 {
        let mut request = client.head(&url).header("Accept-Encoding", "identity");
        if let Some(token) = &opts.hf_token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = request.config().max_redirects(0).build().call();
        let response = response.map_err(|e| SourceError::Http { url: url.clone(), why: e.to_string() })?;
        let status = response.status();
        match text(response.headers(), "location") {
            Some(to) if status.is_redirection() && to.starts_with('/') && !to.starts_with("//") => {
                url = format!("{}{to}", origin_of(&url));
            }
            _ if status.is_client_error() && status != StatusCode::METHOD_NOT_ALLOWED => {
                return Err(SourceError::Http { url, why: status_text(status) });
            }
            _ => return Ok(linked(&response)),
        }
    }
    Ok(Expect::default())
}

fn linked(response: &Response<Body>) -> Expect {
    let header = |name| text(response.headers(), name);
    Expect {
        size: header("x-linked-size").and_then(|v| v.parse().ok()),
        sha256: header("x-linked-etag").and_then(as_sha256),
    }
}

/// `https://host` of an address.
fn origin_of(url: &str) -> &str {
    let host = url.find("://").map_or(0, |i| i + 3);
    url[host..].find('/').map_or(url, |i| &url[..host + i])
}

/// The digest in an entity tag or object id; small files outside LFS carry a git hash, which is none.
fn as_sha256(tag: &str) -> Option<String> {
    let tag = tag.trim_matches('"');
    let tag = tag.strip_prefix("sha256:").unwrap_or(tag);
    (tag.len() == 64 && tag.bytes().all(|b| b.is_ascii_hexdigit())).then(|| tag.to_ascii_lowercase())
}

/// Chooses among the paths of a repository's files.
///
/// # Errors
/// A reason for the user: nothing fits, or what fits is split into several files.
pub(super) fn choose<'p>(paths: &[&'p str], quant: Option<&str>) -> Result<&'p str, String> {
    let models: Vec<&str> = paths.iter().copied().filter(|p| !is_projector(p)).collect();
    if models.is_empty() {
        return Err("there is no GGUF model in this repository".to_owned());
    }
    let wanted: Vec<&str> = match quant {
        Some(quant) => models.iter().copied().filter(|p| has_quant(p, quant)).collect(),
        None => {
            let whole = || models.iter().copied().filter(|p| !is_split(p));
            let of = |q: &&str| whole().filter(|p| has_quant(p, q)).collect::<Vec<_>>();
            let first = PREFERRED.iter().map(of).find(|found| !found.is_empty());
            first.unwrap_or_else(|| models.clone())
        }
    };
    let whole: Vec<&str> = wanted.iter().copied().filter(|p| !is_split(p)).collect();
    // The plain name is shorter than those of variants such as `-UD-Q4_K_M`.
    let shortest = whole.iter().copied().min_by_key(|p| (p.len(), *p));
    match (shortest, quant) {
        (Some(path), Some(_)) => Ok(path),
        (Some(path), None) if whole.len() == 1 || PREFERRED.iter().any(|q| has_quant(path, q)) => Ok(path),
        (None, _) if !wanted.is_empty() => {
            Err(format!("split sets are not handled; name one file of: {}", models.join(", ")))
        }
        _ => Err(format!(
            "no file for the quantisation {}; there are: {}",
            quant.unwrap_or("Q4_K_M"),
            models.join(", ")
        )),
    }
}

fn is_projector(path: &str) -> bool {
    path.to_ascii_lowercase().contains("mmproj")
}

/// `name-00001-of-00003.gguf`.
pub(super) fn is_split(path: &str) -> bool {
    let stem = path.strip_suffix(".gguf").unwrap_or(path);
    let number = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    stem.rsplit_once("-of-")
        .is_some_and(|(head, count)| number(count) && head.rsplit_once('-').is_some_and(|(_, n)| number(n)))
}

/// True if `quant` stands in the path as a word: `Q4_K` is in neither `IQ4_K` nor `Q4_K_M`.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_uppercase(), quant.to_ascii_uppercase());
    path.match_indices(&quant).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let after = path[at + quant.len()..].chars().next();
        before.is_none_or(|c| !c.is_ascii_alphanumeric())
            && after.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}
