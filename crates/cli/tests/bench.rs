//! `minfer bench` on a tiny model: which tests run, what they print, and that shares are what the numbers give.

mod common;

use common::{fails, output, speaking, succeeds, write};
use serde_json::Value;

const USAGE: i32 = 2;

fn bench(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    succeeds(&output(&[&["bench", path.to_str().unwrap(), "-t", "1"], args].concat()))
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn an_object_per_test() {
    let lines = objects(&bench(&["-p", "16", "-n", "4", "-r", "3", "--json"]));
    assert_eq!(lines.len(), 2);
    for (line, test) in lines.iter().zip(["pp16", "tg4"]) {
        assert_eq!(
            (&line["engine"], &line["test"], &line["model"]),
            (&"minfer".into(), &test.into(), &"m.gguf".into())
        );
        assert_eq!((&line["depth"], &line["batch"], &line["threads"]), (&0.into(), &1.into(), &1.into()));
        assert_eq!(line["tokens_per_second"].as_array().unwrap().len(), 3);
        assert!(line.get("ops").is_none());
        let number = |what: &str| line[what].as_f64().unwrap_or_else(|| panic!("{what}: {line}"));
        let mean = |what: &str| {
            line[what].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / 2.0
        };
        for (share, work, ceiling) in [
            ("of_read", "bytes_per_token", "read_bytes_per_second"),
            ("of_multiply_adds", "multiply_adds_per_token", "multiply_adds_per_second"),
        ] {
            let expected = number(work) * number("median") / mean(ceiling);
            assert!(number("median") > 0.0 && number(work) > 0.0);
            assert!((number(share) - expected).abs() < 1e-3 + 1e-3 * expected, "{share} {expected} {line}");
        }
    }
}

#[test]
fn every_depth_size_and_number_of_sequences_is_a_test() {
    let text = bench(&["-p", "8,24", "-n", "3", "-d", "70,0", "--batch", "1,3", "-r", "1", "--json"]);
    let lines = objects(&text);
    let tests: Vec<_> = lines
        .iter()
        .map(|l| (l["depth"].as_u64().unwrap(), l["test"].as_str().unwrap(), l["batch"].as_u64().unwrap()))
        .collect();
    let each = [("pp8", 1), ("pp24", 1), ("tg3", 1), ("tg3", 3)];
    let wanted: Vec<_> = [0, 70].into_iter().flat_map(|d| each.map(|(test, b)| (d, test, b))).collect();
    assert_eq!(tests, wanted);
    let bytes = |i: usize| lines[i]["bytes_per_token"].as_f64().unwrap();
    assert!(bytes(3) < bytes(2), "sequences share the weights");
    assert!(bytes(6) > bytes(2), "a deeper cache is more to read");
}

#[test]
fn a_table_and_where_the_time_went() {
    let text = bench(&["-p", "16", "-n", "4", "-r", "1", "--ops"]);
    for part in [
        "m.gguf",
        "tokens/s",
        "pp16",
        "tg4",
        "ceilings:",
        "GB/s",
        "MatMul",
        "Attention",
        "between operations",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let lines = objects(&bench(&["-p", "0", "-n", "4", "-r", "1", "--ops", "--json"]));
    let ops = lines[0]["ops"].as_array().unwrap();
    let sum: f64 = ops.iter().map(|op| op["seconds"].as_f64().unwrap()).sum();
    let all = lines[0]["ops_seconds"].as_f64().unwrap();
    assert!(sum > 0.0 && sum <= all, "{sum} of {all}");
    assert!(ops.iter().any(|op| op["multiply_adds"].as_f64() > Some(0.0)));
}

#[test]
fn ceilings_need_no_model() {
    let lines = objects(&succeeds(&output(&["bench", "--ceilings", "-t", "1", "--json"])));
    assert_eq!(lines[0]["threads"], 1);
    assert!(lines[0]["read_bytes_per_second"].as_f64().unwrap() > 1e6);
    assert!(lines[0]["multiply_adds_per_second"].as_f64().unwrap() > 1e6);
    assert!(succeeds(&output(&["bench", "--ceilings", "-t", "1"])).contains("GB/s of reading"));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    for args in [
        &["-p", "0", "-n", "0"][..],
        &["--ceilings"],
        &["--batch", "0"],
        &["-r", "0"],
        &["-p", "1,x"],
        &["-d", ""],
    ] {
        fails(&output(&[&["bench", path], args].concat()), USAGE);
    }
}
