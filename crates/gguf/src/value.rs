//! Metadata values.

use std::fmt;

/// The type of a metadata value, as the file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16 bits.
    U16,
    /// Signed 16 bits.
    I16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 32 bits.
    I32,
    /// IEEE single.
    F32,
    /// A byte, 0 or 1.
    Bool,
    /// UTF-8 with its length.
    String,
    /// Elements of one type.
    Array,
    /// Unsigned 64 bits.
    U64,
    /// Signed 64 bits.
    I64,
    /// IEEE double.
    F64,
}

impl ValueType {
    /// Every type; a type's place is its id.
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this id in a file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in a file.
    pub fn id(self) -> u32 {
        match self {
            ValueType::U8 => 0,
            ValueType::I8 => 1,
            ValueType::U16 => 2,
            ValueType::I16 => 3,
            ValueType::U32 => 4,
            ValueType::I32 => 5,
            ValueType::F32 => 6,
            ValueType::Bool => 7,
            ValueType::String => 8,
            ValueType::Array => 9,
            ValueType::U64 => 10,
            ValueType::I64 => 11,
            ValueType::F64 => 12,
        }
    }

    /// Lower-case name: `u32`, `string`.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// The fewest bytes that a value of this type takes in a file.
    pub(crate) fn min_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned byte.
    U8(u8),
    /// Signed byte.
    I8(i8),
    /// Unsigned 16 bits.
    U16(u16),
    /// Signed 16 bits.
    I16(i16),
    /// Unsigned 32 bits.
    U32(u32),
    /// Signed 32 bits.
    I32(i32),
    /// Unsigned 64 bits.
    U64(u64),
    /// Signed 64 bits.
    I64(i64),
    /// IEEE single.
    F32(f32),
    /// IEEE double.
    F64(f64),
    /// Truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// Elements of one type.
    Array(Array),
}

impl Value {
    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F32(_) => ValueType::F32,
            Value::F64(_) => ValueType::F64,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
        }
    }

    /// The value of an integer of any width; `None` for other types.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match self {
            Value::U8(v) => i128::from(*v),
            Value::I8(v) => i128::from(*v),
            Value::U16(v) => i128::from(*v),
            Value::I16(v) => i128::from(*v),
            Value::U32(v) => i128::from(*v),
            Value::I32(v) => i128::from(*v),
            Value::U64(v) => i128::from(*v),
            Value::I64(v) => i128::from(*v),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                return None;
            }
        })
    }

    /// The value for a message: a number, the beginning of a text, the type of an array.
    pub fn brief(&self) -> String {
        const MOST: usize = 60;
        match self {
            Value::String(text) if text.chars().nth(MOST).is_some() => {
                let head: String = text.chars().take(MOST).collect();
                format!("\"{}...\"", head.escape_debug())
            }
            Value::String(text) => format!("\"{}\"", text.escape_debug()),
            Value::Bool(flag) => flag.to_string(),
            Value::F32(x) => x.to_string(),
            Value::F64(x) => x.to_string(),
            other => other.as_integer().map_or_else(|| other.describe(), |n| n.to_string()),
        }
    }

    /// The type in words: `u32`, `array of string`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {}", array.element_type()),
            other => other.value_type().to_string(),
        }
    }
}

/// A metadata array: elements of one type, stored as such.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Unsigned 16 bits.
    U16(Vec<u16>),
    /// Signed 16 bits.
    I16(Vec<i16>),
    /// Unsigned 32 bits.
    U32(Vec<u32>),
    /// Signed 32 bits.
    I32(Vec<i32>),
    /// Unsigned 64 bits.
    U64(Vec<u64>),
    /// Signed 64 bits.
    I64(Vec<i64>),
    /// IEEE singles.
    F32(Vec<f32>),
    /// IEEE doubles.
    F64(Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Texts.
    String(Vec<String>),
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F32(_) => ValueType::F32,
            Array::F64(_) => ValueType::F64,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
        }
    }
}

/// `From` a Rust type to its [`Value`], so that writers can say `"llama".into()`.
macro_rules! value_from {
    ($($variant:ident: $ty:ty;)*) => {
        $(
            impl From<$ty> for Value {
                fn from(v: $ty) -> Self { Value::$variant(v) }
            }
            impl From<Vec<$ty>> for Value {
                fn from(v: Vec<$ty>) -> Self { Value::Array(Array::$variant(v)) }
            }
        )*
    };
}
value_from! {
    U8: u8; I8: i8; U16: u16; I16: i16; U32: u32; I32: i32; U64: u64; I64: i64; F32: f32; F64: f64; Bool: bool; String: String;
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::String(v.to_owned())
    }
}
