//! `minfer plan`: the numbers agree with each other and with what runs, and what cannot fit is refused.

mod common;

use common::{fails, output, speaking, stderr, succeeds, write};
use serde_json::Value;

const USAGE: i32 = 2;
const DEVICE: i32 = 4;
const MEMORY: i32 = 5;

fn plan(args: &[&str]) -> Value {
    let text = succeeds(&output(&[&["plan", "--json", "--no-speed"], args].concat()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn sizes_follow_the_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    let bytes = |value: &Value, what: &str| value["devices"][0][what].as_u64().unwrap();
    let plain = plan(&[path]);
    assert_eq!((plain["architecture"].as_str(), plain["n_ctx"].as_u64()), (Some("llama"), Some(1024)));
    assert_eq!(plain["fits"], true);
    assert_eq!(plain["parameters"], plain["active_parameters"]);
    let sum: u64 = ["weights", "kv", "arenas", "scratch"].iter().map(|what| bytes(&plain, what)).sum();
    let host = plain["host"]["tokenizer"].as_u64().unwrap() + plain["host"]["program"].as_u64().unwrap();
    assert_eq!(plain["peak"].as_u64().unwrap(), sum + host);
    let kv = bytes(&plain, "kv");
    assert_eq!(bytes(&plan(&[path, "-c", "512"]), "kv") * 2, kv);
    assert_eq!(bytes(&plan(&[path, "--sequences", "3"]), "kv"), 3 * kv);
    assert_eq!(bytes(&plan(&[path, "-ctk", "f32", "-ctv", "f32"]), "kv"), 2 * kv);
    assert!(bytes(&plan(&[path, "-ctk", "q8_0"]), "kv") < kv);
    assert!(bytes(&plan(&[path, "-b", "32"]), "arenas") < bytes(&plain, "arenas"));
    let mapped = plan(&[path, "--load", "mmap"]);
    // All but the table of tokens, of which a prompt reads few rows: it is no output head too.
    let in_file = mapped["host"]["mapped"].as_u64().unwrap();
    assert!(in_file > 0 && in_file < bytes(&plain, "weights"), "{in_file}");
    assert_eq!((bytes(&mapped, "weights"), mapped["load"].as_str()), (0, Some("mmap")));
    assert!(mapped["needed"].as_u64() < plain["needed"].as_u64());
    let auto = plan(&[path, "--load", "auto"]);
    assert_eq!((auto["load"].as_str(), &auto["peak"]), (Some("read"), &plain["peak"]));
    let graph = succeeds(&output(&["graph", path, "--format", "json"]));
    let graph: Value = serde_json::from_str(&graph).unwrap();
    assert_eq!(graph["forecast"]["peak"], plain["peak"]);
}

#[test]
fn speed_is_measured_and_called_a_forecast() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let text = succeeds(&output(&["plan", path.to_str().unwrap(), "-t", "1"]));
    for part in
        ["M parameters", "KV cache", "fits", "1 thread", "GB/s", "forecast", "decode", "prefill", "tokens/s"]
    {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let json = succeeds(&output(&["plan", path.to_str().unwrap(), "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    for what in ["decode_tokens_per_second", "prefill_tokens_per_second"] {
        assert!(json["speed"][what].as_f64().is_some_and(|x| x.is_finite() && x > 0.0), "{json}");
    }
}

#[test]
fn what_cannot_fit_is_shown_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = speaking();
    spec.n_ctx = 1 << 31;
    let path = write(folder.path(), "long.gguf", &spec.to_bytes().unwrap());
    let path = path.to_str().unwrap();
    let o = output(&["plan", path, "-c", "2000000000"]);
    let line = fails(&o, MEMORY);
    assert!(line.contains("2000000000") && line.contains("MiB"), "{line}");
    let text = String::from_utf8(o.stdout).unwrap();
    assert!(text.contains("does not fit") && !text.contains("tokens/s"), "{text}");
    for command in [&["run", path, "hi"][..], &["bench", path, "-p", "8", "-n", "1"]] {
        let args = [command, &["-c", "2000000000"]].concat();
        fails(&output(&args), MEMORY);
    }
    fails(&output(&["plan", path, "-c", "0"]), USAGE);
    fails(&output(&["plan", path, "-c", "64", "--sequences", "0"]), USAGE);
    let o = output(&["plan", path, "-c", "64", "--device", "cuda"]);
    fails(&o, DEVICE);
    assert!(stderr(&o).contains("cuda"));
}
