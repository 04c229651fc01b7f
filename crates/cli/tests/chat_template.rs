//! `--chat-template` and `--chat-template-kwargs`.

mod common;

use common::{fails, output, speaking, stderr, write};

const FAILED: i32 = 1;
const USAGE: i32 = 2;

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
    let line = fails(&run("a\n{% if %}\n", &[]), USAGE);
    assert!(line.contains("own.jinja") && line.contains("line 2"), "{line}");
    let refuse = "{{ raise_exception('level ' ~ level ~ messages[0].content) }}";
    let line = fails(&run(refuse, &["--chat-template-kwargs", r#"{"level": 3}"#]), FAILED);
    assert!(line.contains("level 3hi"), "{line}");
    for bad in ["{", "3", r#"{"messages": []}"#] {
        fails(&run("x", &["--chat-template-kwargs", bad]), USAGE);
    }
    fails(&run("x", &["--raw"]), USAGE);
}

#[test]
fn a_template_file_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let model = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
    let words = ["run", model.to_str().unwrap(), "hi", "--chat-template", "/no/such.jinja"];
    let line = fails(&output(&words), USAGE);
    assert!(line.contains("/no/such.jinja"), "{line}");
}
