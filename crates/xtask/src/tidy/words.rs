//! What does not belong in a file that others read: paths of one developer's machine, talk of the tools it was
//! written with.

use super::Problem;
use crate::tree::Tree;

/// The patterns, in pieces so that this file does not contain them.
const FOREIGN: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("C:\\Us", "ers\\"),
    concat!("ag", "ent"),
];

/// Beginnings of harmless words, as they stand right before `FOREIGN`'s last entry.
const HARMLESS: &[&str] = &["user-", "user_", "user", "re"];

/// No file has such words; in Rust files names of a library's items are its own business.
pub fn foreign(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in tree.files.iter().filter(|f| f.path != "Cargo.lock") {
        let text = f.text.to_ascii_lowercase();
        for word in FOREIGN {
            for (at, _) in text.match_indices(&word.to_ascii_lowercase()) {
                let harmless = HARMLESS.iter().any(|h| text[..at].ends_with(h));
                let identifier = f.code.get(at..at + 1).is_some_and(|c| c != " ");
                if !harmless && !identifier {
                    let line = text[..at].matches('\n').count() + 1;
                    problems.push(Problem::line(&f.path, line, format!("`{word}` does not belong here")));
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_words_are_found() {
        for word in FOREIGN {
            let tree = Tree::new([("README.md", format!("fine\nsee {word}x\n"))]);
            let problems = foreign(&tree);
            assert_eq!(problems.iter().map(|p| p.line).collect::<Vec<_>>(), [2], "{word}");
        }
        let header = concat!("User-Ag", "ent: minfer\nuser_ag", "ent\n");
        assert_eq!(foreign(&Tree::new([("README.md", header)])), []);
        let code = concat!("use ureq::Ag", "ent; // the ag", "ent\n");
        assert_eq!(foreign(&Tree::new([("crates/cli/src/http.rs", code)])).len(), 1);
    }
}
