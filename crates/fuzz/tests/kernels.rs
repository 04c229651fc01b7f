//! A fixed number of random products and attentions.

use minfer_cpu::Isa;
use minfer_fuzz::{Limits, kernels};

#[test]
fn kernels_follow_the_contract_to_the_bit() {
    let limits = Limits { first: 0, cases: 500, time: None, threads: 2 };
    let coverage = kernels::run(limits).unwrap_or_else(|(seed, why)| panic!("seed {seed}: {why}"));
    // Every type, both ways to keep weights, every instruction set.
    assert_eq!(coverage.products.len(), 16, "{coverage}");
    assert!(coverage.native > 50 && coverage.attentions == 100, "{coverage}");
    assert_eq!(coverage.isas.len(), Isa::available().len(), "{coverage}");
}
