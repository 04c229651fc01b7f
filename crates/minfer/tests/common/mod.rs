//! Tiny models on disk for the tests of the library.
#![allow(dead_code, reason = "each test file uses a part")]

use minfer::{KvType, KvTypes, LoadOptions, Model, Session, SessionOptions};
use minfer_testkit::tiny::TinySpec;
use std::path::PathBuf;
use tempfile::TempDir;

/// A model file in a folder that goes away with it.
pub struct OnDisk {
    _folder: TempDir,
    pub path: PathBuf,
}

pub fn on_disk(bytes: &[u8]) -> OnDisk {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    OnDisk { _folder: folder, path }
}

pub fn tiny(family: &str) -> OnDisk {
    on_disk(&TinySpec::named(family).unwrap().to_bytes().unwrap())
}

pub fn load(file: &OnDisk, threads: usize) -> Model {
    let options = LoadOptions { threads: Some(threads), ..LoadOptions::default() };
    Model::load(&file.path, options).unwrap()
}

pub fn session(model: &Model, n_batch: usize, max_seqs: usize) -> Session {
    session_with(model, n_batch, max_seqs, KvType::F32.into())
}

pub fn session_with(model: &Model, n_batch: usize, max_seqs: usize, kv_types: KvTypes) -> Session {
    let n_ctx = 256;
    Session::new(model, SessionOptions { n_ctx, n_batch, max_seqs, kv_types, ..Default::default() }).unwrap()
}

/// Ids that visit the vocabulary in no simple order.
pub fn ids(n: usize, n_vocab: usize, salt: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + i * 7 + salt * 13) % n_vocab) as u32).collect()
}
