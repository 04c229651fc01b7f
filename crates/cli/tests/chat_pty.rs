//! A chat at a terminal: a pseudo-terminal with a tiny model behind it.
#![cfg(unix)]

mod common;

use common::{output, speaking, succeeds, write};
use minfer_testkit::tiny::vocab;
use rexpect::process::WaitStatus;
use rexpect::session::{PtySession, spawn_command};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// What the line editor sends when it begins to read a line, and when it ends: bracketed paste on and off.
const READING: &str = "\u{1b}[?2004h";
const READ: &str = "\u{1b}[?2004l";
/// Time for an answer on a busy machine.
const PATIENCE: u64 = 60_000;

struct Chat {
    folder: TempDir,
    model: String,
    pty: PtySession,
}

impl Chat {
    fn start(options: &[&str]) -> Chat {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = speaking();
        spec.n_ctx = 1 << 15;
        let mut tiny = spec.build().unwrap();
        // Control tokens have the lowest ids. With zeros for them the best token is another, and no answer ends by itself.
        let row = spec.shape.n_embd * size_of::<f32>();
        tiny.tensor_mut("output.weight").unwrap().bytes[..vocab::CONTROL.len() * row].fill(0);
        let path = write(folder.path(), "m.gguf", &tiny.to_bytes().unwrap());
        let model = path.to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_minfer"));
        command.args(["chat", &model]).args(options).env("TERM", "xterm");
        command.env("MINFER_HISTORY", folder.path().join("history"));
        let pty = spawn_command(command, Some(PATIENCE)).unwrap();
        let mut chat = Chat { folder, model, pty };
        chat.prompt();
        chat
    }

    /// Waits for the program to ask, and returns what it showed before.
    fn prompt(&mut self) -> String {
        let shown = self.pty.exp_string(READING).unwrap();
        self.pty.exp_string(">>> ").unwrap();
        shown
    }

    /// Types a line and waits until it is answered.
    fn say(&mut self, line: &str) -> String {
        self.type_in(line);
        self.type_in("\r");
        self.prompt()
    }

    fn type_in(&mut self, keys: &str) {
        self.pty.send(keys).unwrap();
        self.pty.flush().unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn saved(&mut self, name: &str) -> Value {
        let path = self.path(name);
        self.say(&format!("/save {}", path.display()));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Ends the chat by keys and checks that it ends well.
    #[track_caller]
    fn ends(&mut self, keys: &str) {
        self.type_in(keys);
        self.pty.exp_eof().unwrap();
        assert!(matches!(self.pty.process().wait().unwrap(), WaitStatus::Exited(_, 0)));
    }
}

fn contents(saved: &Value) -> Vec<String> {
    saved["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect()
}

/// The number before a word in statistics, where it first occurs.
fn number_before(text: &str, word: &str) -> usize {
    let statistics = &text[text.rfind("prompt ").unwrap_or_else(|| panic!("no statistics in {text}"))..];
    let words: Vec<&str> = statistics.split(|c: char| c.is_whitespace() || c == '(').collect();
    let at = words.iter().position(|w| w.trim_end_matches([',', ')', ';']) == word);
    at.and_then(|at| words[at - 1].parse().ok()).unwrap_or_else(|| panic!("no `{word}` in {text}"))
}

#[test]
fn a_paste_of_five_lines_is_one_prompt() {
    let mut chat = Chat::start(&["-n", "4", "--temp", "0"]);
    let pasted = ["fn main() {", "    let x = 1; \\", "", "/help", "}"];
    chat.type_in(&format!("\u{1b}[200~{}\u{1b}[201~", pasted.join("\r")));
    chat.say("");
    let saved = chat.saved("a.json");
    assert_eq!(contents(&saved).len(), 2, "{saved}");
    assert_eq!(contents(&saved)[0], pasted.join("\n"));
    chat.ends("/exit\r");
}

#[test]
fn lines_of_one_prompt_can_be_typed() {
    let mut chat = Chat::start(&["-n", "2"]);
    chat.type_in("one\u{1b}\rtwo\\\r");
    chat.pty.exp_string("... ").unwrap();
    chat.say("three");
    chat.type_in("\"\"\"four\r");
    chat.pty.exp_string("... ").unwrap();
    chat.say("/five\"\"\"");
    let contents = contents(&chat.saved("a.json"));
    assert_eq!((contents[0].as_str(), contents[2].as_str()), ("one\ntwo\nthree", "four\n/five"));
    chat.ends("/bye\r");
}

#[test]
fn the_end_of_the_input_ends_the_chat_well() {
    let mut chat = Chat::start(&[]);
    chat.ends("\u{4}");
    let mut chat = Chat::start(&["-n", "2"]);
    chat.say("hello");
    chat.ends("\u{4}");
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let mut chat = Chat::start(&["--temp", "0", "-c", "32768"]);
    // At the prompt it clears the line and says how to leave.
    chat.type_in("never said");
    chat.pty.exp_string("said").unwrap();
    chat.type_in("\u{3}");
    assert!(chat.prompt().contains("/exit"));
    chat.type_in("hello\r");
    chat.pty.exp_string(READ).unwrap();
    chat.pty.exp_regex(r"\S").unwrap();
    chat.type_in("\u{3}");
    let shown = chat.prompt();
    assert!(shown.contains("stopped"), "{shown}");
    let saved = chat.saved("a.json");
    let said = contents(&saved);
    assert_eq!((said.len(), said[0].as_str()), (2, "hello"), "{saved}");
    assert!(!said[1].is_empty());
    assert_eq!(saved["messages"][1]["interrupted"], true);
    // The chat goes on from there; all up to the answer is still in the cache, however short the answer was.
    chat.say("/set max-tokens 3");
    let shown = chat.say("more");
    assert!(number_before(&shown, "reused") >= 10, "{shown}");
    assert_eq!(contents(&chat.saved("b.json"))[1], said[1]);
    chat.ends("\u{4}");
}

#[test]
fn turn_two_prefills_only_its_own_tokens() {
    let mut chat = Chat::start(&["-n", "5", "--temp", "0"]);
    let first = chat.say("hello there");
    let second = chat.say("and you");
    // The last token of the first answer was picked but not yet computed.
    let own = "<|im_end|>\n<|im_start|>user\nand you<|im_end|>\n<|im_start|>assistant\n";
    let ids = succeeds(&output(&["tokenize", &chat.model, own, "--special", "--no-bos"]));
    assert!(first.contains("token limit"), "{first}");
    assert_eq!(number_before(&second, "tokens"), 1 + ids.split_whitespace().count(), "{second}");
    let in_context = number_before(&first, "of");
    assert_eq!(number_before(&second, "reused"), in_context);
    chat.ends("/quit\r");
}

#[test]
fn regen_save_and_load_do_what_they_say() {
    let mut chat = Chat::start(&["-n", "6", "--temp", "2", "--seed", "5"]);
    chat.say("hello");
    chat.say("and more");
    let before = chat.saved("a.json");
    let shown = chat.say("/regen");
    assert_eq!(number_before(&shown, "token"), 1, "{shown}");
    let after = chat.saved("b.json");
    let (old, new) = (contents(&before), contents(&after));
    assert_eq!(old[..3], new[..3]);
    assert_eq!((old.len(), new.len()), (4, 4));
    assert_ne!(old[3], new[3]);
    chat.say("/clear");
    assert_eq!(contents(&chat.saved("c.json")), Vec::<String>::new());
    let path = chat.path("a.json");
    chat.say(&format!("/load {}", path.display()));
    assert_eq!(chat.saved("d.json"), before);
    assert!(chat.say("/nope").contains("error"));
    assert!(chat.say("/system be brief").contains("the system message is now: be brief"));
    assert!(chat.say("/set temp 0").len() < 100);
    assert!(chat.say("/set").contains("temp"));
    assert_eq!(contents(&chat.saved("e.json"))[0], "be brief");
    chat.ends("\u{4}");
    let history = std::fs::read_to_string(chat.path("history")).unwrap();
    assert!(history.contains("and more"));
}

#[test]
fn pasted_lines_are_a_message_whatever_they_begin_with() {
    let mut chat = Chat::start(&["-n", "2"]);
    let pasted = [
        "/usr/bin/env python\nprint()",
        "// a comment\nint x;",
        "/help\nme",
        "// alone",
        "\"\"\"doc\"\"\"\nx",
    ];
    for text in pasted {
        chat.say(&format!("\u{1b}[200~{}\u{1b}[201~", text.replace('\n', "\r")));
    }
    // Out of the history it is the same.
    chat.say("\u{1b}[200~// again\u{1b}[201~");
    chat.say("\u{1b}[A");
    // One pasted line may be a command, and what is typed is read as before.
    assert!(chat.say("\u{1b}[200~/info\r\u{1b}[201~").contains("KV type"));
    assert!(chat.say("/usr/bin").contains("there is no command /usr/bin"));
    chat.say("//etc");
    let saved = contents(&chat.saved("a.json"));
    let asked: Vec<&String> = saved.iter().step_by(2).collect();
    assert_eq!(asked[..5], pasted);
    assert_eq!(asked[5..], ["// again", "// again", "/etc"]);
    chat.ends("/exit\r");
}

#[test]
fn a_refused_message_is_taken_back_and_the_chat_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('boo') }}{% endif %}\
<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>";
    let template = write(folder.path(), "own.jinja", template.as_bytes());
    let mut chat = Chat::start(&["-n", "2", "--chat-template", template.to_str().unwrap(), "-p", "no"]);
    chat.say("yes");
    let shown = chat.say("no");
    assert!(shown.contains("error: the chat template refuses this conversation: boo ("), "{shown}");
    assert!(shown.contains("own.jinja)") && shown.contains("taken back"), "{shown}");
    chat.say("again");
    let saved = contents(&chat.saved("a.json"));
    assert_eq!((saved.len(), saved[0].as_str(), saved[2].as_str()), (4, "yes", "again"));
    chat.ends("\u{4}");
}

#[test]
fn what_cannot_be_loaded_changes_nothing() {
    let mut chat = Chat::start(&["-n", "2"]);
    chat.say("hello");
    let before = chat.saved("a.json");
    let wrong = [
        (
            r#"[{"role": "user", "content": "x"}, {"role": "zebra", "content": "x"}]"#,
            "message 2: role is `zebra`",
        ),
        (r#"[{"role": "user"}]"#, "message 1: content is missing"),
        (r#"[], "template": {"messages": []}"#, "template: `messages`"),
        (r#"[], "settings": {"temp": 3, "top-q": 1}"#, "settings: there is no setting `top-q`"),
        (r#"[], "settings": {"temp": 3, "logit-bias": ["99999999+1"]}"#, "settings: logit-bias"),
    ];
    for (messages, why) in wrong {
        let text = format!(r#"{{"version": 1, "model": "m", "messages": {messages}}}"#);
        let path = write(chat.folder.path(), "wrong.json", text.as_bytes());
        let shown = chat.say(&format!("/load {}", path.display()));
        assert!(shown.contains("error") && shown.contains("wrong.json: ") && shown.contains(why), "{shown}");
        assert_eq!(chat.saved("b.json"), before);
    }
    chat.ends("\u{4}");
}

#[test]
fn bytes_that_are_no_text_do_not_end_the_chat() {
    let mut chat = Chat::start(&["-n", "2"]);
    let type_bytes = |chat: &Chat, bytes: &[u8]| {
        chat.pty.process().get_file_handle().unwrap().write_all(bytes).unwrap();
    };
    chat.say("hello");
    let before = chat.saved("a.json");
    type_bytes(&chat, b"caf\xe9\r");
    let shown = chat.prompt();
    assert!(shown.contains("error: that is not UTF-8 text"), "{shown}");
    // Nothing of a paste is said, however long the rest is.
    let pasted = [&b"\x1b[200~caf\xe9\r"[..], &b"said to nobody\r".repeat(1000), b"\x1b[201~"].concat();
    type_bytes(&chat, &pasted);
    let shown = chat.prompt();
    assert!(shown.contains("error: that is not UTF-8 text"), "{shown}");
    assert_eq!(chat.saved("b.json"), before);
    // A block goes on with the line typed again.
    chat.type_in("\"\"\"one\r");
    chat.pty.exp_string("... ").unwrap();
    type_bytes(&chat, b"\xff");
    chat.pty.exp_string("... ").unwrap();
    chat.say("two\"\"\"");
    assert_eq!(contents(&chat.saved("c.json"))[2], "one\ntwo");
    chat.ends("\u{4}");
}

#[test]
fn sigterm_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    // A shell, so that somebody looks at the terminal afterwards.
    let script =
        r#"stty -a; sh -c 'echo pid $$ is it; exec "$0" "$@"' "$@"; echo code $? end; stty -a; echo done"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_minfer"), "chat"]).arg(&path);
    command.env("TERM", "xterm").env("MINFER_HISTORY", "off");
    let mut pty = spawn_command(command, Some(PATIENCE)).unwrap();
    let before = pty.exp_string("pid ").unwrap();
    let pid = pty.exp_string(" is it").unwrap();
    pty.exp_string(READING).unwrap();
    pty.exp_string(">>> ").unwrap();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    // Bracketed paste is off again.
    pty.exp_string(READ).unwrap();
    pty.exp_string("code 143 end").unwrap();
    let after = pty.exp_string("done").unwrap();
    assert!(before.contains("icanon") && !before.contains("-icanon"), "{before}");
    assert_eq!(after.trim(), before.trim());
}
