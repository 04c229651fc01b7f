//! `--device` with devices that take blocks, and `--gpu-layers`.

mod common;

use common::{fails, minfer, output, speaking, stderr, succeeds, write};
use serde_json::Value;

const USAGE: i32 = 2;
const DEVICE: i32 = 4;
const MEMORY: i32 = 5;

/// The tiny model has four blocks.
fn model(folder: &tempfile::TempDir) -> String {
    write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap()).to_str().unwrap().to_string()
}

#[test]
fn an_answer_does_not_depend_on_where_blocks_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let run = |options: &[&str]| {
        let args = ["run", &path, "hi", "--temp", "0", "-n", "12", "--ignore-eos", "-t", "2"];
        let o = output(&[&args[..], options].concat());
        (succeeds(&o), stderr(&o))
    };
    let (answer, _) = run(&[]);
    for (options, runs) in [
        (&["--device", "chaos", "--gpu-layers", "0"][..], "(nothing)"),
        (&["--device", "chaos", "-ngl", "1"], "(blocks 3..4)"),
        (&["--device", "chaos:1", "--ngl", "2"], "(blocks 2..4)"),
        (&["--device", "chaos", "-ngl", "99"], "(blocks 0..4, head)"),
        (&["--device", "chaos"], "(blocks 0..4, head)"),
        (&["--device", "chaos", "-ngl", "-1"], "(blocks 0..4, head)"),
        (&["--device", "chaos", "-ngl=all"], "(blocks 0..4, head)"),
        (&["--device", "chaos:0,chaos:1", "-ngl", "3"], "(blocks 3..4)"),
        (&["--device", "chaos,chaos:1", "--n-gpu-layers", "auto"], "(blocks 2..4, head)"),
    ] {
        let (placed, says) = run(options);
        assert_eq!(placed, answer, "{options:?}");
        assert!(says.contains("chaos over CPU") && says.contains(runs), "{options:?}: {says}");
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let run = |options: &[&str]| output(&[&["run", &path, "hi", "-n", "1"], options].concat());
    for options in [&["-ngl", "2"][..], &["-ngl=all", "--device", "cpu"], &["-ngl", "-1", "--device", "auto"]]
    {
        let line = fails(&run(options), USAGE);
        assert!(line.contains("needs a device that takes blocks: name one with --device"), "{line}");
    }
    for options in [&["-ngl", "0"][..], &["-ngl", "auto", "--device", "cpu"], &["-ngl=0", "--device", "auto"]]
    {
        succeeds(&run(options));
    }
    for devices in ["cpu,chaos", "chaos,auto", "chaos,chaos:0", "chaos:x", "chaos:0:much", "tpu"] {
        fails(&run(&["--device", devices]), USAGE);
    }
    fails(&run(&["--device", "chaos", "-ngl", "-2"]), USAGE);
    let line = fails(&run(&["--device", "chaos,cuda"]), DEVICE);
    assert!(line.contains("cuda:0"), "{line}");
    // The device for tests is no device of this machine.
    for o in [output(&["devices"]), output(&["run", "--help"]), run(&["--device", "tpu"])] {
        let said = String::from_utf8(o.stdout.clone()).unwrap() + &stderr(&o);
        assert!(!said.contains("chaos"), "{said}");
    }
}

#[test]
fn memory_is_forecast_and_checked_per_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let plan = |options: &[&str]| -> Value {
        let text = succeeds(&output(&[&["plan", &path, "--json", "--no-speed"], options].concat()));
        serde_json::from_str(&text).unwrap()
    };
    let all = plan(&["--device", "chaos"]);
    let alone = plan(&[]);
    assert_eq!(all["devices"][0]["kv"], 0);
    assert_eq!(all["devices"][1]["kv"], alone["devices"][0]["kv"]);
    let needed = all["devices"][1]["total"].as_u64().unwrap();
    let half = plan(&["--device", &format!("chaos:0:{}", needed / 2048)]);
    let offloaded = half["devices"][1]["runs"].as_str().unwrap();
    assert!(["blocks 2..4", "blocks 3..4"].contains(&offloaded), "{half}");
    assert!(half["devices"][1]["total"].as_u64() <= half["devices"][1]["free"].as_u64(), "{half}");
    let small = format!("chaos:0:{}", needed / 2048);
    let options = ["--device", small.as_str(), "-ngl", "4"];
    for command in [&["run", &path, "hi"][..], &["bench", &path, "-p", "512", "-n", "0"], &["plan", &path]] {
        let line = fails(&output(&[command, &options].concat()), MEMORY);
        assert!(line.contains("chaos:0") && line.contains("--gpu-layers"), "{line}");
    }
    let text = String::from_utf8(output(&[&["plan", path.as_str()], &options[..]].concat()).stdout).unwrap();
    for part in ["memory on cpu: embedding", "memory on chaos:0: blocks 0..4, head", "does not fit"] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}

#[test]
fn graph_and_trace_show_what_crosses() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let options = ["--device", "chaos", "-ngl", "2", "-c", "256", "-b", "32"];
    let text = succeeds(&output(&[&["graph", path.as_str()], &options[..]].concat()));
    for part in [
        "split 1: chaos:0 nodes",
        "  copies in blk.1.ffn_residual from cpu: ",
        "  copies in positions from cpu: 4 B, 128 B in a full step",
        "3 splits, 6 copies: ",
        "cpu: embedding, blocks 0..2, head; chaos:0: blocks 2..4",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let json = succeeds(&output(&[&["graph", path.as_str(), "--format", "json"], &options[..]].concat()));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["totals"]["splits"].as_u64(), json["totals"]["copies"].as_u64()), (Some(3), Some(6)));
    let copies = |split: usize| json["splits"][split]["copies"].as_array().unwrap();
    let sum = |what: &str| (0..3).flat_map(copies).map(|c| c[what].as_u64().unwrap()).sum::<u64>();
    assert_eq!(json["totals"]["bytes_per_token"], sum("bytes_per_token"));
    assert_eq!(json["totals"]["bytes_per_full_step"], sum("bytes_per_full_step"));
    assert_eq!((copies(0).len(), copies(1).len(), copies(2).len()), (0, 5, 1));
    assert_eq!(json["devices"][1]["runs"], "blocks 2..4");
    let mut command = minfer(&[&["run", path.as_str(), "hi", "-n", "3"], &options[..]].concat());
    let o = command.env("MINFER_GRAPH_TRACE", "1").output().unwrap();
    assert_eq!(stderr(&o).matches("[graph] 3 splits, 6 copies").count(), 1, "{}", stderr(&o));
}

/// A device that fails in the middle of an answer: exit code, node, op, device and what had run; what was
/// written before stays.
#[test]
fn a_fault_in_the_middle_of_a_run_says_what_had_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let run = |fault: &str, devices: &str| {
        let args = ["run", &path, "hi", "--temp", "0", "-n", "12", "--ignore-eos", "--device", devices];
        minfer(&args).args(["-ngl", "3"]).env("MINFER_CHAOS_FAULT", fault).output().unwrap()
    };
    let whole = succeeds(&run("", "chaos"));
    let (mut faults, mut partly) = (0, 0);
    for kind in ["node", "lost", "timeout"] {
        for at in [1, 2, 5, 9, 40, 100, 200, 400, 4000] {
            for devices in ["chaos", "chaos:0,chaos:1"] {
                let o = run(&format!("{kind}:{at}"), devices);
                if o.status.success() {
                    assert_eq!(succeeds(&o), whole, "{kind}:{at} {devices}");
                    continue;
                }
                let line = fails(&o, DEVICE);
                let place = if kind == "timeout" { "chaos:0: timed out" } else { " on chaos:" };
                let told = line.contains(place) || kind == "timeout" && line.contains("chaos:1: timed out");
                assert!(
                    told && line.contains(" nodes had been handed over") && line.contains("the last: "),
                    "{line}"
                );
                assert!(
                    kind == "timeout" || line.starts_with("error: node ") && line.contains("blk."),
                    "{line}"
                );
                let begun = String::from_utf8(o.stdout).unwrap();
                assert!(whole.starts_with(begun.trim_end()), "{begun} {whole}");
                faults += 1;
                partly += usize::from(!begun.trim().is_empty());
            }
        }
    }
    assert!(faults > 20 && partly > 5, "{faults} faults, {partly} behind some text");
    for at in 1..12 {
        let o = run(&format!("memory:{at}"), "chaos");
        if !o.status.success() {
            let line = fails(&o, MEMORY);
            assert!(line.contains("chaos:0: out of memory: ") && line.contains(" bytes for the "), "{line}");
        }
    }
    let line = fails(&run("fire:1", "chaos"), USAGE);
    assert!(line.contains("MINFER_CHAOS_FAULT") && line.contains("fire"), "{line}");
}
