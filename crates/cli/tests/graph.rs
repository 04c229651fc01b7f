//! `minfer graph`: fusions explained, schedules proved, memory shown; and `--no-fuse`.

mod common;

use common::{fails, output, speaking, succeeds, write};
use minfer_testkit::tiny::TinySpec;
use serde_json::Value;

const USAGE: i32 = 2;

fn model(folder: &tempfile::TempDir, spec: TinySpec) -> String {
    write(folder.path(), "m.gguf", &spec.to_bytes().unwrap()).to_str().unwrap().to_string()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(&output(&[args, &["--format", "json"]].concat()))).unwrap()
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}

#[test]
fn fusions_are_explained_and_near_misses_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder, TinySpec::named("gemma3").unwrap());
    let text = succeeds(&output(&["graph", &path, "--explain-fusion"]));
    has(
        &text,
        &[
            "GeGlu: GELU of the gate times the up projection, in one pass\n  fused 7× in blk.0…6: `blk.*.ffn_gated`",
            "SwiGlu: SiLU of the gate times the up projection, in one pass\n  nothing in this graph looks like it",
            "RmsNorm `blk.*.attn_q_norm`",
            "NormAdd: a norm adds itself to the residual\n  fused 7× in blk.0…6: ",
            "NormMatMul: products with several weights normalise their input themselves\n  fused 7× in blk.0…6: ",
        ],
    );
    let value = json(&["graph", &path, "--explain-fusion"]);
    let counts: Vec<_> =
        (0..8).map(|i| (value[i]["fused"].as_u64(), value[i]["not_fused"].as_u64())).collect();
    let expected = [0, 0, 7, 7, 7, 0, 14, 14].map(|fused| (Some(fused), Some(0)));
    assert_eq!(counts, expected);
    assert_eq!(value[3]["groups"][0]["blocks"], serde_json::json!([0, 1, 2, 3, 4, 5, 6]));

    let path = model(&folder, TinySpec::named("mistral3").unwrap());
    let text = succeeds(&output(&["graph", &path, "--explain-fusion"]));
    has(
        &text,
        &[
            "not fused 4× in blk.0…3: `blk.*.kv_store`: q passes through PositionScale between RoPE and the attention (`blk.*.q_scaled`)",
        ],
    );

    let path = model(&folder, TinySpec::qwen2());
    let text = succeeds(&output(&["graph", &path, "--explain-fusion"]));
    has(
        &text,
        &[
            "fused 4× in blk.0…3: `blk.*.attn_q.bias` for MatMul `blk.*.attn_q`, AddBias `blk.*.attn_q.bias`; then part of QkvRopeStore",
            "fused 4× in blk.0…3: `blk.*.q_rope` for MatMul `blk.*.attn_q.bias`",
            "`blk.*.ffn_gated`; then part of GatedMatMul",
            "MatMulAdd: a product adds itself to the residual\n  fused 4× in blk.0…3: ",
        ],
    );
    let text = succeeds(&output(&["graph", &path, "--explain-fusion", "--no-fuse=matmulbias"]));
    has(
        &text,
        &[
            "not fused 4× in blk.0…3: `blk.*.attn_q.bias`: switched off",
            "q gets its bias in a node of its own",
        ],
    );
}

#[test]
fn schedules_are_proved() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder, speaking());
    let text = succeeds(&output(&["graph", &path, "--check", "-c", "256", "-b", "32"]));
    has(
        &text,
        &["full, from tokens to logits, steps of up to 32 tokens", "body, ", "head, ", "nodes run once each"],
    );
    assert_eq!(text.matches(": proved").count(), 3, "{text}");
    let split = ["graph", &path, "--check", "--device", "chaos,chaos:1", "-ngl", "3"];
    let value = json(&split);
    assert_eq!(
        value["layout"],
        "cpu: embedding, blocks 0..1, head; chaos:0: blocks 1..3; chaos:1: blocks 3..4"
    );
    let stages: Vec<_> = (0..3).map(|i| &value["plans"][i]).collect();
    assert!(stages.iter().all(|s| s["proved"] == true), "{value}");
    // cpu, chaos:0, chaos:1, cpu; the head stays with the cpu.
    assert_eq!(
        stages.iter().map(|s| s["proof"]["boundaries"].as_u64()).collect::<Vec<_>>(),
        [3, 3, 0].map(Some)
    );
    assert!(stages[0]["proof"]["copies"].as_u64() > Some(3), "{value}");
    assert_eq!(stages[2]["proof"]["copies"], 0);
    for options in [&["--check", "--format", "dot"][..], &["--explain-fusion", "--format", "memory"]] {
        let line = fails(&output(&[&["graph", path.as_str()], options].concat()), USAGE);
        assert!(line.contains("text or json"), "{line}");
    }
    fails(&output(&["graph", &path, "--check", "--explain-fusion"]), USAGE);
}

#[test]
fn memory_is_shown_with_lifetimes_and_usage() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder, speaking());
    let text = succeeds(&output(&["graph", &path, "--format", "memory", "--device", "chaos", "-ngl", "2"]));
    has(
        &text,
        &[
            "alive",
            "`token_ids` (Input)",
            "on average",
            "bytes for a copy of",
            "KV cache of layer 3",
            "usage",
        ],
    );
    let value = json(&["graph", &path]);
    let memory = &value["memory"];
    assert_eq!(memory["arenas"][0]["live_peak"], memory["peak"]);
    for usage in [&memory["usage"], &memory["arenas"][0]["usage"], &memory["arenas"][0]["mean_usage"]] {
        assert!(usage.as_f64().is_some_and(|u| u > 0.2 && u <= 1.0), "{memory}");
    }
    let plan = succeeds(&output(&["plan", &path, "--json", "--no-speed"]));
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["devices"][0]["arenas_live"], memory["peak"]);
    assert_eq!(plan["devices"][0]["arenas_usage"], memory["usage"]);
    let plan = succeeds(&output(&["plan", &path, "--no-speed"]));
    has(&plan, &["of it in use at most"]);
}

#[test]
fn fusions_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder, speaking());
    let run = |options: &[&str]| {
        succeeds(&output(
            &[&["run", path.as_str(), "hi", "--temp", "0", "-n", "8", "--ignore-eos"], options].concat(),
        ))
    };
    let graph = |options: &[&str]| succeeds(&output(&[&["graph", path.as_str()], options].concat()));
    let answer = run(&[]);
    for options in [&["--no-fuse"][..], &["--no-fuse=all"], &["--no-fuse=SwiGlu,QkvRopeStore"]] {
        assert_eq!(run(options), answer, "{options:?}");
        let text = graph(options);
        has(&text, &["SwiGlu: 0 applied", "QkvRopeStore: 0 applied"]);
    }
    has(&graph(&["--no-fuse=swiglu"]), &["SwiGlu: 0 applied", "QkvRopeStore: 4 applied"]);
    let o = output(&["run", &path, "hi", "--no-fuse=qkv"]);
    assert_eq!(o.status.code(), Some(USAGE));
    let said = String::from_utf8(o.stderr).unwrap();
    has(
        &said,
        &[
            "`qkv` is no fusion; there are MatMulBias, SwiGlu, GeGlu, QkvRopeStore, GatedMatMul, MatMulAdd, NormAdd, NormMatMul, and all",
        ],
    );
}
