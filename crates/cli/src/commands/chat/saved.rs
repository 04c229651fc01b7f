//! A conversation in a file.

use super::store::Target;
use crate::args::check_template_variables;
use anyhow::{Context, Result, anyhow, bail, ensure};
use minfer::Entry;
use minfer::text::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// The form that this program writes.
const VERSION: u32 = 1;
/// Marks an answer that was stopped; no field of the message.
const INTERRUPTED: &str = "interrupted";

/// Who speaks in the conversations that chat templates are written for.
const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

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
    messages: Vec<Value>,
    /// Names of fields that this program does not know, and leaves out.
    #[serde(skip)]
    pub unknown: Vec<String>,
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
            Value::Object(fields)
        });
        Saved {
            version: VERSION,
            model,
            template,
            settings,
            messages: messages.collect(),
            unknown: Vec::new(),
        }
    }

    /// The messages.
    ///
    /// # Errors
    /// One that no chat template could render, by number and field.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let numbered = |(i, message)| entry(message).with_context(|| format!("message {}", i + 1));
        self.messages.iter().enumerate().map(numbered).collect()
    }

    /// Writes it to a file, in place of an empty one or of another saved chat; of any other only if `anything` goes.
    ///
    /// # Errors
    /// As [`Target::new`] and [`Target::write`], or the file is not to be replaced. It is then as it was.
    pub fn write(&self, path: &Path, anything: bool) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let target = Target::new(path)?;
        if let Some(file) = target.existing().filter(|_| !anything) {
            let empty = std::fs::metadata(file).is_ok_and(|metadata| metadata.len() == 0);
            ensure!(
                empty || Self::read(file).is_ok(),
                "{}: this file is no saved chat; /save! FILE replaces it",
                path.display()
            );
        }
        target.write(&text)
    }

    pub fn read(path: &Path) -> Result<Self> {
        crate::inputs::check_regular(path)?;
        let text = crate::inputs::read_text(path)?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        // Some editors begin a file with a mark of its encoding.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let value: Value = serde_json::from_str(text).context("not JSON")?;
        let version = value.get("version").and_then(Value::as_u64);
        let version = version.context("not a saved chat: it has no version")?;
        ensure!(version == u64::from(VERSION), "version {version}; this program reads {VERSION}");
        let fields = value.as_object().context("not a saved chat")?;
        for (key, want, needed) in FIELDS {
            check(fields, key, want, needed)?;
        }
        let known = |key: &str| key == "version" || FIELDS.iter().any(|(name, ..)| *name == key);
        let unknown = fields.keys().filter(|key| !known(key)).cloned().collect();
        let mut saved: Saved = serde_json::from_value(value).context("not a saved chat")?;
        check_template_variables(&saved.template).map_err(|e| anyhow!("template: {e}"))?;
        saved.unknown = unknown;
        Ok(saved)
    }
}

const TEXT: &str = "a text";
const LIST: &str = "a list";
const OBJECT: &str = "an object";
const BOOL: &str = "true or false";

/// The fields of a saved chat besides its version, what they are, and whether they must be there.
const FIELDS: [(&str, &str, bool); 4] = [
    ("model", TEXT, true),
    ("messages", LIST, true),
    ("template", OBJECT, false),
    ("settings", OBJECT, false),
];

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => BOOL,
        Value::Number(_) => "a number",
        Value::String(_) => TEXT,
        Value::Array(_) => LIST,
        Value::Object(_) => OBJECT,
    }
}

/// Checks that a field is there, if it must be, and of what kind it is.
fn check(fields: &Map<String, Value>, key: &str, want: &str, needed: bool) -> Result<()> {
    match fields.get(key) {
        None if needed => bail!("{key} is missing; it must be {want}"),
        Some(value) if kind(value) != want => bail!("{key} is {}; it must be {want}", kind(value)),
        _ => Ok(()),
    }
}

/// A message, checked in everything that templates take for granted.
fn entry(message: &Value) -> Result<Entry> {
    let Value::Object(fields) = message else { bail!("it is {}; it must be {OBJECT}", kind(message)) };
    check(fields, "role", TEXT, true)?;
    for (key, want) in [("tool_calls", LIST), ("reasoning_content", TEXT), (INTERRUPTED, BOOL)] {
        check(fields, key, want, false)?;
    }
    let mut message = Message { fields: fields.clone() };
    let interrupted = message.fields.shift_remove(INTERRUPTED) == Some(true.into());
    let role = message.role();
    ensure!(ROLES.contains(&role), "role is `{role}`; it must be one of {}", ROLES.join(", "));
    // An answer may consist of calls alone.
    let calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let silent = role == "assistant" && calls && fields.get("content").is_none_or(Value::is_null);
    if !silent {
        check(fields, "content", TEXT, true)?;
    }
    Ok(Entry { message, interrupted })
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
            (r#"{"version": 1, "model": 3, "messages": []}"#, "model is a number; it must be a text"),
            (r#"{"version": 1, "model": "m", "messages": {}}"#, "messages is an object; it must be a list"),
            (
                r#"{"version": 1, "model": "m", "messages": [], "template": {"messages": []}}"#,
                "template: `messages` comes from the conversation",
            ),
        ];
        for (text, why) in wrong {
            let error = format!("{:#}", Saved::parse(text).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    /// The entries of a saved chat whose second message is this one.
    fn second(message: &str) -> Result<Vec<Entry>> {
        let first = r#"{"role": "user", "content": "x"}"#;
        Saved::parse(&format!(r#"{{"version": 1, "model": "m", "messages": [{first}, {message}]}}"#))?
            .entries()
    }

    #[test]
    fn a_message_that_no_template_renders_is_refused_by_number_and_field() {
        let roles = "must be one of system, user, assistant, tool, developer";
        for (message, why) in [
            ("3", "it is a number"),
            (r#"{"content": "x"}"#, "role is missing"),
            (r#"{"role": null, "content": "x"}"#, "role is null"),
            (r#"{"role": "zebra", "content": "x"}"#, "role is `zebra`"),
            (r#"{"role": "zebra", "content": "x"}"#, roles),
            (r#"{"role": "user"}"#, "content is missing; it must be a text"),
            (r#"{"role": "user", "content": null}"#, "content is null"),
            (r#"{"role": "user", "content": [{"type": "text", "text": "x"}]}"#, "content is a list"),
            (r#"{"role": "user", "content": 3}"#, "content is a number"),
            (r#"{"role": "assistant", "tool_calls": []}"#, "content is missing"),
            (r#"{"role": "assistant", "content": "x", "tool_calls": "y"}"#, "tool_calls is a text"),
            (
                r#"{"role": "assistant", "content": "x", "reasoning_content": []}"#,
                "reasoning_content is a list",
            ),
            (r#"{"role": "assistant", "content": "x", "interrupted": 1}"#, "interrupted is a number"),
        ] {
            let error = format!("{:#}", second(message).unwrap_err());
            assert!(error.starts_with("message 2: ") && error.contains(why), "{error}");
        }
        for role in ROLES {
            assert!(second(&format!(r#"{{"role": "{role}", "content": ""}}"#)).is_ok(), "{role}");
        }
        assert!(second(r#"{"role": "assistant", "content": null, "tool_calls": [{}]}"#).is_ok());
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let text = "\u{feff}{\"version\": 1, \"model\": \"m\", \"messages\": []}";
        assert_eq!(Saved::parse(text).unwrap().model, "m");
    }
}
