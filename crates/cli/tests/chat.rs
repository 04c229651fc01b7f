//! A chat through pipes, on tiny models.

mod common;

use common::{fails, speaking, stderr, stdout, succeeds, with_stdin, write};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

fn model() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn contents(saved: &Value) -> Vec<&str> {
    saved["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect()
}

#[test]
fn a_line_is_a_prompt_and_only_answers_go_to_stdout() {
    let (folder, model) = model();
    let saved = folder.path().join("chat.json");
    let lines = format!("hello\n\nhow are you\n/save {}\n/info\n/help\n", saved.display());
    let o = with_stdin(&["chat", &model, "--temp", "0", "-n", "8"], lines.as_bytes());
    let text = succeeds(&o);
    let saved = read(&saved);
    let contents = contents(&saved);
    assert_eq!((contents.len(), contents[0], contents[2]), (4, "hello", "how are you"));
    assert_eq!(text, format!("{}\n{}\n", contents[1], contents[3]));
    let notes = stderr(&o);
    for part in ["prompt ", " reused", "KV type", "/regen", "4 messages"] {
        assert!(notes.contains(part), "{part} is not in {notes}");
    }
    assert!(!notes.contains('\u{1b}') && !notes.contains(">>>"), "{notes}");
}

#[test]
fn quiet_says_nothing_but_answers() {
    let (_folder, model) = model();
    let o = with_stdin(&["chat", &model, "-q", "-n", "8", "--seed", "3"], b"hello\nmore\n/clear\n");
    assert!(!succeeds(&o).is_empty());
    assert_eq!(stderr(&o), "");
}

#[test]
fn the_first_prompt_and_the_system_message_come_from_options() {
    let (folder, model) = model();
    let saved = folder.path().join("chat.json");
    let line = format!("/save {}\n", saved.display());
    let args = ["chat", &model, "-p", "first", "--system", "be brief", "-n", "4", "--seed", "11"];
    succeeds(&with_stdin(&args, line.as_bytes()));
    let saved = read(&saved);
    assert_eq!(contents(&saved)[..2], ["be brief", "first"]);
    assert_eq!(saved["messages"].as_array().unwrap().len(), 3);
    assert_eq!((&saved["version"], &saved["model"]), (&1.into(), &"m.gguf".into()));
    assert_eq!((&saved["settings"]["seed"], &saved["settings"]["max-tokens"]), (&11.into(), &4.into()));
}

#[test]
fn a_saved_chat_goes_on_as_it_would_have() {
    let (folder, model) = model();
    let first = folder.path().join("first.json");
    let (whole, resumed) = (folder.path().join("whole.json"), folder.path().join("resumed.json"));
    let lines = format!("hello\n/save {}\nmore\n/save {}\n", first.display(), whole.display());
    let args = ["chat", &model, "--temp", "0", "-n", "6"];
    succeeds(&with_stdin(&args, lines.as_bytes()));
    // The settings come from the file too.
    let lines = format!("/load {}\nmore\n/save {}\n", first.display(), resumed.display());
    succeeds(&with_stdin(&["chat", &model, "--temp", "2"], lines.as_bytes()));
    let (whole, resumed) = (read(&whole), read(&resumed));
    assert_eq!(whole["settings"]["max-tokens"], resumed["settings"]["max-tokens"]);
    assert_eq!(contents(&whole).len(), 4);
    assert_eq!(contents(&whole)[..3], contents(&resumed)[..3]);
    assert_eq!(contents(&resumed).len(), 4);
}

#[test]
fn blocks_files_and_slashes() {
    let (folder, model) = model();
    let saved = folder.path().join("chat.json");
    let attached = write(folder.path(), "a.txt", "line\nné".as_bytes());
    let lines = format!(
        "\"\"\"\n/one\n\n  two\n\"\"\"\n//etc\na \\\nb\n/read {}\nwhat is it\n/save {}\n",
        attached.display(),
        saved.display()
    );
    succeeds(&with_stdin(&["chat", &model, "-n", "2"], lines.as_bytes()));
    let saved = read(&saved);
    let asked: Vec<&str> = contents(&saved).into_iter().step_by(2).collect();
    assert_eq!(asked, ["/one\n\n  two", "/etc", "a \nb", "line\nné\nwhat is it"]);
}

#[test]
fn what_is_no_file_is_not_read() {
    let (folder, model) = model();
    let folder = folder.path().display().to_string();
    for verb in ["read", "load"] {
        for path in ["/dev/zero", &folder] {
            let o = with_stdin(&["chat", &model], format!("/{verb} {path}\n").as_bytes());
            assert!(fails(&o, 1).contains("not a regular file"), "/{verb} {path}");
        }
    }
}

#[test]
fn the_first_error_ends_a_pipe() {
    let (folder, model) = model();
    let bad = write(folder.path(), "bad.txt", b"\xff\xfe");
    let run = |line: &str| with_stdin(&["chat", &model, "-n", "2", "-c", "64"], line.as_bytes());
    assert!(fails(&run("/nope\nhello\n"), 2).contains("/nope"));
    assert!(fails(&run("/set top-q 1\n"), 2).contains("top-q"));
    assert!(fails(&run("/set top-p 7\n"), 2).contains("top-p"));
    assert!(fails(&run("/regen\n"), 2).contains("nothing to answer"));
    assert!(fails(&run(&format!("/read {}\n", bad.display())), 1).contains("UTF-8"));
    assert!(fails(&run("/load missing.json\n"), 1).contains("missing.json"));
    let o = run(&format!("{}\n", "long ".repeat(100)));
    assert!(fails(&o, 1).contains("the context holds 64 tokens"), "{}", stderr(&o));
    assert_eq!(stdout(&o), "");
}

#[test]
fn dropping_is_said_aloud() {
    let (_folder, model) = model();
    let lines = "question of some length\n".repeat(6);
    let args = ["chat", &model, "-q", "-n", "4", "-c", "128", "--on-overflow", "drop-oldest"];
    let o = with_stdin(&args, lines.as_bytes());
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    assert!(stderr(&o).contains("full: dropped the "), "{}", stderr(&o));
    let o = with_stdin(&args[..7], lines.as_bytes());
    fails(&o, 1);
}

#[test]
fn a_model_without_a_template_is_refused() {
    let (folder, _) = model();
    let mut bare = speaking().build().unwrap();
    bare.metadata.retain(|(key, _)| key != "tokenizer.chat_template");
    let path = write(folder.path(), "bare.gguf", &bare.to_bytes().unwrap());
    let o = with_stdin(&["chat", path.to_str().unwrap()], b"hello\n");
    let line = fails(&o, 3);
    assert!(line.contains("no chat template; --chat-template FILE gives one"), "{line}");
    // A base model of the catalogue is told as one.
    let path = write(folder.path(), "gemma3-270m-q4_k_m.gguf", &bare.to_bytes().unwrap());
    let line = fails(&with_stdin(&["chat", path.to_str().unwrap()], b"hello\n"), 3);
    assert!(line.contains("gemma3:270m is a base model"), "{line}");
}

#[test]
fn thoughts_do_not_go_to_stdout() {
    let (folder, model) = model();
    let template = "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}\
<|im_start|><think>";
    let template = write(folder.path(), "thinking.jinja", template.as_bytes());
    let saved = folder.path().join("chat.json");
    let lines = format!("hello\n/save {}\n", saved.display());
    let args = ["chat", &model, "--chat-template", template.to_str().unwrap(), "-n", "8", "--temp", "0"];
    let o = with_stdin(&args, lines.as_bytes());
    assert_eq!(succeeds(&o), "");
    let saved = read(&saved);
    let thoughts = saved["messages"][1]["reasoning_content"].as_str().unwrap();
    assert!(!thoughts.is_empty() && stderr(&o).starts_with(thoughts), "{}", stderr(&o));
}

#[test]
fn a_question_without_an_answer_is_answered() {
    let (folder, model) = model();
    let text = "\u{feff}{\"version\": 1, \"model\": \"m.gguf\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}";
    let first = write(folder.path(), "first.json", text.as_bytes());
    let (loaded, asked) = (folder.path().join("loaded.json"), folder.path().join("asked.json"));
    let args = ["chat", &model, "--temp", "0", "-n", "4", "--seed", "1"];
    let lines = format!("/load {}\n/regen\n/save {}\n", first.display(), loaded.display());
    let o = with_stdin(&args, lines.as_bytes());
    succeeds(&o);
    assert!(stderr(&o).contains("/regen gives it one"), "{}", stderr(&o));
    succeeds(&with_stdin(&args, format!("hello\n/save {}\n", asked.display()).as_bytes()));
    assert_eq!(read(&loaded), read(&asked));
}

#[test]
fn attached_files_wait_for_the_next_prompt_of_their_conversation() {
    let (folder, model) = model();
    let attached = write(folder.path(), "an a.txt", b"line");
    let saved = folder.path().join("chat.json");
    let (attached, saved_path) = (attached.display(), saved.display());
    let lines = format!(
        "first\n/save {saved_path}\n/read '{attached}'\n/info\n/load \"{saved_path}\"\n/info\nsecond\n/save {saved_path}\n"
    );
    let o = with_stdin(&["chat", &model, "-n", "2"], lines.as_bytes());
    succeeds(&o);
    let notes = stderr(&o);
    assert!(
        notes.contains("no longer before the next prompt: ") && notes.contains("an a.txt (4 bytes)"),
        "{notes}"
    );
    let rows: Vec<&str> = notes.lines().filter(|line| line.starts_with("attached")).collect();
    assert!(
        rows.len() == 2 && rows[0].ends_with("an a.txt (4 bytes)") && rows[1].ends_with("nothing"),
        "{notes}"
    );
    assert_eq!(contents(&read(&saved))[2], "second");
}

#[test]
fn paths_are_read_as_a_shell_would() {
    let (folder, model) = model();
    let lines = "/save ~/a b.json\n/save '~/c.json'\n";
    let mut command = common::minfer(&["chat", &model]);
    command.env("HOME", folder.path()).env("USERPROFILE", folder.path()).current_dir(folder.path());
    std::fs::create_dir(folder.path().join("~")).unwrap();
    let mut child =
        command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(folder.path().join("a b.json").exists());
    assert!(folder.path().join("~").join("c.json").exists());
    assert!(fails(&with_stdin(&["chat", &model], b"/read 'a\n"), 2).contains("quotes"));
}

#[test]
fn settings_say_what_they_are_and_lists_grow() {
    let (folder, model) = model();
    let saved = folder.path().join("chat.json");
    let lines =
        format!("/set logit-bias 5+1\n/set logit-bias 6-1\n/set temp 0.5\n/save {}\n", saved.display());
    let o = with_stdin(&["chat", &model], lines.as_bytes());
    succeeds(&o);
    for now in ["logit-bias is now [\"5+1\"]", "logit-bias is now [\"5+1\",\"6-1\"]", "temp is now 0.5"] {
        assert!(stderr(&o).contains(now), "{now} is not in {}", stderr(&o));
    }
    assert_eq!(read(&saved)["settings"]["logit-bias"], serde_json::json!(["5+1", "6-1"]));
}

#[test]
fn the_system_message_and_what_was_forgotten_are_told() {
    let (_folder, model) = model();
    let lines = "/system be brief\nhi\n/info\n/clear\n/info\n/system\n/system \"\"\n/system\n/info\n";
    let o = with_stdin(&["chat", &model, "-n", "1"], lines.as_bytes());
    succeeds(&o);
    let notes = stderr(&o);
    for said in [
        "the system message is now: be brief\n",
        "answer 1 token,",
        "\nbe brief\n",
        "there is no system message now\nthere is no system message\n",
    ] {
        assert!(notes.contains(said), "{said} is not in {notes}");
    }
    let rows = |name: &str| -> Vec<&str> {
        notes.lines().filter_map(|l| l.strip_prefix(name)).map(str::trim_start).collect()
    };
    let contexts = rows("context ");
    assert!(contexts[0].ends_with(", 3 messages") && !contexts[0].starts_with("0 "), "{notes}");
    assert!(contexts[1].starts_with("0 of ") && contexts[1].ends_with(" tokens, 1 message"), "{notes}");
    assert!(contexts[2].starts_with("0 of ") && contexts[2].ends_with(" tokens, 0 messages"), "{notes}");
    let answers = rows("last answer ");
    assert!(answers[0].contains("prompt ") && answers[1..] == ["none", "none"], "{notes}");
}

#[test]
fn empty_messages_are_refused() {
    let (_folder, model) = model();
    for args in [&["chat", &model, "-p", " "][..], &["chat", &model]] {
        assert!(fails(&with_stdin(args, b"\n\"\"\"\n\n\"\"\"\n"), 2).contains("the message is empty"));
    }
    // An empty line is none.
    assert_eq!(succeeds(&with_stdin(&["chat", &model], b"\n \n")), "");
}
