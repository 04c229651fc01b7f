//! Choosing among the files of a repository and learning their digests.

use super::super::choose::choose;
use super::*;

const FILES: &[&str] = &[
    "m-IQ4_K.gguf",
    "m-Q4_K_M.gguf",
    "m-UD-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "m.q5_k_m.gguf",
    "mmproj-m-Q6_K.gguf",
    "big/m-F16-00001-of-00002.gguf",
    "big/m-F16-00002-of-00002.gguf",
];

#[test]
fn choice_of_a_file() {
    let ok = |quant, file| assert_eq!(choose(FILES, quant), Ok(vec![file]));
    ok(None, "m-Q4_K_M.gguf");
    ok(Some("q4_k_m"), "m-Q4_K_M.gguf");
    ok(Some("UD-Q4_K_M"), "m-UD-Q4_K_M.gguf");
    ok(Some("Q8_0"), "m-Q8_0.gguf");
    ok(Some("Q5_K_M"), "m.q5_k_m.gguf");
    let why = |files: &[&str], quant| choose(files, quant).unwrap_err();
    assert!(why(FILES, Some("Q4_K")).contains("m-Q8_0.gguf"), "the error lists what there is");
    assert!(why(FILES, Some("Q6_K")).contains("no file"), "a projector is no model");
    assert_eq!(choose(FILES, Some("F16")), Ok(FILES[6..].to_vec()), "a split set is one model");
    assert_eq!(choose(&[FILES[7], FILES[6]], None), Ok(FILES[6..].to_vec()));
    assert!(why(&FILES[7..], None).contains("big/m-F16-00001-of-00002.gguf is missing"));
    assert!(why(&FILES[..7], Some("F16")).contains("big/m-F16-00002-of-00002.gguf is missing"));
    assert!(why(&[], None).contains("no GGUF"));
    assert_eq!(choose(&["only.gguf"], None), Ok(vec!["only.gguf"]));
    assert!(why(&["a.gguf", "b.gguf"], None).contains("b.gguf"), "nothing decides between the two");
    assert_eq!(choose(&["x-Q8_0.gguf", "x-IQ2_XS.gguf"], None), Ok(vec!["x-Q8_0.gguf"]));
}

const FILE: &str = "d/m-Q4_0.gguf";

#[test]
fn a_quantisation_is_looked_up_then_found_in_the_cache_without_the_network() {
    let bytes = model(5000);
    let server = Hub::of(&[(FILE, bytes.clone())]).start();
    let mut bench = Bench::new(&server.url());
    bench.opts.hf_token = Some("secret".to_owned());
    let path = bench.resolve(&parse("hf:o/r:q4_0")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    for request in server.seen() {
        let wanted = (!request.path.starts_with("/cdn")).then_some("Bearer secret");
        assert_eq!(request.header("authorization"), wanted, "{}", request.path);
    }
    bench.opts.offline = true;
    for again in ["hf:o/r", "hf:o/r:Q4_0", "hf:o/r/d/m-Q4_0.gguf", "hf:o/r@main:Q4_0"] {
        assert_eq!(bench.resolve(&parse(again)).unwrap(), path, "{again}");
    }
    assert_eq!(bench.resolve(&parse(&format!("hf:o/r@{}", COMMITS[0]))).unwrap(), path, "the commit in full");
    for missing in ["hf:o/r:Q8_0", "hf:o/r/m-Q4_0.gguf", "hf:o/other", "hf:o/r@v1:Q4_0"] {
        let error = bench.resolve(&parse(missing)).unwrap_err();
        assert!(matches!(error, SourceError::Offline { .. }), "{missing}: {error}");
        assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    }
}

#[test]
fn a_named_file_is_checked_against_the_hubs_digest() {
    let bytes = model(5000);
    for repo in ["o", "old"] {
        let spec = parse(&format!("hf:{repo}/r/{FILE}"));
        let server = Hub::of(&[(FILE, bytes.clone())]).start();
        let bench = Bench::new(&server.url());
        assert_eq!(std::fs::read(bench.resolve(&spec).unwrap()).unwrap(), bytes);
        assert_eq!(server.seen()[0].method, "HEAD");

        let lie = Some(sha256(b"something else"));
        let server = Hub { lie, ..Hub::of(&[(FILE, bytes.clone())]) }.start();
        let bench = Bench::new(&server.url());
        let error = bench.resolve(&spec).unwrap_err();
        assert!(matches!(error, SourceError::WrongHash { .. }), "{error}");
        assert!(error.to_string().contains("m-Q4_0.gguf"), "{error}");
        bench.assert_nothing_final();
    }
}

#[test]
fn missing_repositories_revisions_and_parts_are_plain_errors() {
    let server = Hub::of(&[(FILE, model(10)), ("s-Q8_0-00002-of-00003.gguf", model(9))]).start();
    let bench = Bench::new(&server.url());
    for (spec, part) in [
        ("hf:no/where", "404"),
        ("hf:no/where/x.gguf", "404"),
        ("hf:o/r:Q5_0", FILE),
        ("hf:o/r@v9", "no such branch, tag or commit"),
        ("hf:o/r:Q8_0", "s-Q8_0-00001-of-00003.gguf is missing"),
        ("hf:o/r/x-00001-of-00002.gguf", "x-00001-of-00002.gguf"),
    ] {
        let error = bench.resolve(&parse(spec)).unwrap_err().to_string();
        assert!(error.contains(part), "{spec}: {error}");
    }
    bench.assert_nothing_final();
}

#[test]
fn a_refusal_says_what_to_do() {
    for (status, code, token, advice) in [
        ("401 Unauthorized", "GatedRepo", false, "accept its terms"),
        ("403 Forbidden", "GatedRepo", true, "has not been granted access"),
        ("401 Unauthorized", "RepoNotFound", false, "set HF_TOKEN"),
        ("401 Unauthorized", "", true, "token is not valid"),
        ("403 Forbidden", "", true, "does not give access"),
        ("404 Not Found", "EntryNotFound", false, "no such file"),
    ] {
        let server = Server::start(move |_, _| Reply::new(status, b"").with("X-Error-Code", code));
        let mut bench = Bench::new(&server.url());
        bench.opts.hf_token = token.then(|| "hf_secret".to_owned());
        for spec in ["hf:o/r", "hf:o/r/x.gguf"] {
            let error = bench.resolve(&parse(spec)).unwrap_err().to_string();
            assert!(error.contains(advice) && !error.contains("hf_secret"), "{status} {code}: {error}");
        }
    }
}

#[test]
fn a_server_without_commits_fills_the_own_cache() {
    let bytes = model(5000);
    let server = Hub { plain: true, ..Hub::of(&[(FILE, bytes.clone())]) }.start();
    let bench = Bench::new(&server.url());
    let path = bench.resolve(&parse("hf:o/r/d/m-Q4_0.gguf")).unwrap();
    assert_eq!(path, bench.cached("o--r--d--m-Q4_0.gguf"));
    assert_eq!(bench.resolve(&parse("hf:o/r:Q4_0")).unwrap(), path);
    let of_tag = bench.resolve(&parse("hf:o/r@v1/d/m-Q4_0.gguf")).unwrap();
    assert_eq!(of_tag, bench.cached("o--r@v1--d--m-Q4_0.gguf"));
    assert_eq!(super::super::remove("hf:o/r:Q4_0", &bench.opts).unwrap(), [path]);
}
