//! Choosing among the files of a repository and learning their digests.

use super::super::hf::choose;
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
    let ok = |quant, file| assert_eq!(choose(FILES, quant), Ok(file));
    ok(None, "m-Q4_K_M.gguf");
    ok(Some("q4_k_m"), "m-Q4_K_M.gguf");
    ok(Some("UD-Q4_K_M"), "m-UD-Q4_K_M.gguf");
    ok(Some("Q8_0"), "m-Q8_0.gguf");
    ok(Some("Q5_K_M"), "m.q5_k_m.gguf");
    let why = |files: &[&str], quant| choose(files, quant).unwrap_err();
    assert!(why(FILES, Some("Q4_K")).contains("m-Q8_0.gguf"), "the error lists what there is");
    assert!(why(FILES, Some("Q6_K")).contains("no file"), "a projector is no model");
    assert!(why(FILES, Some("F16")).contains("split sets are not handled"));
    assert!(why(&FILES[6..], None).contains("split sets are not handled"));
    assert!(why(&[], None).contains("no GGUF"));
    assert_eq!(choose(&["only.gguf"], None), Ok("only.gguf"));
    assert!(why(&["a.gguf", "b.gguf"], None).contains("b.gguf"), "nothing decides between the two");
    assert_eq!(choose(&["x-Q8_0.gguf", "x-IQ2_XS.gguf"], None), Ok("x-Q8_0.gguf"));
}

/// A hub with one repository that redirects its files to another host name, as the real one does.
fn hub(bytes: Vec<u8>, digest: String) -> Server {
    Server::start(move |request, _| match request.path.as_str() {
        "/api/models/o/r/tree/main?recursive=true" => {
            let tree = format!(
                r#"[{{"type":"directory","path":"d","size":0,"oid":"1"}},
                    {{"type":"file","path":"README.md","size":5,"oid":"2"}},
                    {{"type":"file","path":"d/m-Q4_0.gguf","size":{n},"oid":"3","lfs":{{"oid":"{digest}","size":{n},"pointerSize":1}}}}]"#,
                n = bytes.len()
            );
            Reply::ok(tree.as_bytes()).with("Content-Type", "application/json")
        }
        "/o/r/resolve/main/d/m-Q4_0.gguf" => Reply::new("302 Found", b"")
            .with(
                "Location",
                &format!(
                    "http://localhost:{}/cdn?x=1",
                    request.header("host").unwrap().rsplit_once(':').unwrap().1
                ),
            )
            .with("X-Linked-ETag", &format!("\"{digest}\""))
            .with("X-Linked-Size", &bytes.len().to_string()),
        "/old/r/resolve/main/d/m-Q4_0.gguf" => {
            Reply::new("307 Temporary Redirect", b"").with("Location", "/o/r/resolve/main/d/m-Q4_0.gguf")
        }
        "/cdn?x=1" => Reply::ok(&bytes),
        _ => Reply::new("404 Not Found", b"{}"),
    })
}

#[test]
fn a_quantisation_is_looked_up_then_found_in_the_cache_without_the_network() {
    let bytes = model(5000);
    let server = hub(bytes.clone(), sha256(&bytes));
    let mut bench = Bench::new(&server.url());
    bench.opts.hf_token = Some("secret".to_owned());
    let spec = ModelSpec::parse("hf:o/r:q4_0").unwrap();
    let path = bench.resolve(&spec).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(path, bench.cached("o--r--d--m-Q4_0.gguf"));
    for request in server.seen() {
        let wanted = (!request.path.starts_with("/cdn")).then_some("Bearer secret");
        assert_eq!(request.header("authorization"), wanted, "{}", request.path);
    }
    bench.opts.offline = true;
    for again in ["hf:o/r", "hf:o/r:Q4_0", "hf:o/r/d/m-Q4_0.gguf"] {
        assert_eq!(bench.resolve(&ModelSpec::parse(again).unwrap()).unwrap(), path, "{again}");
    }
    for missing in ["hf:o/r:Q8_0", "hf:o/r/m-Q4_0.gguf", "hf:o/other"] {
        let error = bench.resolve(&ModelSpec::parse(missing).unwrap()).unwrap_err();
        assert!(matches!(error, SourceError::Offline { .. }), "{missing}: {error}");
    }
}

#[test]
fn a_named_file_is_checked_against_the_hubs_digest() {
    let bytes = model(5000);
    for repo in ["o", "old"] {
        let spec = ModelSpec::parse(&format!("hf:{repo}/r/d/m-Q4_0.gguf")).unwrap();
        let server = hub(bytes.clone(), sha256(&bytes));
        let bench = Bench::new(&server.url());
        assert_eq!(std::fs::read(bench.resolve(&spec).unwrap()).unwrap(), bytes);
        assert_eq!(server.seen()[0].method, "HEAD");

        let server = hub(bytes.clone(), sha256(b"something else"));
        let bench = Bench::new(&server.url());
        let error = bench.resolve(&spec).unwrap_err();
        assert!(matches!(error, SourceError::WrongHash { .. }), "{error}");
        bench.assert_nothing_final();
    }
}

#[test]
fn missing_repositories_and_split_files_are_plain_errors() {
    let server = hub(model(10), sha256(b""));
    let bench = Bench::new(&server.url());
    for (spec, part) in [
        ("hf:no/where", "404"),
        ("hf:no/where/x.gguf", "404"),
        ("hf:o/r:Q8_0", "d/m-Q4_0.gguf"),
        ("hf:o/r/x-00001-of-00002.gguf", "split set"),
    ] {
        let error = bench.resolve(&ModelSpec::parse(spec).unwrap()).unwrap_err().to_string();
        assert!(error.contains(part), "{spec}: {error}");
    }
    bench.assert_nothing_final();
}
