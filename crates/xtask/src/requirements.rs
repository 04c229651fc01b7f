//! The rules that the project was founded on, R1 to R141: their subjects from `docs/requirements.toml`, the tests that
//! check them from the tests themselves, and `docs/requirements.md`, which is made of both.
//!
//! A test names what it checks at the start of the comment above `#[test]`: numbers and ranges, separated by commas,
//! then a colon, all in the comment's first line: `/// R31, R40–R43, B2: every boundary ...`. Letters other than R
//! stand for classes of faults and ways of testing; they are not listed.

use crate::tree::{SourceFile, Tree};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use toml::{Table, Value};

/// The rules' subjects, and words about those that no test can show.
pub const SOURCE: &str = "docs/requirements.toml";
/// The document.
pub const DOCUMENT: &str = "docs/requirements.md";

/// Rules of the schedule: each needs a test, if it stands and needs no device.
pub const SCHEDULE: [RangeInclusive<u32>; 2] = [10..=81, 97..=109];
/// The last rule.
const LAST: u32 = 141;

/// A rule as `docs/requirements.toml` has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What it is about.
    pub subject: String,
    /// What holds instead, and why.
    pub amended: Option<String>,
    /// What is still to come, and with what.
    pub later: Option<String>,
    /// The document that has it; there is nothing to test.
    pub document: Option<String>,
    /// Where it is in the code, or what else there is to say.
    pub note: Option<String>,
}

/// Rules of one title.
pub type Section = (String, BTreeMap<u32, Rule>);

/// A test that says which rules it checks.
#[derive(Debug, PartialEq, Eq)]
pub struct Citation<'t> {
    /// File of the test.
    pub path: &'t str,
    /// Line of the comment, from 1.
    pub line: usize,
    /// Name of the test.
    pub test: &'t str,
    /// The rules, or what is wrong with the list.
    pub rules: Result<Vec<u32>, String>,
}

/// Reads `docs/requirements.toml`; sections in the order of their rules.
///
/// # Errors
/// No TOML, an unknown field or number, a rule that is missing or there twice.
pub fn read(text: &str) -> Result<Vec<Section>> {
    let table: Table = text.parse()?;
    let mut sections = Vec::new();
    for (title, rules) in &table {
        let rules = rules.as_table().with_context(|| format!("`{title}` is no section"))?;
        let rules = rules.iter().map(|(name, fields)| Ok((number(name)?, rule(name, fields)?)));
        sections.push((title.clone(), rules.collect::<Result<BTreeMap<_, _>>>()?));
    }
    sections.sort_by_key(|(_, rules)| rules.keys().next().copied());
    let numbers: Vec<u32> = sections.iter().flat_map(|(_, rules)| rules.keys().copied()).collect();
    let wrong = (1..=LAST).find(|n| numbers.iter().filter(|m| *m == n).count() != 1);
    ensure!(wrong.is_none(), "R{} is not there exactly once", wrong.unwrap_or_default());
    Ok(sections)
}

fn number(name: &str) -> Result<u32> {
    let number = name.strip_prefix('R').and_then(|n| n.parse().ok()).filter(|n| (1..=LAST).contains(n));
    number.with_context(|| format!("there is no rule `{name}`"))
}

fn rule(name: &str, fields: &Value) -> Result<Rule> {
    let mut rule = Rule::default();
    for (field, value) in fields.as_table().with_context(|| format!("{name} is no table"))? {
        let value = value.as_str().with_context(|| format!("{name}: {field} is no text"))?.to_owned();
        match field.as_str() {
            "subject" => rule.subject = value,
            "amended" => rule.amended = Some(value),
            "later" => rule.later = Some(value),
            "document" => rule.document = Some(value),
            "note" => rule.note = Some(value),
            _ => anyhow::bail!("{name}: unknown field `{field}`"),
        }
    }
    ensure!(!rule.subject.is_empty(), "{name} has no subject");
    Ok(rule)
}

/// The tests that name rules.
pub fn citations(tree: &Tree) -> impl Iterator<Item = Citation<'_>> {
    tree.rust().flat_map(of_file)
}

fn of_file(f: &SourceFile) -> Vec<Citation<'_>> {
    let (lines, code): (Vec<&str>, Vec<&str>) = (f.text.lines().collect(), f.code.lines().collect());
    let tests = (0..code.len()).filter(|&i| code[i].trim() == "#[test]");
    tests.filter_map(|at| citation(&f.path, &lines, at)).collect()
}

/// What the comment above the `#[test]` of a line begins with, if it is a list.
fn citation<'t>(path: &'t str, lines: &[&'t str], at: usize) -> Option<Citation<'t>> {
    let above = lines[..at].iter().rev().map(|l| l.trim());
    let n = above.take_while(|l| l.starts_with("///") || l.starts_with("#[")).count();
    let line = (at - n..at).find(|&i| lines[i].trim().starts_with("///"))?;
    let text = lines[line].trim().trim_start_matches('/').trim();
    let rules = list(text)?;
    let test = lines[at..].iter().find_map(|l| l.split_once("fn ")?.1.split('(').next())?;
    Some(Citation { path, line: line + 1, test, rules })
}

/// The rules of a list; `None` for a text that begins with none.
fn list(text: &str) -> Option<Result<Vec<u32>, String>> {
    let first = text.split([',', ':', ' ', '–']).next()?;
    item(first)?;
    let Some((head, _)) = text.split_once(':') else {
        return Some(Err("a list of rules ends in a colon, in the same line".into()));
    };
    let mut rules = Vec::new();
    for part in head.split(", ") {
        let (from, to) = part.split_once('–').unwrap_or((part, part));
        match (item(from), item(to)) {
            (Some((a, from)), Some((b, to))) if a == b && from <= to => {
                rules.extend((from..=to).filter(|_| a == 'R'));
            }
            _ => return Some(Err(format!("`{part}` is no rule, and no range like R40–R43"))),
        }
    }
    Some(Ok(rules))
}

/// `R12`: its letter and number.
fn item(text: &str) -> Option<(char, u32)> {
    let letter = text.chars().next().filter(char::is_ascii_uppercase)?;
    let digits = &text[1..];
    let plain = (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().map(|n| (letter, n))
}

/// The tests of each rule, as `(file, test)`.
pub fn tests_by_rule(tree: &Tree) -> BTreeMap<u32, Vec<(&str, &str)>> {
    let mut tests: BTreeMap<u32, Vec<(&str, &str)>> = BTreeMap::new();
    for c in citations(tree) {
        for rule in c.rules.into_iter().flatten() {
            tests.entry(rule).or_default().push((c.path, c.test));
        }
    }
    tests
}

/// The document.
///
/// # Errors
/// What is wrong with `docs/requirements.toml`.
pub fn page(tree: &Tree, origin: &str) -> Result<String> {
    let source = tree.get(SOURCE).with_context(|| format!("{SOURCE} is missing"))?;
    let (sections, tests) = (read(&source.text).context(SOURCE)?, tests_by_rule(tree));
    let mut page = format!("# Requirements\n\n{origin}{}", introduction(&sections, &tests));
    for (title, rules) in &sections {
        write!(page, "\n## {title}\n\n| R | Subject | Tests | Besides |\n|---|---|---|---|\n")?;
        for (number, rule) in rules {
            let tests = tests.get(number).map_or(&[][..], Vec::as_slice);
            let (subject, tests, words) = (&rule.subject, by_file(tests), words(rule));
            writeln!(page, "| R{number} | {subject} | {tests} | {words} |")?;
        }
    }
    Ok(page)
}

fn introduction(sections: &[Section], tests: &BTreeMap<u32, Vec<(&str, &str)>>) -> String {
    let rules = || sections.iter().flat_map(|(_, rules)| rules);
    let tested = rules().filter(|(n, _)| tests.contains_key(n)).count();
    let others =
        |state: fn(&Rule) -> bool| rules().filter(|(n, rule)| !tests.contains_key(n) && state(rule)).count();
    let amended = others(|r| r.amended.is_some());
    let later = others(|r| r.amended.is_none() && r.later.is_some());
    let rest = rules().count() - tested - amended - later;
    format!(
        "What the scheduler chapter that minfer was conceived from implies, R1 to R{LAST}, and where each stands: the tests \
         that name it,\n*amended* (what holds instead, and why), *later* (what still comes, and with what), or the place \
         that has it.\n\n{tested} have a test; of the others {amended} are amended, {later} come later, and {rest} are \
         documents or a matter of the code's form.\nSubjects and words are in `{SOURCE}`; a test names its rules in the \
         comment above it.\n"
    )
}

/// Tests as `file: names`, files by name.
fn by_file(tests: &[(&str, &str)]) -> String {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, test) in tests {
        files.entry(path.strip_prefix("crates/").unwrap_or(path)).or_default().push(test);
    }
    let file = |(path, names): (&str, Vec<&str>)| format!("{path}: `test: {}`", names.join(", "));
    files.into_iter().map(file).collect::<Vec<_>>().join("; ")
}

fn words(rule: &Rule) -> String {
    let labelled = [
        rule.amended.as_ref().map(|t| format!("*amended*: {t}")),
        rule.later.as_ref().map(|t| format!("*later*: {t}")),
        rule.document.clone(),
        rule.note.clone(),
    ];
    labelled.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(list("R31, R40–R42, B2: text"), Some(Ok(vec![31, 40, 41, 42])));
        assert_eq!(list("A2, R7:"), Some(Ok(vec![7])));
        assert_eq!(list("Rust, and: more"), None);
        assert_eq!(list("RMS norm: x"), None);
        for wrong in ["R31 text", "R31, text: x", "R42–R40: x", "R1–B2: x", "R62 to R67: x"] {
            assert!(matches!(list(wrong), Some(Err(_))), "{wrong}");
        }
    }

    #[test]
    fn tests_are_found_with_their_comments() {
        let text = "//! T.\n/// R1: a.\nfn helper() {}\n\n/// R2, R3: b\n/// more: R4.\n#[cfg(unix)]\n#[test]\nfn b() {}\n\n/// None: R5.\n#[test]\nfn c() {}\n// R6: d\n#[test]\nfn d() {}\n";
        let tree = Tree::new([("crates/a/tests/t.rs", text)]);
        let found: Vec<_> = citations(&tree).collect();
        let expected = Citation { path: "crates/a/tests/t.rs", line: 5, test: "b", rules: Ok(vec![2, 3]) };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn sources_are_checked() {
        let all = |skip: u32| {
            let rules = (1..=LAST).filter(|&n| n != skip).map(|n| format!("R{n} = {{ subject = \"s\" }}\n"));
            format!("[a]\n{}", rules.collect::<String>())
        };
        assert_eq!(read(&all(0)).unwrap().len(), 1);
        assert!(read(&all(7)).unwrap_err().to_string().contains("R7 "));
        for wrong in ["R142 = { subject = \"s\" }", "[b]\nR1 = { subject = \"s\" }", "[b]\nX = 1"] {
            assert!(read(&(all(0) + wrong)).is_err(), "{wrong}");
        }
        for fields in ["{}", "{ subject = 1 }", "{ subject = \"s\", other = \"x\" }"] {
            assert!(read(&(all(7) + &format!("R7 = {fields}"))).is_err(), "{fields}");
        }
    }
}
