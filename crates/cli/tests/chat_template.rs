//! `--chat-template` and `--chat-template-kwargs`.

mod common;

use common::{fails, output, speaking, stderr, write};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MODEL: i32 = 3;

#[test]
fn a_template_of_the_users_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = speaking().build().unwrap();
    model.remove("tokenizer.chat_template").unwrap();
    let model = write(folder.path(), "base.gguf", &model.to_bytes().unwrap());
    let run = |template: &str, more: &[&str]| {
        let path = write(folder.path(), "own.jinja", template.as_bytes());
        let words =
            ["run", model.to_str().unwrap(), "hi", "-n", "4", "--chat-template", path.to_str().unwrap()];
        output(&[&words, more].concat())
    };
    let answer = run("{% for m in messages %}{{ m.content }}{% endfor %}", &[]);
    assert!(answer.status.success(), "{}", stderr(&answer));
    let line = fails(&run("a\n{% if %}\n", &[]), FAILED);
    assert!(line.contains("own.jinja") && line.contains("line 2"), "{line}");
    let refuse = "{{ raise_exception('level ' ~ level ~ messages[0].content) }}";
    let line = fails(&run(refuse, &["--chat-template-kwargs", r#"{"level": 3}"#]), USAGE);
    assert!(line.contains("the chat template refuses this conversation: level 3hi ("), "{line}");
    assert!(line.contains("own.jinja"), "{line}");
    for bad in ["{", "3", r#"{"messages": []}"#] {
        fails(&run("x", &["--chat-template-kwargs", bad]), USAGE);
    }
    fails(&run("x", &["--raw"]), USAGE);
}

#[test]
fn run_and_chat_say_alike_why_a_template_does_not_render() {
    let folder = tempfile::tempdir().unwrap();
    let templates = [
        (
            "{{ raise_exception('boo') }}",
            "the chat template refuses this conversation: boo (",
            [USAGE, USAGE],
        ),
        ("a\n{{ missing.field }}", "chat template, line 2: ", [MODEL, FAILED]),
    ];
    for (template, says, codes) in templates {
        let mut model = speaking().build().unwrap();
        model.metadata.retain(|(key, _)| key != "tokenizer.chat_template");
        model.metadata.push(("tokenizer.chat_template".to_owned(), template.to_owned().into()));
        let model = write(folder.path(), "m.gguf", &model.to_bytes().unwrap());
        let file = write(folder.path(), "own.jinja", template.as_bytes());
        let given = ["--chat-template", file.to_str().unwrap()];
        for (more, from, code) in
            [(&[][..], "(the model's own template)", codes[0]), (&given, "own.jinja)", codes[1])]
        {
            for command in ["run", "chat"] {
                let words = [&[command, model.to_str().unwrap(), "-p", "hi"], more].concat();
                let line = fails(&output(&words), code);
                assert!(line.contains(says) && line.ends_with(from), "{line}");
            }
        }
    }
}

#[test]
fn a_template_file_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let model = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let words = ["run", model.to_str().unwrap(), "hi", "--chat-template", "/no/such.jinja"];
    let line = fails(&output(&words), FAILED);
    assert!(line.contains("/no/such.jinja"), "{line}");
}
