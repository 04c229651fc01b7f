//! Broken and hostile files: an error that says what and where, never a panic, never an allocation that the file doesn't back.

mod common;

use common::{Random, golden};
use minfer_gguf::{Gguf, GgufError, GgufErrorKind, TensorType, Writer};

fn read(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::read(bytes, bytes.len() as u64)
}

/// Asserts the kind of the error and that its message contains each of `parts`.
#[track_caller]
fn refused(bytes: &[u8], kind: GgufErrorKind, parts: &[&str]) {
    let error = read(bytes).unwrap_err();
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for part in parts {
        assert!(message.contains(part), "\"{message}\" lacks \"{part}\"");
    }
}

/// A header by hand, for what no writer would write.
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, metadata: u64) -> Self {
        Raw(Vec::new()).bytes(b"GGUF").u32(3).u64(tensors).u64(metadata)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn text(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let with_dims =
            dims.iter().fold(self.text(name.as_bytes()).u32(dims.len() as u32), |raw, &dim| raw.u64(dim));
        with_dims.u32(ty).u64(offset)
    }

    /// Pads to 32 bytes and adds `n` bytes of data.
    fn data(mut self, n: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0);
        self.0
    }
}

#[test]
fn other_files_are_named() {
    refused(b"", GgufErrorKind::Truncated, &["magic bytes"]);
    refused(b"GGU", GgufErrorKind::Truncated, &["needs 4 bytes, 3 are left"]);
    refused(b"version https://git-lfs", GgufErrorKind::NotGguf, &["\"vers\"", "Git LFS"]);
    refused(b"\x7fELF\x02", GgufErrorKind::NotGguf, &["\\x7fELF"]);
    refused(b"FUGG\x03\0\0\0", GgufErrorKind::NotGguf, &["FUGG"]);
}

#[test]
fn versions() {
    let with = |version: u32| Raw(b"GGUF".to_vec()).u32(version).u64(0).u64(0).0;
    assert!(read(&with(2)).is_ok() && read(&with(3)).is_ok());
    for version in [0, 1, 4, 100] {
        refused(&with(version), GgufErrorKind::Version, &[&format!("version {version}")]);
    }
    refused(&with(3u32.swap_bytes()), GgufErrorKind::BigEndian, &["big-endian", "version 3"]);
}

#[test]
fn claimed_sizes_do_not_allocate() {
    let huge = 1u64 << 60;
    refused(&Raw::new(huge, 0).0, GgufErrorKind::Truncated, &["tensor table"]);
    refused(&Raw::new(0, huge).0, GgufErrorKind::Truncated, &["metadata"]);
    refused(&Raw::new(u64::MAX, u64::MAX).0, GgufErrorKind::Truncated, &["metadata"]);
    refused(&Raw::new(0, 1).u64(huge).bytes(&[0; 50]).0, GgufErrorKind::Truncated, &["metadata key"]);
    let string = Raw::new(0, 1).text(b"k").u32(8).u64(huge).bytes(&[0; 50]).0;
    refused(&string, GgufErrorKind::Truncated, &["k at byte", "1152921504606846976 bytes"]);
    for element in [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12] {
        for count in [huge, u64::MAX, 1 << 33] {
            let array = Raw::new(0, 1).text(b"k").u32(9).u32(element).u64(count).bytes(&[0; 50]).0;
            refused(&array, GgufErrorKind::Truncated, &["k at byte"]);
        }
    }
    // A file that claims to be large, as a sparse one would.
    let array = Raw::new(0, 1).text(b"k").u32(9).u32(0).u64(1 << 50).bytes(&[0; 50]).0;
    let error = Gguf::read(array.as_slice(), 1 << 60).unwrap_err();
    assert_eq!(error.kind(), GgufErrorKind::Limit, "{error}");
    // A file that is shorter than its owner says.
    let array = Raw::new(0, 1).text(b"k").u32(9).u32(8).u64(1 << 25).bytes(&[0; 50]).0;
    let error = Gguf::read(array.as_slice(), 1 << 60).unwrap_err();
    assert_eq!(error.kind(), GgufErrorKind::Truncated, "{error}");
}

#[test]
fn bad_metadata() {
    let one = |value: Raw| value.bytes(&[0; 16]).0;
    let key = || Raw::new(0, 1).text(b"some.key");
    let kind = GgufErrorKind::Metadata;
    refused(&one(key().u32(13)), kind, &["some.key", "byte 40", "unknown value type 13"]);
    refused(&one(key().u32(9).u32(99).u64(0)), kind, &["some.key", "unknown array element type 99"]);
    refused(&one(key().u32(9).u32(9).u64(0)), kind, &["some.key", "arrays of arrays"]);
    refused(&one(key().u32(7).bytes(&[2])), kind, &["some.key", "2 is no bool"]);
    refused(&one(key().u32(9).u32(7).u64(2).bytes(&[1, 7])), kind, &["byte 57", "7 is no bool"]);
    refused(&one(key().u32(8).text(b"ab\xff")), kind, &["some.key", "not UTF-8 at byte 2"]);
    refused(&one(Raw::new(0, 1).text(b"\xff").u32(0)), kind, &["#0", "not UTF-8"]);
    refused(&one(Raw::new(0, 1).text(b"").u32(0)), kind, &["#0", "empty"]);
    refused(&Raw::new(0, 1).text(&[b'k'; 65536]).u32(0).u64(0).0, kind, &["#0", "65536"]);
    let twice = Raw::new(0, 2).text(b"k").u32(0).bytes(&[1]).text(b"k").u32(0).bytes(&[2]);
    refused(&one(twice), kind, &["\"k\" at byte 38", "duplicate"]);
    // A name from a file may not write escape sequences to a terminal.
    refused(&one(Raw::new(0, 1).text(b"\x1b[2J").u32(99)), kind, &["\\u{1b}[2J"]);
}

#[test]
fn bad_alignments() {
    let with = |value: u64| Raw::new(0, 1).text(b"general.alignment").u32(10).u64(value).bytes(&[0; 8]).0;
    for value in [0, 3, 48, 1 << 32, u64::MAX] {
        refused(&with(value), GgufErrorKind::Metadata, &["general.alignment", &value.to_string()]);
    }
    // Large, and nothing to align.
    assert_eq!(read(&with(1 << 31)).unwrap().data_offset, 1 << 31);
    let text = Raw::new(0, 1).text(b"general.alignment").u32(8).text(b"32").0;
    refused(&text, GgufErrorKind::Metadata, &["general.alignment", "expected u32, found string"]);
    let far =
        Raw::new(1, 1).text(b"general.alignment").u32(10).u64(1 << 31).tensor("t", &[1], 24, 0).data(64);
    refused(&far, GgufErrorKind::Truncated, &["tensor", "\"t\""]);
}

#[test]
fn bad_tensors() {
    let one = |name: &str, dims: &[u64], ty, offset| Raw::new(1, 0).tensor(name, dims, ty, offset).data(256);
    let kind = GgufErrorKind::Tensor;
    assert!(read(&one("t", &[32, 2], 0, 0)).is_ok());
    refused(&one("t", &[32], 4, 0), kind, &["\"t\" (entry at byte 24)", "unknown tensor type 4"]);
    refused(&one("t", &[], 0, 0), kind, &["\"t\"", "0 dimensions"]);
    refused(&one("t", &[1; 5], 0, 0), kind, &["\"t\"", "5 dimensions"]);
    refused(&one("t", &[4, 0], 0, 0), kind, &["[4, 0]", "zero"]);
    refused(&one("t", &[33], 8, 0), kind, &["33", "Q8_0 block of 32"]);
    refused(&one("t", &[u64::MAX, 2], 24, 0), kind, &["too large"]);
    refused(&one("t", &[1 << 32, 1 << 32], 24, 0), kind, &["too large"]);
    refused(&one("t", &[1 << 62], 0, 0), kind, &["too large"]);
    refused(&one("t", &[4], 0, 4), kind, &["offset 4", "alignment 32"]);
    refused(&one("t", &[4], 0, u64::MAX - 31), kind, &["too large"]);
    refused(&one("t", &[65], 0, 0), GgufErrorKind::Truncated, &["\"t\"", "260 bytes, 256 are left"]);
    refused(&one("t", &[4], 0, 256), GgufErrorKind::Truncated, &["\"t\"", "0 are left"]);
    refused(&one("", &[4], 0, 0), kind, &["#0", "empty"]);
    let dims_bomb = Raw::new(1, 0).text(b"t").u32(u32::MAX).bytes(&[1; 64]).0;
    refused(&dims_bomb, kind, &["4294967295 dimensions"]);
}

#[test]
fn tensors_may_not_share_names_or_bytes() {
    let two = |name: &str, offset| {
        Raw::new(2, 0).tensor("a", &[16], 0, 32).tensor(name, &[16], 0, offset).data(256)
    };
    refused(&two("a", 96), GgufErrorKind::Tensor, &["\"a\"", "duplicate name"]);
    for offset in [32, 64] {
        refused(&two("b", offset), GgufErrorKind::Tensor, &["\"b\"", "overlap", "\"a\""]);
    }
    refused(&two("b", 0), GgufErrorKind::Tensor, &["\"a\"", "overlap", "\"b\""]);
    // Any order and gaps are fine.
    let gguf = read(&two("b", 128)).unwrap();
    assert_eq!(gguf.tensor("b").unwrap().offset, gguf.data_offset + 128);
}

/// Quadratic checks would take minutes.
#[test]
fn many_entries_are_checked_fast() {
    let mut writer = Writer::new();
    for n in 0..50_000 {
        writer.add_meta(format!("k{n}"), n).add_tensor(format!("t{n}"), [1], TensorType::I8, [0]);
    }
    let gguf = read(&writer.to_bytes().unwrap()).unwrap();
    assert_eq!((gguf.metadata.len(), gguf.tensors.len()), (50_000, 50_000));
}

/// A small file without padding at its end, so that every byte counts.
fn small_file() -> Vec<u8> {
    let (mut bytes, gguf) = golden("written.gguf");
    let end = gguf.tensors.iter().map(|t| t.offset + t.bytes).max().unwrap();
    bytes.truncate(usize::try_from(end).unwrap());
    assert!(read(&bytes).is_ok());
    bytes
}

#[test]
fn every_prefix_is_truncated() {
    let bytes = small_file();
    for len in 0..bytes.len() {
        let error = read(&bytes[..len]).unwrap_err();
        assert_eq!(error.kind(), GgufErrorKind::Truncated, "{len} bytes: {error}");
    }
}

#[test]
fn mutations_never_panic() {
    let bytes = small_file();
    let header = usize::try_from(read(&bytes).unwrap().data_offset).unwrap();
    let mut random = Random(3);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut mutant = bytes.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(header);
            match random.below(4) {
                0 => mutant[at] ^= 1 << random.below(8),
                1 => mutant[at] = random.next().to_le_bytes()[0],
                2 => mutant[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                // A number of eight bytes, likely a count or a length.
                _ => {
                    let value = u64::MAX >> random.below(64);
                    let end = (at + 8).min(header);
                    mutant[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                }
            }
        }
        match read(&mutant) {
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
            // What is accepted must hold what it promises.
            Ok(gguf) => {
                for tensor in &gguf.tensors {
                    assert!(
                        tensor.offset >= gguf.data_offset && tensor.offset + tensor.bytes <= gguf.file_len
                    );
                    assert_eq!(tensor.n_elements(), tensor.dims.iter().product::<u64>());
                }
            }
        }
    }
    assert!(refused > 5_000, "{refused}");
}

#[test]
fn missing_files_are_named() {
    let error = Gguf::open("/nonexistent/model.gguf".as_ref()).unwrap_err();
    assert_eq!(error.kind(), GgufErrorKind::Io);
    assert!(error.to_string().contains("/nonexistent/model.gguf"), "{error}");
}
