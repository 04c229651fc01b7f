//! Bad input: the right exit code, one clear line, no panic.

mod common;

use common::{fails, minfer, output, speaking, stderr, with_stdin, write};
use minfer::gguf::TensorType;
use std::process::Stdio;
use std::time::{Duration, Instant};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MODEL: i32 = 3;
const DEVICE: i32 = 4;
const MEMORY: i32 = 5;

#[test]
fn no_such_file() {
    let line = fails(&output(&["run", "/no/such/model.gguf", "hi"]), MODEL);
    assert!(line.contains("/no/such/model.gguf"), "{line}");
}

#[test]
fn a_word_that_is_neither_file_nor_name_shows_both_forms() {
    let line = fails(&output(&["run", "What is the capital of France?"]), USAGE);
    let text = stderr(&output(&["run", "What is the capital of France?"]));
    assert!(text.contains("minfer run MODEL PROMPT") && text.contains("-p"), "{line}\n{text}");
    let line = fails(&output(&["pull", "nosuch"]), USAGE);
    assert!(line.contains("catalogue names") && !line.contains("PROMPT"), "{line}");
}

#[test]
fn not_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "x.gguf", b"<html>not found</html> and more of it");
    let line = fails(&output(&["run", path.to_str().unwrap(), "hi"]), MODEL);
    assert!(line.contains("x.gguf") && line.to_lowercase().contains("gguf"), "{line}");
}

#[test]
fn broken_models() {
    let folder = tempfile::tempdir().unwrap();
    let good = speaking().build().unwrap();
    let whole = good.to_bytes().unwrap();
    let changed = |change: &dyn Fn(&mut minfer_testkit::tiny::TinyModel)| {
        let mut model = good.clone();
        change(&mut model);
        model.to_bytes().unwrap()
    };
    let cases = [
        ("truncated", whole[..whole.len() / 2].to_vec(), ""),
        ("unknown architecture", changed(&|m| m.set("general.architecture", "mystery")), "mystery"),
        (
            "missing tensor",
            changed(&|m| m.drop_tensor("blk.2.ffn_up.weight").unwrap()),
            "blk.2.ffn_up.weight",
        ),
        ("zero heads", changed(&|m| m.set("llama.attention.head_count", 0u32)), "llama.attention.head_count"),
        ("odd rope", changed(&|m| m.set("llama.rope.dimension_count", 7u32)), "llama.rope.dimension_count"),
        ("vocabulary", changed(&|m| m.drop_last_row("token_embd.weight").unwrap()), "token"),
        ("NaN weight", changed(&|m| m.poison("blk.0.ffn_down.weight").unwrap()), "NaN"),
        ("refused key", changed(&|m| m.set("llama.logit_scale", 2.0f32)), "llama.logit_scale"),
    ];
    for (name, bytes, mentions) in cases {
        let path = write(folder.path(), "broken.gguf", &bytes);
        let line = fails(&output(&["run", path.to_str().unwrap(), "-n", "4", "hi"]), MODEL);
        assert!(line.contains(mentions), "{name}: {line}");
    }
}

/// Types without kernels are named with the tensor; a file for other machines is named as such.
#[test]
fn types_and_byte_orders_that_are_not_handled() {
    let folder = tempfile::tempdir().unwrap();
    let good = speaking().wide().build().unwrap();
    let text = write(folder.path(), "text.txt", b"some text");
    let types = TensorType::ALL.iter().filter(|ty| ty.is_quantized() && !ty.can_decode());
    let mut seen = 0;
    for &ty in types {
        let mut model = good.clone();
        let tensor = model.tensor_mut("blk.1.ffn_up.weight").unwrap();
        tensor.ty = ty;
        tensor.bytes = vec![0; ty.row_bytes(256).unwrap() * tensor.dims[1] as usize];
        let path = write(folder.path(), "type.gguf", &model.to_bytes().unwrap());
        for args in [["run", "-n", "4", "hi"], ["eval", "--limit", "4", "-f"]] {
            let mut args: Vec<&str> = args.to_vec();
            args.insert(1, path.to_str().unwrap());
            if args[0] == "eval" {
                args.push(text.to_str().unwrap());
            }
            let line = fails(&output(&args), MODEL);
            assert!(line.contains("blk.1.ffn_up.weight") && line.contains(ty.name()), "{ty}: {line}");
        }
        seen += 1;
    }
    assert_eq!(seen, 14);
    let mut bytes = good.to_bytes().unwrap();
    bytes[4..8].reverse();
    let path = write(folder.path(), "big.gguf", &bytes);
    let line = fails(&output(&["run", path.to_str().unwrap(), "hi"]), MODEL);
    assert!(line.contains("big.gguf") && line.contains("big-endian"), "{line}");
}

#[test]
fn context_and_memory_limits() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    let long = "word ".repeat(2000);
    let line = fails(&output(&["run", path, &long, "-c", "64"]), FAILED);
    assert!(line.contains("64"), "{line}");
    let line = fails(&output(&["run", path, "hi", "-c", "100000000"]), USAGE);
    assert!(line.contains("100000000") && line.contains("1024"), "{line}");
    let mut spec = speaking();
    spec.n_ctx = 1 << 31;
    let path = write(folder.path(), "long.gguf", &spec.to_bytes().unwrap());
    let line = fails(&output(&["run", path.to_str().unwrap(), "hi", "-c", "2000000000"]), MEMORY);
    assert!(line.contains("MiB"), "{line}");
}

#[test]
fn devices_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    for device in ["cuda", "wgpu:1"] {
        let line = fails(&output(&["run", path.to_str().unwrap(), "hi", "--device", device]), DEVICE);
        assert!(line.contains(&device[..4]), "{line}");
    }
    let mut command = minfer(&["run", path.to_str().unwrap(), "hi"]);
    fails(&command.env("MINFER_ISA", "sse9").output().unwrap(), DEVICE);
}

#[test]
fn usage_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap();
    fails(&output(&["run", path, "hi", "--temp", "-1"]), USAGE);
    for (option, value) in [
        ("--top-p", "7"),
        ("--min-p", "-1"),
        ("--typical", "1.5"),
        ("--top-n-sigma", "nan"),
        ("--xtc-probability", "2"),
        ("--xtc-threshold", "-0.5"),
        ("--dynatemp-range", "-1"),
        ("--dynatemp-exp", "inf"),
        ("--mirostat", "3"),
        ("--mirostat-lr", "-1"),
        ("--mirostat-ent", "x"),
        ("--logit-bias", "5"),
        ("--logit-bias", "99999999+1"),
        ("--repeat-last-n", "-2"),
        ("--dry-multiplier", "-1"),
        ("--dry-base", "0.5"),
        ("--dry-allowed-length", "-1"),
        ("--dry-penalty-last-n", "-2"),
        ("--dry-sequence-breaker", ""),
    ] {
        let line = fails(&output(&["run", path, "hi", option, value]), USAGE);
        assert!(line.contains(&option[2..]), "{option} {value}: {line}");
    }
    let line = fails(&output(&["run", path, "hi", "--mirostat", "2", "--top-p", "0.9"]), USAGE);
    assert!(line.contains("mirostat") && line.contains("top-p"), "{line}");
    fails(&output(&["run", path, ""]), USAGE);
    fails(&with_stdin(&["run", path], b""), USAGE);
    fails(&with_stdin(&["run", path], b"\xff\xfe"), FAILED);
    fails(&output(&["run", path, "a", "-p", "b"]), USAGE);
    fails(&output(&["run", path, "hi", "-c", "0"]), USAGE);
    fails(&output(&["eval", path]), USAGE);
    fails(&output(&["nonsense"]), USAGE);
    fails(&output(&["run", path, "hi", "-t", "0"]), USAGE);
}

#[test]
fn a_model_without_tokenizer_or_template() {
    let folder = tempfile::tempdir().unwrap();
    let silent = minfer_testkit::tiny::TinySpec::named("qwen2").unwrap();
    let path = write(folder.path(), "silent.gguf", &silent.to_bytes().unwrap());
    let line = fails(&output(&["run", path.to_str().unwrap(), "hi", "--raw"]), MODEL);
    assert!(line.contains("none"), "{line}");
    let mut model = speaking().build().unwrap();
    model.remove("tokenizer.chat_template").unwrap();
    let path = write(folder.path(), "base.gguf", &model.to_bytes().unwrap());
    let line = fails(&output(&["run", path.to_str().unwrap(), "hi", "-n", "4"]), MODEL);
    assert!(line.contains("--raw"), "{line}");
    let raw = output(&["run", path.to_str().unwrap(), "hi", "-n", "4", "--raw"]);
    assert!(raw.status.success(), "{}", stderr(&raw));
}

#[test]
fn interrupt_ends_at_once_with_130() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    // Without a prompt the program waits for stdin: it cannot end by itself.
    let mut child = minfer(&["run", path.to_str().unwrap()]).stdin(Stdio::piped()).spawn().unwrap();
    // Kept open: `wait` would close it, and the program might see that before the signal.
    let stdin = child.stdin.take();
    std::thread::sleep(Duration::from_millis(400));
    let started = Instant::now();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(stdin);
}
