//! A conversation in a file.

use anyhow::{Context, Result, ensure};
use minfer::Entry;
use minfer::text::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// The form that this program writes.
const VERSION: u32 = 1;
/// Marks an answer that was stopped; no field of the message.
const INTERRUPTED: &str = "interrupted";

/// Everything that goes on when a chat does.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    /// File name of the model.
    pub model: String,
    /// Variables of the chat template.
    #[serde(default)]
    pub template: Map<String, Value>,
    /// Settings, the seed among them.
    #[serde(default)]
    pub settings: Map<String, Value>,
    messages: Vec<Map<String, Value>>,
}

impl Saved {
    pub fn new(
        model: String,
        template: Map<String, Value>,
        settings: Map<String, Value>,
        entries: &[Entry],
    ) -> Self {
        let messages = entries.iter().map(|entry| {
            let mut fields = entry.message.fields.clone();
            if entry.interrupted {
                fields.insert(INTERRUPTED.into(), true.into());
            }
            fields
        });
        Saved { version: VERSION, model, template, settings, messages: messages.collect() }
    }

    /// The messages.
    ///
    /// # Errors
    /// One that names no role, or whose content is neither text nor a list of parts.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let entry = |(i, fields): (usize, &Map<String, Value>)| {
            let mut message = Message { fields: fields.clone() };
            let interrupted = message.fields.shift_remove(INTERRUPTED) == Some(true.into());
            ensure!(!message.role().is_empty(), "message {} has no role", i + 1);
            let content = message.fields.get("content");
            let fine = content.is_none_or(|c| c.is_string() || c.is_array() || c.is_null());
            ensure!(fine, "message {}: the content is no text", i + 1);
            Ok(Entry { message, interrupted })
        };
        self.messages.iter().enumerate().map(entry).collect()
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        // Beside it first: a disk that is full must not cost what the file held before.
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
        written.with_context(|| path.display().to_string())
    }

    pub fn read(path: &Path) -> Result<Self> {
        crate::inputs::check_regular(path)?;
        let text = crate::inputs::read_text(path)?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("not JSON")?;
        let version = value.get("version").and_then(Value::as_u64);
        let version = version.context("not a saved chat: it has no version")?;
        ensure!(version == u64::from(VERSION), "version {version}; this program reads {VERSION}");
        serde_json::from_value(value).context("not a saved chat")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let entries = [
            Entry::from(Message::new("system", "né")),
            Message::new("user", "a\n\"b\"").into(),
            Entry { message: Message::new("assistant", "c").with("name", "x"), interrupted: true },
        ];
        let some = |key: &str| Map::from_iter([(key.to_owned(), Value::from(0.3))]);
        let saved = Saved::new("m.gguf".into(), some("k"), some("temp"), &entries);
        let read = Saved::parse(&serde_json::to_string(&saved).unwrap()).unwrap();
        assert_eq!(read, saved);
        assert_eq!(read.entries().unwrap(), entries);
    }

    #[test]
    fn what_is_no_saved_chat_is_refused() {
        let wrong = [
            ("", "not JSON"),
            ("[]", "no version"),
            (r#"{"version": 2, "model": "m", "messages": []}"#, "version 2"),
            (r#"{"version": 1, "model": "m"}"#, "messages"),
            (r#"{"version": 1, "model": "m", "messages": [3]}"#, "not a saved chat"),
        ];
        for (text, why) in wrong {
            let error = format!("{:#}", Saved::parse(text).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        for message in [r#"{"content": "x"}"#, r#"{"role": "user", "content": 3}"#] {
            let text = format!(r#"{{"version": 1, "model": "m", "messages": [{message}]}}"#);
            assert!(Saved::parse(&text).unwrap().entries().is_err());
        }
    }
}
