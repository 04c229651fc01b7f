//! The text files of the repository, in memory: what the checks look at. Tests make small ones by hand.

use crate::code;
use anyhow::{Context, Result};
use std::path::Path;

/// A text file.
pub struct SourceFile {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// Content.
    pub text: String,
    /// For Rust files the content with comments and literals blanked, same lines and columns; else empty.
    pub code: String,
}

/// All text files, by path.
pub struct Tree {
    /// The files.
    pub files: Vec<SourceFile>,
}

/// Hidden folders that belong to the project.
const HIDDEN: &[&str] = &[".ci", ".cargo"];

impl Tree {
    /// A tree of the given paths and contents.
    pub fn new<P: Into<String>, T: Into<String>>(files: impl IntoIterator<Item = (P, T)>) -> Self {
        let mut files: Vec<SourceFile> = files.into_iter().map(|(p, t)| file(p.into(), t.into())).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { files }
    }

    /// Reads every text file below `root`, except build folders and hidden ones.
    ///
    /// # Errors
    /// An unreadable folder or file.
    pub fn load(root: &Path) -> Result<Self> {
        let mut found = Vec::new();
        collect(root, "", &mut found)?;
        Ok(Self::new(found))
    }

    /// The file at `path`.
    pub fn get(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|f| f.path == path)
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|f| f.path.ends_with(".rs"))
    }

    /// The documents.
    pub fn documents(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|f| f.path.ends_with(".md"))
    }

    /// Whether `path` is a file, or a folder with a file in it.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|f| f.path == path || f.path.starts_with(&folder))
    }
}

impl SourceFile {
    /// Whether the whole file is test code: an integration test, or a `tests` module in a file of its own.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// The code without a `#[cfg(test)] mod ... {` at its end.
    pub fn code_outside_tests(&self) -> &str {
        &self.code[..code::start_of_tests(&self.code)]
    }

    /// The crate's folder name, for files below `crates/`.
    pub fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

fn file(path: String, text: String) -> SourceFile {
    let code = if path.ends_with(".rs") { code::blank(&text) } else { String::new() };
    SourceFile { path, text, code }
}

fn collect(folder: &Path, prefix: &str, out: &mut Vec<(String, String)>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            let skipped = name.starts_with("target") || name == "__pycache__";
            if !skipped && (!name.starts_with('.') || HIDDEN.contains(&name.as_str())) {
                collect(&entry.path(), &format!("{path}/"), out)?;
            }
        } else if name == ".git" {
            // A linked working tree has a file in place of the folder.
        } else if let Ok(text) = String::from_utf8(std::fs::read(entry.path())?) {
            out.push((path, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart() {
        let tree = Tree::new([
            ("crates/a/tests/x.rs", "//! T.\n"),
            ("README.md", "hi"),
            ("crates/a/src/lib.rs", ""),
        ]);
        assert!(tree.get("crates/a/tests/x.rs").unwrap().is_test());
        assert!(!tree.get("crates/a/src/lib.rs").unwrap().is_test());
        assert_eq!(tree.get("crates/a/src/lib.rs").unwrap().krate(), Some("a"));
        assert!(
            tree.has("crates/a") && tree.has("crates/a/") && tree.has("README.md") && !tree.has("crates/b")
        );
        assert_eq!((tree.rust().count(), tree.documents().count()), (2, 1));
    }
}
