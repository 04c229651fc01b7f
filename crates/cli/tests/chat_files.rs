//! What `/save` and `/load` do with files that are there, and what they say.

mod common;

use common::{fails, speaking, stderr, succeeds, with_stdin, write};
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

struct Chat {
    folder: TempDir,
    model: String,
}

impl Chat {
    fn new() -> Chat {
        let folder = tempfile::tempdir().unwrap();
        let model = write(folder.path(), "m.gguf", &speaking().to_bytes().unwrap());
        Chat { model: model.to_str().unwrap().to_owned(), folder }
    }

    fn says(&self, lines: &str) -> Output {
        with_stdin(&["chat", &self.model, "-n", "1", "--seed", "1"], lines.as_bytes())
    }

    fn save(&self, path: &Path) -> Output {
        self.says(&format!("/save {}\n", path.display()))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn only_a_saved_chat_is_replaced_unless_asked() {
    let chat = Chat::new();
    let notes = write(chat.folder.path(), "notes.txt", b"mine");
    let newer = write(chat.folder.path(), "newer.json", br#"{"version": 2, "model": "m", "messages": []}"#);
    for file in [&notes, &newer] {
        let before = text(file);
        let line = fails(&chat.save(file), 1);
        assert!(line.contains("no saved chat; /save! FILE replaces it"), "{line}");
        assert_eq!(text(file), before);
        succeeds(&chat.says(&format!("/save! {}\n", file.display())));
        assert!(text(file).contains("messages"));
    }
    // A saved chat and an empty file are replaced; a file that only looks as if it were ours is left alone.
    let empty = write(chat.folder.path(), "empty", b"");
    let part = write(chat.folder.path(), "empty.part", b"mine");
    succeeds(&chat.save(&empty));
    let o = chat.says(&format!("hi\n/save {}\n", empty.display()));
    succeeds(&o);
    assert!(stderr(&o).contains("2 messages saved in "), "{}", stderr(&o));
    assert!(text(&empty).contains("hi"));
    assert_eq!(text(&part), "mine");
    assert_eq!(chat.names(), ["empty", "empty.part", "m.gguf", "newer.json", "notes.txt"]);
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let chat = Chat::new();
    for verb in ["save", "save!"] {
        let line = fails(&chat.says(&format!("/{verb} {}\n", chat.folder.path().display())), 1);
        assert!(line.contains("not a regular file"), "{line}");
        let line = fails(&chat.says(&format!("/{verb} {}/no/x\n", chat.folder.path().display())), 1);
        assert!(line.contains("no/x"), "{line}");
    }
    assert_eq!(chat.names(), ["m.gguf"]);
}

#[cfg(unix)]
#[test]
fn devices_pipes_and_links_stay_what_they_are() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let chat = Chat::new();
    let inside = |name: &str| chat.folder.path().join(name);
    assert!(std::process::Command::new("mkfifo").arg(inside("pipe")).status().unwrap().success());
    symlink("pipe", inside("to-pipe")).unwrap();
    symlink("/dev/full", inside("to-full")).unwrap();
    for path in ["pipe", "to-pipe", "to-full"].map(inside) {
        assert!(fails(&chat.save(&path), 1).contains("not a regular file"), "{}", path.display());
    }
    assert!(std::fs::metadata(inside("pipe")).unwrap().file_type().is_fifo());
    symlink("nothing", inside("dangling")).unwrap();
    assert!(fails(&chat.save(&inside("dangling")), 1).contains("a link to a file that is not there"));
    std::fs::create_dir(inside("folder")).unwrap();
    write(&inside("folder"), "chat.json", b"");
    symlink("folder/chat.json", inside("link")).unwrap();
    succeeds(&chat.save(&inside("link")));
    assert!(std::fs::symlink_metadata(inside("link")).unwrap().is_symlink());
    assert!(text(&inside("folder").join("chat.json")).contains("messages"));
    assert_eq!(chat.names(), ["dangling", "folder", "link", "m.gguf", "pipe", "to-full", "to-pipe"]);
}

#[cfg(unix)]
#[test]
fn a_new_file_is_its_owners_alone_and_another_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let chat = Chat::new();
    let path = chat.folder.path().join("chat.json");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    succeeds(&chat.save(&path));
    assert_eq!(mode(), 0o600);
    for kept in [0o644, 0o660] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(kept)).unwrap();
        succeeds(&chat.save(&path));
        assert_eq!(mode(), kept);
    }
}

#[test]
fn loading_says_what_it_changes_and_what_it_leaves_out() {
    let chat = Chat::new();
    let saved = r#"{"version": 1, "model": "m.gguf", "messages": [{"role": "user", "content": "x"}],
        "settings": {"temp": 0.5}, "colour": 1, "shape": 2}"#;
    let path = write(chat.folder.path(), "a.json", saved.as_bytes());
    let o = chat.says(&format!("/load {}\n", path.display()));
    succeeds(&o);
    let notes = stderr(&o);
    for part in [
        "1 message from ",
        "settings of the file replace those of the command line and of /set: temp 0.5 (was ",
        "a.json: unknown fields are left out: colour, shape",
    ] {
        assert!(notes.contains(part), "{part} is not in {notes}");
    }
    assert!(!notes.contains("seed"), "{notes}");
}
