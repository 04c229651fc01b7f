//! The Hugging Face hub's addresses and answers: which files a repository has, their lengths and digests.

use serde::Deserialize;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::SourceOptions;
use super::error::SourceError;
use super::http::{authorized, client, refusal, text, unreachable};
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

/// Files of a repository at one commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HfFiles {
    /// The commit, if the server says it (mirrors may not).
    pub commit: Option<String>,
    /// The files.
    pub files: Vec<HfFile>,
}

/// The address of a file at a branch, tag or commit.
pub(super) fn file_url(opts: &SourceOptions, repo: &str, revision: &str, file: &str) -> String {
    format!("{}/{repo}/resolve/{}/{}", opts.hf_endpoint, encode(revision, "-._~"), encode(file, "-._~/"))
}

/// Percent-encodes all but letters, digits and `plain`.
fn encode(path: &str, plain: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || plain.as_bytes().contains(&b);
    path.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

#[derive(Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Lists the GGUF files of a repository. `what` is the model asked for, for messages.
///
/// # Errors
/// [`SourceError::Http`].
pub(super) fn list_files(
    opts: &SourceOptions,
    what: &str,
    repo: &str,
    revision: &str,
) -> Result<HfFiles, SourceError> {
    let revision = encode(revision, "-._~");
    let url = format!("{}/api/models/{repo}/revision/{revision}?blobs=true", opts.hf_endpoint);
    let http = |why| SourceError::Http { what: what.to_owned(), url: url.clone(), why };
    let request = authorized(client(opts).get(&url), opts.hf_token.as_deref())?;
    let mut response = request.call().map_err(|e| http(unreachable(&e)))?;
    if response.status() != StatusCode::OK {
        return Err(http(refusal(&response, opts.hf_token.is_some())));
    }
    let body = response.body_mut().read_to_string().map_err(|e| http(e.to_string()))?;
    let listing: Listing =
        serde_json::from_str(&body).map_err(|e| http(format!("not the expected list of files: {e}")))?;
    let models = |f: &Sibling| f.rfilename.ends_with(".gguf") && is_inner_path(&f.rfilename);
    let files = listing.siblings.into_iter().filter(models).map(hf_file).collect();
    Ok(HfFiles { commit: listing.sha.filter(|sha| is_commit(sha)), files })
}

fn hf_file(entry: Sibling) -> HfFile {
    let (digest, lfs_size) = entry.lfs.map_or((None, None), |l| (l.sha256, l.size));
    let expect = Expect { size: lfs_size.or(entry.size), sha256: digest.as_deref().and_then(as_sha256) };
    HfFile { path: entry.rfilename, expect }
}

/// A git commit in full.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Asks for the length and digest of the file of the model `what`, and for the commit. Servers that do not say (mirrors) give an empty answer,
/// not an error.
///
/// # Errors
/// [`SourceError::Http`].
pub(super) fn file_info(
    opts: &SourceOptions,
    what: &str,
    url: &str,
) -> Result<(Expect, Option<String>), SourceError> {
    let http = |url: &str, why| SourceError::Http { what: what.to_owned(), url: url.to_owned(), why };
    // The digest is in the first answer, which usually redirects elsewhere; only redirects within the host
    // (a renamed repository) are followed.
    let (client, mut url) = (client(opts), url.to_owned());
    for _ in 0..5 {
        let request = authorized(client.head(&url), opts.hf_token.as_deref())?;
        let request = request.header("Accept-Encoding", "identity");
        let response = request.config().max_redirects(0).build().call();
        let response = response.map_err(|e| http(&url, unreachable(&e)))?;
        let status = response.status();
        match text(response.headers(), "location") {
            Some(to) if status.is_redirection() && to.starts_with('/') && !to.starts_with("//") => {
                url = format!("{}{to}", origin_of(&url));
            }
            _ if status.is_client_error() && status != StatusCode::METHOD_NOT_ALLOWED => {
                return Err(http(&url, refusal(&response, opts.hf_token.is_some())));
            }
            _ => return Ok(linked(&response)),
        }
    }
    Ok((Expect::default(), None))
}

fn linked(response: &Response<Body>) -> (Expect, Option<String>) {
    let header = |name| text(response.headers(), name);
    let expect = Expect {
        size: header("x-linked-size").and_then(|v| v.parse().ok()),
        sha256: header("x-linked-etag").and_then(as_sha256),
    };
    (expect, header("x-repo-commit").filter(|c| is_commit(c)).map(str::to_owned))
}

/// `https://host` of an address.
fn origin_of(url: &str) -> &str {
    let host = url.find("://").map_or(0, |i| i + 3);
    url[host..].find('/').map_or(url, |i| &url[..host + i])
}

/// The digest in an entity tag or object id; small files outside LFS carry a git hash, which is none.
pub(super) fn as_sha256(tag: &str) -> Option<String> {
    let tag = tag.trim_matches('"');
    let tag = tag.strip_prefix("sha256:").unwrap_or(tag);
    (tag.len() == 64 && tag.bytes().all(|b| b.is_ascii_hexdigit())).then(|| tag.to_ascii_lowercase())
}
