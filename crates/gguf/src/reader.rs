//! Reading a file's header.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::cursor::Cursor;
use crate::error::shown;
use crate::{Array, GgufError, Metadata, TensorType, Value, ValueType};

/// The alignment of tensor data unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The largest header (metadata and tensor table) that is read. Real ones, with vocabularies of 256k tokens, stay below 32 MiB.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// The longest key or tensor name that is read, in bytes; the format allows keys of 65535.
const MAX_NAME_BYTES: usize = 65535;

/// The most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;

/// The key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// The fewest bytes of a metadata entry: length and one byte of key, type, one byte of value.
const MIN_METADATA_BYTES: u64 = 8 + 1 + 4 + 1;

/// The fewest bytes of a tensor's entry: length and one byte of name, dimension count, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of the header to read at a time.
const BUFFER: usize = 64 << 10;

/// A tensor's entry in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, unique in the file.
    pub name: String,
    /// One to four sizes, none of them zero, the contiguous one first.
    pub dims: Vec<u64>,
    /// The type of the elements.
    pub ty: TensorType,
    /// Where the data begin, in bytes from the beginning of the file.
    pub offset: u64,
    /// The size of the data in bytes.
    pub bytes: u64,
    /// Which file of a split model holds the data, from 0; 0 for a model in one file. See [`Gguf::join`].
    pub part: usize,
}

impl TensorInfo {
    /// Elements in a row: `dims[0]`.
    pub fn row_len(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).fold(1, |product, &dim| product.saturating_mul(dim))
    }

    /// The number of elements.
    pub fn n_elements(&self) -> u64 {
        self.row_len().saturating_mul(self.rows())
    }
}

/// The header of a GGUF file. All of it has been checked: names are unique, each tensor's data lie inside the file, aligned, and overlap
/// no other's.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Version of the container: 2 or 3.
    pub version: u32,
    /// The metadata.
    pub metadata: Metadata,
    /// The tensors in the file's order.
    pub tensors: Vec<TensorInfo>,
    /// Tensor data begin at multiples of this many bytes; a power of two.
    pub alignment: u64,
    /// Where the data section begins, in bytes from the beginning of the file. Beyond the end in a file without tensors that omits
    /// the padding.
    pub data_offset: u64,
    /// The size of the file in bytes.
    pub file_len: u64,
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Reads the header of a file.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let failed = |source| GgufError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let file_len = file.metadata().map_err(failed)?.len();
        Gguf::read(BufReader::with_capacity(BUFFER, file), file_len)
    }

    /// Reads the header from `input`, which stands at the beginning of a file of `file_len` bytes. Reads in small pieces: pass
    /// something buffered.
    pub fn read(input: impl Read, file_len: u64) -> Result<Gguf, GgufError> {
        let mut cursor = Cursor::new(input, file_len);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64("tensor count")?;
        let metadata_count = cursor.u64("metadata count")?;
        cursor.expect("metadata", metadata_count, MIN_METADATA_BYTES)?;
        let metadata = read_metadata(&mut cursor, metadata_count)?;
        let alignment = read_alignment(&metadata, cursor.offset())?;
        cursor.expect("tensor table", tensor_count, MIN_TENSOR_BYTES)?;
        let entries = read_entries(&mut cursor, tensor_count)?;
        // No overflow: a header is at most `MAX_HEADER_BYTES`, an alignment fits 32 bits.
        let data_offset = cursor.offset().next_multiple_of(alignment);
        let tensors = place(entries, data_offset, alignment, file_len)?;
        let index = tensors.iter().enumerate().map(|(at, t)| (t.name.clone(), at)).collect();
        Ok(Gguf { version, metadata, tensors, alignment, data_offset, file_len, index })
    }

    /// Adds a tensor whose name is not there yet.
    pub(crate) fn push(&mut self, tensor: TensorInfo) {
        self.index.insert(tensor.name.clone(), self.tensors.len());
        self.tensors.push(tensor);
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&at| self.tensors.get(at))
    }

    /// The model's architecture, `general.architecture`; an error if the file names none.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.metadata.require_str("general.architecture")
    }
}

/// Checks the magic bytes and the version.
fn read_version(cursor: &mut Cursor<impl Read>) -> Result<u32, GgufError> {
    let found = cursor.array("magic bytes")?;
    if &found != b"GGUF" {
        return Err(GgufError::NotGguf { found });
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        // A small number with its bytes reversed.
        _ if version != 0 && version & 0xffff == 0 => {
            Err(GgufError::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(GgufError::Version { found: version }),
    }
}

/// A length and that many bytes of UTF-8. `Ok(Err(..))` gives the position of the first byte that is none.
fn read_text(cursor: &mut Cursor<impl Read>, what: &str) -> Result<Result<String, usize>, GgufError> {
    let len = cursor.u64(what)?;
    let bytes = cursor.bytes(what, len)?;
    Ok(String::from_utf8(bytes).map_err(|e| e.utf8_error().valid_up_to()))
}

/// A key or a tensor's name, or what is wrong with it.
fn read_name(cursor: &mut Cursor<impl Read>, what: &str) -> Result<Result<String, String>, GgufError> {
    Ok(match read_text(cursor, what)? {
        Ok(name) => name_problem(&name).map_or(Ok(name), Err),
        Err(at) => Err(format!("name is not UTF-8 at byte {at}")),
    })
}

/// What is wrong with a key or a tensor's name.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    match name.len() {
        0 => Some("name is empty".to_owned()),
        n if n > MAX_NAME_BYTES => Some(format!("name of {n} bytes, more than {MAX_NAME_BYTES}")),
        _ => None,
    }
}

/// Reads `count` entries of metadata.
fn read_metadata(cursor: &mut Cursor<impl Read>, count: u64) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::new();
    for n in 0..count {
        let offset = cursor.offset();
        let bad = |key: &str, problem| GgufError::Metadata { key: key.to_owned(), offset, problem };
        let key = read_name(cursor, "metadata key")?.map_err(|problem| bad(&format!("#{n}"), problem))?;
        if metadata.contains(&key) {
            return Err(bad(&key, "duplicate key".to_owned()));
        }
        let value = read_value(cursor, &key)?;
        // Can't be there already: checked above.
        let _ = metadata.insert(key, value);
    }
    Ok(metadata)
}

/// Reads a value's type.
fn read_type(cursor: &mut Cursor<impl Read>, key: &str, what: &str) -> Result<ValueType, GgufError> {
    let offset = cursor.offset();
    let id = cursor.u32(key)?;
    ValueType::from_id(id).ok_or_else(|| GgufError::Metadata {
        key: key.to_owned(),
        offset,
        problem: format!("unknown {what} type {id}"),
    })
}

/// Reads the type and the value of `key`.
fn read_value(cursor: &mut Cursor<impl Read>, key: &str) -> Result<Value, GgufError> {
    let ty = read_type(cursor, key, "value")?;
    Ok(match ty {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(key)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(key)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(key)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(key)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(key)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(key)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(key)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(key)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        ValueType::Bool => {
            let offset = cursor.offset();
            let [byte] = cursor.array(key)?;
            Value::Bool(to_bool(byte, key, offset)?)
        }
        ValueType::String => Value::String(read_string(cursor, key)?),
        ValueType::Array => Value::Array(read_array(cursor, key)?),
    })
}

/// The truth value of a byte; only 0 and 1 have one.
fn to_bool(byte: u8, key: &str, offset: u64) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(GgufError::Metadata {
            key: key.to_owned(),
            offset,
            problem: format!("{byte} is no bool (0 and 1 are)"),
        }),
    }
}

/// Reads a text of `key`.
fn read_string(cursor: &mut Cursor<impl Read>, key: &str) -> Result<String, GgufError> {
    let offset = cursor.offset();
    read_text(cursor, key)?.map_err(|at| GgufError::Metadata {
        key: key.to_owned(),
        offset,
        problem: format!("string is not UTF-8 at byte {at}"),
    })
}

/// Reads an array's element type, length and elements.
fn read_array(cursor: &mut Cursor<impl Read>, key: &str) -> Result<Array, GgufError> {
    let offset = cursor.offset();
    let ty = read_type(cursor, key, "array element")?;
    let count = cursor.u64(key)?;
    cursor.expect(key, count, ty.min_bytes())?;
    Ok(match ty {
        ValueType::U8 => Array::U8(cursor.bytes(key, count)?),
        ValueType::I8 => Array::I8(read_numbers(cursor, key, count, i8::from_le_bytes)?),
        ValueType::U16 => Array::U16(read_numbers(cursor, key, count, u16::from_le_bytes)?),
        ValueType::I16 => Array::I16(read_numbers(cursor, key, count, i16::from_le_bytes)?),
        ValueType::U32 => Array::U32(read_numbers(cursor, key, count, u32::from_le_bytes)?),
        ValueType::I32 => Array::I32(read_numbers(cursor, key, count, i32::from_le_bytes)?),
        ValueType::U64 => Array::U64(read_numbers(cursor, key, count, u64::from_le_bytes)?),
        ValueType::I64 => Array::I64(read_numbers(cursor, key, count, i64::from_le_bytes)?),
        ValueType::F32 => Array::F32(read_numbers(cursor, key, count, f32::from_le_bytes)?),
        ValueType::F64 => Array::F64(read_numbers(cursor, key, count, f64::from_le_bytes)?),
        ValueType::Bool => {
            let start = cursor.offset();
            let bytes = cursor.bytes(key, count)?;
            let one = |(at, byte)| to_bool(byte, key, start + at);
            Array::Bool((0u64..).zip(bytes).map(one).collect::<Result<_, _>>()?)
        }
        // The vector grows as elements are read; a claimed count reserves nothing.
        ValueType::String => {
            let mut list = room_for_strings(key, count)?;
            for _ in 0..count {
                list.push(read_string(cursor, key)?);
            }
            Array::String(list)
        }
        ValueType::Array => {
            let problem = "arrays of arrays are not supported".to_owned();
            return Err(GgufError::Metadata { key: key.to_owned(), offset, problem });
        }
    })
}

/// A list with room for `count` strings, which the file is long enough for.
///
/// Each of them gets memory of its own, and to fail at that would end the program. So all of it is asked for once, and
/// given back: half as much again as the short strings of a vocabulary take, and something for what comes after.
fn room_for_strings(key: &str, count: u64) -> Result<Vec<String>, GgufError> {
    const EACH: usize = 48;
    const AFTER: usize = 4 << 20;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut list, mut room) = (Vec::new(), Vec::<u8>::new());
    let text = count.saturating_mul(EACH).saturating_add(AFTER);
    let reserved = list.try_reserve_exact(count).and_then(|()| room.try_reserve_exact(text));
    let bytes = text.saturating_add(count.saturating_mul(size_of::<String>()));
    reserved.map(|()| list).map_err(|_| GgufError::OutOfMemory { what: format!("`{key}`"), bytes })
}

/// Reads `count` numbers of `N` bytes.
fn read_numbers<T, const N: usize>(
    cursor: &mut Cursor<impl Read>,
    key: &str,
    count: u64,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let each = u64::try_from(N).unwrap_or(u64::MAX);
    let bytes = cursor.bytes(key, count.saturating_mul(each))?;
    let (numbers, _) = bytes.as_chunks::<N>();
    Ok(numbers.iter().map(|&number| convert(number)).collect())
}

/// The alignment that the metadata ask for; the format makes it a 32-bit number.
pub(crate) fn read_alignment(metadata: &Metadata, offset: u64) -> Result<u64, GgufError> {
    let alignment = metadata.u32(ALIGNMENT_KEY)?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !alignment.is_power_of_two() {
        let problem = format!("alignment {alignment} is not a power of two");
        return Err(GgufError::Metadata { key: ALIGNMENT_KEY.to_owned(), offset, problem });
    }
    Ok(alignment)
}

/// A tensor as its entry describes it, and where the entry is. The offset still counts from the data section.
struct Entry {
    at: u64,
    info: TensorInfo,
}

/// Reads `count` entries of the tensor table.
fn read_entries(cursor: &mut Cursor<impl Read>, count: u64) -> Result<Vec<Entry>, GgufError> {
    let mut names = HashSet::new();
    let mut entries = Vec::new();
    for n in 0..count {
        let at = cursor.offset();
        let bad = |name: &str, problem| GgufError::Tensor { tensor: name.to_owned(), offset: at, problem };
        let name = read_name(cursor, "tensor name")?.map_err(|problem| bad(&format!("#{n}"), problem))?;
        if !names.insert(name.clone()) {
            return Err(bad(&name, "duplicate name".to_owned()));
        }
        let n_dims = cursor.u32(&name)?;
        if !(1..=MAX_DIMS).contains(&usize::try_from(n_dims).unwrap_or(usize::MAX)) {
            return Err(bad(&name, format!("{n_dims} dimensions (1 to {MAX_DIMS} are possible)")));
        }
        let dims = (0..n_dims).map(|_| cursor.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        let id = cursor.u32(&name)?;
        let ty = TensorType::from_id(id).ok_or_else(|| bad(&name, format!("unknown tensor type {id}")))?;
        let offset = cursor.u64(&name)?;
        let bytes = data_bytes(ty, &dims).map_err(|problem| bad(&name, problem))?;
        entries.push(Entry { at, info: TensorInfo { name, dims, ty, offset, bytes, part: 0 } });
    }
    Ok(entries)
}

/// The size of a tensor's data, or what is wrong with its dimensions.
pub(crate) fn data_bytes(ty: TensorType, dims: &[u64]) -> Result<u64, String> {
    if dims.contains(&0) {
        return Err(format!("dimensions {dims:?}: one is zero"));
    }
    let too_large = || format!("dimensions {dims:?}: too large");
    let row_len = dims.first().copied().unwrap_or(1);
    let row_len_here = usize::try_from(row_len).map_err(|_| too_large())?;
    if !row_len_here.is_multiple_of(ty.block_len()) {
        return Err(format!(
            "a row of {row_len} elements is not a multiple of the {ty} block of {}",
            ty.block_len()
        ));
    }
    let row_bytes = ty.row_bytes(row_len_here).and_then(|n| u64::try_from(n).ok()).ok_or_else(too_large)?;
    dims.iter().skip(1).try_fold(row_bytes, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)
}

/// Turns offsets into absolute ones and checks that the data are aligned, inside the file and disjoint.
fn place(
    mut entries: Vec<Entry>,
    data_offset: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    for Entry { at, info } in &mut entries {
        let bad = |problem| GgufError::Tensor { tensor: info.name.clone(), offset: *at, problem };
        if !info.offset.is_multiple_of(alignment) {
            return Err(bad(format!(
                "data offset {} is not a multiple of the alignment {alignment}",
                info.offset
            )));
        }
        let start = data_offset.checked_add(info.offset);
        let end = start.and_then(|start| start.checked_add(info.bytes));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(bad(format!(
                "{} bytes of data at data offset {}: too large",
                info.bytes, info.offset
            )));
        };
        if end > file_len {
            return Err(GgufError::Truncated {
                what: format!("data of tensor \"{}\"", shown(&info.name)),
                offset: start,
                needed: info.bytes,
                available: file_len.saturating_sub(start),
            });
        }
        info.offset = start;
    }
    refuse_overlap(&entries)?;
    Ok(entries.into_iter().map(|entry| entry.info).collect())
}

/// An error if two tensors share bytes.
fn refuse_overlap(entries: &[Entry]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&Entry> = entries.iter().collect();
    by_offset.sort_by_key(|entry| entry.info.offset);
    for (before, after) in by_offset.iter().zip(by_offset.iter().skip(1)) {
        // The sum was checked against the file's size.
        let end = before.info.offset.saturating_add(before.info.bytes);
        if end > after.info.offset {
            return Err(GgufError::Tensor {
                tensor: after.info.name.clone(),
                offset: after.at,
                problem: format!("data overlap those of \"{}\"", shown(&before.info.name)),
            });
        }
    }
    Ok(())
}
