//! Rules that no compiler checks. Each is a function from the tree to problems, with a test that shows it can fail.

mod documents;
mod manifests;
mod matches;
mod requirements;
mod safety;
mod sources;
mod words;

use crate::tree::Tree;
use std::fmt;

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the file from the root.
    pub path: String,
    /// Line from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    /// A problem with a whole file.
    pub fn file(path: &str, what: impl Into<String>) -> Self {
        Self::line(path, 0, what)
    }

    /// A problem with a line.
    pub fn line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Problem { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// A rule.
type Check = fn(&Tree) -> Vec<Problem>;

/// All rules.
const CHECKS: &[Check] = &[
    manifests::arrows,
    manifests::lints_are_inherited,
    manifests::anyhow_only_in_programs,
    safety::forbidden,
    safety::places,
    sources::headers,
    sources::lengths,
    sources::switched_off,
    sources::whitespace,
    sources::environment,
    sources::knobs_are_registered,
    sources::printing,
    sources::backend_features,
    matches::op_wildcards,
    words::foreign,
    documents::licences,
    documents::changelog,
    documents::commands,
    documents::test_names,
    documents::links,
    requirements::requirements,
];

/// Every problem of the repository.
pub fn run(tree: &Tree) -> Vec<Problem> {
    CHECKS.iter().flat_map(|check| check(tree)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R109: every rule on the repository itself.
    #[test]
    fn the_repository_is_tidy() {
        let problems = run(&Tree::load(&crate::root()).unwrap());
        let list: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert!(list.is_empty(), "{} problem(s):\n{}", list.len(), list.join("\n"));
    }
}
