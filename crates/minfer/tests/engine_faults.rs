//! Clients that go away, panics and broken models: neighbours never notice.

mod common;
mod engine_support;

use common::ids;
use engine_support::{Heard, ask, model, one, options, send, settle, start};
use minfer::ErrorKind;
use minfer::engine::{EngineOptions, Event, Request};
use minfer_testkit::rng::Rng;
use minfer_testkit::tiny::TinySpec;
use std::time::Duration;

/// Clients go in the queue, while their prompt is read, and while they are answered, by their ticket or by no longer listening.
#[test]
fn two_hundred_clients_that_go_change_no_neighbour() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let options = EngineOptions { max_running: 4, kv_pages: Some(20), ..options() };
    let engine = start(&model, options);
    let prompts: Vec<_> = (0..4).map(|i| ids(30 + 40 * i, n_vocab, i)).collect();
    let request = |i: usize| Request { client: 9, ..ask(&prompts[i % 4], 1.0, 60) };
    let alone: Vec<Heard> = (0..4).map(|i| one(&engine, request(i))).collect();
    let mut rng = Rng::new(5);
    let mut killed = 0;
    while killed < 200 {
        let streams: Vec<_> = (0..2).map(|i| send(&engine, request(killed + i))).collect();
        for i in 0..10 {
            let (n, salt) = (1 + rng.below(400), rng.below(1000));
            let victim =
                Request { client: i % 3, n: 1 + rng.below(3), ..ask(&ids(n, n_vocab, salt), 0.7, 90) };
            let mut stream = send(&engine, victim);
            std::thread::sleep(Duration::from_micros(rng.below(8000) as u64));
            match rng.below(3) {
                0 => drop(stream.events),
                1 => drop(stream.ticket.take()),
                _ => stream.ticket.iter().for_each(minfer::engine::Ticket::cancel),
            }
            if rng.below(2) == 0 {
                // Held until later: the ticket alone must do.
                std::mem::forget(stream.ticket);
            }
            killed += 1;
        }
        for (i, stream) in streams.into_iter().enumerate() {
            let whole = stream.whole();
            assert_eq!(whole.answers[0], alone[(killed - 10 + i) % 4]);
            whole.end.unwrap();
        }
    }
    let gone = std::time::Instant::now();
    settle(&engine);
    assert!(gone.elapsed() < Duration::from_secs(1), "{:?}", gone.elapsed());
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages_running, stats.healthy), (0, 0, 0, true));
    assert_eq!(one(&engine, request(0)), alone[0]);
}

/// R52: those in the step hear of it, the engine lives on.
#[test]
fn a_panic_fails_its_step_and_the_next_request_works() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, EngineOptions { max_running: 2, ..options() });
    let prompt = ids(100, n_vocab, 1);
    let alone = one(&engine, ask(&prompt, 1.0, 50));
    for _ in 0..3 {
        let running = send(&engine, ask(&prompt, 1.0, 400));
        running.until(|event| matches!(event, Event::Token { .. }));
        let queued: Vec<_> = (0..3).map(|_| send(&engine, ask(&prompt, 1.0, 50))).collect();
        engine.panic_next_step();
        let failure = running.whole().end.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Internal);
        assert!(failure.message.contains("a test asked for it"), "{}", failure.message);
        // Those that waited run, or had been let in already and failed with it.
        for stream in queued {
            let whole = stream.whole();
            assert!(whole.end.is_err() || whole.answers[0] == alone);
        }
        assert_eq!(one(&engine, ask(&prompt, 1.0, 50)), alone);
        assert!(engine.stats().healthy);
    }
    settle(&engine);
    assert_eq!(engine.stats().pages_running, 0);
}

#[test]
fn logits_that_are_no_numbers_fail_their_request_alone_and_are_not_kept() {
    // A token whose embedding is NaN: whoever says it gets NaN, whoever does not gets none.
    let mut tiny = TinySpec::llama().with_vocab().build().unwrap();
    let embed = tiny.tensor_mut("token_embd.weight").unwrap();
    let width = usize::try_from(embed.dims[0]).unwrap();
    let bad = 40;
    embed.bytes[bad * width * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = common::on_disk(&tiny.to_bytes().unwrap());
    let model = common::load(&file, 2);
    let engine = start(&model, options());
    let mut poisoned: Vec<u32> = (0..130).map(|i| 50 + i % 60).collect();
    let healthy = poisoned.clone();
    poisoned[70] = bad as u32;
    let asked = |prompt: &[u32]| {
        let mut request = ask(prompt, 1.0, 30);
        request.sampling.logit_bias = vec![minfer::LogitBias::ban(bad as u32)];
        request
    };
    let alone = one(&engine, asked(&healthy));
    for _ in 0..3 {
        let (good, evil) = (send(&engine, asked(&healthy)), send(&engine, asked(&poisoned)));
        assert_eq!(good.whole().answers[0], alone);
        let failure = evil.whole().end.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NonFinite, "{}", failure.message);
    }
    settle(&engine);
    let stats = engine.stats();
    assert_eq!(stats.pages_running, 0);
    assert!(stats.healthy);
}
