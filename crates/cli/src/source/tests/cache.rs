//! `list`, `rm` and files that the user put into the cache.

use super::super::{list, remove};
use super::*;
use std::fs::File;

/// A cache with one fetched model.
fn filled() -> (Bench, ModelSpec, Vec<u8>) {
    let bytes = model(3000);
    let served = bytes.clone();
    let server = Server::start(move |_, _| Reply::ok(&served));
    let bench = Bench::new(&server.url());
    let spec = entry(&bytes, vec![HF]);
    bench.resolve(&spec).unwrap();
    (bench, spec, bytes)
}

/// A child that is being started shares this process's open files, as the second handle here does: the lock looks
/// taken until the child becomes its program. That is waited for; a process that keeps the lock is named.
#[test]
fn a_lock_that_is_held_for_a_moment_is_waited_for() {
    let (bench, ..) = filled();
    let lock = File::options().write(true).open(bench.cached(".locks/test.gguf")).unwrap();
    lock.lock().unwrap();
    let inherited = lock.try_clone().unwrap();
    drop(lock);
    assert!(matches!(remove("test:1m", &bench.opts), Err(SourceError::Busy(_))));
    let child = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        drop(inherited);
    });
    assert_eq!(remove("test:1m", &bench.opts).unwrap(), [bench.cached("test.gguf")]);
    child.join().unwrap();
}

#[test]
fn list_and_remove() {
    let (bench, _, bytes) = filled();
    std::fs::write(bench.cached("mine.gguf"), b"GGUF mine").unwrap();
    std::fs::write(bench.cached("other.txt"), b"").unwrap();
    std::fs::write(bench.cached("broken.gguf.part"), b"GGUF").unwrap();
    let models = list(&bench.opts).unwrap();
    let names: Vec<&str> = models.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["mine.gguf", "test:1m"]);
    assert_eq!((models[1].size, models[1].sha256.as_deref()), (3000, Some(sha256(&bytes).as_str())));
    assert_eq!(models[1].source.as_deref(), Some("hf:owner/repo/dir/a b.gguf"));
    assert!(models[1].modified.starts_with("20") && models[1].modified.ends_with('Z'));
    let json = serde_json::to_value(&models).unwrap();
    assert_eq!(json[0]["path"], bench.cached("mine.gguf").to_str().unwrap());

    assert_eq!(remove("test:1m", &bench.opts).unwrap(), [bench.cached("test.gguf")]);
    remove("mine.gguf", &bench.opts).unwrap();
    remove("broken.gguf", &bench.opts).unwrap();
    assert!(!bench.cached("broken.gguf.part").exists() && !bench.cached("test.gguf.json").exists());
    bench.assert_nothing_final();
    for absent in ["test:1m", "../mine.gguf", "other.txt", ""] {
        assert!(matches!(remove(absent, &bench.opts), Err(SourceError::NotCached(_))), "{absent}");
    }
    assert!(bench.cached("other.txt").exists());
}

#[test]
fn a_missing_folder_is_an_empty_cache() {
    let bench = Bench::new("http://unused");
    assert_eq!(list(&bench.opts).unwrap(), []);
    assert!(matches!(remove("smollm2", &bench.opts), Err(SourceError::NotCached(_))));
    assert!(!bench.opts.cache_dir.exists(), "asking makes no folder");
}

#[test]
fn a_file_put_there_by_hand_is_taken_if_it_is_the_right_one() {
    let (mut bench, spec, bytes) = filled();
    std::fs::remove_file(bench.cached("test.gguf.json")).unwrap();
    bench.opts.offline = true;
    assert!(bench.resolve(&spec).is_ok());
    assert!(bench.cached("test.gguf.json").exists(), "it is hashed once and remembered");
    std::fs::remove_file(bench.cached("test.gguf.json")).unwrap();
    let mut wrong = bytes.clone();
    wrong[2000] ^= 1;
    for bad in [&wrong[..], &bytes[..2999]] {
        std::fs::write(bench.cached("test.gguf"), bad).unwrap();
        assert!(matches!(bench.resolve(&spec), Err(SourceError::Offline { .. })));
    }
    bench.opts.offline = false;
    assert_eq!(std::fs::read(bench.resolve(&spec).unwrap()).unwrap(), bytes);
}

#[test]
fn an_unusable_folder_is_an_error_that_names_it() {
    let (mut bench, spec, _) = filled();
    bench.opts.cache_dir = bench.cached("test.gguf");
    let error = bench.resolve(&spec).unwrap_err();
    assert!(matches!(error, SourceError::Io { .. }) && error.to_string().contains("test.gguf"), "{error}");
}
