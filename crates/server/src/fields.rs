//! Reads the fields of a request: each is used, or refused with its name. Nothing is passed over in silence.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of a JSON object that have not been read yet.
pub struct Fields {
    map: Map<String, Value>,
    path: String,
    lenient: bool,
    /// What was passed over, because the server is lenient.
    pub warnings: Vec<String>,
}

impl Fields {
    /// The fields of a body.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn parse(body: &[u8], lenient: bool) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| ApiError::bad_body(format!("the body is no JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Self::of(map, "", lenient)),
            _ => Err(ApiError::bad_body("the body is no JSON object")),
        }
    }

    /// The fields of an object that lies at a path of the body.
    pub fn of(map: Map<String, Value>, path: &str, lenient: bool) -> Self {
        Fields { map, path: path.to_string(), lenient, warnings: Vec::new() }
    }

    fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    fn wrong(&self, name: &str, wanted: &str) -> ApiError {
        let at = self.at(name);
        ApiError::invalid(at.clone(), format!("`{at}` must be {wanted}"))
    }

    /// A field as it is; `null` is as if it were not there.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// True or false.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// A number within bounds.
    ///
    /// # Errors
    /// It is none, or outside.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|x| range.contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(name, &format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// It is none, or outside.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|x| range.contains(x)) {
            Some(x) => Ok(Some(x)),
            None if *range.end() == u64::MAX => {
                Err(self.wrong(name, &format!("a whole number of at least {}", range.start())))
            }
            None => {
                Err(self.wrong(name, &format!("a whole number from {} to {}", range.start(), range.end())))
            }
        }
    }

    /// An object, to be read in turn; hand it back with [`Fields::close`].
    ///
    /// # Errors
    /// It is none.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self::of(map, &self.at(name), self.lenient))),
            Some(_) => Err(self.wrong(name, "an object")),
        }
    }

    /// A list.
    ///
    /// # Errors
    /// It is none.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    /// A text or a list of texts.
    ///
    /// # Errors
    /// It is neither, or has more than `most`.
    pub fn texts(&mut self, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let wanted = format!("a string or a list of at most {most} strings");
        let list = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => return Ok(vec![text]),
            Some(Value::Array(list)) if list.len() <= most => list,
            Some(_) => return Err(self.wrong(name, &wanted)),
        };
        let texts: Option<Vec<String>> = list.iter().map(|v| v.as_str().map(str::to_string)).collect();
        texts.ok_or_else(|| self.wrong(name, &wanted))
    }

    /// A field that has a meaning we don't have: allowed only with the values that change nothing.
    ///
    /// # Errors
    /// Another value, which would change something.
    pub fn only(&mut self, name: &str, allowed: &[Value], why: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !allowed.contains(&value) => {
                let at = self.at(name);
                let message = format!("`{at}` is not supported: {why}");
                if self.lenient {
                    self.warnings.push(message);
                    return Ok(());
                }
                Err(ApiError::invalid(at, message))
            }
            _ => Ok(()),
        }
    }

    /// Fields that say something about the request and change nothing of the answer.
    pub fn labels(&mut self, names: &[&str]) {
        for name in names {
            self.map.shift_remove(*name);
        }
    }

    /// All that is left, for objects whose names are free.
    pub fn into_entries(self) -> impl Iterator<Item = (String, Value)> {
        self.map.into_iter()
    }

    /// Ends the reading of an object inside.
    ///
    /// # Errors
    /// It has a field that nobody knows.
    pub fn close(&mut self, inner: Fields) -> Result<(), ApiError> {
        self.warnings.extend(inner.finish()?);
        Ok(())
    }

    /// Ends the reading: what is left is unknown.
    ///
    /// # Errors
    /// A field that nobody knows, unless the server is lenient: then it is a warning.
    pub fn finish(mut self) -> Result<Vec<String>, ApiError> {
        for name in self.map.keys() {
            let at = self.at(name);
            if !self.lenient {
                return Err(ApiError::invalid(at.clone(), format!("there is no field `{at}`")));
            }
            self.warnings.push(format!("there is no field `{at}`"));
        }
        Ok(self.warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value, lenient: bool) -> Fields {
        Fields::parse(value.to_string().as_bytes(), lenient).unwrap()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut f = fields(json!({"a": 1, "b": "x", "c": -1, "d": 2.5, "e": [1], "f": {"g": true}}), false);
        assert_eq!(f.text("a").unwrap_err().param.as_deref(), Some("a"));
        assert!(f.flag("b").unwrap_err().message.contains("true or false"));
        assert!(f.whole("c", 0..=9).unwrap_err().message.contains("from 0 to 9"));
        assert!(f.number("d", 0.0..=2.0).unwrap_err().message.contains("from 0 to 2"));
        assert!(f.texts("e", 4).is_err());
        let mut inner = f.object("f").unwrap().unwrap();
        assert_eq!(inner.text("g").unwrap_err().param.as_deref(), Some("f.g"));
        assert!(f.finish().unwrap().is_empty());
    }

    #[test]
    fn what_is_left_is_refused_or_told() {
        let error = fields(json!({"x": 1}), false).finish().unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("x")));
        let mut f = fields(json!({"x": 1, "store": true, "user": "me", "n": null}), true);
        f.labels(&["user"]);
        f.only("store", &[json!(false)], "nothing is kept").unwrap();
        assert_eq!(f.whole("n", 1..=2).unwrap(), None);
        assert_eq!(f.finish().unwrap().len(), 2);
        let mut f = fields(json!({"store": true}), false);
        assert!(
            f.only("store", &[json!(false)], "nothing is kept")
                .unwrap_err()
                .message
                .contains("nothing is kept")
        );
        for body in ["", "[]", "nul", "{\"a\":}"] {
            assert_eq!(Fields::parse(body.as_bytes(), false).err().unwrap().status, 400, "{body}");
        }
    }
}
