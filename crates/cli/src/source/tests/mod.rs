//! Tests of the model sources without a network: a local server that misbehaves on demand, and a fake pip.

mod cache;
mod faults;
mod hub;
mod names;
mod network;
#[cfg(unix)]
mod shared;
#[cfg(unix)]
mod wheels;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::catalogue::{Entry, Origin};
use super::{ModelSpec, Reporter, SourceError, SourceOptions, resolve};

/// Keeps the notes for assertions.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn all(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Reporter for Notes {
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn at(&self, _: u64) {}
    fn end(&self, _: u64, _: bool) {}
}

/// A request as the server saw it; header names in lower case.
#[derive(Debug, Clone)]
struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Start of `Range: bytes=N-`.
    fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// An answer, with its faults.
#[derive(Debug, Clone, Default)]
struct Reply {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Announced instead of the true length.
    length: Option<usize>,
    /// Only this many bytes of the body are sent.
    cut: Option<usize>,
    /// After that the connection stays open for this long.
    hang: Duration,
}

impl Reply {
    fn new(status: &'static str, body: &[u8]) -> Self {
        Self { status, body: body.to_vec(), ..Self::default() }
    }

    fn ok(body: &[u8]) -> Self {
        Self::new("200 OK", body)
    }

    /// The honest 206 for a range.
    fn rest(body: &[u8], from: usize) -> Self {
        let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
        Self::new("206 Partial Content", &body[from..]).with("Content-Range", &range)
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn cut(mut self, at: usize) -> Self {
        self.cut = Some(at);
        self
    }

    fn hang(mut self, time: Duration) -> Self {
        self.hang = time;
        self
    }

    fn send(&self, stream: &mut TcpStream, head_only: bool) -> std::io::Result<()> {
        let length = self.length.unwrap_or(self.body.len());
        write!(stream, "HTTP/1.1 {}\r\nContent-Length: {length}\r\nConnection: close\r\n", self.status)?;
        for (name, value) in &self.headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        stream.write_all(b"\r\n")?;
        if !head_only {
            stream.write_all(&self.body[..self.cut.unwrap_or(self.body.len())])?;
        }
        stream.flush()?;
        thread::sleep(self.hang);
        Ok(())
    }
}

/// A server on a free local port. Its thread lives as long as the test process.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `answer` gets each request and its index.
    fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some(request) = read_request(&stream) else { return };
                    let index = {
                        let mut log = log.lock().unwrap();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    // A client that hangs up early is part of the tests.
                    let _ = answer(&request, index).send(&mut stream, request.method == "HEAD");
                });
            }
        });
        Self { address, seen }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Some(Request { method, path, headers })
}

/// Bytes that start like a GGUF file and do not repeat.
fn model(len: usize) -> Vec<u8> {
    let mut state = len as u64 | 1;
    let mut bytes = b"GGUF".to_vec();
    bytes.resize_with(len, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

const HF: Origin = Origin::Hf { repo: "owner/repo", file: "dir/a b.gguf" };

/// Commits of the hub below: what `main` and `v1` are at.
const COMMITS: [&str; 2] =
    ["1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"];

/// A hub with the repository `o/r`, which redirects its files to another host name, as the real one does. `main` and
/// `v1` have the same files. The address `/old/r/` leads to `/o/r/`.
struct Hub {
    files: Vec<(&'static str, Vec<u8>)>,
    /// Digest told instead of the true one.
    lie: Option<String>,
    /// Without commits and digests, as simple mirrors are.
    plain: bool,
    /// Path of the file whose first transfer breaks off at half.
    drops: Option<&'static str>,
}

impl Hub {
    fn of(files: &[(&'static str, Vec<u8>)]) -> Self {
        Self { files: files.to_vec(), lie: None, plain: false, drops: None }
    }

    fn start(self) -> Server {
        let dropped = Mutex::new(false);
        Server::start(move |request, _| {
            self.answer(request, &dropped).unwrap_or(Reply::new("404 Not Found", b"{}"))
        })
    }

    fn commit(&self, revision: &str) -> Option<&'static str> {
        COMMITS
            .into_iter()
            .zip(["main", "v1"])
            .find(|(c, name)| revision == *c || revision == *name)
            .map(|(c, _)| c)
    }

    fn digest(&self, bytes: &[u8]) -> String {
        self.lie.clone().unwrap_or_else(|| sha256(bytes))
    }

    fn answer(&self, request: &Request, dropped: &Mutex<bool>) -> Option<Reply> {
        let file = |path: &str| self.files.iter().find(|(name, _)| *name == path);
        if let Some(path) = request.path.strip_prefix("/cdn/") {
            let (_, bytes) = file(path)?;
            let reply = match request.range() {
                Some(from) => Reply::rest(bytes, from),
                None => Reply::ok(bytes),
            };
            let reply = reply.with("ETag", &format!("\"{}\"", sha256(bytes)));
            let first = self.drops == Some(path) && !std::mem::replace(&mut *dropped.lock().unwrap(), true);
            return Some(if first { reply.cut(bytes.len() / 2) } else { reply });
        }
        if let Some(rest) = request.path.strip_prefix("/old/r/resolve/") {
            return Some(
                Reply::new("307 Temporary Redirect", b"").with("Location", &format!("/o/r/resolve/{rest}")),
            );
        }
        if let Some(rest) = request.path.strip_prefix("/api/models/o/r/revision/") {
            let Some(commit) = self.commit(rest.strip_suffix("?blobs=true")?) else {
                return Some(Reply::new("404 Not Found", b"").with("X-Error-Code", "RevisionNotFound"));
            };
            let entry = |(path, bytes): &(&str, Vec<u8>)| {
                let (n, digest) = (bytes.len(), self.digest(bytes));
                format!(
                    r#","lfs":{{"sha256":"{digest}","size":{n},"pointerSize":1}},"size":{n},"rfilename":"{path}"}}"#
                )
            };
            let files: String =
                self.files.iter().map(|f| format!(r#",{{"blobId":"1"{}"#, entry(f))).collect();
            let list = format!(
                r#"{{"id":"o/r","sha":"{commit}","siblings":[{{"rfilename":"README.md","size":5}}{files}]}}"#
            );
            return Some(Reply::ok(list.as_bytes()).with("Content-Type", "application/json"));
        }
        let (revision, path) = request.path.strip_prefix("/o/r/resolve/")?.split_once('/')?;
        let (commit, (_, bytes)) = (self.commit(revision)?, file(path)?);
        let port = request.header("host").unwrap().rsplit_once(':').unwrap().1;
        let reply =
            Reply::new("302 Found", b"").with("Location", &format!("http://localhost:{port}/cdn/{path}"));
        if self.plain {
            return Some(reply);
        }
        let reply = reply.with("X-Linked-ETag", &format!("\"{}\"", self.digest(bytes)));
        Some(reply.with("X-Linked-Size", &bytes.len().to_string()).with("X-Repo-Commit", commit))
    }
}

fn parse(arg: &str) -> ModelSpec {
    ModelSpec::parse(arg).unwrap()
}

/// A catalogue entry pinned to `bytes`.
fn entry(bytes: &[u8], sources: Vec<Origin>) -> ModelSpec {
    ModelSpec::Catalogue(Box::leak(Box::new(Entry {
        name: "test:1m",
        file: "test.gguf",
        sha256: leak(&sha256(bytes)),
        size: bytes.len() as u64,
        base: false,
        sources: Box::leak(sources.into_boxed_slice()),
    })))
}

/// A cache folder of its own and options that point nowhere outside.
struct Bench {
    opts: SourceOptions,
    notes: Arc<Notes>,
    folder: TempDir,
}

impl Bench {
    fn new(endpoint: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let notes = Arc::new(Notes::default());
        let mut opts = SourceOptions::new(folder.path().join("cache"), Arc::clone(&notes) as _);
        opts.hub_cache = Some(folder.path().join("hub"));
        opts.hf_endpoint = endpoint.to_owned();
        opts.python = vec!["/nonexistent/python".into()];
        opts.retry_delay = Duration::from_millis(1);
        opts.read_timeout = Duration::from_secs(10);
        Self { opts, notes, folder }
    }

    fn cached(&self, file: &str) -> PathBuf {
        self.opts.cache_dir.join(file)
    }

    /// Asserts that no file of the cache looks complete.
    fn assert_nothing_final(&self) {
        let models = super::list(&self.opts).unwrap();
        assert!(models.is_empty(), "{models:?}");
    }

    fn resolve(&self, spec: &ModelSpec) -> Result<PathBuf, SourceError> {
        resolve(spec, &self.opts)
    }
}
