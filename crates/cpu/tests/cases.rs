//! The testkit's op cases, against its f64 interpreter, on every instruction set with one and several threads.

use minfer_cpu::{CpuBackend, CpuOptions, Isa};
use minfer_testkit::cases::{CaseError, all_cases, check, error_cases, run_case};

fn backends() -> Vec<(String, CpuBackend)> {
    let mut list = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = CpuOptions { threads: Some(threads), isa: Some(isa) };
            list.push((format!("{isa}, {threads} threads"), CpuBackend::new(options)));
        }
    }
    list
}

#[test]
fn every_op_case_is_within_its_tolerance() {
    let cases = all_cases();
    assert!(cases.len() > 400, "{} cases", cases.len());
    for (name, mut backend) in backends() {
        for case in &cases {
            check(case, &mut backend).unwrap_or_else(|e| panic!("{}, {name}: {e}", case.name));
        }
    }
}

#[test]
fn bad_indices_are_errors_of_the_backend() {
    for (name, mut backend) in backends() {
        for case in error_cases() {
            let result = run_case(&case, &mut backend);
            assert!(matches!(result, Err(CaseError::Backend { .. })), "{}, {name}", case.name);
        }
    }
}
