//! Rules about the manifests: the arrows between crates, lints, error crates.

use super::Problem;
use crate::tree::{SourceFile, Tree};
use toml::{Table, Value};

/// Which crates each crate may use. An edge that is not here is a decision to be taken, not an accident.
const ARROWS: &[(&str, &[&str])] = &[
    ("minfer-cli", &["minfer", "minfer-server"]),
    ("minfer-server", &["minfer"]),
    ("minfer", &["minfer-models", "minfer-cpu", "minfer-graph", "minfer-text", "minfer-gguf"]),
    ("minfer-models", &["minfer-graph", "minfer-gguf"]),
    ("minfer-cpu", &["minfer-graph", "minfer-gguf"]),
    ("minfer-graph", &["minfer-gguf"]),
    ("minfer-text", &["minfer-gguf"]),
    ("minfer-gguf", &[]),
    ("minfer-testkit", &["minfer-graph", "minfer-gguf"]),
    ("minfer-fuzz", &["minfer", "minfer-cpu", "minfer-graph", "minfer-gguf", "minfer-testkit"]),
    // Generated documents say what the libraries know.
    ("minfer-xtask", &["minfer-models", "minfer-text", "minfer-gguf"]),
];

/// What every crate's tests may use besides the crate's own arrows.
const TEST_ONLY: &str = "minfer-testkit";

/// A crate's manifest, read.
struct Manifest<'t> {
    file: &'t SourceFile,
    table: Table,
}

impl Manifest<'_> {
    fn name(&self) -> &str {
        self.table.get("package").and_then(|p| p.get("name")?.as_str()).unwrap_or_default()
    }

    /// Package names in every table called `kind`, also those of `[target.*]`.
    fn dependencies(&self, kind: &str) -> Vec<String> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let per_target = targets.into_iter().flat_map(|t| t.values().filter_map(|v| v.get(kind)));
        let tables = self.table.get(kind).into_iter().chain(per_target).filter_map(Value::as_table);
        let package = |(key, value): (&String, &Value)| {
            value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned()
        };
        tables.flat_map(|t| t.iter().map(package)).collect()
    }
}

fn manifests(tree: &Tree) -> Vec<Result<Manifest<'_>, Problem>> {
    let is_crate = |f: &&SourceFile| f.krate().is_some_and(|k| f.path == format!("crates/{k}/Cargo.toml"));
    let read = |file: &'_ SourceFile| match file.text.parse() {
        Ok(table) => Ok((file.path.clone(), table)),
        Err(e) => Err(Problem::file(&file.path, format!("is no manifest: {e}"))),
    };
    tree.files
        .iter()
        .filter(is_crate)
        .map(|file| read(file).map(|(_, table)| Manifest { file, table }))
        .collect()
}

/// Runs `check` on every manifest.
fn each(tree: &Tree, check: impl Fn(&Manifest<'_>) -> Vec<Problem>) -> Vec<Problem> {
    manifests(tree).into_iter().flat_map(|m| m.map_or_else(|p| vec![p], |m| check(&m))).collect()
}

/// Crates depend on each other only along the table's arrows; the test kit is for tests only.
pub fn arrows(tree: &Tree) -> Vec<Problem> {
    each(tree, |m| {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == m.name()) else {
            return vec![Problem::file(&m.file.path, format!("{} is not in the table of arrows", m.name()))];
        };
        let shipped = ["dependencies", "build-dependencies"].iter().flat_map(|kind| m.dependencies(kind));
        let tests = m.dependencies("dev-dependencies").into_iter().filter(|d| d != TEST_ONLY);
        shipped
            .chain(tests)
            .filter(|d| d.starts_with("minfer") && !allowed.contains(&d.as_str()))
            .map(|d| Problem::file(&m.file.path, format!("{} must not depend on {d}", m.name())))
            .collect()
    })
}

/// Every crate takes the workspace's lints.
pub fn lints_are_inherited(tree: &Tree) -> Vec<Problem> {
    each(tree, |m| {
        let inherited = m.table.get("lints").and_then(|l| l.get("workspace")?.as_bool()) == Some(true);
        let problem = || Problem::file(&m.file.path, "lacks `[lints] workspace = true`");
        (!inherited).then(problem).into_iter().collect()
    })
}

/// Libraries have typed errors; `anyhow` is for programs.
pub fn anyhow_only_in_programs(tree: &Tree) -> Vec<Problem> {
    each(tree, |m| {
        let program = matches!(m.name(), "minfer-cli" | "minfer-xtask" | "minfer-fuzz");
        let found = m.dependencies("dependencies").iter().any(|d| d == "anyhow");
        let problem = || Problem::file(&m.file.path, "a library has typed errors, not anyhow");
        (found && !program).then(problem).into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, rest: &str) -> Tree {
        Tree::new([("crates/x/Cargo.toml", format!("[package]\nname = \"{name}\"\n{rest}"))])
    }

    #[test]
    fn wrong_arrows_are_found() {
        let wrong = [
            ("minfer-gguf", "[dependencies]\nminfer-graph.workspace = true"),
            ("minfer-graph", "[target.'cfg(unix)'.dependencies]\nminfer-cpu = { path = \"../cpu\" }"),
            ("minfer-cpu", "[dependencies]\nx = { package = \"minfer-text\", version = \"1\" }"),
            ("minfer-cpu", "[dependencies]\nminfer-testkit.workspace = true"),
            ("minfer-text", "[dev-dependencies]\nminfer-models.workspace = true"),
            ("minfer-cli", "[build-dependencies]\nminfer-gguf.workspace = true"),
            ("minfer-new", ""),
        ];
        for (name, rest) in wrong {
            assert_eq!(arrows(&tree(name, rest)).len(), 1, "{name}: {rest}");
        }
        assert_eq!(arrows(&Tree::new([("crates/x/Cargo.toml", "[package")])).len(), 1);
    }

    #[test]
    fn right_arrows_pass() {
        let right = "[dependencies]\nminfer-gguf.workspace = true\nserde = \"1\"\n[dev-dependencies]\nminfer-testkit = {}";
        assert_eq!(arrows(&tree("minfer-graph", right)), []);
    }

    #[test]
    fn missing_lints_are_found() {
        assert_eq!(lints_are_inherited(&tree("minfer", "")).len(), 1);
        assert_eq!(lints_are_inherited(&tree("minfer", "[lints]\nworkspace = true")), []);
    }

    #[test]
    fn anyhow_in_a_library_is_found() {
        let rest = "[dependencies]\nanyhow = \"1\"";
        assert_eq!(anyhow_only_in_programs(&tree("minfer", rest)).len(), 1);
        assert_eq!(anyhow_only_in_programs(&tree("minfer-cli", rest)), []);
    }
}
