//! Split sets: names of parts, what a part says, joining, and every way in which parts may not belong together.

use minfer_gguf::{Gguf, PartName, Split, SplitError, SplitProblem, TensorType, Value, Writer};

/// A part as a file would hold it; `tensors` are names of tensors of one number each.
fn part(no: u16, count: u16, total: i32, tensors: &[&str], arch: Option<&str>) -> Gguf {
    let mut w = Writer::new();
    w.add_meta("split.no", Value::U16(no)).add_meta("split.count", Value::U16(count));
    w.add_meta("split.tensors.count", Value::I32(total));
    if let Some(arch) = arch {
        w.add_meta("general.architecture", arch);
    }
    for name in tensors {
        w.add_tensor(*name, [1], TensorType::F32, vec![0; 4]);
    }
    read(&w)
}

fn read(w: &Writer) -> Gguf {
    let bytes = w.to_bytes().unwrap();
    Gguf::read(&bytes[..], bytes.len() as u64).unwrap()
}

fn good() -> Vec<Gguf> {
    vec![part(0, 3, 4, &["a"], Some("llama")), part(1, 3, 4, &["b", "c"], None), part(2, 3, 4, &["d"], None)]
}

#[test]
fn parts_make_one_header() {
    let parts = good();
    assert_eq!(parts[1].split().unwrap(), Some(Split { no: 1, count: 3, tensors: 4 }));
    let len: u64 = parts.iter().map(|p| p.file_len).sum();
    let offsets: Vec<u64> = parts.iter().flat_map(|p| p.tensors.iter().map(|t| t.offset)).collect();
    let whole = Gguf::join(parts).unwrap();
    let found: Vec<_> = whole.tensors.iter().map(|t| (t.name.as_str(), t.part, t.offset)).collect();
    let expected: Vec<_> = ["a", "b", "c", "d"].into_iter().zip([0, 1, 1, 2]).zip(offsets).collect();
    assert_eq!(found, expected.into_iter().map(|((n, p), o)| (n, p, o)).collect::<Vec<_>>());
    assert_eq!(whole.tensor("d").unwrap().part, 2);
    assert_eq!((whole.architecture().unwrap(), whole.file_len), ("llama", len));
}

#[test]
fn a_model_in_one_file_is_no_part() {
    // Merged sets keep their keys, with a count of zero.
    assert_eq!(part(0, 0, 1, &["a"], None).split().unwrap(), None);
    assert_eq!(part(0, 1, 1, &["a"], None).split().unwrap(), None);
    assert_eq!(read(&Writer::new()).split().unwrap(), None);
    let error = part(3, 3, 1, &[], None).split().unwrap_err().to_string();
    assert!(error.contains("split.no"), "{error}");
    let mut w = Writer::new();
    w.add_meta("split.count", Value::U16(2)).add_meta("split.no", Value::U16(0));
    let error = read(&w).split().unwrap_err().to_string();
    assert!(error.contains("split.tensors.count"), "{error}");
    let mut w = Writer::new();
    w.add_meta("split.count", "three");
    assert!(read(&w).split().unwrap_err().to_string().contains("split.count"));
}

#[test]
fn parts_that_do_not_belong_are_named() {
    let with = |at: usize, gguf: Gguf| {
        let mut parts = good();
        parts[at] = gguf;
        Gguf::join(parts).unwrap_err()
    };
    let shown = |e: SplitError| (e.part, e.to_string());

    let mut plain = Writer::new();
    plain.add_tensor("b", [1], TensorType::F32, vec![0; 4]);
    let (at, text) = shown(with(1, read(&plain)));
    assert_eq!((at, text.as_str()), (1, "is no part of a split model, but takes the place of part 2 of 3"));
    assert_eq!(with(0, read(&plain)).part, 0);

    let (at, text) = shown(with(2, part(2, 4, 4, &["d"], None)));
    assert_eq!(at, 2);
    assert!(text.contains("another model") && text.contains("number of parts is 4"), "{text}");
    let (at, text) = shown(with(1, part(1, 3, 5, &["b", "c"], None)));
    assert_eq!(at, 1);
    assert!(text.contains("number of tensors is 5"), "{text}");
    let (at, text) = shown(with(1, part(1, 3, 4, &["b", "c"], Some("qwen2"))));
    assert_eq!(at, 1);
    assert!(text.contains("architecture is qwen2"), "{text}");

    // The same part twice, and two parts swapped.
    let (at, text) = shown(with(2, part(1, 3, 4, &["b", "c"], None)));
    assert_eq!((at, text.as_str()), (2, "is part 2 of the split model, at the place of part 3"));
    assert_eq!(with(0, part(2, 3, 4, &["d"], None)).part, 0);

    let error = with(2, part(2, 3, 4, &["b"], None));
    assert_eq!(error.problem, SplitProblem::Duplicate { tensor: "b".into(), earlier: 1 });
    assert_eq!(error.part, 2);
    let error = with(1, part(1, 3, 4, &["b"], None));
    assert_eq!(error.problem, SplitProblem::Tensors { expected: 4, found: 3 });

    let two = Gguf::join(good().into_iter().take(2).collect()).unwrap_err();
    assert_eq!(two.part, 0);
    assert_eq!(Gguf::join(vec![]).unwrap_err().part, 0);
}

#[test]
fn names_of_parts() {
    let name = PartName::parse("big-model-of-9-Q4_K_M-00002-of-00012.gguf").unwrap();
    assert_eq!((name.prefix.as_str(), name.no, name.count), ("big-model-of-9-Q4_K_M", 1, 12));
    assert_eq!(name.of_part(0), "big-model-of-9-Q4_K_M-00001-of-00012.gguf");
    assert_eq!(name.of_part(11), "big-model-of-9-Q4_K_M-00012-of-00012.gguf");
    for bad in [
        "model.gguf",
        "model-00000-of-00003.gguf",
        "model-00004-of-00003.gguf",
        "model-0001-of-0003.gguf",
        "model-00001-of-000+3.gguf",
        "model-00001-of-00003.bin",
        "00001-of-00003.gguf",
        "-of-.gguf",
    ] {
        assert_eq!(PartName::parse(bad), None, "{bad}");
    }
}
