//! How commands end: a reader that goes away, output that cannot be written, and which exit code a mistake has.
#![cfg(unix)]

mod common;

use common::{fails, minfer, output, speaking, stderr, succeeds, with_stdin, write};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MODEL: i32 = 3;
const CLOSED_PIPE: i32 = 141;

fn model(folder: &Path) -> String {
    write(folder, "m.gguf", &speaking().to_bytes().unwrap()).to_str().unwrap().to_string()
}

/// What is said to a reader that takes so many bytes and goes.
fn read_some(bytes: usize, args: &[&str], input: &[u8]) -> Output {
    let streams = || minfer(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = streams().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.stdout.take().unwrap().read_exact(&mut vec![0; bytes]).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_reader_that_goes_away_ends_the_program_as_sigpipe_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    // More than a pipe holds, or nothing read at all, so that the writer meets the closed end.
    let long = "word ".repeat(40_000);
    let question = "hello\n".repeat(20);
    for (bytes, args, input) in [
        (0, &["graph", &path, "--format", "json"][..], ""),
        (1, &["tokenize", &path], &long),
        (1, &["run", &path, "hi", "--ignore-eos", "-n", "400"], ""),
        (1, &["chat", &path, "-n", "8"], &question),
    ] {
        let o = read_some(bytes, args, input.as_bytes());
        let said = stderr(&o);
        assert_eq!(o.status.code(), Some(CLOSED_PIPE), "{args:?}: {said}");
        assert!(!said.contains("error") && !said.contains("panicked"), "{args:?}: {said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    for args in [&["info", &path][..], &["run", &path, "hi"], &["devices"], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let line = fails(&minfer(args).stdout(full).output().unwrap(), FAILED);
        assert!(line.contains("stdout: "), "{args:?}: {line}");
    }
}

/// What the command line says wrong is usage; what a file holds that cannot be used is a failure.
#[test]
fn contents_fail_and_words_are_usage() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let file = |name: &str, text: &[u8]| write(folder.path(), name, text).to_str().unwrap().to_string();
    let (empty, newline) = (file("empty.txt", b""), file("newline.txt", b"\r\n"));
    let (ids, odd) = (file("ids.txt", b"1 2 99999"), file("odd.txt", b"1 2 x"));
    let (broken, good) = (file("broken.safetensors", b"nothing"), file("good.txt", b"1 2 3 4"));
    let bytes = file("bytes.txt", b"\xff\xfe");
    for (args, code, says) in [
        (&["eval", &path, "--ids", &ids][..], FAILED, "ids.txt: there is no token 99999 among the model's"),
        (&["eval", &path, "--ids", &odd], FAILED, "odd.txt: `x`"),
        (&["eval", &path, "-f", &empty], FAILED, "empty.txt: too short: at least 2 tokens"),
        (&["eval", &path, "--ids", &good, "--limit", "1"], USAGE, "--limit 1"),
        (&["eval", &path, "--reference", &broken], FAILED, "broken.safetensors: not a safetensors file: "),
        (&["eval", &path, "-f", "/nosuch"], FAILED, "/nosuch"),
        (&["run", &path, "-f", "/nosuch"], FAILED, "/nosuch"),
        (&["run", &path, "-f", &empty], FAILED, "empty.txt: the prompt is empty"),
        (&["run", &path, "-f", &newline], FAILED, "newline.txt: the prompt is empty"),
        (&["run", &path, ""], USAGE, "the prompt is empty"),
        (&["run", &path, "hi", "--chat-template", "/nosuch"], FAILED, "--chat-template /nosuch: "),
        (&["run", &path, "hi", "--chat-template", &bytes], FAILED, "not UTF-8"),
        (&["run", &path, "hi", "--stop", ""], USAGE, "--stop"),
        (&["run", &path, "hi", "-b", "99999999999"], USAGE, "a whole number from 1 to 2147483647"),
        (&["run", &path, "hi", "-fa"], USAGE, "-fa is llama.cpp's; minfer has no such option"),
        (&["run", "-hf", "not a name", "hi"], USAGE, "hf:not a name"),
        (&["plan", &path, "--sequences", "100000"], USAGE, "sequences of 100000; it must be from 1 to 65536"),
    ] {
        let line = fails(&output(args), code);
        assert!(line.contains(says), "{args:?}: {line}");
    }
    let line = fails(&with_stdin(&["run", &path], b"\n"), USAGE);
    assert!(line.contains("no prompt"), "{line}");
}

#[test]
fn a_template_that_makes_nothing_of_the_prompt_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let nothing = write(folder.path(), "nothing.jinja", b"{# nothing #}");
    let mut own = speaking().build().unwrap();
    own.metadata.retain(|(key, _)| key != "tokenizer.chat_template");
    own.metadata.push(("tokenizer.chat_template".to_owned(), "{# nothing #}".to_owned().into()));
    let own = write(folder.path(), "own.gguf", &own.to_bytes().unwrap());
    for command in ["run", "chat"] {
        let words = [command, &path, "-p", "hi", "--chat-template", nothing.to_str().unwrap()];
        let line = fails(&output(&words), FAILED);
        assert!(
            line.contains("the chat template gave an empty text (") && line.contains("nothing.jinja"),
            "{line}"
        );
        let line = fails(&output(&[command, own.to_str().unwrap(), "-p", "hi"]), MODEL);
        assert!(line.contains("the chat template gave an empty text (the model's own template)"), "{line}");
    }
}

#[test]
fn one_line_end_is_no_part_of_a_prompt_but_of_a_text_to_tokenize() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let run = |more: &[&str], input: &str| {
        let words = [&["run", path.as_str(), "--raw", "--temp", "0", "-n", "8"], more].concat();
        let o = with_stdin(&words, input.as_bytes());
        (succeeds(&o), stderr(&o).lines().find(|l| l.starts_with("prompt ")).map(prompt_tokens))
    };
    let want = run(&["hello there"], "");
    assert_eq!(run(&[], "hello there\n"), want);
    assert_eq!(run(&[], "hello there\r\n"), want);
    assert_eq!(run(&["-f", "/dev/stdin"], "hello there\n"), want);
    assert_ne!(run(&[], "hello there\n\n").1, want.1);
    assert_ne!(run(&["hello there\n"], "").1, want.1);
    let file = write(folder.path(), "p.txt", b"hello there\n");
    let ids = |more: &[&str], input: &str| {
        let words = [&["tokenize", path.as_str()], more].concat();
        succeeds(&with_stdin(&words, input.as_bytes()))
    };
    let all = ids(&["hello there\n"], "");
    assert_eq!(ids(&["-f", file.to_str().unwrap()], ""), all);
    assert_eq!(ids(&[], "hello there\n"), all);
}

/// `prompt 3 tokens, ...`
fn prompt_tokens(line: &str) -> usize {
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_seed_is_told_where_there_are_draws() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let says = |temp: &str| stderr(&output(&["run", &path, "hi", "-n", "1", "--temp", temp]));
    assert!(says("0.5").contains("; seed "));
    assert!(!says("0").contains("seed"));
    assert!(says("0").contains("answer 1 token;"), "{}", says("0"));
}

/// A recording of a model with another vocabulary is refused; one of another file is told as that.
#[test]
fn recordings_of_other_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    let mut small = minfer_testkit::tiny::TinySpec::named("llama").unwrap();
    small.seed += 1;
    let small = write(folder.path(), "small.gguf", &small.to_bytes().unwrap()).to_str().unwrap().to_string();
    let mut other = speaking();
    other.seed += 1;
    let other = write(folder.path(), "other.gguf", &other.to_bytes().unwrap()).to_str().unwrap().to_string();
    let ids = write(folder.path(), "ids.txt", b"1 2 3 4 5 6");
    let recording = folder.path().join("r.safetensors").to_str().unwrap().to_string();
    succeeds(&output(&["eval", &path, "--ids", ids.to_str().unwrap(), "--top", "4", "--out", &recording]));
    let compare = |model: &str| output(&["eval", model, "--reference", &recording]);
    let same = compare(&path);
    succeeds(&same);
    assert!(!stderr(&same).contains("warning"), "{}", stderr(&same));
    let warned = compare(&other);
    succeeds(&warned);
    assert_eq!(stderr(&warned).matches("r.safetensors was recorded from another file").count(), 1);
    let line = fails(&compare(&small), FAILED);
    assert!(line.contains("r.safetensors: recorded with a vocabulary of "), "{line}");
    // Without metadata the ids tell it.
    let numbers = |list: &[i32]| list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (tokens, ids) = (numbers(&[1, 2]), numbers(&[3, 4, 5, 100_000]));
    let view = |kind, shape: &[usize], bytes| TensorView::new(kind, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("tokens", view(Dtype::I32, &[2], &tokens)),
        ("top_ids", view(Dtype::I32, &[2, 2], &ids)),
        ("top_logprobs", view(Dtype::F32, &[2, 2], &ids)),
    ];
    std::fs::write(&recording, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let line = fails(&compare(&path), FAILED);
    assert!(line.contains("r.safetensors: there is no token 100000 among the model's"), "{line}");
}
