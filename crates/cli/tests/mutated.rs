//! Damaged model files through the program: each runs, or ends with the exit code of an unusable model and a line
//! that says why. The library's test of the same name does this with many more.

mod common;

use common::{fails, output, stderr, write};
use minfer_testkit::tiny::{FAMILIES, TinySpec, mutate};

const FILES: u64 = 100;
const FAILED: i32 = 1;
const MODEL: i32 = 3;

#[test]
fn damaged_files_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let (mut ran, mut refused) = (0, 0);
    for seed in 0..FILES {
        let family = FAMILIES[seed as usize % FAMILIES.len()];
        let n_layer = family.shape.min_layers;
        let whole = TinySpec::new(family).with_vocab().with_layers(n_layer).to_bytes().unwrap();
        let damaged = mutate::mutation(&whole, 10_000 + seed);
        let path = write(folder.path(), "damaged.gguf", &damaged.bytes);
        let o =
            output(&["run", path.to_str().unwrap(), "--raw", "-p", "hi", "-n", "1", "-c", "64", "-t", "1"]);
        let case = format!("{}, {:?}: {}", family.name, damaged.changes, stderr(&o));
        match o.status.code() {
            Some(0) => ran += 1,
            // The prompt may not fit a context that became tiny, and -c be beyond it.
            Some(FAILED | 2) if case.contains("context") => ran += 1,
            Some(MODEL) => {
                refused += 1;
                let line = fails(&o, MODEL);
                assert!(line.contains("damaged.gguf") || line.contains('`'), "{case}");
            }
            other => panic!("exit code {other:?}: {case}"),
        }
    }
    assert!(ran > 5 && refused > 10, "{ran} ran, {refused} were refused");
}
