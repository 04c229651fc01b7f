//! Reading MODEL arguments.

use super::super::pip::matches;
use super::super::{HfPick, catalogue};
use super::*;

#[test]
fn the_four_forms() {
    let ok = |arg: &str| ModelSpec::parse(arg).unwrap();
    for path in ["x.gguf", "./x", "/models/x", "no/such/file", "a b/c.GGUF"] {
        assert_eq!(ok(path), ModelSpec::Path(path.into()));
    }
    let hf = |pick| ModelSpec::Hf { repo: "o/r.GGUF".to_owned(), revision: None, pick };
    assert_eq!(ok("hf:o/r.GGUF"), hf(HfPick::Default));
    assert_eq!(ok("hf:o/r.GGUF:Q8_0"), hf(HfPick::Quant("Q8_0".to_owned())));
    assert_eq!(ok("hf:o/r.GGUF/d/f.gguf"), hf(HfPick::File("d/f.gguf".to_owned())));
    let at = |revision: &str, pick| ModelSpec::Hf {
        repo: "o/r".to_owned(),
        revision: Some(revision.to_owned()),
        pick,
    };
    assert_eq!(ok("hf:o/r@v1.0"), at("v1.0", HfPick::Default));
    assert_eq!(ok("hf:o/r@a/branch:Q8_0"), at("a/branch", HfPick::Quant("Q8_0".to_owned())));
    assert_eq!(ok("hf:o/r@v1/d/f.gguf"), at("v1", HfPick::File("d/f.gguf".to_owned())));
    assert_eq!(ok("hf:o/r@refs/pr/3/d/f.gguf"), at("refs/pr/3", HfPick::File("d/f.gguf".to_owned())));
    assert_eq!(ok("hf:o/r@main:Q4_0"), ok("hf:o/r:Q4_0"));
    let pip = ModelSpec::Pip { requirement: "a-b==1.0.post1".to_owned(), member: "a_b/m.gguf".to_owned() };
    assert_eq!(ok("pip:a-b==1.0.post1/a_b/m.gguf"), pip);
    let smol = ok("smollm2:135m");
    assert!(matches!(smol, ModelSpec::Catalogue(e) if e.name == catalogue::DEFAULT));
    assert_eq!(ok("smollm2"), smol);
    assert_eq!(ok("SmolLM2"), smol);
    for arg in [
        "hf:o/r",
        "hf:o/r:Q8_0",
        "hf:o/r/f.gguf",
        "hf:o/r@v1:Q8_0",
        "hf:o/r@v1/f.gguf",
        "pip:a==1/m.gguf",
        "smollm2:135m",
        "x.gguf",
    ] {
        assert_eq!(ok(arg).to_string(), arg);
    }
}

#[test]
fn malformed_schemes_show_the_form() {
    let bad_hf = [
        "hf:",
        "hf:o",
        "hf:o/",
        "hf:o/r/f.bin",
        "hf:o/r/../f.gguf",
        "hf:-o/r",
        "hf:o/r:",
        "hf:o/r/f.gguf:Q",
        "hf:o/r@",
        "hf:o/r@../x",
        "hf:o/r@v1/",
        "hf:o/r@-x",
    ];
    let bad_pip = [
        "pip:",
        "pip:a",
        "pip:a==1",
        "pip:a/m.gguf",
        "pip:--x==1/m.gguf",
        "pip:a==1 -r/m.gguf",
        "pip:a==1/m.txt",
    ];
    for (arg, form) in
        bad_hf.iter().map(|a| (a, "hf:owner/repo")).chain(bad_pip.iter().map(|a| (a, "pip:package")))
    {
        let error = ModelSpec::parse(arg).unwrap_err();
        assert!(
            matches!(error, SourceError::BadSpec { .. }) && error.to_string().contains(form),
            "{arg}: {error}"
        );
    }
    assert!(ModelSpec::parse("https://host/x.gguf").unwrap_err().to_string().contains("hf:"));
}

#[test]
fn anything_else_shows_near_names() {
    let text = |arg: &str| ModelSpec::parse(arg).unwrap_err().to_string();
    for arg in ["hello", "Is 1/2 more than 1/3?", ""] {
        let text = text(arg);
        assert!(text.contains("catalogue names: smollm2:135m"), "{text}");
    }
    assert!(text("smolm2:135m").contains("did you mean smollm2:135m?"));
    assert!(text("smollm:135m").contains("did you mean smollm2:135m?"));
    assert!(text("qwen").contains("did you mean qwen2.5-coder:0.5b?"));
}

#[test]
fn an_existing_file_wins_and_a_missing_one_is_named() {
    let bench = Bench::new("http://unused");
    let file = bench.folder.path().join("plain");
    std::fs::write(&file, "x").unwrap();
    let spec = ModelSpec::parse(file.to_str().unwrap()).unwrap();
    assert_eq!(bench.resolve(&spec).unwrap(), file);
    let error = bench.resolve(&ModelSpec::parse("no/such.gguf").unwrap()).unwrap_err();
    assert!(matches!(error, SourceError::NoSuchFile(_)) && error.to_string().contains("no/such.gguf"));
}

#[test]
fn catalogue_is_well_formed() {
    for e in catalogue::CATALOGUE {
        assert!(e.name.contains(':') && e.file.ends_with(".gguf") && e.size > 0 && !e.sources.is_empty());
        assert!(
            e.sha256.len() == 64
                && e.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        );
        assert_eq!(catalogue::CATALOGUE.iter().filter(|o| o.name == e.name || o.file == e.file).count(), 1);
    }
    assert!(catalogue::find(catalogue::DEFAULT).is_some());
}

#[test]
fn star_patterns() {
    let ok = |p: &str, s: &str| matches(p.as_bytes(), s.as_bytes());
    assert!(ok("*.gguf.part*", "pkg/m.gguf.part1") && ok("*/data/part*.bin", "a/data/part3.bin"));
    assert!(ok("a/b.gguf", "a/b.gguf") && ok("*", "") && ok("a*b*c", "aXbYbZc"));
    assert!(!ok("a/b.gguf", "a/b.ggufx") && !ok("*.bin", "a.bin.txt") && !ok("a*b", "ac"));
}
