//! What the commands print, on tiny models.

mod common;

use common::{minfer, output, speaking, stderr, succeeds, with_stdin, write};
use minfer_testkit::golden::Golden;
use minfer_testkit::naive::NaiveModel;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn run_from_argument_option_file_and_pipe_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let prompt = write(folder.path(), "p.txt", "hello there".as_bytes());
    let (path, prompt) = (path.to_str().unwrap(), prompt.to_str().unwrap());
    let first = succeeds(&output(&["run", path, "hello there", "--temp", "0", "-n", "12"]));
    let by_option = succeeds(&output(&["run", "-m", path, "-p", "hello there", "--temp", "0", "-n", "12"]));
    let by_file = succeeds(&output(&["run", path, "-f", prompt, "--temp", "0", "-n", "12"]));
    let by_pipe = succeeds(&with_stdin(&["run", path, "--temp", "0", "-n", "12"], b"hello there"));
    assert!(!first.trim().is_empty());
    assert_eq!(first, by_option);
    assert_eq!(first, by_file);
    assert_eq!(first, by_pipe);
}

#[test]
fn a_seed_reproduces_and_statistics_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let run = |seed: &str| {
        output(&["run", path.to_str().unwrap(), "hi", "-n", "24", "--seed", seed, "--temp", "2"])
    };
    let (a, b, c) = (run("5"), run("5"), run("6"));
    assert_eq!(a.stdout, b.stdout);
    assert_ne!(a.stdout, c.stdout);
    assert!(stderr(&a).contains("seed 5"), "{}", stderr(&a));
    assert!(stderr(&a).contains("context 1024"), "{}", stderr(&a));
}

#[test]
fn tokenize_prints_ids_and_keeps_control_tokens_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    let plain = succeeds(&output(&["tokenize", path, "<|im_end|>"]));
    let special = succeeds(&output(&["tokenize", path, "<|im_end|>", "--special"]));
    assert!(plain.split_whitespace().count() > 1 && special.split_whitespace().count() == 1);
    let as_json = json(&succeeds(&with_stdin(&["tokenize", path, "--json"], "né".as_bytes())));
    assert_eq!(
        as_json.as_array().map(Vec::len),
        Some(succeeds(&output(&["tokenize", path, "né"])).split(' ').count())
    );
}

#[test]
fn info_shows_every_key_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let model = speaking().build().unwrap();
    let path = write(folder.path(), "m.gguf", &model.to_bytes().unwrap());
    let text = succeeds(&output(&["info", path.to_str().unwrap()]));
    let as_json = json(&succeeds(&output(&["info", path.to_str().unwrap(), "--json"])));
    assert_eq!(as_json["tensors"].as_array().unwrap().len(), model.tensors.len());
    assert_eq!(as_json["runnable"], true);
    for t in &model.tensors {
        assert!(text.contains(&t.name), "{}", t.name);
    }
    assert!(text.contains("llama.attention.head_count") && text.contains("tokenizer.ggml.pre"));
}

#[test]
fn graph_shows_nodes_splits_and_memory_in_three_forms() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    let text = succeeds(&output(&["graph", path]));
    for part in
        ["blk.3.ffn_down", "split 0: cpu", "peak", "# A line per node: id, name", "KV cache", "QkvRopeStore"]
    {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let plain = succeeds(&output(&["graph", path, "--no-fuse"]));
    assert!(plain.contains("Silu") && plain.contains("q_rope") && plain.contains("KvStore"));
    let value = json(&succeeds(&output(&["graph", path, "--format", "json"])));
    assert!(value["nodes"].as_array().unwrap().len() > 40);
    assert!(value["splits"].as_array().unwrap().len() == 1);
    assert!(value["forecast"]["peak"].as_u64().unwrap() > 1 << 20);
    assert!(succeeds(&output(&["graph", path, "--format", "dot"])).starts_with("digraph"));
}

/// R110: `MINFER_GRAPH_TRACE` of a run.
#[test]
fn graph_trace_is_printed_once_per_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let mut command = minfer(&["run", path.to_str().unwrap(), "hi", "-n", "8"]);
    let o = command.env("MINFER_GRAPH_TRACE", "1").output().unwrap();
    assert_eq!(stderr(&o).matches("split 0").count(), 1, "{}", stderr(&o));
}

/// R117: `MINFER_GRAPH_DUMP` of a run.
#[test]
fn graph_dump_writes_logits_and_kv() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let dump = folder.path().join("dump");
    let mut command = minfer(&["run", path.to_str().unwrap(), "hi", "-n", "3", "--ignore-eos"]);
    succeeds(&command.env("MINFER_GRAPH_DUMP", &dump).output().unwrap());
    let n_vocab = speaking().n_vocab();
    assert_eq!(std::fs::metadata(dump.join("logits.f32")).unwrap().len() as usize, 4 * n_vocab);
    assert!(std::fs::metadata(dump.join("layer0.k")).unwrap().len() > 0);
}

#[test]
fn eval_scores_against_a_reference_and_writes_its_format() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = speaking().to_bytes().unwrap();
    let path = write(folder.path(), "m.gguf", &bytes);
    let ids: Vec<u32> = (0..90u32).map(|i| (i * i + 3) % 200).collect();
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    let list = write(folder.path(), "ids.txt", words.join("\n").as_bytes());
    let out = folder.path().join("out.safetensors");
    let (path, list, out_name) = (path.to_str().unwrap(), list.to_str().unwrap(), out.to_str().unwrap());
    let flags =
        ["--json", "--logits-hash", "--greedy", "5", "--cache-type-k", "f32", "--cache-type-v", "f32"];
    let all = speaking().n_vocab().to_string();
    let first = [&["eval", path, "--ids", list, "--out", out_name, "--top", &all], &flags[..]].concat();
    let value = json(&succeeds(&output(&first)));
    assert_eq!(value["n"], 90);

    let naive = NaiveModel::parse(&bytes).unwrap();
    let truth = naive.log_probs(&ids, None).unwrap();
    let n_vocab = naive.n_vocab();
    let nll = (0..89).map(|i| -truth[i * n_vocab + ids[i + 1] as usize]).sum::<f64>() / 89.0;
    assert!((value["mean_nll"].as_f64().unwrap() - nll).abs() < 1e-4, "{value} against {nll}");

    let written = Golden::parse(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(written.tokens.len(), 90);
    let again = [&["eval", path, "--reference", out_name], &flags[..]].concat();
    let same = json(&succeeds(&output(&again)));
    assert!(same["kl_mean"].as_f64().unwrap().abs() < 1e-6, "{same}");
    assert_eq!(same["top1_agreement"], 1.0);
    assert_eq!(same["greedy_equal"], 5);
    assert_eq!(same["logits_sha256"], value["logits_sha256"]);
}

/// Names of files reach the terminal escaped.
#[cfg(unix)]
#[test]
fn names_do_not_move_the_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a\u{1b}[31mred\nx.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    for args in [&["run", path, "hi", "-n", "2"][..], &["chat", path], &["info", path], &["plan", path]] {
        let o = common::with_stdin(args, b"/info\n");
        let (out, err) = (succeeds(&o), common::stderr(&o));
        let shown = format!("{out}{err}");
        assert!(!shown.contains('\u{1b}') && shown.contains("a\\u{1b}[31mred\\nx.gguf"), "{args:?}: {shown}");
    }
}

#[test]
fn tables() {
    assert!(succeeds(&output(&["devices"])).starts_with("cpu"));
    assert!(json(&succeeds(&output(&["devices", "--json"]))).as_array().is_some_and(|a| !a.is_empty()));
    let knobs = succeeds(&output(&["knobs"]));
    for name in
        ["MINFER_GRAPH_TRACE", "MINFER_ISA", "MINFER_MODEL_DIR", "HF_TOKEN", "HTTPS_PROXY", "XDG_STATE_HOME"]
    {
        assert!(knobs.contains(name));
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(succeeds(&output(&["completions", shell])).contains("minfer"));
    }
}
