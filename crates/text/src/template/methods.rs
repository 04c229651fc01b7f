//! Python methods that templates call and the engine's own compatibility layer lacks.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls a method of a string, list or dict.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)?
    {
        return Ok(result);
    }
    unknown_method_callback(state, value, method, args)
}

/// The result of a string method; `None` if it is not one of these.
fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let argument = || match args.first().and_then(Value::as_str) {
        Some(argument) if !argument.is_empty() => Ok(argument),
        _ => Err(Error::new(ErrorKind::InvalidOperation, format!("{method} needs a text that is not empty"))),
    };
    let three = |a: &str, b: &str, c: &str| Value::from((Value::from(a), Value::from(b), Value::from(c)));
    Ok(Some(match method {
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
        "rsplit" if !args.is_empty() => {
            let limit = args.get(1).map_or(Ok(-1), |limit| i64::try_from(limit.clone()))?;
            let mut pieces: Vec<&str> = match usize::try_from(limit) {
                Ok(limit) => text.rsplitn(limit.saturating_add(1), argument()?).collect(),
                Err(_) => text.rsplit(argument()?).collect(),
            };
            pieces.reverse();
            Value::from(pieces.into_iter().map(Value::from).collect::<Vec<_>>())
        }
        _ => return Ok(None),
    }))
}
