//! Rules about the founding requirements: each has its test, and the document that lists them is up to date.

use super::Problem;
use crate::docs::ORIGIN;
use crate::requirements::{DOCUMENT, Rule, SCHEDULE, SOURCE, Section, citations, page, read, tests_by_rule};
use crate::tree::Tree;

/// Every rule of the schedule has a test, unless it is amended, comes later or is a document; every other rule has a test
/// or words. Tests cite only rules that there are, and the document says what the tests do.
pub fn requirements(tree: &Tree) -> Vec<Problem> {
    let Some(source) = tree.get(SOURCE) else { return vec![Problem::file(SOURCE, "is missing")] };
    let sections = match read(&source.text) {
        Ok(sections) => sections,
        Err(e) => return vec![Problem::file(SOURCE, format!("{e:#}"))],
    };
    let mut problems = wrong_citations(tree, &sections);
    let tests = tests_by_rule(tree);
    for (number, rule) in sections.iter().flat_map(|(_, rules)| rules) {
        if !tests.contains_key(number) && !excused(*number, rule) {
            let at = source.text.lines().position(|l| l.starts_with(&format!("R{number} ")));
            let what = format!("R{number} ({}) has no test", rule.subject);
            problems.push(Problem::line(SOURCE, at.map_or(0, |i| i + 1), what));
        }
    }
    let current = page(tree, ORIGIN).ok();
    if current.as_deref() != tree.get(DOCUMENT).map(|f| f.text.as_str()) {
        problems.push(Problem::file(DOCUMENT, "is stale; run `cargo xtask docs`"));
    }
    problems
}

fn excused(number: u32, rule: &Rule) -> bool {
    let stands = rule.amended.is_none() && rule.later.is_none() && rule.document.is_none();
    !stands || (rule.note.is_some() && !SCHEDULE.iter().any(|range| range.contains(&number)))
}

fn wrong_citations(tree: &Tree, sections: &[Section]) -> Vec<Problem> {
    let known = |n: &u32| sections.iter().any(|(_, rules)| rules.contains_key(n));
    let mut problems = Vec::new();
    for citation in citations(tree) {
        let whats = match &citation.rules {
            Ok(rules) => {
                rules.iter().filter(|n| !known(n)).map(|n| format!("there is no rule R{n}")).collect()
            }
            Err(what) => vec![what.clone()],
        };
        problems.extend(whats.into_iter().map(|what| Problem::line(citation.path, citation.line, what)));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree in which only `fields` of R10 and the comments of a test vary.
    fn tree(fields: &str, comment: &str) -> Tree {
        let others = (1..=141).filter(|&n| n != 10);
        let words = others.map(|n| format!("R{n} = {{ subject = \"s\", document = \"d\" }}\n"));
        let source = format!("[a]\nR10 = {{ subject = \"order\"{fields} }}\n{}", words.collect::<String>());
        let test = format!("//! T.\n/// {comment}\n#[test]\nfn t() {{}}\n");
        let files = |document: String| {
            Tree::new([
                (SOURCE.to_owned(), source.clone()),
                (DOCUMENT.to_owned(), document),
                ("crates/a/tests/t.rs".to_owned(), test.clone()),
            ])
        };
        let document = page(&files(String::new()), ORIGIN).unwrap();
        files(document)
    }

    fn found(tree: &Tree) -> Vec<String> {
        requirements(tree).iter().map(Problem::to_string).collect()
    }

    #[test]
    fn rules_without_a_test_are_found() {
        let missing = ["docs/requirements.toml:2: R10 (order) has no test"];
        assert_eq!(found(&tree("", "None.")), missing);
        assert_eq!(found(&tree(", note = \"in the code\"", "None.")), missing);
        assert_eq!(found(&tree("", "R9–R11: it.")), [""; 0]);
        for excuse in ["amended", "later", "document"] {
            assert_eq!(found(&tree(&format!(", {excuse} = \"x\""), "None.")), [""; 0], "{excuse}");
        }
    }

    #[test]
    fn wrong_citations_are_found() {
        for (comment, what) in [
            ("R10, R142: x", "there is no rule R142"),
            ("R10 x", "a list of rules ends in a colon, in the same line"),
        ] {
            let problems = found(&tree(", later = \"x\"", comment));
            assert_eq!(problems, [format!("crates/a/tests/t.rs:2: {what}")]);
        }
    }

    #[test]
    fn a_stale_document_is_found() {
        let mut stale = tree("", "R10: x");
        let document = stale.files.iter_mut().find(|f| f.path == DOCUMENT).unwrap();
        document.text = document.text.replace("`test: t`", "`test: u`");
        assert_eq!(found(&stale), ["docs/requirements.md: is stale; run `cargo xtask docs`"]);
    }
}
