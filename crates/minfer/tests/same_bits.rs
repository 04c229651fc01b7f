//! A token's logits do not depend on threads, chunks, the rest of the batch, or which rows are wanted.

mod common;

use common::{ids, load, on_disk, session, session_with, tiny};
use minfer::{Batch, Control, KvType, KvTypes, Model, Session, Wanted};
use minfer_testkit::compare::centred_nmse;
use minfer_testkit::golden;
use minfer_testkit::naive::{Fault, NaiveModel};
use minfer_testkit::tiny::FAMILIES;

fn all_logits(model: &Model, tokens: &[u32], n_batch: usize) -> Vec<f32> {
    logits_of(session(model, n_batch, 1), tokens)
}

fn logits_of(mut session: Session, tokens: &[u32]) -> Vec<f32> {
    let seq = session.new_sequence().unwrap();
    let mut rows = Vec::new();
    session
        .evaluate(seq, tokens, &Control::default(), &mut |_, row| {
            rows.extend_from_slice(row);
            Ok(())
        })
        .unwrap();
    rows
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

/// R13: every family against a pass in f64 without cache, graph or threads.
#[test]
fn engine_agrees_with_the_naive_model() {
    for family in FAMILIES.map(|f| f.name) {
        let file = tiny(family);
        let model = load(&file, 2);
        let tokens = ids(100, model.spec().n_vocab, 1);
        let ours = all_logits(&model, &tokens, 64);
        let naive = NaiveModel::parse(&std::fs::read(&file.path).unwrap()).unwrap().with_context(256);
        // A GELU of half precision may now and then round the other way.
        let (same_gelu, limit) =
            if family.starts_with("gemma") { (Some(Fault::HalfGelu), 1e-7) } else { (None, 1e-9) };
        let truth = naive.logits(&tokens, same_gelu).unwrap();
        let error = centred_nmse(&truth, &ours, model.spec().n_vocab);
        assert!(error < limit, "{family}: {error:e}");
    }
}

/// R138: where llama.cpp keeps to the architecture's definition the engine gives its results.
#[test]
fn engine_agrees_with_the_recordings() {
    let mut compared = 0;
    for fixture in golden::fixtures().unwrap() {
        let quantised = fixture.spec.types.attn.is_quantized();
        if fixture.tolerance.is_none() {
            continue;
        }
        compared += 1;
        let file = on_disk(&fixture.spec.to_bytes().unwrap());
        let golden = &fixture.golden;
        let ours = all_logits(&load(&file, 2), &golden.tokens, 40);
        let error = centred_nmse(&golden.log_probs, &ours, golden.n_vocab);
        let limit = if quantised { 2e-3 } else { golden::TOLERANCE };
        assert!(error < limit, "{}: {error:e}", fixture.name);
    }
    assert_eq!(compared, 20);
}

#[test]
fn threads_and_chunks_change_no_bit() {
    for family in FAMILIES.map(|f| f.name) {
        let file = tiny(family);
        let model = load(&file, 1);
        let tokens = ids(150, model.spec().n_vocab, 2);
        let whole = all_logits(&model, &tokens, 200);
        for n_batch in [1, 7, 64] {
            assert!(
                same_bits(&whole, &all_logits(&model, &tokens, n_batch)),
                "{family}, chunks of {n_batch}"
            );
        }
        for threads in [2, 3] {
            let model = load(&file, threads);
            assert!(same_bits(&whole, &all_logits(&model, &tokens, 33)), "{family}, {threads} threads");
        }
    }
}

#[test]
fn threads_and_chunks_change_no_bit_in_any_cache_type() {
    let file = tiny("llama");
    let tokens = ids(150, load(&file, 1).spec().n_vocab, 2);
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for k in KvType::ALL {
        for v in KvType::ALL {
            let run = |threads, n_batch| {
                logits_of(session_with(&load(&file, threads), n_batch, 1, KvTypes { k, v }), &tokens)
            };
            let whole = run(1, 200);
            for (threads, n_batch) in [(1, 1), (1, 64), (2, 7), (2, 200), (3, 33)] {
                assert!(same_bits(&whole, &run(threads, n_batch)), "{k}, {v}: {threads}, {n_batch}");
            }
            // Each pair of types is a rounding of its own.
            assert!(seen.iter().all(|other| !same_bits(other, &whole)), "{k}, {v}");
            seen.push(whole);
        }
    }
    // All of them are close to f32; 8 bits are 1/127 of a block's largest value apart.
    let exact = &seen[4];
    for other in &seen {
        assert!(centred_nmse(exact, other, exact.len() / tokens.len()) < 1e-3);
    }
}

/// R137: the head on one row or on all.
#[test]
fn last_row_alone_equals_that_row_of_all() {
    let file = tiny("qwen2");
    let model = load(&file, 2);
    let tokens = ids(70, model.spec().n_vocab, 3);
    let all = all_logits(&model, &tokens, 64);
    let n_vocab = model.spec().n_vocab;
    for n_batch in [16, 128] {
        for wanted in [Wanted::Last, Wanted::All] {
            let mut session = session(&model, n_batch, 1);
            let seq = session.new_sequence().unwrap();
            let mut batch = Batch::new();
            batch.add(seq, &tokens, wanted);
            let logits = session.step(&batch, &Control::default()).unwrap();
            let expected_rows = if wanted == Wanted::Last { 1 } else { tokens.len() };
            assert_eq!(logits.len(), expected_rows);
            for i in 0..logits.len() {
                let (_, position) = logits.origin(i);
                assert!(
                    same_bits(logits.row(i), &all[position * n_vocab..][..n_vocab]),
                    "row {i}, {wanted:?}"
                );
            }
        }
    }
}

#[test]
fn neighbours_in_the_batch_change_no_bit() {
    let file = tiny("llama");
    let model = load(&file, 2);
    let n_vocab = model.spec().n_vocab;
    let texts: Vec<Vec<u32>> = (0..3).map(|s| ids(40 + 17 * s, n_vocab, s)).collect();
    let alone: Vec<Vec<f32>> = texts.iter().map(|t| all_logits(&model, t, 64)).collect();
    for n_batch in [9, 256] {
        let mut session = session(&model, n_batch, 3);
        let seqs: Vec<_> = texts.iter().map(|_| session.new_sequence().unwrap()).collect();
        // Two rounds, so that pages of the sequences interleave.
        let mut logits = vec![Vec::new(); 3];
        for half in 0..2 {
            let mut batch = Batch::new();
            for (seq, text) in seqs.iter().zip(&texts) {
                let cut = text.len() / 2;
                let part = if half == 0 { &text[..cut] } else { &text[cut..] };
                batch.add(*seq, part, Wanted::All);
            }
            let out = session.step(&batch, &Control::default()).unwrap();
            for i in 0..out.len() {
                let slot = seqs.iter().position(|&s| s == out.origin(i).0).unwrap();
                logits[slot].extend_from_slice(out.row(i));
            }
        }
        for (slot, got) in logits.iter().enumerate() {
            assert!(same_bits(&alone[slot], got), "sequence {slot}, steps of {n_batch}");
        }
    }
}

#[test]
fn pages_of_an_ended_sequence_do_no_harm() {
    let file = tiny("qwen2");
    let model = load(&file, 2);
    let n_vocab = model.spec().n_vocab;
    let tokens = ids(90, n_vocab, 5);
    let fresh = all_logits(&model, &tokens, 64);
    let mut session = session(&model, 64, 2);
    let first = session.new_sequence().unwrap();
    let mut batch = Batch::new();
    batch.add(first, &ids(200, n_vocab, 9), Wanted::Last);
    session.step(&batch, &Control::default()).unwrap();
    session.remove_sequence(first).unwrap();
    let second = session.new_sequence().unwrap();
    let mut again = Vec::new();
    session
        .evaluate(second, &tokens, &Control::default(), &mut |_, row| {
            again.extend_from_slice(row);
            Ok(())
        })
        .unwrap();
    assert!(same_bits(&fresh, &again));
}
