//! Rules about unsafe code.

use super::Problem;
use crate::code::lines_with;
use crate::tree::Tree;

/// Crates (by folder) that forbid unsafe code.
const SAFE: &[&str] = &["gguf", "text", "graph", "models", "cli", "testkit", "xtask"];

/// The only places with unsafe code: a folder (ending in `/`) or a file.
const UNSAFE: &[&str] = &["crates/cpu/", "crates/minfer/src/mapped.rs"];

/// The crates that need no unsafe code say so at their root.
pub fn forbidden(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for krate in SAFE {
        for root in ["lib.rs", "main.rs"] {
            let Some(file) = tree.get(&format!("crates/{krate}/src/{root}")) else { continue };
            if !file.code.contains("#![forbid(unsafe_code)]") {
                problems.push(Problem::file(&file.path, "lacks `#![forbid(unsafe_code)]`"));
            }
        }
    }
    problems
}

/// Unsafe code stands only where the table says.
pub fn places(tree: &Tree) -> Vec<Problem> {
    let outside = tree.rust().filter(|f| !UNSAFE.iter().any(|place| f.path.starts_with(place)));
    outside
        .flat_map(|f| {
            lines_with(&f.code, "unsafe")
                .map(|n| Problem::line(&f.path, n, "unsafe code does not belong here"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_forbid_is_found() {
        let bad = Tree::new([("crates/text/src/lib.rs", "//! `#![forbid(unsafe_code)]`\nmod a;\n")]);
        assert_eq!(forbidden(&bad).len(), 1);
        let good = Tree::new([("crates/text/src/lib.rs", "//! T.\n#![forbid(unsafe_code)]\n")]);
        assert_eq!(forbidden(&good), []);
    }

    #[test]
    fn unsafe_in_the_wrong_place_is_found() {
        let text = "//! unsafe in words is fine\n#![deny(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";
        let tree = Tree::new([("crates/minfer/src/model.rs", text), ("crates/cpu/src/pool.rs", text)]);
        let what = "unsafe code does not belong here";
        assert_eq!(places(&tree), [Problem::line("crates/minfer/src/model.rs", 4, what)]);
    }
}
