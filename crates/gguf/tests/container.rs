//! The container: a file by another writer, our own round trip, typed metadata.

mod common;

use common::{data, floats, golden};
use minfer_gguf::{Array, Gguf, GgufErrorKind, Metadata, TensorType, Value, Writer, decode_row};

fn read(bytes: &[u8]) -> Gguf {
    Gguf::read(bytes, bytes.len() as u64).unwrap()
}

/// The entries of `written.gguf` under `scalar.` and `array.`, in order.
fn expected_entries() -> Vec<(&'static str, Value)> {
    vec![
        ("scalar.u8", 200u8.into()),
        ("scalar.i8", (-100i8).into()),
        ("scalar.u16", 60000u16.into()),
        ("scalar.i16", (-30000i16).into()),
        ("scalar.u32", 4_000_000_000u32.into()),
        ("scalar.i32", (-2_000_000_000i32).into()),
        ("scalar.u64", ((1u64 << 63) + 1).into()),
        ("scalar.i64", (-(1i64 << 62)).into()),
        ("scalar.f32", 1.5f32.into()),
        ("scalar.f64", 0.1f64.into()),
        ("scalar.bool", true.into()),
        ("scalar.string", "naïve ☃ text".into()),
        ("array.u8", vec![0, u8::MAX].into()),
        ("array.i8", vec![i8::MIN, i8::MAX].into()),
        ("array.u16", vec![0, u16::MAX].into()),
        ("array.i16", vec![i16::MIN, i16::MAX].into()),
        ("array.u32", vec![0, u32::MAX].into()),
        ("array.i32", vec![i32::MIN, i32::MAX].into()),
        ("array.u64", vec![0, u64::MAX].into()),
        ("array.i64", vec![i64::MIN, i64::MAX].into()),
        ("array.f32", vec![0.5f32, -2.25].into()),
        ("array.f64", vec![1e300f64, -0.1].into()),
        ("array.bool", vec![true, false, true].into()),
        ("array.string", ["", "a", "ü"].map(String::from).to_vec().into()),
    ]
}

fn check_contents(bytes: &[u8], gguf: &Gguf) {
    assert_eq!(gguf.architecture().unwrap(), "test-arch");
    assert_eq!(gguf.alignment, 64);
    assert_eq!(gguf.data_offset % 64, 0);
    let entries: Vec<_> = gguf.metadata.iter().filter(|(key, _)| !key.starts_with("general.")).collect();
    let expected = expected_entries();
    assert_eq!(entries, expected.iter().map(|(key, value)| (*key, value)).collect::<Vec<_>>());

    let names: Vec<_> = gguf.tensors.iter().map(|t| (t.name.as_str(), t.dims.as_slice(), t.ty)).collect();
    let expected: [(&str, &[u64], TensorType); 4] = [
        ("matrix", &[32, 3], TensorType::F32),
        ("vector", &[3], TensorType::F16),
        ("cube.q8", &[32, 3, 1], TensorType::Q8_0),
        ("ids", &[2, 3], TensorType::I64),
    ];
    assert_eq!(names, expected);
    let matrix = gguf.tensor("matrix").unwrap();
    assert_eq!((matrix.row_len(), matrix.rows(), matrix.n_elements(), matrix.bytes), (32, 3, 96, 384));
    let x: Vec<f32> = (0..96u8).map(f32::from).collect();
    assert_eq!(floats(bytes, gguf, "matrix"), x);
    let mut vector = [0.0; 3];
    decode_row(TensorType::F16, data(bytes, gguf, "vector"), &mut vector).unwrap();
    assert_eq!(vector, [1.0, 2.0, 3.0]);
    let mut cube = [0.0; 96];
    decode_row(TensorType::Q8_0, data(bytes, gguf, "cube.q8"), &mut cube).unwrap();
    assert!(cube.iter().zip(&x).all(|(a, b)| (a - b).abs() <= 95.0 / 254.0 + 0.05), "{cube:?}");
    let ids = data(bytes, gguf, "ids").as_chunks().0.iter().map(|&b| i64::from_le_bytes(b));
    assert!(ids.eq([1, -2, 3, -4, 5, -6]));
    assert!(gguf.tensor("absent").is_none());
}

#[test]
fn reads_a_file_of_another_writer() {
    let (bytes, gguf) = golden("written.gguf");
    assert_eq!((gguf.version, gguf.file_len), (3, bytes.len() as u64));
    check_contents(&bytes, &gguf);
}

#[test]
fn reads_version_2() {
    let (mut bytes, _) = golden("written.gguf");
    bytes[4] = 2;
    let gguf = read(&bytes);
    assert_eq!(gguf.version, 2);
    check_contents(&bytes, &gguf);
}

/// Reading another writer's file and writing it again gives the same bytes.
#[test]
fn writes_what_it_reads() {
    let (bytes, gguf) = golden("written.gguf");
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata.iter() {
        writer.add_meta(key, value.clone());
    }
    for tensor in &gguf.tensors {
        writer.add_tensor(
            tensor.name.clone(),
            tensor.dims.clone(),
            tensor.ty,
            data(&bytes, &gguf, &tensor.name),
        );
    }
    let again = writer.to_bytes().unwrap();
    check_contents(&again, &read(&again));
    assert!(again == bytes);
}

#[test]
fn default_alignment_and_empty_files() {
    let bytes = Writer::new().to_bytes().unwrap();
    let gguf = read(&bytes);
    assert!(gguf.metadata.is_empty() && gguf.tensors.is_empty());
    assert_eq!(gguf.alignment, 32);
    assert_eq!(gguf.architecture().unwrap_err().to_string(), "metadata \"general.architecture\" is missing");
    // Without padding at the end, as some vocabulary files are.
    assert_eq!(read(&bytes[..24]).data_offset, 32);
}

#[test]
fn empty_arrays_survive() {
    let mut writer = Writer::new();
    writer.add_meta("strings", Vec::<String>::new()).add_meta("floats", Vec::<f32>::new());
    let gguf = read(&writer.to_bytes().unwrap());
    assert_eq!(gguf.metadata.get("floats"), Some(&Value::Array(Array::F32(vec![]))));
    assert_eq!(gguf.metadata.require_strings("floats").unwrap(), &[] as &[String]);
    assert!(gguf.metadata.require_u32s("strings").unwrap().is_empty());
}

#[test]
fn the_writer_refuses_bad_input() {
    let message = |writer: &Writer| writer.to_bytes().unwrap_err().to_string();
    let mut w = Writer::new();
    w.add_meta("a", 1u32).add_meta("a", 2u32);
    assert_eq!(message(&w), "metadata \"a\" at byte 0: duplicate key");
    let mut w = Writer::new();
    w.add_meta("general.alignment", 48u32);
    assert!(message(&w).contains("alignment 48 is not a power of two"));
    let mut w = Writer::new();
    w.add_tensor("t", [2], TensorType::F32, [0; 7]);
    assert!(message(&w).contains("F32 of dimensions [2] takes 8 bytes, not 7"));
    for (dims, problem) in
        [(vec![], "0 dimensions"), (vec![1; 5], "5 dimensions"), (vec![0], "zero"), (vec![33], "multiple")]
    {
        let mut w = Writer::new();
        w.add_tensor("t", dims, TensorType::Q8_0, []);
        assert!(message(&w).contains(problem), "{}", message(&w));
    }
    let mut w = Writer::new();
    w.add_tensor("t", [1], TensorType::I8, [0]).add_tensor("t", [1], TensorType::I8, [0]);
    assert!(message(&w).contains("duplicate name"));
    let mut w = Writer::new();
    w.add_tensor("", [1], TensorType::I8, [0]);
    assert!(message(&w).contains("name is empty"));
}

#[test]
fn integer_getters_take_every_width() {
    let mut m = Metadata::new();
    let values: [Value; 8] = [
        7u8.into(),
        7i8.into(),
        7u16.into(),
        7i16.into(),
        7u32.into(),
        7i32.into(),
        7u64.into(),
        7i64.into(),
    ];
    for (n, value) in values.into_iter().enumerate() {
        assert!(m.insert(n.to_string(), value));
        let key = n.to_string();
        assert_eq!(
            (m.u32(&key).unwrap(), m.u64(&key).unwrap(), m.i32(&key).unwrap()),
            (Some(7), Some(7), Some(7))
        );
    }
    assert!(!m.insert("0".into(), 1u8.into()));
    let arrays: [Value; 8] = [
        vec![7u8].into(),
        vec![7i8].into(),
        vec![7u16].into(),
        vec![7i16].into(),
        vec![7u32].into(),
        vec![7i32].into(),
        vec![7u64].into(),
        vec![7i64].into(),
    ];
    for (n, value) in arrays.into_iter().enumerate() {
        let key = format!("a{n}");
        assert!(m.insert(key.clone(), value));
        assert_eq!((m.require_u32s(&key).unwrap(), m.require_i32s(&key).unwrap()), (vec![7], vec![7]));
    }
}

#[test]
fn getters_name_the_key_and_both_types() {
    let mut m = Metadata::new();
    for (key, value) in [
        ("text", Value::from("x")),
        ("negative", (-1i8).into()),
        ("large", u64::MAX.into()),
        ("float", 1.5f32.into()),
        ("double", 0.1f64.into()),
        ("texts", vec!["x".to_owned()].into()),
        ("numbers", vec![1i64, -2].into()),
        ("floats", vec![1.5f64].into()),
    ] {
        assert!(m.insert(key.into(), value));
    }
    let message = |result: Result<(), minfer_gguf::GgufError>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), GgufErrorKind::Metadata);
        error.to_string()
    };
    assert_eq!(message(m.u32("text").map(drop)), "metadata \"text\": expected u32, found string");
    assert_eq!(message(m.u32("negative").map(drop)), "metadata \"negative\": expected u32, found i8 -1");
    assert_eq!(
        message(m.i32("large").map(drop)),
        "metadata \"large\": expected i32, found u64 18446744073709551615"
    );
    assert_eq!(message(m.u32("float").map(drop)), "metadata \"float\": expected u32, found f32");
    assert_eq!(message(m.f32("negative").map(drop)), "metadata \"negative\": expected f32, found i8");
    assert_eq!(message(m.bool("negative").map(drop)), "metadata \"negative\": expected bool, found i8");
    assert_eq!(
        message(m.str("texts").map(drop)),
        "metadata \"texts\": expected string, found array of string"
    );
    assert_eq!(
        message(m.u32s("numbers").map(drop)),
        "metadata \"numbers\": expected array of u32, found -2 in element 1"
    );
    assert_eq!(
        message(m.f32s("numbers").map(drop)),
        "metadata \"numbers\": expected array of f32, found array of i64"
    );
    assert_eq!(message(m.u32s("large").map(drop)), "metadata \"large\": expected array of u32, found u64");
    assert_eq!(message(m.require_u32("absent").map(drop)), "metadata \"absent\" is missing");
    assert_eq!(m.u32("absent").unwrap(), None);
    assert_eq!((m.f32("double").unwrap(), m.require_f32s("floats").unwrap()), (Some(0.1), vec![1.5]));
    assert_eq!(m.require_i32s("numbers").unwrap(), [1, -2]);
}
