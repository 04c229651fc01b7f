//! A small reader of safetensors files, the format of recorded results:
//! a u64 header length, a JSON header, then the tensors' bytes, all little endian.

use serde_json::{Map, Value};

/// Why a file can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The file ends before its header does.
    #[error("the file ends within its header")]
    Truncated,
    /// The header is no JSON object.
    #[error("bad header: {0}")]
    Header(String),
    /// No tensor has this name.
    #[error("no tensor `{0}`")]
    Missing(String),
    /// The tensor's entry or its bytes are not as asked for.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// A parsed file.
#[derive(Clone, Debug)]
pub struct Safetensors {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Safetensors {
    /// Parses a file's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let (len, rest) = bytes.split_first_chunk::<8>().ok_or(SafetensorsError::Truncated)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| SafetensorsError::Truncated)?;
        let header = rest.get(..len).ok_or(SafetensorsError::Truncated)?;
        let header = serde_json::from_slice(header).map_err(|e| SafetensorsError::Header(e.to_string()))?;
        Ok(Safetensors { header, data: rest[len..].to_vec() })
    }

    /// A string of the header's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.get("__metadata__")?.get(key)?.as_str()
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.keys().map(String::as_str).filter(|n| *n != "__metadata__")
    }

    /// Shape and values of an F32 tensor.
    pub fn f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), SafetensorsError> {
        let (shape, bytes) = self.tensor(name, "F32")?;
        Ok((shape, bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    /// Shape and values of an I32 tensor.
    pub fn i32(&self, name: &str) -> Result<(Vec<usize>, Vec<i32>), SafetensorsError> {
        let (shape, bytes) = self.tensor(name, "I32")?;
        Ok((shape, bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()))
    }

    /// Shape and bytes of a tensor of a type with four bytes per element.
    fn tensor(&self, name: &str, dtype: &str) -> Result<(Vec<usize>, &[u8]), SafetensorsError> {
        let entry = self.header.get(name).ok_or_else(|| SafetensorsError::Missing(name.into()))?;
        let bad = |reason: &str| SafetensorsError::Tensor { name: name.into(), reason: reason.into() };
        if entry.get("dtype").and_then(Value::as_str) != Some(dtype) {
            return Err(bad(&format!("is not {dtype}")));
        }
        let list = |key: &str| -> Option<Vec<usize>> {
            let list = entry.get(key)?.as_array()?;
            list.iter().map(|v| v.as_u64().and_then(|v| usize::try_from(v).ok())).collect()
        };
        let shape = list("shape").ok_or_else(|| bad("has no shape"))?;
        let offsets = list("data_offsets").ok_or_else(|| bad("has no offsets"))?;
        let [start, end] = offsets[..] else { return Err(bad("has no pair of offsets")) };
        let bytes = self.data.get(start..end).ok_or_else(|| bad("lies outside the file"))?;
        let len = shape.iter().try_fold(4usize, |n, &d| n.checked_mul(d));
        if len != Some(bytes.len()) {
            return Err(bad("has another size than its shape"));
        }
        Ok((shape, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn reads() {
        let header =
            r#"{"__metadata__":{"source":"x"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let st = Safetensors::parse(&file(header, &data)).unwrap();
        assert_eq!(st.f32("a").unwrap(), (vec![1, 2], vec![1.5, -2.0]));
        assert_eq!(st.metadata("source"), Some("x"));
        assert_eq!(st.names().collect::<Vec<_>>(), ["a"]);
        assert!(matches!(st.i32("a"), Err(SafetensorsError::Tensor { .. })));
        assert!(matches!(st.f32("b"), Err(SafetensorsError::Missing(_))));
        let short = Safetensors::parse(&file(header, &data[..4])).unwrap();
        assert!(short.f32("a").is_err());
    }

    #[test]
    fn refuses() {
        assert_eq!(Safetensors::parse(&[1, 2]).unwrap_err(), SafetensorsError::Truncated);
        assert_eq!(Safetensors::parse(&u64::MAX.to_le_bytes()).unwrap_err(), SafetensorsError::Truncated);
        assert!(Safetensors::parse(&file("[]", &[])).is_err());
    }
}
