//! Ordered metadata with typed access.
//!
//! Writers disagree on the width and sign of integers, so every integer getter takes any of them as long as the value fits.

use std::collections::HashMap;

use crate::{Array, GgufError, Value};

/// A file's metadata: keys are unique, in the file's order.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry at the end; false, and no change, if the key exists.
    #[must_use = "false means that the key exists already"]
    pub fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).and_then(|&at| self.entries.get(at)).map(|(_, value)| value)
    }

    /// Whether a key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An integer that fits `u32`. An error if the key holds anything else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key).map(|v| integer(key, v, "u32")).transpose()
    }

    /// An integer that fits `i32`. An error if the key holds anything else.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.get(key).map(|v| integer(key, v, "i32")).transpose()
    }

    /// An integer that fits `u64`. An error if the key holds anything else.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key).map(|v| integer(key, v, "u64")).transpose()
    }

    /// A float; a double is rounded to single. An error if the key holds anything else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(*v)),
            Some(Value::F64(v)) => Ok(Some(round_to_single(*v))),
            Some(other) => Err(wrong_type(key, "f32", other)),
        }
    }

    /// A truth value. An error if the key holds anything else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(wrong_type(key, "bool", other)),
        }
    }

    /// A text. An error if the key holds anything else.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => Ok(Some(v)),
            Some(other) => Err(wrong_type(key, "string", other)),
        }
    }

    /// An array of texts. An error if the key holds anything else; an empty array of any type will do.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(v))) => Ok(Some(v)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&[])),
            Some(other) => Err(wrong_type(key, "array of string", other)),
        }
    }

    /// An array of integers of any width that all fit `u32`. An error if the key holds anything else.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.get(key).map(|v| integers(key, v, "array of u32")).transpose()
    }

    /// An array of integers of any width that all fit `i32`. An error if the key holds anything else.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.get(key).map(|v| integers(key, v, "array of i32")).transpose()
    }

    /// An array of floats; doubles are rounded to single. An error if the key holds anything else.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(v))) => Ok(Some(v.clone())),
            Some(Value::Array(Array::F64(v))) => Ok(Some(v.iter().map(|&x| round_to_single(x)).collect())),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(wrong_type(key, "array of f32", other)),
        }
    }

    /// An array of truth values. An error if the key holds anything else.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(v))) => Ok(Some(v)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&[])),
            Some(other) => Err(wrong_type(key, "array of bool", other)),
        }
    }
}

/// `require_x`: as `x`, and an error if the key is missing.
macro_rules! require {
    ($($name:ident = $getter:ident -> $ty:ty;)*) => {
        impl Metadata {
            $(
                #[doc = concat!("As [`", stringify!($getter), "`](Self::", stringify!($getter), "), and an error if the key is missing.")]
                pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
                    self.$getter(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
                }
            )*
        }
    };
}
require! {
    require_u32 = u32 -> u32;
    require_i32 = i32 -> i32;
    require_u64 = u64 -> u64;
    require_f32 = f32 -> f32;
    require_bool = bool -> bool;
    require_str = str -> &str;
    require_strings = strings -> &[String];
    require_u32s = u32s -> Vec<u32>;
    require_i32s = i32s -> Vec<i32>;
    require_f32s = f32s -> Vec<f32>;
    require_bools = bools -> &[bool];
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> GgufError {
    GgufError::WrongType { key: key.to_owned(), expected, found: found.describe() }
}

fn integer<T: TryFrom<i128>>(key: &str, value: &Value, expected: &'static str) -> Result<T, GgufError> {
    let Some(number) = value.as_integer() else { return Err(wrong_type(key, expected, value)) };
    T::try_from(number).map_err(|_| GgufError::WrongType {
        key: key.to_owned(),
        expected,
        found: format!("{} {number}", value.value_type()),
    })
}

fn integers<T: TryFrom<i128>>(key: &str, value: &Value, expected: &'static str) -> Result<Vec<T>, GgufError> {
    fn convert<S: Copy + Into<i128>, T: TryFrom<i128>>(
        key: &str,
        values: &[S],
        expected: &'static str,
    ) -> Result<Vec<T>, GgufError> {
        let one = |(at, &v): (usize, &S)| {
            let v: i128 = v.into();
            T::try_from(v).map_err(|_| GgufError::WrongType {
                key: key.to_owned(),
                expected,
                found: format!("{v} in element {at}"),
            })
        };
        values.iter().enumerate().map(one).collect()
    }
    match value {
        Value::Array(Array::U8(v)) => convert(key, v, expected),
        Value::Array(Array::I8(v)) => convert(key, v, expected),
        Value::Array(Array::U16(v)) => convert(key, v, expected),
        Value::Array(Array::I16(v)) => convert(key, v, expected),
        Value::Array(Array::U32(v)) => convert(key, v, expected),
        Value::Array(Array::I32(v)) => convert(key, v, expected),
        Value::Array(Array::U64(v)) => convert(key, v, expected),
        Value::Array(Array::I64(v)) => convert(key, v, expected),
        Value::Array(array) if array.is_empty() => Ok(Vec::new()),
        other => Err(wrong_type(key, expected, other)),
    }
}

#[expect(clippy::as_conversions, reason = "there is no other way to round a double to single")]
fn round_to_single(v: f64) -> f32 {
    v as f32
}
