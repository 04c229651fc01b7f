//! Calls of tools in what a model writes.
//!
//! How a model writes a call is known from its chat template. A model whose template knows no tools can be told of them by
//! [`ToolFormat::instructions`], in the form that most models were trained on.

use serde_json::{Map, Value};

/// How a model writes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen, and others after them.
    Tagged,
    /// The whole answer is `{"name": .., "parameters": {..}}`: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`: Mistral.
    Listed,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";

impl ToolFormat {
    /// The format that a chat template asks its model for; `None` if it knows no tools, or none that we can read.
    pub fn of_template(source: &str) -> Option<Self> {
        if !source.contains("tools") {
            return None;
        }
        if source.contains("[TOOL_CALLS]") {
            return Some(ToolFormat::Listed);
        }
        if source.contains("<function=") {
            return None;
        }
        if source.contains(OPEN) {
            return Some(ToolFormat::Tagged);
        }
        source.contains("\"parameters\"").then_some(ToolFormat::Bare)
    }

    /// What comes before and behind the JSON of a call.
    pub fn around(self) -> (&'static str, &'static str) {
        match self {
            ToolFormat::Tagged => ("<tool_call>\n", "\n</tool_call>"),
            ToolFormat::Bare => ("", ""),
            ToolFormat::Listed => ("[TOOL_CALLS][", "]"),
        }
    }

    /// The name of the field that holds a call's arguments.
    pub fn arguments(self) -> &'static str {
        match self {
            ToolFormat::Bare => "parameters",
            ToolFormat::Tagged | ToolFormat::Listed => "arguments",
        }
    }

    /// What a model without tools of its own is told of them: a text for the system message.
    pub fn instructions(tools: &Value) -> String {
        let list = tools.as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: Vec<String> = list.iter().map(Value::to_string).collect();
        format!(
            "You may call functions. The functions are, one JSON object a line:\n{}\nTo call one, write\n\
             <tool_call>\n{{\"name\": NAME, \"arguments\": OBJECT}}\n</tool_call>",
            lines.join("\n")
        )
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolPiece {
    /// Text that belongs to no call.
    Text(String),
    /// A whole call.
    Call {
        /// Name of the tool.
        name: String,
        /// Its arguments, as JSON.
        arguments: Map<String, Value>,
    },
}

/// Takes calls out of an answer that arrives in pieces. What turns out to be no call is given as text: nothing is lost.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
    held: String,
    /// Whether what is held follows an opening mark.
    inside: bool,
    /// Whether text came that was not blank: a bare call is a whole answer.
    began: bool,
}

impl ToolParser {
    /// A parser at the start of an answer.
    pub fn new(format: ToolFormat) -> Self {
        ToolParser { format, held: String::new(), inside: false, began: false }
    }

    /// Takes a piece of the answer.
    pub fn push(&mut self, text: &str) -> Vec<ToolPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match self.format {
            ToolFormat::Tagged => while self.tagged(&mut pieces) {},
            ToolFormat::Listed => self.listed(&mut pieces),
            ToolFormat::Bare => self.bare(&mut pieces),
        }
        pieces
    }

    /// Ends the answer: what is held back is a call if it is whole, else text.
    pub fn finish(&mut self) -> Vec<ToolPiece> {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.format, self.inside) {
            (ToolFormat::Tagged, true) => held.strip_prefix(OPEN).and_then(calls_of),
            (ToolFormat::Listed, true) => held.strip_prefix(LIST).and_then(calls_of),
            (ToolFormat::Bare, _) if !self.began => calls_of(&held),
            _ => None,
        };
        match calls {
            Some(calls) => calls,
            None if held.is_empty() => Vec::new(),
            None => vec![ToolPiece::Text(held)],
        }
    }

    /// One step with tags; whether there may be another.
    fn tagged(&mut self, pieces: &mut Vec<ToolPiece>) -> bool {
        if !self.inside {
            return self.until(OPEN, pieces);
        }
        let Some(end) = self.held.find(CLOSE) else { return false };
        let rest = self.held.split_off(end + CLOSE.len());
        let whole = std::mem::replace(&mut self.held, rest);
        self.inside = false;
        match calls_of(&whole[OPEN.len()..end]) {
            Some(calls) => pieces.extend(calls),
            None => pieces.push(ToolPiece::Text(whole)),
        }
        !self.held.is_empty()
    }

    fn listed(&mut self, pieces: &mut Vec<ToolPiece>) {
        if !self.inside {
            self.until(LIST, pieces);
        }
    }

    /// Passes text on up to an opening mark, or to what may become one; whether the mark is there.
    fn until(&mut self, mark: &str, pieces: &mut Vec<ToolPiece>) -> bool {
        let at = self.held.find(mark);
        let growing = || (1..mark.len()).rev().find(|&n| self.held.ends_with(&mark[..n])).unwrap_or(0);
        let end = at.unwrap_or_else(|| self.held.len() - growing());
        // White space before a call belongs to the call, so it waits for what comes.
        let text = self.held[..end].trim_end().to_string();
        self.held.drain(..if at.is_some() { end } else { text.len() });
        if !text.is_empty() {
            pieces.push(ToolPiece::Text(text));
        }
        self.inside = at.is_some();
        self.inside
    }

    fn bare(&mut self, pieces: &mut Vec<ToolPiece>) {
        let starts_a_call = self.held.trim_start().chars().next().is_none_or(|c| c == '{');
        if self.began || !starts_a_call {
            self.began = true;
            pieces.push(ToolPiece::Text(std::mem::take(&mut self.held)));
        }
    }
}

/// The calls that a text of JSON is: one, or a list of them.
fn calls_of(text: &str) -> Option<Vec<ToolPiece>> {
    let list = match serde_json::from_str(text.trim()).ok()? {
        Value::Array(list) => list,
        one => vec![one],
    };
    let call = |value: Value| {
        let Value::Object(mut map) = value else { return None };
        let name = map.shift_remove("name")?.as_str()?.to_string();
        let arguments = map.shift_remove("arguments").or_else(|| map.shift_remove("parameters"));
        match arguments {
            Some(Value::Object(arguments)) => Some(ToolPiece::Call { name, arguments }),
            None => Some(ToolPiece::Call { name, arguments: Map::new() }),
            Some(_) => None,
        }
    };
    list.into_iter().map(call).collect::<Option<Vec<_>>>().filter(|calls| !calls.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(name: &str, arguments: Value) -> ToolPiece {
        let Value::Object(arguments) = arguments else { unreachable!("an object") };
        ToolPiece::Call { name: name.into(), arguments }
    }

    /// Pieces with neighbouring texts put together.
    fn parsed(format: ToolFormat, parts: &[&str]) -> Vec<ToolPiece> {
        let mut parser = ToolParser::new(format);
        let mut all: Vec<ToolPiece> = parts.iter().flat_map(|part| parser.push(part)).collect();
        all.extend(parser.finish());
        let mut merged: Vec<ToolPiece> = Vec::new();
        for piece in all {
            match (merged.last_mut(), piece) {
                (Some(ToolPiece::Text(before)), ToolPiece::Text(more)) => before.push_str(&more),
                (_, piece) => merged.push(piece),
            }
        }
        merged
    }

    #[test]
    fn every_cut_gives_the_same_pieces() {
        let text = |t: &str| ToolPiece::Text(t.into());
        let weather = || call("weather", json!({"city": "Köln </tool"}));
        let json = r#"{"name": "weather", "arguments": {"city": "Köln </tool"}}"#;
        let cases = [
            (ToolFormat::Tagged, format!("<tool_call>\n{json}\n</tool_call>"), vec![weather()]),
            (
                ToolFormat::Tagged,
                format!("Let me see.\n<tool_call>{json}</tool_call><tool_call>{json}</tool_call> Done"),
                vec![text("Let me see."), weather(), weather(), text(" Done")],
            ),
            (ToolFormat::Tagged, "a < b <tool_cal".into(), vec![text("a < b <tool_cal")]),
            (
                ToolFormat::Tagged,
                "<tool_call>none</tool_call>!".into(),
                vec![text("<tool_call>none</tool_call>!")],
            ),
            (ToolFormat::Tagged, format!("<tool_call>{json}"), vec![weather()]),
            (ToolFormat::Tagged, "<tool_call>{\"name\"".into(), vec![text("<tool_call>{\"name\"")]),
            (ToolFormat::Listed, format!("[TOOL_CALLS][{json}, {json}]"), vec![weather(), weather()]),
            (ToolFormat::Listed, "a [TOOL_] b".into(), vec![text("a [TOOL_] b")]),
            (
                ToolFormat::Bare,
                r#" {"name": "weather", "parameters": {"city": "Köln </tool"}}"#.into(),
                vec![weather()],
            ),
            (ToolFormat::Bare, "I {know}".into(), vec![text("I {know}")]),
            (ToolFormat::Bare, "{\"a\": 1}".into(), vec![text("{\"a\": 1}")]),
            (ToolFormat::Bare, "{\"name\": \"now\"}".into(), vec![call("now", json!({}))]),
        ];
        for (format, whole, want) in cases {
            assert_eq!(parsed(format, &[&whole]), want, "{whole}");
            let ends: Vec<usize> = (0..=whole.len()).filter(|&i| whole.is_char_boundary(i)).collect();
            for &a in &ends {
                for &b in ends.iter().filter(|&&b| b >= a) {
                    let parts = [&whole[..a], &whole[a..b], &whole[b..]];
                    assert_eq!(parsed(format, &parts), want, "{whole} at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn the_template_tells_the_format() {
        let of = ToolFormat::of_template;
        assert_eq!(of("{% if tools %}<tool_call>{% endif %}"), Some(ToolFormat::Tagged));
        assert_eq!(of("{{ tools }}[TOOL_CALLS]"), Some(ToolFormat::Listed));
        assert_eq!(of("{{ tools }} {\"name\": .., \"parameters\": ..}"), Some(ToolFormat::Bare));
        assert_eq!(of("{{ messages }}<tool_call>"), None);
        assert_eq!(of("{{ tools }}<tool_call><function=x>"), None);
        let told = ToolFormat::instructions(&json!([{"type": "function"}]));
        assert!(told.contains("{\"type\":\"function\"}") && told.contains(OPEN));
    }
}
