//! The real models, where they are there: they answer, stop by themselves, and give the same bits.

mod common;

use common::{output, real_model, stderr, stdout, succeeds, with_stdin};

const SMOLLM2: &str = "smollm2-135m-q4_1.gguf";
const QWEN: &str = "qwen2.5-coder-0.5b-q4_k_m.gguf";

#[test]
fn smollm2_answers_from_a_pipe_and_stops() {
    let Some(model) = real_model(SMOLLM2) else { return };
    let answer = |prompt: &[u8]| with_stdin(&["run", &model, "--temp", "0", "-n", "200"], prompt);
    assert!(succeeds(&answer(b"What is gravity?\n")).to_lowercase().contains("force"));
    let o = answer(b"Hello\n");
    assert!(succeeds(&o).to_lowercase().contains("help"), "{}", succeeds(&o));
    assert!(stderr(&o).contains("the model ended"), "{}", stderr(&o));
}

#[test]
fn qwen_answers_in_its_chat_format() {
    let Some(model) = real_model(QWEN) else { return };
    let o =
        output(&["run", &model, "What is 2 + 2? Answer with the number only.", "--temp", "0", "-n", "20"]);
    assert!(succeeds(&o).contains('4'), "{}", stdout(&o));
    assert!(stderr(&o).contains("the model ended"), "{}", stderr(&o));
}

#[test]
fn logits_have_the_same_bits_for_threads_batches_and_load_modes() {
    for name in [SMOLLM2, QWEN] {
        let Some(model) = real_model(name) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let ids = common::write(folder.path(), "ids", b"5 17 300 42 9000 11 7 260 31 1000 2000 77");
        let run = |more: &[&str]| {
            let base =
                ["eval", &model, "--ids", ids.to_str().unwrap(), "--logits-hash", "--json", "-c", "64"];
            let text = succeeds(&output(&[&base[..], more].concat()));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            value["logits_sha256"].as_str().unwrap().to_string()
        };
        let first = run(&["-t", "1", "-b", "1"]);
        for more in [&["-t", "2", "-b", "5"][..], &["-t", "2", "-b", "64"], &["-t", "3", "--load", "mmap"]] {
            assert_eq!(first, run(more), "{name} {more:?}");
        }
    }
}
