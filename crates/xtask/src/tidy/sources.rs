//! Rules about source files, one at a time.

use super::Problem;
use crate::code::lines_with;
use crate::tree::{SourceFile, Tree};

/// Lines of a source file.
const MAX_LINES: usize = 700;
/// Lines of a file of tests.
const MAX_TEST_LINES: usize = 1000;

/// Files below these may read environment variables: the registry, what finds models, what finds the folder of the
/// chat's history, and the test kit.
const READS_ENVIRONMENT: &[&str] = &[
    "crates/minfer/src/knobs.rs",
    "crates/cli/src/source/",
    "crates/cli/src/commands/chat/input.rs",
    "crates/testkit/",
];

/// The registry of environment variables.
const REGISTRY: &str = "crates/minfer/src/knobs.rs";

/// Folders that may print.
const PRINTS: &[&str] = &["crates/cli/", "crates/fuzz/", "crates/xtask/"];

/// Every module says what it is.
pub fn headers(tree: &Tree) -> Vec<Problem> {
    let bare = tree.rust().filter(|f| !f.text.starts_with("//! "));
    bare.map(|f| Problem::file(&f.path, "must start with `//! `")).collect()
}

/// Files stay short enough to have one subject.
pub fn lengths(tree: &Tree) -> Vec<Problem> {
    let too_long = |f: &SourceFile| {
        let (lines, most) = (f.text.lines().count(), if f.is_test() { MAX_TEST_LINES } else { MAX_LINES });
        (lines > most).then(|| Problem::file(&f.path, format!("has {lines} lines, {most} are the most")))
    };
    tree.rust().filter_map(too_long).collect()
}

/// Nothing is unfinished or switched off.
pub fn switched_off(tree: &Tree) -> Vec<Problem> {
    let marks = [concat!("to", "do!"), concat!("un", "implemented!"), concat!("#[ig", "nore")];
    let mut problems = find(tree.rust(), |f| &f.code, &marks, "is unfinished or switched off");
    // This one is a comment, where it stands.
    problems.extend(find(tree.rust(), |f| &f.text, &[concat!("FIX", "ME")], "is unfinished"));
    problems
}

/// No line ends in blanks; Rust files end with one line end. Test data are as they must be.
pub fn whitespace(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in tree.files.iter().filter(|f| !f.path.contains("/tests/data/")) {
        let ragged = |(_, line): &(usize, &str)| line.ends_with([' ', '\t', '\r']);
        let lines = f.text.split('\n').enumerate().filter(ragged);
        problems.extend(lines.map(|(i, _)| Problem::line(&f.path, i + 1, "ends in blanks")));
        if f.path.ends_with(".rs") && (!f.text.ends_with('\n') || f.text.ends_with("\n\n")) {
            problems.push(Problem::file(&f.path, "must end with one line end"));
        }
    }
    problems
}

/// The environment is read in one place, so that `minfer knobs` tells everything.
pub fn environment(tree: &Tree) -> Vec<Problem> {
    let elsewhere = tree.rust().filter(|f| !f.is_test() && !below(f, READS_ENVIRONMENT));
    let words = ["env::var", "env::var_os", "env::vars", "env::vars_os"];
    find(elsewhere, SourceFile::code_outside_tests, &words, "reads the environment outside the registry")
}

/// Every variable that the shipped crates name is in the registry: `MINFER_*`, and those of others in [`PREFIXES`].
pub fn knobs_are_registered(tree: &Tree) -> Vec<Problem> {
    let registry = tree.get(REGISTRY).map_or("", |f| f.text.as_str());
    let mut problems = Vec::new();
    for f in tree.rust().filter(|f| !f.is_test() && !below(f, &["crates/testkit/", "crates/xtask/"])) {
        for (i, line) in f.text.lines().enumerate() {
            let names = line.split('"').skip(1).step_by(2).filter(|s| is_knob(s));
            let unknown = names.filter(|name| !registry.contains(&format!("\"{name}\"")));
            problems
                .extend(unknown.map(|n| Problem::line(&f.path, i + 1, format!("{n} is not in {REGISTRY}"))));
        }
    }
    problems
}

/// How variables begin.
const PREFIXES: &[&str] = &["MINFER_", "HF_", "HUGGINGFACE_", "XDG_"];

fn is_knob(text: &str) -> bool {
    let rest = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

/// Only programs, tests and examples print.
pub fn printing(tree: &Tree) -> Vec<Problem> {
    let silent = tree.rust().filter(|f| !f.is_test() && !f.path.contains("/examples/") && !below(f, PRINTS));
    let words = ["print!", "println!", "eprint!", "eprintln!", concat!("db", "g!")];
    find(silent, SourceFile::code_outside_tests, &words, "prints outside a program")
}

/// No code depends on which backends are compiled in; a backend is a crate and a line of a registry.
pub fn backend_features(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in tree.rust().filter(|f| !f.path.starts_with("crates/xtask/")) {
        for (i, line) in f.text.lines().enumerate() {
            let line = line.replace(' ', "");
            if ["cuda", "metal", "wgpu"].iter().any(|b| line.contains(&format!("feature=\"{b}\""))) {
                problems.push(Problem::line(&f.path, i + 1, "depends on a backend's feature"));
            }
        }
    }
    problems
}

fn below(f: &SourceFile, places: &[&str]) -> bool {
    places.iter().any(|place| f.path.starts_with(place))
}

/// Problems for each word in the part of each file that `view` shows.
fn find<'t>(
    files: impl Iterator<Item = &'t SourceFile>,
    view: impl Fn(&'t SourceFile) -> &'t str,
    words: &[&'t str],
    what: &str,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in files {
        for word in words {
            let lines = lines_with(view(f), word);
            problems.extend(lines.map(|n| Problem::line(&f.path, n, format!("`{word}` {what}"))));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lib(text: &str) -> Tree {
        Tree::new([("crates/graph/src/lib.rs", text)])
    }

    fn places(problems: &[Problem]) -> Vec<usize> {
        problems.iter().map(|p| p.line).collect()
    }

    #[test]
    fn bare_modules_are_found() {
        assert_eq!(headers(&lib("#![forbid(unsafe_code)]\n//! Late.\n")).len(), 1);
        assert_eq!(headers(&lib("//! First.\n")), []);
    }

    #[test]
    fn long_files_are_found() {
        let text = "//! L.\n".repeat(MAX_LINES + 1);
        assert_eq!(lengths(&lib(&text)).len(), 1);
        assert_eq!(lengths(&Tree::new([("crates/graph/tests/a.rs", text)])), []);
        assert_eq!(lengths(&Tree::new([("a/tests/a.rs", "x\n".repeat(MAX_TEST_LINES + 1))])).len(), 1);
    }

    #[test]
    fn unfinished_code_is_found() {
        let text = concat!("fn f() {\n    to", "do!()\n}\n#[ig", "nore = \"slow\"]\n// FIX", "ME\n");
        assert_eq!(places(&switched_off(&lib(text))), [2, 4, 5]);
        assert_eq!(switched_off(&lib(concat!("// a to", "do! in words\n"))), []);
    }

    #[test]
    fn ragged_lines_are_found() {
        assert_eq!(places(&whitespace(&lib("a\nb \nc\t\n"))), [2, 3]);
        assert_eq!(places(&whitespace(&lib("a\r\n"))), [1]);
        assert_eq!(places(&whitespace(&lib("a"))), [0]);
        assert_eq!(places(&whitespace(&lib("a\n\n"))), [0]);
        assert_eq!(whitespace(&lib("a\n\nb\n")), []);
    }

    #[test]
    fn stray_environment_reads_are_found() {
        let text = "fn f() {\n    std::env::var(\"X\");\n    env::var_os(\"Y\");\n}\n#[cfg(test)]\nmod tests {\n    use std::env::var;\n}\n";
        assert_eq!(places(&environment(&lib(text))), [2, 3]);
        assert_eq!(environment(&Tree::new([(REGISTRY, text)])), []);
    }

    #[test]
    fn unregistered_knobs_are_found() {
        let use_of = |name: &str| ("crates/cpu/src/lib.rs", format!("//! C.\nconst K: &str = \"{name}\";\n"));
        let registry = || (REGISTRY, "name: \"MINFER_A\"".to_owned());
        assert_eq!(places(&knobs_are_registered(&Tree::new([registry(), use_of("MINFER_B")]))), [2]);
        assert_eq!(knobs_are_registered(&Tree::new([registry(), use_of("MINFER_A")])), []);
    }

    #[test]
    fn printing_libraries_are_found() {
        let text = "fn f() {\n    eprintln!(\"x\");\n}\n";
        assert_eq!(places(&printing(&lib(text))), [2]);
        assert_eq!(
            printing(&Tree::new([("crates/cli/src/main.rs", text), ("crates/a/tests/t.rs", text)])),
            []
        );
    }

    /// R109: nothing is compiled by backend.
    #[test]
    fn backend_features_are_found() {
        assert_eq!(places(&backend_features(&lib("#[cfg(feature = \"cuda\")]\nmod a;\n"))), [1]);
        assert_eq!(backend_features(&lib("#[cfg(target_arch = \"x86_64\")]\n")), []);
    }
}
