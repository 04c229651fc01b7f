//! Python methods that templates call and the engine's own compatibility layer lacks or has otherwise.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python;

/// Widest text that padding makes.
const MAX_WIDTH: usize = 4096;

/// Calls a method of a string, list or dict.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, args)?,
        ValueKind::Map if method == "copy" && args.is_empty() => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The result of a string method; `None` if it is not one of these.
fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let argument = || match args.first().and_then(Value::as_str) {
        Some(argument) if !argument.is_empty() => Ok(argument),
        _ => Err(refused(format!("{method} needs a text that is not empty"))),
    };
    let three = |a: &str, b: &str, c: &str| Value::from((Value::from(a), Value::from(b), Value::from(c)));
    let bare = args.is_empty() || args[0].is_none();
    Ok(Some(match method {
        "strip" if bare => text.trim_matches(python::is_space).into(),
        "lstrip" if bare => text.trim_start_matches(python::is_space).into(),
        "rstrip" if bare => text.trim_end_matches(python::is_space).into(),
        "split" if args.is_empty() => {
            let words = text.split(python::is_space).filter(|word| !word.is_empty());
            words.map(Value::from).collect::<Vec<_>>().into()
        }
        "splitlines" => {
            let keep_ends = args.first().is_some_and(Value::is_true);
            python::lines(text, keep_ends).into_iter().map(Value::from).collect::<Vec<_>>().into()
        }
        "title" => python::title(text).into(),
        "capitalize" => python::capitalized(text).into(),
        "casefold" => text.to_lowercase().into(),
        "swapcase" => swapped(text).into(),
        "removeprefix" => text.strip_prefix(argument()?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(argument()?).unwrap_or(text).into(),
        "partition" => match text.split_once(argument()?) {
            Some((before, after)) => three(before, argument()?, after),
            None => three(text, "", ""),
        },
        "rpartition" => match text.rsplit_once(argument()?) {
            Some((before, after)) => three(before, argument()?, after),
            None => three("", "", text),
        },
        "rsplit" if !bare => {
            let limit = args.get(1).map_or(Ok(-1), |limit| i64::try_from(limit.clone()))?;
            let mut pieces: Vec<&str> = match usize::try_from(limit) {
                Ok(limit) => text.rsplitn(limit.saturating_add(1), argument()?).collect(),
                Err(_) => text.rsplit(argument()?).collect(),
            };
            pieces.reverse();
            Value::from(pieces.into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "find" | "index" => found(text, method, args, |text, wanted| text.find(wanted))?,
        "rfind" | "rindex" => found(text, method, args, |text, wanted| text.rfind(wanted))?,
        "zfill" | "ljust" | "rjust" | "center" => padded(text, method, args)?.into(),
        _ => return Ok(None),
    }))
}

fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_uppercase() {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
    }
    out
}

/// Where an argument stands in a text, in characters: from an optional start to an optional end.
fn found(
    text: &str,
    method: &str,
    args: &[Value],
    find: fn(&str, &str) -> Option<usize>,
) -> Result<Value, Error> {
    let Some(wanted) = args.first().and_then(Value::as_str) else {
        return Err(refused(format!("{method} needs a text")));
    };
    let len = text.chars().count();
    let bound = |place: usize, default: usize| match args.get(place).filter(|value| !value.is_none()) {
        None => Ok::<_, Error>(default),
        Some(value) => {
            let at = i64::try_from(value.clone())?;
            let size = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
            Ok(if at < 0 { len.saturating_sub(size) } else { size })
        }
    };
    let (start, end) = (bound(1, 0)?, bound(2, len)?.min(len));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    let place = (start <= end).then(|| (byte(start), &text[byte(start)..byte(end)]));
    let place = place.and_then(|(from, part)| Some(from + find(part, wanted)?));
    match place {
        Some(at) => Ok(Value::from(text[..at].chars().count())),
        None if method.ends_with("index") => Err(refused(format!("{method}: substring not found"))),
        None => Ok(Value::from(-1)),
    }
}

/// A text brought to a width.
fn padded(text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let width = args.first().map_or(Ok(0), |width| usize::try_from(width.clone()))?;
    if width > MAX_WIDTH {
        return Err(refused(format!("{method}: no width beyond {MAX_WIDTH}")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = if method == "zfill" { "0" } else { args.get(1).and_then(Value::as_str).unwrap_or(" ") };
    // Python puts the odd one to the left if the width is odd.
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign = if method == "zfill" && text.starts_with(['+', '-']) { 1 } else { 0 };
    let (sign, digits) = text.split_at(sign);
    Ok(format!("{sign}{}{digits}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// The result of a list method; `None` if it is not one of these.
fn list_method(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match (method, args) {
        ("index", [wanted]) => match list.try_iter()?.position(|item| item == *wanted) {
            Some(at) => Ok(Some(Value::from(at))),
            None => Err(refused("index: the value is not in the list".to_owned())),
        },
        ("count", [wanted]) => Ok(Some(Value::from(list.try_iter()?.filter(|item| item == wanted).count()))),
        _ => Ok(None),
    }
}
