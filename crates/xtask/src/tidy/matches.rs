//! The set of operations is closed: a `match` that decides about operations names every one, so that a new operation
//! is a compile error wherever something must be decided about it. A `match` that names one or two only asks
//! whether it has these before it, as `matches!` does, and may have a wildcard.

use super::Problem;
use crate::code::is_word;
use crate::tree::Tree;

/// Operations in a `match` from which on it decides about all of them.
const DECIDES: usize = 3;

/// No `match` that decides about operations has a wildcard arm.
pub fn op_wildcards(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for f in tree.rust().filter(|f| !f.is_test()) {
        let code = f.code_outside_tests();
        for (at, _) in code.match_indices("_ =>") {
            let own_word = !code[..at].ends_with(is_word);
            if own_word && arms_before(code, at).is_some_and(|arms| ops_in(&arms) >= DECIDES) {
                let line = code[..at].matches('\n').count() + 1;
                problems.push(Problem::line(&f.path, line, "a match on Op has a wildcard arm"));
            }
        }
    }
    problems
}

/// Times that an operation is named.
fn ops_in(arms: &str) -> usize {
    arms.match_indices("Op::").filter(|(at, _)| !arms[..*at].ends_with(is_word)).count()
}

/// The patterns and bare bodies between the `{` that encloses `at` and `at`, without anything in deeper braces.
fn arms_before(code: &str, at: usize) -> Option<String> {
    let (mut depth, mut arms) = (0, String::new());
    for c in code[..at].chars().rev() {
        match c {
            '}' => depth += 1,
            '{' if depth == 0 => return Some(patterns(&arms.chars().rev().collect::<String>())),
            '{' => depth -= 1,
            _ if depth == 0 => arms.push(c),
            _ => {}
        }
    }
    None
}

/// Drops what stands between `=>` and the end of its arm, so that bodies do not count as patterns.
fn patterns(arms: &str) -> String {
    let mut rest = arms;
    let mut out = String::new();
    while let Some((pattern, after)) = rest.split_once("=>") {
        out.push_str(pattern);
        out.push(' ');
        // A body ends at a comma outside parentheses, or at the line end of a braced body.
        let mut depth = 0;
        let end = after.char_indices().find(|&(i, c)| {
            depth += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
            depth == 0 && (c == ',' || (c == '\n' && after[..i].trim().is_empty()))
        });
        rest = end.map_or("", |(i, _)| &after[i + 1..]);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> usize {
        op_wildcards(&Tree::new([("crates/cpu/src/a.rs", format!("//! A.\nfn f() {{\n{body}\n}}\n"))])).len()
    }

    #[test]
    fn wildcards_over_operations_are_found() {
        assert_eq!(check("match op { Op::Silu | Op::Mul => a(x, y), Op::Add => 1, _ => b() }"), 1);
        assert_eq!(
            check(
                "match op {\n    Op::Rope(r) => {\n        c();\n    }\n    Op::Add | Op::Mul => 1,\n    _ => d(),\n}"
            ),
            1
        );
        assert_eq!(
            check(
                "match (op, x) { (graph::Op::Add, _) => 1,\n(Op::Mul, 1) => 2, (Op::Silu, 2) => 3, _ => 2 }"
            ),
            1
        );
    }

    #[test]
    fn other_wildcards_pass() {
        assert_eq!(check("match op { Op::Silu => 1, _ => 2 }"), 0);
        assert_eq!(
            check("match t { A => Op::Silu, B => Op::Mul, C => f(Op::Mul, Op::Silu), _ => Op::Add }"),
            0
        );
        assert_eq!(check("match op { PlainOp::A => 1, PlainOp::B => 1, PlainOp::C => 1, _ => 2 }"), 0);
        assert_eq!(
            check("match op { Op::Silu => match y { 1 => 2, _ => 3 }, Op::Add => 4, Op::Mul => 5 }"),
            0
        );
        assert_eq!(check("match op { Op::Silu => 1, Op::Add => 3, Op::Input(_) => 2 }"), 0);
    }
}
