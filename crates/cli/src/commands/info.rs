//! `minfer info`: metadata and all tensors.

use super::{megabytes, print, print_json};
use crate::args::InfoArgs;
use crate::console::shown;
use crate::exit::printable;
use crate::inputs;
use anyhow::Result;
use minfer::ModelFile;
use minfer::gguf::{TensorInfo, Value};
use serde_json::json;
use std::fmt::Write;

pub fn run(args: &InfoArgs) -> Result<()> {
    let file = inputs::open_file(args.model.as_deref(), args.offline)?;
    if args.json { print_json(&as_json(&file)) } else { print(&as_text(&file)) }
}

/// One line of a value: long strings are cut, arrays show their type and length.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 100;
    match value {
        Value::String(s) => {
            let cut: String = s.chars().take(LONGEST).collect();
            let more = if cut.len() < s.len() { format!("… ({} bytes)", s.len()) } else { String::new() };
            format!("{cut:?}{more}")
        }
        Value::Array(a) => format!("[{}; {}]", a.element_type().name(), a.len()),
        Value::Bool(b) => b.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        other => other.as_integer().map_or_else(|| other.describe(), |i| i.to_string()),
    }
}

fn shape(t: &TensorInfo) -> String {
    let dims: Vec<String> = t.dims.iter().rev().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn as_text(file: &ModelFile) -> String {
    let gguf = file.gguf();
    let mut text = String::new();
    let _ = writeln!(text, "{}", shown(file.path()));
    if file.parts().len() > 1 {
        let _ = writeln!(text, "split model of {} files", file.parts().len());
    }
    let _ = writeln!(
        text,
        "GGUF version {}, {} keys, {} tensors, {}",
        gguf.version,
        gguf.metadata.len(),
        gguf.tensors.len(),
        megabytes(gguf.file_len)
    );
    match file.spec() {
        Ok(spec) => {
            let _ = writeln!(
                text,
                "{}: {} layers, width {}, vocabulary {}, context {}, {:.1} M parameters",
                spec.arch,
                spec.layers.len(),
                spec.n_embd,
                spec.n_vocab,
                spec.n_ctx_train,
                spec.n_params() as f64 / 1e6
            );
            for (what, list) in [("keys", &spec.unread_keys), ("tensors", &spec.unread_tensors)] {
                if !list.is_empty() {
                    let _ = writeln!(text, "{what} that change nothing: {}", list.join(", "));
                }
            }
        }
        Err(e) => {
            let _ = writeln!(text, "cannot be run: {}", printable(&e.to_string()));
        }
    }
    if let Some(problem) = text_problem(file) {
        let _ = writeln!(text, "runs by token ids only: {}", printable(&problem));
    }
    let _ = writeln!(text, "\nmetadata");
    for (key, value) in gguf.metadata.iter() {
        let _ = writeln!(text, "  {} = {}", printable(key), brief(value));
    }
    let _ = writeln!(text, "\ntensors");
    for t in &gguf.tensors {
        let _ = writeln!(
            text,
            "  {:<32} {:<6} {:<18} {:>12} bytes",
            printable(&t.name),
            t.ty.name(),
            shape(t),
            t.bytes
        );
    }
    text
}

/// What keeps the model from reading and writing text.
fn text_problem(file: &ModelFile) -> Option<String> {
    file.tokenizer().err().or_else(|| file.chat_template().err()).map(|e| e.to_string())
}

fn as_json(file: &ModelFile) -> serde_json::Value {
    let gguf = file.gguf();
    let metadata: serde_json::Map<_, _> =
        gguf.metadata.iter().map(|(k, v)| (k.to_string(), json_value(v))).collect();
    let tensors: Vec<_> = gguf
        .tensors
        .iter()
        .map(|t| {
            json!({
                "name": t.name, "type": t.ty.name(), "shape": t.dims.iter().rev().collect::<Vec<_>>(),
                "bytes": t.bytes, "part": t.part, "offset": t.offset,
            })
        })
        .collect();
    let problem = file.spec().err().map(|e| e.to_string());
    json!({
        "path": file.path(), "parts": file.parts(), "version": gguf.version, "file_bytes": gguf.file_len,
        "runnable": problem.is_none(), "problem": problem, "text_problem": text_problem(file), "metadata": metadata, "tensors": tensors,
    })
}

/// Scalars and strings as they are; arrays by type and length, since vocabularies are long.
fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::String(s) => json!(s),
        Value::Bool(b) => json!(b),
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Array(a) => json!({ "array_of": a.element_type().name(), "len": a.len() }),
        other => match other.as_integer() {
            Some(i) => i64::try_from(i).map_or_else(|_| json!(i.to_string()), |i| json!(i)),
            None => json!(other.describe()),
        },
    }
}
