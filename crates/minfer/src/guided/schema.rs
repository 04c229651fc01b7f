//! What is done with a JSON schema before it is compiled.

use crate::error::Error;
use serde_json::{Map, Value, json};

/// The compiler's own settings, which are not a client's to make.
const SETTINGS: &str = "x-guidance";
/// Keywords under which there are schemas by names of the client's.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords whose values are data.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "required"];
/// Deeper schemas are refused.
const DEPTH: usize = 64;

/// Refuses what the compiler would take without honouring it.
///
/// # Errors
/// Names the keyword.
pub(super) fn check(schema: &Value) -> Result<(), Error> {
    match schema {
        Value::Object(_) | Value::Bool(_) => walk(schema, 0),
        _ => Err(Error::input("a schema is an object")),
    }
}

fn walk(schema: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(Error::input(format!("the schema is nested deeper than {DEPTH}")));
    }
    match schema {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| keyword(key, value, depth)),
        Value::Array(list) => list.iter().try_for_each(|value| walk(value, depth + 1)),
        _ => Ok(()),
    }
}

fn keyword(key: &str, value: &Value, depth: usize) -> Result<(), Error> {
    if key == SETTINGS {
        return Err(Error::input(format!("the keyword `{SETTINGS}` is not supported")));
    }
    match value {
        _ if DATA.contains(&key) => Ok(()),
        Value::Object(map) if NAMED.contains(&key) => map.values().try_for_each(|s| walk(s, depth + 1)),
        value => walk(value, depth + 1),
    }
}

/// The schema with the settings that make one line of JSON, with a blank behind commas and colons: free white space leads
/// small models to write nothing else.
pub(super) fn one_line(schema: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        other => Map::from_iter([("allOf".to_string(), json!([other]))]),
    };
    let settings = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    map.insert(SETTINGS.into(), settings);
    Value::Object(map)
}
