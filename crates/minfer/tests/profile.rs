//! What profiles add up is what the forecasts count, and watching changes no bit.

mod common;

use common::{ids, load, session, tiny};
use minfer::graph::NodeRun;
use minfer::{Batch, Control, KvType, OpCost, OpProfile, TokenWork, Wanted};
use minfer_testkit::tiny::FAMILIES;
use std::time::Duration;

const PAST: usize = 90;

/// A step of one token behind [`PAST`] others, watched.
fn profile(family: &str) -> (Vec<OpCost>, TokenWork) {
    let model = load(&tiny(family), 1);
    let tokens = ids(PAST + 1, model.spec().n_vocab, 5);
    let step = |watch: &OpProfile, from: usize| {
        let mut session = session(&model, 512, 1);
        let seq = session.new_sequence().unwrap();
        let observe = |run: &NodeRun<'_>, extents: &[i32]| watch.observe(run, extents);
        let mut logits = Vec::new();
        for (i, part) in [&tokens[..PAST], &tokens[PAST..]].into_iter().enumerate() {
            let mut batch = Batch::new();
            batch.add(seq, part, Wanted::Last);
            let observe = (i >= from).then_some(&observe as _);
            logits =
                session.step(&batch, &Control { observe, ..Control::default() }).unwrap().row(0).to_vec();
        }
        logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let kv = KvType::F32.into();
    let (watched, never) = (OpProfile::new(kv), OpProfile::new(kv));
    assert_eq!(step(&watched, 1), step(&never, 2), "{family}");
    assert_eq!(never.costs(), []);
    (watched.costs(), TokenWork::of(model.spec(), kv, PAST + 1))
}

#[test]
fn costs_of_a_token_are_the_forecast_s_work() {
    for family in FAMILIES.map(|f| f.name) {
        let (costs, work) = profile(family);
        let sum = |of: fn(&OpCost) -> f64| costs.iter().filter(|c| c.op != "Embed").map(of).sum::<f64>();
        let products = work.block_products + work.head_products + work.attention;
        assert_eq!(sum(|c| c.multiply_adds), products, "{family}: {costs:#?}");
        let bytes = work.block_bytes + work.head_bytes + work.kv_bytes;
        assert!((sum(|c| c.bytes) - bytes).abs() < 1.0, "{family}: {} {bytes}", sum(|c| c.bytes));
        assert!(costs.iter().all(|c| c.calls > 0 && c.took > Duration::ZERO), "{costs:#?}");
        assert!(costs.is_sorted_by(|a, b| a.took >= b.took));
    }
}

#[test]
fn kinds_are_told_apart_by_types_and_sizes() {
    let (costs, _) = profile("llama");
    let mut kinds: Vec<_> = costs.iter().map(|c| (c.op, c.of.as_str())).collect();
    let all = kinds.len();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), all);
    assert!(kinds.iter().filter(|(op, _)| *op == "MatMulAdd").count() > 1, "{kinds:?}");
    assert!(kinds.iter().any(|(op, of)| *op == "Attention" && of.contains("heads of")), "{kinds:?}");
}
