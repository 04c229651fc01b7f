//! Split models: they load from the path of any part, to the same bits, and bad sets name the file.

mod common;

use common::{ids, session};
use minfer::{Batch, Control, ErrorKind, LoadMode, LoadOptions, Model, ModelFile, Wanted};
use minfer_gguf::{TensorType, Value};
use minfer_testkit::tiny::{TinyModel, TinySpec, Types};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const COUNT: usize = 3;

fn tiny() -> TinyModel {
    TinySpec::llama().wide().with_types(Types::all(TensorType::Q3K)).build().unwrap()
}

/// The parts of a model: metadata in the first, every third tensor in each.
fn parts(model: &TinyModel) -> Vec<TinyModel> {
    let part = |no: usize| {
        let metadata = if no == 0 { model.metadata.clone() } else { vec![] };
        let tensors = model.tensors.iter().skip(no).step_by(COUNT).cloned().collect();
        let mut part = TinyModel { metadata, tensors };
        part.set("split.no", Value::U16(no as u16));
        part.set("split.count", Value::U16(COUNT as u16));
        part.set("split.tensors.count", Value::I32(model.tensors.len() as i32));
        part
    };
    (0..COUNT).map(part).collect()
}

fn path_of(folder: &Path, no: usize) -> PathBuf {
    folder.join(format!("tiny-{:05}-of-{COUNT:05}.gguf", no + 1))
}

fn write(parts: &[TinyModel]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (no, part) in parts.iter().enumerate() {
        part.write_to(&path_of(folder.path(), no)).unwrap();
    }
    folder
}

fn last_row(path: &Path, load: LoadMode) -> Vec<u32> {
    let options = LoadOptions { threads: Some(1), load, ..LoadOptions::default() };
    let model = Model::load(path, options).unwrap();
    let mut session = session(&model, 64, 1);
    let mut batch = Batch::new();
    let seq = session.new_sequence().unwrap();
    batch.add(seq, &ids(20, model.spec().n_vocab, 1), Wanted::Last);
    let logits = session.step(&batch, &Control::default()).unwrap();
    logits.row(0).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn any_part_stands_for_the_model() {
    let whole = common::on_disk(&tiny().to_bytes().unwrap());
    let expected = last_row(&whole.path, LoadMode::Read);
    let folder = write(&parts(&tiny()));
    for no in 0..COUNT {
        for mode in [LoadMode::Read, LoadMode::Mmap] {
            assert_eq!(last_row(&path_of(folder.path(), no), mode), expected, "part {no} {mode:?}");
        }
    }
    let file = ModelFile::open(&path_of(folder.path(), 2)).unwrap();
    assert_eq!(file.parts(), (0..COUNT).map(|no| path_of(folder.path(), no)).collect::<Vec<_>>());
    assert_eq!(file.path(), path_of(folder.path(), 2));
    assert_eq!(file.gguf().tensors.len(), tiny().tensors.len());
}

/// Opens every part and expects an error about part `at` that mentions `text`.
fn refused(folder: &Path, at: usize, text: &str) {
    let at = path_of(folder, at);
    let name = at.file_name().unwrap().to_str().unwrap();
    for no in (0..COUNT).filter(|&no| path_of(folder, no).exists()) {
        let error = ModelFile::open(&path_of(folder, no)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model);
        let message = error.to_string();
        assert!(message.contains(name) && message.contains(text), "from part {no}: {message}");
    }
}

#[test]
fn a_missing_part_is_named() {
    for no in 0..COUNT {
        let folder = write(&parts(&tiny()));
        std::fs::remove_file(path_of(folder.path(), no)).unwrap();
        refused(folder.path(), no, &format!("part {} of 3", no + 1));
    }
}

#[test]
fn a_repeated_part_is_named() {
    let folder = write(&parts(&tiny()));
    std::fs::copy(path_of(folder.path(), 1), path_of(folder.path(), 2)).unwrap();
    refused(folder.path(), 2, "is part 2 of the split model, at the place of part 3");
}

#[test]
fn foreign_parts_are_named() {
    type Change = fn(&mut TinyModel);
    let changes: [(&str, Change); 6] = [
        ("number of parts is 4", |m| m.set("split.count", Value::U16(4))),
        ("number of tensors is 7", |m| m.set("split.tensors.count", Value::I32(7))),
        ("architecture is qwen2", |m| m.set("general.architecture", "qwen2")),
        ("key \"llama.block_count\" is 77", |m| m.set("llama.block_count", Value::U32(77))),
        ("no part of a split model", |m| m.metadata.clear()),
        ("split.no", |m| m.set("split.no", "one")),
    ];
    for (text, change) in changes {
        let mut parts = parts(&tiny());
        change(&mut parts[1]);
        let folder = write(&parts);
        // Opened by itself a whole model is no part, and is refused for what it lacks.
        let alone = path_of(folder.path(), 1);
        if text.starts_with("no part") {
            assert_eq!(ModelFile::open(&alone).unwrap().parts().len(), 1);
            let error = ModelFile::open(&path_of(folder.path(), 0)).map(drop).unwrap_err().to_string();
            assert!(error.contains("tiny-00002-of-00003.gguf") && error.contains(text), "{error}");
        } else {
            refused(folder.path(), 1, text);
        }
    }
}

#[test]
fn a_duplicate_tensor_and_a_lost_one_are_named() {
    let model = tiny();
    let mut twice = parts(&model);
    let name = twice[0].tensors[1].name.clone();
    twice[2].tensors[0] = twice[0].tensors[1].clone();
    let folder = write(&twice);
    refused(folder.path(), 2, &name);

    let mut lost = parts(&model);
    lost[2].tensors.pop();
    let folder = write(&lost);
    refused(folder.path(), 0, &format!("hold {} tensors", model.tensors.len() - 1));
}

#[test]
fn a_part_under_another_name_is_explained() {
    let folder = write(&parts(&tiny()));
    let path = folder.path().join("renamed.gguf");
    std::fs::copy(path_of(folder.path(), 1), &path).unwrap();
    let error = ModelFile::open(&path).map(drop).unwrap_err().to_string();
    assert!(error.contains("renamed.gguf") && error.contains("-00002-of-00003.gguf"), "{error}");
}
