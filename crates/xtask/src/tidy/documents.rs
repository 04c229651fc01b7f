//! Rules about documents: what they name exists.

use super::Problem;
use crate::tree::{SourceFile, Tree};
use std::collections::BTreeSet;

/// The licences that the manifests name are there.
pub fn licences(tree: &Tree) -> Vec<Problem> {
    let marks = [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")];
    let missing = marks.iter().filter(|(path, mark)| !tree.get(path).is_some_and(|f| f.text.contains(mark)));
    missing.map(|(path, mark)| Problem::file(path, format!("is missing, or is not the {mark}"))).collect()
}

/// The changelog has a place for the next change.
pub fn changelog(tree: &Tree) -> Vec<Problem> {
    let path = "CHANGELOG.md";
    let there = tree.get(path).is_some_and(|f| f.text.lines().any(|l| l == "## [Unreleased]"));
    (!there).then(|| Problem::file(path, "lacks the section `## [Unreleased]`")).into_iter().collect()
}

/// `minfer X` and `cargo xtask X` in the code of documents name commands that exist.
pub fn commands(tree: &Tree) -> Vec<Problem> {
    let minfer = minfer_commands(tree);
    let known = |word: &str| minfer.contains(word) || word == "help";
    let xtask = ["tidy", "docs", "bench-peers"];
    let mut problems = Vec::new();
    for f in tree.documents() {
        for (line, code) in code_spans(&f.text) {
            let words: Vec<&str> =
                code.split(|c: char| c.is_whitespace() || c == '|').filter(|w| !w.is_empty()).collect();
            for (i, pair) in words.windows(2).enumerate() {
                let first = i == 0 || matches!(words[i - 1], "$" | "&&" | ";" | "--");
                let wrong = match pair {
                    ["minfer", sub] if first => is_name(sub) && !known(sub),
                    ["xtask", sub] if i > 0 && words[i - 1] == "cargo" => {
                        is_name(sub) && !xtask.contains(sub)
                    }
                    _ => false,
                };
                if wrong {
                    problems.push(Problem::line(
                        &f.path,
                        line,
                        format!("there is no command `{}`", pair.join(" ")),
                    ));
                }
            }
        }
    }
    problems
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// The variants of the command line's `enum Command`, in lower case.
fn minfer_commands(tree: &Tree) -> BTreeSet<String> {
    let cli = tree.rust().filter(|f| f.path.starts_with("crates/cli/src/"));
    let Some(body) = cli.filter_map(|f| f.code.split_once("enum Command {")).map(|(_, body)| body).next()
    else {
        return BTreeSet::new();
    };
    let (mut depth, mut names) = (0i32, BTreeSet::new());
    for line in body.lines() {
        let name: String = line.trim().chars().take_while(char::is_ascii_alphanumeric).collect();
        if depth == 0 && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            names.insert(name.to_lowercase());
        }
        for c in line.chars() {
            depth += i32::from(matches!(c, '{' | '(' | '[')) - i32::from(matches!(c, '}' | ')' | ']'));
        }
        if depth < 0 {
            break;
        }
    }
    names
}

/// Code of a document with its line: the lines of fenced blocks, and spans between back quotes.
fn code_spans(text: &str) -> Vec<(usize, &str)> {
    let (mut fenced, mut spans) = (false, Vec::new());
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            spans.push((i + 1, line));
        } else {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (i + 1, span)));
        }
    }
    spans
}

/// A test that a document names as `test: NAME` exists.
pub fn test_names(tree: &Tree) -> Vec<Problem> {
    let tests: BTreeSet<&str> = tree.rust().flat_map(tests_of).collect();
    let mut problems = Vec::new();
    for f in tree.documents() {
        for (line, span) in code_spans(&f.text) {
            let Some(names) = span.strip_prefix("test: ") else { continue };
            let unknown = names.split(", ").filter(|name| !tests.contains(name));
            problems.extend(unknown.map(|n| Problem::line(&f.path, line, format!("there is no test `{n}`"))));
        }
    }
    problems
}

/// Names of the functions that follow `#[test]`.
fn tests_of(f: &SourceFile) -> impl Iterator<Item = &str> {
    f.code.split("#[test]").skip(1).filter_map(|after| {
        let (_, rest) = after.split_once("fn ")?;
        rest.split('(').next().map(str::trim)
    })
}

/// Links of documents to files of the repository lead somewhere.
pub fn links(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in tree.documents() {
        let folder = f.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (i, line) in f.text.lines().enumerate() {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let local = targets.filter(|t| !t.is_empty() && !t.contains("://") && !t.starts_with("mailto:"));
            let dead = local.filter(|t| !tree.has(&resolve(folder, t)));
            problems.extend(dead.map(|t| Problem::line(&f.path, i + 1, format!("there is no {t}"))));
        }
    }
    problems
}

/// `target` as seen from `folder`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLI: &str = "//! C.\nenum Command {\n    /// Runs.\n    Run(RunArgs),\n    List {\n        Json: bool,\n    },\n}\nenum Other { Fly }\n";

    fn document(text: &str) -> Tree {
        let tests = "//! T.\n#[test]\nfn holds() {}\nfn helper() {}\n";
        Tree::new([("docs/a.md", text), ("crates/cli/src/args.rs", CLI), ("crates/x/tests/t.rs", tests)])
    }

    #[test]
    fn missing_licences_are_found() {
        assert_eq!(licences(&Tree::new([("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "x")])).len(), 1);
        assert_eq!(
            licences(&Tree::new([("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")])),
            []
        );
    }

    #[test]
    fn a_changelog_without_room_is_found() {
        assert_eq!(changelog(&Tree::new([("CHANGELOG.md", "# Changelog\n## 1.0\n")])).len(), 1);
        assert_eq!(changelog(&Tree::new([("CHANGELOG.md", "## [Unreleased]\n")])), []);
    }

    #[test]
    fn unknown_commands_are_found() {
        let wrong =
            ["`minfer fly`", "```\n$ minfer json\n```", "`cargo xtask fly`", "`cargo run -- minfer other`"];
        for text in wrong {
            assert_eq!(commands(&document(text)).len(), 1, "{text}");
        }
        let right = "minfer flies; `minfer run X`, `minfer --version`, `minfer run | minfer list`, `cargo xtask tidy`";
        assert_eq!(commands(&document(right)), []);
    }

    #[test]
    fn unknown_tests_are_found() {
        assert_eq!(test_names(&document("`test: holds, helper`")).len(), 1);
        assert_eq!(test_names(&document("`test: gone`")).len(), 1);
        assert_eq!(test_names(&document("`test: holds`")), []);
    }

    #[test]
    fn dead_links_are_found() {
        assert_eq!(links(&document("[x](b.md)")).len(), 1);
        assert_eq!(links(&document("[x](a.md#part) [y](../crates/cli) [z](https://x.y/z)")), []);
    }
}
