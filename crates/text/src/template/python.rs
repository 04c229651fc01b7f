//! Values as Python shows them: `str`, `repr`, and what Python counts as white space.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use unicode_general_category::{GeneralCategory, get_general_category};

/// Nesting beyond which a value is not written out.
pub(super) const MAX_DEPTH: usize = 128;

/// Text that is paid for while it grows: values that share parts can be small in memory and endless when written out.
pub(super) struct Paid<'s, 'v, 'e> {
    state: &'s State<'v, 'e>,
    text: String,
    paid: usize,
}

impl<'s, 'v, 'e> Paid<'s, 'v, 'e> {
    pub(super) fn new(state: &'s State<'v, 'e>) -> Self {
        Paid { state, text: String::new(), paid: 0 }
    }

    /// Pays for what was written: a step per value and per 64 bytes.
    pub(super) fn pay(&mut self) -> Result<(), Error> {
        let grown = self.text.len() - self.paid;
        self.paid = self.text.len();
        self.state.consume_fuel(1 + grown as u64 / 64)
    }

    pub(super) fn text(&mut self) -> &mut String {
        &mut self.text
    }

    pub(super) fn finish(mut self) -> Result<String, Error> {
        self.pay()?;
        Ok(self.text)
    }
}

/// Python's `str(value)`.
pub(super) fn str(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = Paid::new(state);
    if !value.is_undefined() {
        write_repr(value, 0, &mut out)?;
    }
    out.finish()
}

/// Writes Python's `repr(value)`.
fn write_repr(value: &Value, depth: usize, out: &mut Paid) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply to be shown"));
    }
    out.pay()?;
    match value.kind() {
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out.text()),
        ValueKind::Number if !value.is_integer() => {
            out.text().push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.is_tuple();
            out.text().push(if is_tuple { '(' } else { '[' });
            let mut len = 0;
            for item in value.try_iter()? {
                if len > 0 {
                    out.text().push_str(", ");
                }
                write_repr(&item, depth + 1, out)?;
                len += 1;
            }
            out.text().push_str(if !is_tuple {
                "]"
            } else if len == 1 {
                ",)"
            } else {
                ")"
            });
        }
        ValueKind::Map => {
            out.text().push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                if at > 0 {
                    out.text().push_str(", ");
                }
                write_repr(&key, depth + 1, out)?;
                out.text().push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.text().push('}');
        }
        ValueKind::Undefined => out.text().push_str("Undefined"),
        _ => out.text().push_str(&value.to_string()),
    }
    Ok(())
}

/// A text between quotes, with escapes for what cannot be printed.
///
/// Private-use characters of the planes that lend stand-ins are shown as they are, though Python escapes them: a
/// control token must not turn into its stand-in's code.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, stand-ins apart.
fn is_printable(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, SpaceSeparator, Surrogate, Unassigned,
    };
    match get_general_category(c) {
        Control | Format | LineSeparator | ParagraphSeparator | Surrogate | Unassigned => false,
        SpaceSeparator => c == ' ',
        PrivateUse => u32::from(c) >= 0xF_0000,
        _ => true,
    }
}

/// A float as Python's `repr` writes it: the shortest digits that read back the same, with an exponent below 1e-4 and
/// from 1e16.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = value.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Python's `str.isspace` for one character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c)
}

/// Python's `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    let is_end =
        |c: char| matches!(c, '\n'..='\r' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    while let Some(end) = rest.find(is_end) {
        let end_len = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { end + end_len } else { end }]);
        rest = &rest[end + end_len..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// A word with its first letter large and the others small.
pub(super) fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    let mut out = String::with_capacity(word.len());
    if let Some(first) = chars.next() {
        // A letter whose large form is two letters, such as `\u{DF}`, has only the first of them large.
        let mut large = first.to_uppercase();
        out.extend(large.next());
        out.extend(large.flat_map(char::to_lowercase));
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// Python's `str.title`: every run of letters capitalized.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let is_cased = |c: char| {
        c.is_lowercase() || c.is_uppercase() || get_general_category(c) == GeneralCategory::TitlecaseLetter
    };
    while let Some(start) = rest.find(is_cased) {
        out.push_str(&rest[..start]);
        let word = &rest[start..];
        let len = word.find(|c| !is_cased(c)).unwrap_or(word.len());
        out.push_str(&capitalized(&word[..len]));
        rest = &word[len..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (1e300, "1e+300"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn texts_are_quoted_as_in_python() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            (
                "\u{0}\u{7F}\u{A0}\u{200B}\u{E000}\u{1F642}\u{e9}",
                "'\\x00\\x7f\\xa0\\u200b\\ue000\u{1F642}\u{e9}'",
            ),
        ];
        for (text, quoted) in cases {
            let mut out = String::new();
            write_quoted(text, &mut out);
            assert_eq!(out, quoted);
        }
    }

    #[test]
    fn lines_end_where_python_ends_them() {
        assert_eq!(lines("a\r\nb\x0bc\u{2028}d\n", false), ["a", "b", "c", "d"]);
        assert_eq!(lines("a\r\nb\n\n", true), ["a\r\n", "b\n", "\n"]);
        assert_eq!(lines("", false), [""; 0]);
    }

    #[test]
    fn titles() {
        assert_eq!(title("they're <|IM_end|> \u{df}a 1b"), "They'Re <|Im_End|> Ssa 1B");
        assert_eq!(capitalized("\u{c9}COLE"), "\u{c9}cole");
    }
}
