//! The `tojson` filter, byte for byte what Python's `json.dumps` writes.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::filters::Lazy;
use super::python::{self, MAX_DEPTH, Paid};

/// How `json.dumps` is asked to write.
struct Style {
    ensure_ascii: bool,
    /// Spaces per level; `None` for one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Style {
    /// The style that a call's arguments ask for.
    fn from_args(mut args: Vec<Value>) -> Result<Self, Error> {
        let kwargs = match args.pop_if(|last| last.is_kwargs()) {
            Some(kwargs) => Kwargs::try_from(kwargs)?,
            None => Kwargs::try_from(Value::UNDEFINED)?,
        };
        let given = |place: usize, name: &str| -> Result<Option<Value>, Error> {
            let value = match args.get(place) {
                Some(value) => Some(value.clone()),
                None => kwargs.get(name)?,
            };
            Ok(value.filter(|value: &Value| !value.is_none() && !value.is_undefined()))
        };
        let ensure_ascii = given(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
        let indent = given(1, "indent")?.map(indent).transpose()?;
        let (item_separator, key_separator) = match given(2, "separators")? {
            Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
            None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        };
        let sort_keys = given(3, "sort_keys")?.is_some_and(|value| value.is_true());
        if args.len() > 4 {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        kwargs.assert_all_used()?;
        Ok(Style { ensure_ascii, indent, item_separator, key_separator, sort_keys })
    }
}

/// The text of one level of indentation.
fn indent(value: Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Ok(" ".repeat(usize::try_from(i64::try_from(value)?.clamp(0, 64)).unwrap_or(0))),
    }
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let style = Style::from_args(args.into_values())?;
    let mut out = Paid::new(state);
    write(value, &style, 0, &mut out)?;
    out.finish()
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut Paid) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
    if depth > MAX_DEPTH {
        return refuse("value is nested too deeply for JSON".to_owned());
    }
    out.pay()?;
    match value.kind() {
        ValueKind::None => out.text().push_str("null"),
        ValueKind::Bool => out.text().push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.text().push_str(&number(value)),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style.ensure_ascii, out.text()),
        ValueKind::Iterable if value.downcast_object_ref::<Lazy>().is_some() => {
            return refuse("generator is not JSON serializable".to_owned());
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(items.len(), ['[', ']'], style, depth, out, |at, out| {
                write(&items[at], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            container(keys.len(), ['{', '}'], style, depth, out, |at, out| {
                string(&key(&keys[at])?, style.ensure_ascii, out.text());
                out.text().push_str(&style.key_separator);
                write(&value.get_item(&keys[at])?, style, depth + 1, out)
            })?;
        }
        other => return refuse(format!("{other} is not JSON serializable")),
    }
    Ok(())
}

/// Writes `len` items between brackets.
fn container(
    len: usize,
    [open, close]: [char; 2],
    style: &Style,
    depth: usize,
    out: &mut Paid,
    mut item: impl FnMut(usize, &mut Paid) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut Paid| {
        if let Some(indent) = &style.indent {
            out.text().push('\n');
            out.text().extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    out.text().push(open);
    for at in 0..len {
        if at > 0 {
            out.text().push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        item(at, out)?;
    }
    if len > 0 {
        new_line(depth, out);
    }
    out.text().push(close);
    Ok(())
}

/// A key as JSON has it: always text.
fn key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        other => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("keys must be texts or numbers, not {other}"),
        )),
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match float {
            _ if float.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            _ => python::float(float),
        },
        _ => value.to_string(),
    }
}

fn string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            c if c < ' ' || ensure_ascii && !c.is_ascii() || ensure_ascii && c == '\u{7F}' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
