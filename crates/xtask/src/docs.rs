//! Documents that the program itself can tell, `docs/knobs.md`, `docs/cli.md` and `docs/models.md`, and `docs/requirements.md`,
//! which the tests tell. They are committed, and `cargo xtask docs --check` fails when they have gone stale.

use crate::requirements;
use crate::tree::Tree;
use anyhow::{Context, Result, bail, ensure};
use minfer_gguf::TensorType;
use minfer_text::{PreTokenizer, Tokenizer};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Says at the top of each document where it comes from.
pub const ORIGIN: &str = "<!-- Written by `cargo xtask docs`; edits here are lost. -->\n\n";

/// What writes a document, from the folder of the workspace.
type Make = fn(&Path) -> Result<String>;

/// The documents. Those that do not need the program come first: they are written even if it does not build.
const DOCUMENTS: [(&str, Make); 4] = [
    (requirements::DOCUMENT, |root| requirements::page(&Tree::load(root)?, ORIGIN)),
    ("docs/models.md", |_| models_page()),
    ("docs/knobs.md", knobs_page),
    ("docs/cli.md", cli_page),
];

/// Writes the documents.
///
/// # Errors
/// The program does not build or run, or a file cannot be written.
pub fn write(root: &Path) -> Result<()> {
    for (path, make) in DOCUMENTS {
        std::fs::write(root.join(path), make(root)?).with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

/// Compares the documents with what the program says.
///
/// # Errors
/// As [`write()`], or a document differs.
pub fn check(root: &Path) -> Result<()> {
    for (path, make) in DOCUMENTS {
        let committed = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        ensure!(committed == make(root)?, "{path} is stale; run `cargo xtask docs`");
    }
    Ok(())
}

/// What a model file may have in it.
fn models_page() -> Result<String> {
    let mut page = format!(
        "# Models\n\n{ORIGIN}What a file may have in it; anything else is refused with its name.\n\n"
    );
    page += "## Architectures\n\n| `general.architecture` | Models |\n|---|---|\n";
    for architecture in minfer_models::architectures() {
        writeln!(page, "| `{}` | {} |", architecture.name, architecture.families)?;
    }
    let (run, named): (Vec<TensorType>, Vec<_>) = TensorType::ALL.iter().partition(|kind| kind.can_decode());
    let names = |kinds: &[TensorType]| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    write!(page, "\n## Weight types\n\nRun: {}.\n\nListed, but not run: {}.\n", names(&run), names(&named))?;
    page += "\n## Tokenizers\n\n| `tokenizer.ggml.model` | Kind |\n|---|---|\n";
    for (name, what) in Tokenizer::known_models() {
        writeln!(page, "| `{name}` | {what} |")?;
    }
    page += "\nValues of `tokenizer.ggml.pre` for byte-level BPE; those of one line cut text alike:\n\n";
    for names in PreTokenizer::known_names() {
        writeln!(page, "- `{}`", names.join("`, `"))?;
    }
    Ok(page)
}

/// What the program prints.
fn minfer(root: &Path, args: &[&str]) -> Result<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["run", "--quiet", "--package", "minfer-cli", "--"]).args(args);
    // Help is wrapped to the terminal, if there is one.
    let out = cargo.env("COLUMNS", "100").output().context("starting cargo")?;
    if !out.status.success() {
        bail!("minfer {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    String::from_utf8(out.stdout).context("the output is no text")
}

fn knobs_page(root: &Path) -> Result<String> {
    let knobs = serde_json::from_str(&minfer(root, &["knobs", "--json"])?);
    knobs_table(&knobs.context("`minfer knobs --json`")?)
}

fn knobs_table(knobs: &Value) -> Result<String> {
    let rows = knobs.as_array().context("`minfer knobs --json` prints no list")?;
    let (mut own, mut others) = (String::new(), String::new());
    for row in rows {
        let field = |name: &str| {
            let text = row.get(name).and_then(Value::as_str);
            text.map(|t| t.replace('|', "\\|")).with_context(|| format!("a knob without {name}"))
        };
        let (name, value, default, help) =
            (field("name")?, field("value")?, field("default")?, field("help")?);
        let is_own = row.get("own").and_then(Value::as_bool).context("a knob without own")?;
        let table = if is_own { &mut own } else { &mut others };
        writeln!(table, "| `{name}` | {value} | {default} | {help} |")?;
    }
    let head = "| Name | Value | Default | Effect |\n|---|---|---|---|\n";
    Ok(format!(
        "# Environment variables\n\n{ORIGIN}{head}{own}\n## Read as others define them\n\n{head}{others}"
    ))
}

/// The help text of the program and of each of its commands.
fn cli_page(root: &Path) -> Result<String> {
    let top = minfer(root, &["--help"])?;
    let mut page = format!("# Command line\n\n{ORIGIN}```text\n{}\n```\n", tidy_help(&top));
    for name in command_names(&top) {
        let help = minfer(root, &[&name, "--help"])?;
        write!(page, "\n## minfer {name}\n\n```text\n{}\n```\n", tidy_help(&help))?;
    }
    Ok(page)
}

/// The names in the section `Commands:` of a help text.
fn command_names(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let entries = section.filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    entries.filter_map(|l| l.split_whitespace().next()).filter(|n| *n != "help").map(str::to_owned).collect()
}

fn tidy_help(text: &str) -> String {
    text.trim_end().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_become_a_table() {
        let row = |name: &str, own: bool| serde_json::json!({ "name": name, "value": "a | b", "default": "a", "help": "does x", "own": own });
        let page = knobs_table(&serde_json::json!([row("MINFER_X", true), row("HF_X", false)])).unwrap();
        let (own, others) = page.split_once("\n## Read as others define them\n").unwrap();
        assert!(own.ends_with("| `MINFER_X` | a \\| b | a | does x |\n"), "{page}");
        assert!(others.ends_with("|---|\n| `HF_X` | a \\| b | a | does x |\n"), "{page}");
        assert!(knobs_table(&serde_json::json!([{ "name": "X" }])).is_err());
        assert!(knobs_table(&serde_json::json!({})).is_err());
    }

    #[test]
    fn the_models_are_listed() {
        let page = models_page().unwrap();
        for line in ["| `llama` | Llama 2", "Run: F32, F16, ", "| `bert` | WordPiece |", "\n- `qwen2`, "] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }

    #[test]
    fn command_names_are_found() {
        let help = "Usage: x\n\nCommands:\n  run   Runs\n        more of it\n  list  Lists\n  help  Helps\n\nOptions:\n  -h\n";
        assert_eq!(command_names(help), ["run", "list"]);
    }
}
