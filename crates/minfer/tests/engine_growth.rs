//! Many requests leave nothing behind. One test, because the process is measured.

mod common;
mod engine_support;

use common::ids;
use engine_support::{ask, model, options, send, settle, start};
use minfer::engine::{EngineOptions, Request};
use minfer_testkit::rng::Rng;

/// Ten thousand requests leave nothing behind but what the prefix cache may hold.
#[test]
fn ten_thousand_requests_leave_nothing() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, EngineOptions { kv_pages: Some(24), max_queue: 64, ..options() });
    let mut rng = Rng::new(1);
    let mut resident = None;
    for round in 0..200 {
        let streams: Vec<_> = (0..50)
            .map(|i| {
                let prompt = ids(1 + rng.below(90), n_vocab, rng.below(30));
                send(
                    &engine,
                    Request {
                        client: i % 5,
                        n: 1 + (i % 7) as usize / 6,
                        ..ask(&prompt, 1.0, 1 + i as usize % 4)
                    },
                )
            })
            .collect();
        streams.into_iter().for_each(|stream| {
            stream.whole().end.unwrap();
        });
        if round == 20 {
            resident = resident_bytes();
        }
    }
    settle(&engine);
    assert_eq!(engine.stats().pages_running, 0);
    if let (Some(before), Some(after)) = (resident, resident_bytes()) {
        assert!(after < before + (16 << 20), "{before} then {after} bytes");
    }
}

/// Bytes of the process in memory, where the system says.
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split_whitespace().nth(1)?.parse::<usize>().ok()? * 4096)
}
