//! Filters and tests where Jinja2 has other results than the engine, and those that the engine has and Jinja2 has not.

use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::{json, python};

/// The filter around what a `for` loop goes through.
pub(super) const LOOPED: &str = "__looped";

/// The filter around what gets a name.
pub(super) const KEPT: &str = "__kept";

/// The filter around what becomes an attribute of a namespace.
pub(super) const HELD: &str = "__held";

/// Most parts that a value may have when it is written out; 64 bytes of text count as one.
const MAX_PARTS: usize = 1 << 20;

/// Names that Jinja2 does not know: a template that uses one fails there, so it fails here.
const FOREIGN_FILTERS: [&str; 5] = ["split", "lines", "bool", "chain", "zip"];
const FOREIGN_TESTS: [&str; 3] = ["startingwith", "endingwith", "safe"];

/// Makes the filters and tests of `env` Jinja2's.
pub(super) fn install(env: &mut Environment<'static>) {
    // Filters whose result Jinja2 makes while it is read.
    let lazies = [
        ("map", Value::from_function(filters::map)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("unique", Value::from_function(filters::unique)),
        ("items", Value::from_function(filters::items)),
        ("slice", Value::from_function(filters::slice)),
        ("batch", Value::from_function(filters::batch)),
    ];
    for (name, filter) in lazies {
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            lazy(&filter.call(state, &args.into_values())?)
        });
    }
    FOREIGN_FILTERS.iter().for_each(|name| env.remove_filter(name));
    FOREIGN_TESTS.iter().for_each(|name| env.remove_test(name));
    env.add_filter(LOOPED, looped);
    env.add_filter(KEPT, kept);
    env.add_filter(HELD, |state: &State, value: &Value| {
        let value = kept(state, value)?;
        match holds_namespace(&value) {
            true => Err(refused("a namespace inside a namespace")),
            false => Ok(value),
        }
    });
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |state: &State, value: &Value| match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => python::str(state, value).map(Value::from),
    });
    env.add_filter("indent", indent);
    env.add_filter("title", title);
    env.add_filter("capitalize", |text: String| python::capitalized(&text));
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

/// What a filter makes while it is read: it has no length, no JSON, and is read once.
pub(super) struct Lazy(Mutex<std::vec::IntoIter<Value>>);

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

impl Object for Lazy {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let lazy = Arc::clone(self);
        let next = move || lazy.0.lock().ok().and_then(|mut items| items.next());
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

fn lazy(items: &Value) -> Result<Value, Error> {
    let items: Vec<Value> = items.try_iter()?.collect();
    Ok(Value::from_object(Lazy(Mutex::new(items.into_iter()))))
}

/// What a loop goes through: the engine takes `none` for an empty list, Python refuses it; and in a loop, what is made
/// while it is read has a last item.
fn looped(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(refused("None is not iterable"));
    }
    kept(state, value)?;
    match value.downcast_object_ref::<Lazy>() {
        Some(_) => Ok(value.try_iter()?.collect::<Vec<_>>().into()),
        None => Ok(value.clone()),
    }
}

/// What gets a name: refused if it is nested too deeply or, written out, too large. By naming lists of lists a template
/// could otherwise build in a few steps what takes forever to compare or show, or overflows the stack when dropped.
fn kept(state: &State, value: &Value) -> Result<Value, Error> {
    let mut parts = 0;
    count(value, 0, &mut parts)?;
    state.consume_fuel(parts as u64 / 16)?;
    Ok(value.clone())
}

fn count(value: &Value, depth: usize, parts: &mut usize) -> Result<(), Error> {
    *parts += 1 + value.as_str().map_or(0, str::len) / 64;
    if depth > python::MAX_DEPTH || *parts > MAX_PARTS {
        return Err(refused("a value is nested too deeply or too large"));
    }
    match value.kind() {
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| count(&item, depth + 1, parts)),
        ValueKind::Iterable if value.downcast_object_ref::<Lazy>().is_none() => {
            value.try_iter()?.try_for_each(|item| count(&item, depth + 1, parts))
        }
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            let item = value.get_item(&key)?;
            count(&key, depth + 1, parts)?;
            count(&item, depth + 1, parts)
        }),
        _ => Ok(()),
    }
}

/// Whether a namespace is in a value, or is it: inside another namespace, it could be inside itself.
fn holds_namespace(value: &Value) -> bool {
    let is_one = || value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"));
    match value.kind() {
        ValueKind::Map if is_one() => true,
        ValueKind::Map => value
            .try_iter()
            .is_ok_and(|mut keys| keys.any(|key| value.get_item(&key).is_ok_and(|v| holds_namespace(&v)))),
        ValueKind::Seq | ValueKind::Iterable if value.downcast_object_ref::<Lazy>().is_none() => {
            value.try_iter().is_ok_and(|mut items| items.any(|item| holds_namespace(&item)))
        }
        _ => false,
    }
}

fn refused(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Jinja's test `iterable`; an undefined value counts as empty.
fn is_iterable(value: &Value) -> bool {
    value.is_undefined() || !value.is_none() && value.try_iter().is_ok()
}

/// Jinja's test `sequence`: whatever has a length and items, texts and mappings included.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    match value.kind() {
        Map | Seq | String | Undefined => true,
        Iterable => value.downcast_object_ref::<Lazy>().is_none(),
        _ => false,
    }
}

/// `text | indent(width=4, first=false, blank=false)`.
fn indent(state: &State, text: String, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let mut args = args.into_values();
    let kwargs = match args.pop_if(|last| last.is_kwargs()) {
        Some(kwargs) => Kwargs::try_from(kwargs)?,
        None => Kwargs::try_from(Value::UNDEFINED)?,
    };
    let given = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        args.get(place).map_or_else(|| kwargs.get(name), |value| Ok(Some(value.clone())))
    };
    let by = match given(0, "width")? {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(width)?.clamp(0, 1024)).unwrap_or(0)),
        },
    };
    let first = given(1, "first")?.is_some_and(|value| value.is_true());
    let blank = given(2, "blank")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    // Jinja2 ends the text with a line break first, so that one at its end makes an empty last line.
    let text = text + "\n";
    let mut out = python::Paid::new(state);
    for (at, line) in python::lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.text().push('\n');
        }
        if at == 0 && first || at > 0 && (blank || !line.is_empty()) {
            out.text().push_str(&by);
        }
        out.text().push_str(line);
        out.pay()?;
    }
    out.finish()
}

/// The filter `title`: a word begins after white space, a hyphen or an opening bracket.
fn title(text: String) -> String {
    let begins = |c: char| python::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    text.split_inclusive(begins).map(python::capitalized).collect()
}
