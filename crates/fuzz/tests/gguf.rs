//! A fixed number of damaged model files.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

#[test]
fn damaged_files_run_or_are_refused_by_name() {
    let tally = minfer_fuzz::gguf::run(&ALLOC, 0, 5000, None).unwrap_or_else(|e| panic!("{e}"));
    // Both ways out are taken, and some files run by ids only.
    assert!(tally.ran > 500 && tally.refused > 2000 && tally.without_text > 50, "{tally}");
}
