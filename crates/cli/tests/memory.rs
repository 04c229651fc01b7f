//! Too little memory for the weights: exit code 5 and the size, whatever the system says is free.
#![cfg(target_os = "linux")]

mod common;

use common::{fails, speaking, write};
use minfer_testkit::tiny::TinySpec;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MEMORY: i32 = 5;

/// Width of the feed-forward part: its matrices have 192 MiB each.
const WIDE: u64 = 1 << 19;

/// A model whose file has three large matrices, all of them holes. Its table of tensors is patched: nothing here has to
/// hold the bytes.
fn large_model(folder: &Path) -> PathBuf {
    let spec = TinySpec { tied: true, ..speaking().with_layers(1) };
    let mut model = spec.build().unwrap();
    model.set("llama.feed_forward_length", WIDE as u32);
    let mut bytes = model.to_bytes().unwrap();
    let small = bytes.len() as u64;
    let size = spec.shape.n_embd as u64 * WIDE * 4;
    let mut end = small.next_multiple_of(1 << 20);
    for name in ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"] {
        let at = bytes.windows(name.len()).position(|w| w == name.as_bytes()).unwrap() + name.len();
        // Two dimensions, the type, the offset.
        for dim in bytes[at + 4..at + 20].as_chunks_mut::<8>().0 {
            if *dim == (spec.shape.n_ff as u64).to_le_bytes() {
                *dim = WIDE.to_le_bytes();
            }
        }
        bytes[at + 24..at + 32].copy_from_slice(&end.to_le_bytes());
        end += size;
    }
    let path = write(folder, "large.gguf", &bytes);
    File::options().write(true).open(&path).unwrap().set_len(end + small).unwrap();
    path
}

/// What the program makes of an address space of so many KiB.
fn with_limit(kib: usize, path: &Path, load: &str) -> Output {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_minfer")]);
    shell.args(["run", path.to_str().unwrap(), "hi", "-n", "2", "-t", "1", "-c", "64", "--load", load]);
    // Each thread's arena would take address space, more or less of it by chance.
    shell.env("MALLOC_ARENA_MAX", "1").output().unwrap()
}

/// Whatever it is that gets no memory: weights, the mapped file, what is packed of it for a product, a step's buffers.
#[test]
fn too_little_memory_ends_with_5_and_the_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = large_model(folder.path());
    for load in ["read", "mmap"] {
        let mut ends = [0, 0];
        for mib in (150..900).step_by(25) {
            let output = with_limit(mib << 10, &path, load);
            let worked = output.status.success();
            ends[usize::from(worked)] += 1;
            if !worked {
                let line = fails(&output, MEMORY);
                let sizes = ["bytes", " MB", " MiB"];
                assert!(sizes.iter().any(|s| line.contains(s)), "{load}, {mib} MiB: {line}");
            }
        }
        // Else the limits show nothing.
        assert!(ends[0] > 0 && ends[1] > 0, "{load}: {ends:?}");
    }
}

/// Limits that leave hardly anything but for the program itself: no small allocation ends it without a word.
#[test]
fn small_allocations_have_room_or_the_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "small.gguf", &speaking().to_bytes().unwrap());
    let mut ends = [0, 0];
    for mib in (40..200).step_by(4) {
        let output = with_limit(mib << 10, &path, "read");
        let worked = output.status.success();
        ends[usize::from(worked)] += 1;
        if !worked {
            let line = fails(&output, MEMORY);
            assert!(line.contains(" MiB"), "{mib} MiB: {line}");
        }
    }
    assert!(ends[0] > 0 && ends[1] > 0, "{ends:?}");
}
