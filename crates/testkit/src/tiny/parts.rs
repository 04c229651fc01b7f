//! A GGUF file in pieces that can be changed without regard to the format's rules: a reader and a writer
//! of their own, so that they can write what [`minfer_gguf::Writer`] would not.

/// A metadata entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: Vec<u8>,
    /// Number of the type.
    pub ty: u32,
    /// The value as the file has it.
    pub value: Vec<u8>,
}

/// A row of the table of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
}

/// A number of the tables that says how much follows or what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub what: &'static str,
    pub at: usize,
    pub width: usize,
}

/// A file in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub version: u32,
    pub entries: Vec<Entry>,
    pub tensors: Vec<Tensor>,
    pub data: Vec<u8>,
}

const MAGIC: &[u8] = b"GGUF";
const ALIGNMENT: usize = 32;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Bytes of a number of a type.
fn width(ty: u32) -> Option<usize> {
    Some(match ty {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.u64()?;
        self.take(usize::try_from(len).ok()?)
    }

    /// Passes over a value of a type.
    fn skip(&mut self, ty: u32) -> Option<()> {
        match ty {
            TEXT => drop(self.text()?),
            ARRAY => {
                let (element, n) = (self.u32()?, self.u64()?);
                if element == ARRAY {
                    return None;
                }
                for _ in 0..n {
                    self.skip(element)?;
                }
            }
            _ => drop(self.take(width(ty)?)?),
        }
        Some(())
    }
}

impl Parts {
    /// Takes a file apart; `None` if it is none, or has another alignment than the usual one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let magic = rest.take(4)?;
        let (version, n_tensors, n_entries) = (rest.u32()?, rest.u64()?, rest.u64()?);
        let (mut entries, mut tensors) = (Vec::new(), Vec::new());
        for _ in 0..n_entries {
            let (key, ty) = (rest.text()?.to_vec(), rest.u32()?);
            let before = rest.0;
            rest.skip(ty)?;
            entries.push(Entry { key, ty, value: before[..before.len() - rest.0.len()].to_vec() });
        }
        for _ in 0..n_tensors {
            let (name, n_dims) = (rest.text()?.to_vec(), rest.u32()?);
            let dims = (0..n_dims).map(|_| rest.u64()).collect::<Option<Vec<u64>>>()?;
            tensors.push(Tensor { name, dims, ty: rest.u32()?, offset: rest.u64()? });
        }
        let at = (bytes.len() - rest.0.len()).next_multiple_of(ALIGNMENT);
        let data = bytes.get(at..)?.to_vec();
        (magic == MAGIC).then_some(Parts { version, entries, tensors, data })
    }

    /// The file, the fields of its tables and the place of its data.
    pub fn to_bytes(&self) -> (Vec<u8>, Vec<Field>, usize) {
        let mut out = Output { bytes: MAGIC.to_vec(), fields: Vec::new() };
        out.u32("version", self.version);
        out.u64("number of tensors", self.tensors.len() as u64);
        out.u64("number of keys", self.entries.len() as u64);
        for entry in &self.entries {
            out.entry(entry);
        }
        for tensor in &self.tensors {
            out.u64("length of a tensor's name", tensor.name.len() as u64);
            out.bytes.extend(&tensor.name);
            out.u32("number of sizes", tensor.dims.len() as u32);
            tensor.dims.iter().for_each(|&dim| out.u64("size", dim));
            out.u32("type of a tensor", tensor.ty);
            out.u64("offset", tensor.offset);
        }
        let data_at = out.bytes.len().next_multiple_of(ALIGNMENT);
        out.bytes.resize(data_at, 0);
        out.bytes.extend(&self.data);
        (out.bytes, out.fields, data_at)
    }
}

struct Output {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Output {
    fn u32(&mut self, what: &'static str, value: u32) {
        self.fields.push(Field { what, at: self.bytes.len(), width: 4 });
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, what: &'static str, value: u64) {
        self.fields.push(Field { what, at: self.bytes.len(), width: 8 });
        self.bytes.extend(value.to_le_bytes());
    }

    fn entry(&mut self, entry: &Entry) {
        self.u64("length of a key", entry.key.len() as u64);
        self.bytes.extend(&entry.key);
        self.u32("type of a value", entry.ty);
        let at = self.bytes.len();
        let mut field = |what, at, width| self.fields.push(Field { what, at, width });
        match entry.ty {
            TEXT => field("length of a text", at, 8),
            ARRAY => {
                field("type of elements", at, 4);
                field("number of elements", at + 4, 8);
                // Of a list of texts the first one's length stands for all, else lists would outweigh the rest.
                if entry.value.starts_with(&TEXT.to_le_bytes()) && entry.value.len() >= 20 {
                    field("length of a listed text", at + 12, 8);
                }
            }
            _ => {}
        }
        self.bytes.extend(&entry.value);
    }
}

impl Entry {
    /// The key, as far as it is text.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.key[..self.key.len().min(60)]).into_owned()
    }

    /// Bytes of the number, or of each number of a list.
    pub fn number_width(&self) -> Option<usize> {
        match self.ty {
            ARRAY => width(u32::from_le_bytes(self.value.get(..4)?.try_into().ok()?)),
            ty => width(ty),
        }
    }

    /// The numbers' bytes.
    pub fn numbers_mut(&mut self) -> &mut [u8] {
        let start = if self.ty == ARRAY { 12 } else { 0 };
        self.value.get_mut(start..).unwrap_or_default()
    }

    /// Elements of a list.
    pub fn array_len(&self) -> Option<u64> {
        let len = self.value.get(4..12)?.try_into().ok()?;
        (self.ty == ARRAY).then(|| u64::from_le_bytes(len))
    }

    /// Keeps the first elements of a list.
    pub fn shorten_array(&mut self, keep: u64) -> Option<()> {
        let element = u32::from_le_bytes(self.value.get(..4)?.try_into().ok()?);
        let mut rest = Rest(self.value.get(12..)?);
        for _ in 0..keep {
            rest.skip(element)?;
        }
        let len = self.value.len() - rest.0.len();
        self.value[4..12].copy_from_slice(&keep.to_le_bytes());
        self.value.truncate(len);
        Some(())
    }
}

impl Tensor {
    /// The name, as far as it is text.
    pub fn label(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::TinySpec;

    #[test]
    fn a_file_comes_back_as_it_was() {
        for name in ["llama", "olmo3", "gpt-oss"] {
            let bytes = TinySpec::named(name).unwrap().with_vocab().to_bytes().unwrap();
            let parts = Parts::parse(&bytes).unwrap();
            assert_eq!(parts.to_bytes().0, bytes);
        }
    }
}
