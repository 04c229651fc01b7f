//! Downloads over HTTP that survive broken connections and distrust the server.

use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

use super::SourceOptions;
use super::cache::{read_json, write_json};
use super::error::SourceError;
use super::part::{Expect, PartFile};
use crate::console::megabytes;

/// What to fetch.
pub(super) struct Download<'a> {
    /// The model, for messages.
    pub what: &'a str,
    /// The address.
    pub url: &'a str,
    /// Bearer token for that host; redirects to other hosts do not get it.
    pub token: Option<&'a str>,
    /// Length and digest, as far as known.
    pub expect: &'a Expect,
    /// File that remembers, across processes, what the part is a part of.
    pub meta: &'a Path,
}

impl Download<'_> {
    fn failed(&self, why: String) -> SourceError {
        SourceError::Http { what: self.what.to_owned(), url: self.url.to_owned(), why }
    }
}

/// What a resume needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartMeta {
    url: String,
    /// A strong entity tag, with its quotes.
    etag: Option<String>,
    /// The digest of the whole, if it was known: the same bytes may since have got another address.
    #[serde(default)]
    sha256: Option<String>,
    /// Name of what is fetched.
    #[serde(default)]
    pub name: String,
}

impl PartMeta {
    /// Whether the part can belong to this download.
    fn is_of(&self, get: &Download<'_>) -> bool {
        self.url == get.url || (self.sha256.is_some() && self.sha256 == get.expect.sha256)
    }
}

/// How an attempt ended short of success.
enum Stop {
    /// Worth another attempt.
    Retry(String),
    /// Not worth one.
    Fail(SourceError),
}

impl From<SourceError> for Stop {
    fn from(e: SourceError) -> Self {
        Stop::Fail(e)
    }
}

/// A client with this module's timeouts. The proxy comes from the usual environment variables.
pub(super) fn client(opts: &SourceOptions) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_resolve(Some(opts.connect_timeout))
        .timeout_connect(Some(opts.connect_timeout))
        .timeout_recv_response(Some(opts.read_timeout))
        .timeout_per_read(Some(opts.read_timeout))
        .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
        .user_agent(concat!("minfer/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

/// Brings `part` to the whole content of the address, resuming what is there if the server can prove that it
/// belongs together. The caller checks the digest.
///
/// # Errors
/// Any [`SourceError`]; after [`SourceError::Dropped`] the part is kept for a later call.
pub(super) fn download(
    get: &Download<'_>,
    part: &mut PartFile,
    opts: &SourceOptions,
) -> Result<(), SourceError> {
    let client = client(opts);
    let (mut failures, mut moved) = (0, false);
    loop {
        let before = part.len();
        let why = match attempt(&client, get, part, opts) {
            Ok(()) => return Ok(()),
            Err(Stop::Fail(e)) => return Err(e),
            Err(Stop::Retry(why)) => why,
        };
        // Progress resets the count, so a long download over a bad line ends at last.
        failures = if part.len() > before { 1 } else { failures + 1 };
        moved |= part.len() > before;
        // A server that never gave anything is not worth waiting for: the next source may be.
        if !moved {
            return Err(get.failed(why));
        }
        if failures > opts.retries {
            let (what, url) = (get.what.to_owned(), get.url.to_owned());
            return Err(SourceError::Dropped { what, url, got: part.len(), why });
        }
        opts.reporter.note(&format!("broke off at {} ({why}), trying again", megabytes(part.len())));
        thread::sleep(opts.retry_delay * failures);
    }
}

/// One request, and one more from the start if the server's answer to a resume is unusable.
fn attempt(
    client: &Agent,
    get: &Download<'_>,
    part: &mut PartFile,
    opts: &SourceOptions,
) -> Result<(), Stop> {
    let known = read_json::<PartMeta>(get.meta).filter(|m| m.is_of(get));
    // Without an entity tag only the final digest can tell that two halves belong together.
    let resumable = known.as_ref().is_some_and(|m| m.etag.is_some() || get.expect.sha256.is_some());
    if !resumable || get.expect.size.is_some_and(|size| part.len() > size) {
        part.restart()?;
    }
    if part.len() > 0 && get.expect.size == Some(part.len()) {
        return Ok(());
    }
    let etag = known.and_then(|m| m.etag);
    let mut response = request(client, get, part.len(), etag.as_deref())?;
    if part.len() > 0 && !continues(&response, part.len(), etag.as_deref(), get.expect.size) {
        if matches!(response.status(), StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE) {
            response = request(client, get, 0, None)?;
        }
        // A refusal or a passing fault must not cost the bytes already there.
        check_response(&response, get, false)?;
        opts.reporter.note("the server does not resume, starting again");
        part.restart()?;
    }
    check_response(&response, get, part.len() > 0)?;
    receive(response, get, part, opts)
}

/// Sends the GET, for the bytes from `offset` on.
fn request(
    client: &Agent,
    get: &Download<'_>,
    offset: u64,
    etag: Option<&str>,
) -> Result<Response<Body>, Stop> {
    // Ranges and lengths must count the file's bytes, not those of a compressed stream.
    let mut request = authorized(client.get(get.url), get.token)?.header("Accept-Encoding", "identity");
    if offset > 0 {
        request = request.header("Range", format!("bytes={offset}-"));
        if let Some(etag) = etag {
            request = request.header("If-Range", etag);
        }
    }
    request.call().map_err(|e| Stop::Retry(unreachable(&e)))
}

/// The request with the token, if there is one.
///
/// # Errors
/// [`SourceError::BadToken`]: sent as a header it would be a fault of the request, which says nothing of the token.
pub(super) fn authorized<B>(
    request: RequestBuilder<B>,
    token: Option<&str>,
) -> Result<RequestBuilder<B>, SourceError> {
    match token {
        None => Ok(request),
        Some(token) if token.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(request.header("Authorization", format!("Bearer {token}")))
        }
        Some(_) => Err(SourceError::BadToken),
    }
}

/// True if the response is the rest of the part: 206, from the right byte, of the same entity and length.
fn continues(response: &Response<Body>, offset: u64, etag: Option<&str>, size: Option<u64>) -> bool {
    let headers = response.headers();
    let same_entity = match (etag, text(headers, "etag")) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => true,
    };
    let range = text(headers, "content-range").and_then(parse_content_range);
    let right_range = range.is_some_and(|(start, total)| {
        start == offset && total.is_none_or(|t| t > offset && size.is_none_or(|s| s == t))
    });
    response.status() == StatusCode::PARTIAL_CONTENT && same_entity && right_range
}

/// Start and total of `bytes 5-9/10`; the total may be `*`.
fn parse_content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((start.parse().ok()?, total))
}

/// Refuses error pages, web pages, compressed streams, and a partial answer to a request for the whole.
fn check_response(response: &Response<Body>, get: &Download<'_>, partial: bool) -> Result<(), Stop> {
    let status = response.status();
    let fail = |why: String| Stop::Fail(get.failed(why));
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(Stop::Retry(format!("HTTP {status}")));
    }
    let expected = if partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    if status != expected {
        return Err(fail(refusal(response, get.token.is_some())));
    }
    let headers = response.headers();
    if text(headers, "content-type").is_some_and(|t| t.to_ascii_lowercase().starts_with("text/html")) {
        return Err(fail("the server sent a web page instead of the file".to_owned()));
    }
    if let Some(coding) = text(headers, "content-encoding").filter(|c| !c.eq_ignore_ascii_case("identity")) {
        return Err(fail(format!("the server sent the file {coding}-coded although that was ruled out")));
    }
    Ok(())
}

/// Why there is no answer, and what the user can do.
pub(super) fn unreachable(error: &ureq::Error) -> String {
    let why = error.to_string();
    let why = why.strip_prefix("io: ").unwrap_or(&why);
    if matches!(error, ureq::Error::Http(_) | ureq::Error::BadUri(_)) {
        return format!("the address cannot be asked ({why}); check HF_ENDPOINT");
    }
    format!(
        "no answer ({why}); check the network and its proxy; `minfer list` shows the models that need none"
    )
}

/// Why the server refused, and what the user can do. `token` tells whether one was sent.
pub(super) fn refusal(response: &Response<Body>, token: bool) -> String {
    let status = response.status();
    let code = text(response.headers(), "x-error-code").unwrap_or_default();
    let hint = match (status.as_u16(), code, token) {
        (401 | 403, "GatedRepo", false) => {
            " (a gated repository: accept its terms on its page, then set HF_TOKEN to a token of that account)"
        }
        (401 | 403, "GatedRepo", true) => {
            " (a gated repository: the token's account has not been granted access; accept the terms on its page)"
        }
        (401 | 403, _, false) => " (not there, or private or gated: check the name, or set HF_TOKEN)",
        (401, _, true) => " (not there, or the token is not valid: check the name and HF_TOKEN)",
        (403, _, true) => {
            " (the token does not give access: check its permissions and the repository's terms)"
        }
        (404, "EntryNotFound", _) => " (the repository has no such file)",
        (404, "RevisionNotFound", _) => " (the repository has no such branch, tag or commit)",
        (404, _, _) => " (not there: check the name)",
        _ => "",
    };
    format!("HTTP {status}{hint}")
}

/// Streams the body into the part and checks that it is as long as announced.
fn receive(
    response: Response<Body>,
    get: &Download<'_>,
    part: &mut PartFile,
    opts: &SourceOptions,
) -> Result<(), Stop> {
    let headers = response.headers();
    let strong = text(headers, "etag").filter(|t| t.starts_with('"')).map(str::to_owned);
    let body_len: Option<u64> = text(headers, "content-length").and_then(|v| v.parse().ok());
    let total = body_len.map(|n| part.len().saturating_add(n));
    if let Some(total) = total {
        part.check_len(total, get.expect, true)?;
    }
    let meta = PartMeta {
        url: get.url.to_owned(),
        etag: strong,
        sha256: get.expect.sha256.clone(),
        name: get.what.to_owned(),
    };
    write_json(get.meta, &meta)?;
    opts.reporter.begin(get.what, total.or(get.expect.size), part.len());
    let result = copy(response.into_body(), get, part);
    let short = total.or(get.expect.size).is_some_and(|t| part.len() < t);
    opts.reporter.end(part.len(), result.is_ok() && !short);
    match result {
        Ok(()) if short => Err(Stop::Retry("the server closed the connection early".to_owned())),
        other => other,
    }
}

fn copy(body: Body, get: &Download<'_>, part: &mut PartFile) -> Result<(), Stop> {
    let mut reader = body.into_reader();
    let mut block = vec![0; 128 << 10];
    loop {
        let n = reader.read(&mut block).map_err(|e| Stop::Retry(e.to_string()))?;
        if n == 0 {
            return Ok(());
        }
        part.check_len(part.len() + n as u64, get.expect, false)?;
        part.append(&block[..n])?;
    }
}

/// A header's value, if it is there and is text.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Longest time to find and reach a server.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of a server that is borne.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts in a row without progress.
pub(super) const RETRIES: u32 = 4;
/// Pause before the first repetition; the next are longer.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);
