//! Requests to an engine get what they would get alone.

mod common;
mod engine_support;

use common::ids;
use engine_support::{ask, model, one, options, send, settle, start, try_send};
use minfer::engine::{EngineOptions, Event, Refusal, Request};
use minfer::{
    Constraint, ConstraintFactory, Control, Error, ErrorKind, Finish, GenerateOptions, KvType, Model,
    Sampler, SamplerConfig, Session, SessionOptions, TokenMask, generate,
};
use minfer_testkit::tiny::TinySpec;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

fn generated(model: &Model, request: &Request) -> (String, Vec<u32>, Finish) {
    let options = SessionOptions { n_ctx: 512, n_batch: 32, ..Default::default() };
    let mut session = Session::new(model, options).unwrap();
    let seq = session.new_sequence().unwrap();
    let mut sampler = Sampler::new(request.sampling.clone()).unwrap();
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        stop: request.stop.clone(),
        ignore_eos: request.ignore_eos,
        show_control: request.show_control,
    };
    let control = Control::default();
    let answer =
        generate(&mut session, seq, &request.prompt, &mut sampler, &options, &control, &mut |_| {}).unwrap();
    (answer.text, answer.tokens, answer.finish)
}

#[test]
fn an_engine_answers_as_generate_does() {
    let (_file, model) = model();
    let engine = start(&model, options());
    let n_vocab = model.spec().n_vocab;
    let mut prompts: Vec<Vec<u32>> = [1, 5, 63, 64, 65, 200].map(|n| ids(n, n_vocab, n)).into();
    prompts.push(ids(512, n_vocab, 3));
    prompts.push(ids(505, n_vocab, 4));
    for (i, prompt) in prompts.iter().enumerate() {
        for temperature in [0.0, 1.0] {
            for ignore_eos in [true, false] {
                let mut request = Request { ignore_eos, ..ask(prompt, temperature, 40) };
                if i % 2 == 0 {
                    request.sampling.repeat_penalty = 1.3;
                    request.show_control = true;
                }
                let (text, tokens, finish) = generated(&model, &request);
                let heard = one(&engine, request);
                assert_eq!((&heard.text, &heard.finish), (&text, &Some(finish.clone())), "{i}");
                let without_end = tokens.len() - usize::from(matches!(finish, Finish::EndToken(_)));
                assert_eq!(heard.ids, tokens[..without_end], "{i}");
            }
        }
    }
}

#[test]
fn stop_strings_end_an_answer_as_in_generate() {
    let (_file, model) = model();
    let engine = start(&model, options());
    let prompt = ids(20, model.spec().n_vocab, 9);
    let plain = one(&engine, ask(&prompt, 1.0, 60));
    let chars: Vec<char> = plain.text.chars().collect();
    for at in [3, 10, 17] {
        // From the middle of one token into the next.
        let stop: String = chars[at..at + 4].iter().collect();
        let request = Request { stop: vec!["never there".into(), stop], ..ask(&prompt, 1.0, 60) };
        let (text, _, finish) = generated(&model, &request);
        let heard = one(&engine, request);
        assert_eq!((heard.text, heard.finish), (text, Some(finish)));
    }
}

#[test]
fn eight_equal_requests_give_one_text_alone_together_and_in_a_crowd() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let prompt = ids(70, n_vocab, 1);
    for temperature in [0.0, 1.0] {
        let alone: Vec<_> = {
            let engine = start(&model, options());
            (0..2).map(|_| one(&engine, ask(&prompt, temperature, 50))).collect()
        };
        assert_eq!(alone[0], alone[1]);
        let engine = start(&model, EngineOptions { prefix_cache: temperature == 0.0, ..options() });
        let together: Vec<_> = (0..8).map(|_| send(&engine, ask(&prompt, temperature, 50))).collect();
        for stream in together {
            assert_eq!(stream.whole().answers, alone[..1]);
        }
        let mut crowd = Vec::new();
        for i in 0..8 {
            let noise = |n, salt| Request { client: 1, ..ask(&ids(n, n_vocab, salt), 0.8, 7 + n % 30) };
            crowd.push((false, send(&engine, noise(1 + 37 * i, i))));
            crowd.push((true, send(&engine, Request { client: 2, ..ask(&prompt, temperature, 50) })));
            crowd.push((false, send(&engine, noise(300 - 30 * i, 100 + i))));
        }
        for (ours, stream) in crowd {
            let whole = stream.whole();
            whole.end.unwrap();
            assert!(!ours || whole.answers == alone[..1]);
        }
        settle(&engine);
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.pages_running), (0, 0, 0));
    }
}

#[test]
fn the_prefix_cache_changes_no_bit_and_spares_the_second_turn() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let first = ids(150, n_vocab, 2);
    let (with, without) =
        (start(&model, options()), start(&model, EngineOptions { prefix_cache: false, ..options() }));
    let talk = |engine| {
        let answer = send(engine, ask(&first, 1.0, 40)).whole();
        let second = [&first[..], &answer.answers[0].ids, &ids(30, n_vocab, 5)].concat();
        let next = send(engine, Request { logprobs: Some(3), ..ask(&second, 1.0, 40) }).whole();
        (answer.answers, next.answers, next.end.unwrap())
    };
    let (a, b) = (talk(&with), talk(&without));
    assert_eq!((&a.0, &a.1), (&b.0, &b.1));
    assert_eq!(b.2.cached_tokens, 0);
    // Of 189 tokens in the cache the first two pages are whole; the third was not.
    assert_eq!(a.2.cached_tokens, 128);
    assert!(a.2.cached_tokens + 64 >= first.len());
    let stats = with.stats();
    assert_eq!(stats.prefix_hits, 128);
    with.clear_cache();
    settle(&with);
    let third = talk(&with);
    assert_eq!((&third.0, &third.1), (&b.0, &b.1));
}

#[test]
fn several_answers_are_those_of_the_seeds_that_follow() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    for prompt in [ids(1, n_vocab, 1), ids(64, n_vocab, 2), ids(100, n_vocab, 3)] {
        let engine = start(&model, options());
        let four = send(&engine, Request { n: 4, ..ask(&prompt, 1.0, 80) }).whole();
        let usage = four.end.unwrap();
        assert_eq!(four.answers.len(), 4);
        assert_eq!((usage.prompt_tokens, usage.answer_tokens), (prompt.len(), 320));
        assert_eq!(engine.stats().prompt_tokens, prompt.len() as u64, "the prompt is computed once");
        for (i, heard) in four.answers.iter().enumerate() {
            let mut request = ask(&prompt, 1.0, 80);
            request.sampling.seed += i as u64;
            assert_eq!(&one(&engine, request), heard, "{i}");
        }
        assert_ne!(four.answers[0].ids, four.answers[1].ids);
    }
}

#[test]
fn too_few_pages_make_the_youngest_wait_and_change_nothing() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let alone: Vec<_> = {
        let engine = start(&model, options());
        (0..6).map(|i| one(&engine, ask(&ids(60, n_vocab, i), 1.0, 150))).collect()
    };
    for prefix_cache in [true, false] {
        // Room for two of the six at their longest.
        let engine = start(&model, EngineOptions { kv_pages: Some(8), prefix_cache, ..options() });
        let streams: Vec<_> = (0..6).map(|i| send(&engine, ask(&ids(60, n_vocab, i), 1.0, 150))).collect();
        for (stream, alone) in streams.into_iter().zip(&alone) {
            let whole = stream.whole();
            whole.end.unwrap();
            assert_eq!(&whole.answers[0], alone);
        }
        assert!(engine.stats().preemptions > 0, "{:?}", engine.stats());
        // Four answers to one prompt, which cannot all stay either.
        let four = send(&engine, Request { n: 4, ..ask(&ids(60, n_vocab, 0), 1.0, 150) }).whole();
        assert_eq!(four.answers[0], alone[0]);
        four.end.unwrap();
        settle(&engine);
        assert_eq!(engine.stats().pages_running, 0);
    }
}

#[test]
fn a_long_prompt_holds_up_no_stream() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, options());
    let stream = send(&engine, ask(&ids(4, n_vocab, 1), 1.0, 200));
    stream.until(|event| matches!(event, Event::Token { .. }));
    let before = engine.stats();
    let long = send(&engine, Request { client: 1, ..ask(&ids(480, n_vocab, 2), 1.0, 1) });
    long.until(|event| matches!(event, Event::PromptRead { .. }));
    let after = engine.stats();
    let tokens = after.answer_tokens - before.answer_tokens;
    // Each chunk of 16 tokens went with a token of the stream.
    assert!(tokens >= 480 / 16 - 1, "{tokens} tokens in {} steps", after.steps - before.steps);
    assert_eq!(stream.whole().answers[0].ids.len() + 1, 200, "one was heard above");
    long.whole().end.unwrap();
}

#[test]
fn limits_are_kept_and_named() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, options());
    let refused = |request| try_send(&engine, request).err().unwrap();
    assert!(matches!(
        refused(ask(&ids(513, n_vocab, 1), 0.0, 1)),
        Refusal::Context { prompt: 513, limit: 512 }
    ));
    for (request, words) in [
        (ask(&[], 0.0, 1), "empty"),
        (ask(&[n_vocab as u32], 0.0, 1), "outside the vocabulary"),
        (Request { n: 0, ..ask(&[1], 0.0, 1) }, "0 answers"),
        (Request { n: 9, ..ask(&[1], 0.0, 1) }, "from 1 to 8"),
        (ask(&[1], f32::NAN, 1), "temp is NaN"),
    ] {
        let refusal = refused(request);
        assert!(matches!(refusal, Refusal::Invalid(_)) && refusal.to_string().contains(words), "{refusal}");
    }
    // The last token of a full context is still answered, with one token.
    let full = one(&engine, ask(&ids(512, n_vocab, 1), 0.0, 9));
    assert_eq!((full.ids.len(), full.finish), (1, Some(Finish::ContextFull)));
    let nothing = one(&engine, ask(&ids(20, n_vocab, 1), 0.0, 0));
    assert_eq!((nothing.ids.len(), nothing.finish), (0, Some(Finish::MaxTokens)));
    for bad in [
        EngineOptions { kv_pages: Some(7), ..options() },
        EngineOptions { chunk_tokens: 0, ..options() },
        EngineOptions { max_running: 0, ..options() },
        EngineOptions { n_ctx: 5000, ..options() },
    ] {
        assert!(minfer::engine::Engine::start(&model, bad).is_err());
    }
}

#[test]
fn the_queue_is_bounded_and_clients_take_turns() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, EngineOptions { max_running: 1, max_queue: 6, ..options() });
    let busy = send(&engine, ask(&ids(9, n_vocab, 0), 1.0, 400));
    busy.until(|event| matches!(event, Event::Started { .. }));
    let (sender, order) = std::sync::mpsc::channel();
    let mut tickets = Vec::new();
    for (client, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (1, "a4"), (2, "b1"), (3, "c1")] {
        let sender = sender.clone();
        let request = Request { client, ..ask(&ids(5, n_vocab, 1), 0.0, 2) };
        let heard = move |event| !matches!(event, Event::Started { .. }) || sender.send(name).is_ok();
        tickets.push(engine.submit(request, Box::new(heard)).unwrap());
    }
    let refusal = try_send(&engine, ask(&[1], 0.0, 1)).err().unwrap();
    let Refusal::QueueFull { waiting: 6, retry_after } = refusal else { panic!("{refusal:?}") };
    assert!(retry_after >= Duration::from_secs(1));
    assert_eq!(engine.stats().waiting, 6);
    drop(busy);
    let started: Vec<_> = (0..6).map(|_| order.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(started, ["a1", "b1", "c1", "a2", "a3", "a4"]);
    settle(&engine);
    engine.drain();
    assert!(matches!(try_send(&engine, ask(&[1], 0.0, 1)), Err(Refusal::Closed)));
}

#[test]
fn draining_ends_what_runs_and_waits() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, EngineOptions { max_running: 2, ..options() });
    let streams: Vec<_> = (0..5).map(|i| send(&engine, ask(&ids(9, n_vocab, i), 1.0, 30))).collect();
    engine.drain();
    assert!(!engine.stats().accepting);
    for stream in streams {
        assert_eq!(stream.whole().answers[0].ids.len(), 30);
    }
    settle(&engine);
    // Dropping an engine tells those that it leaves.
    let engine = start(&model, EngineOptions { max_running: 1, ..options() });
    let left: Vec<_> = (0..3).map(|i| send(&engine, ask(&ids(9, n_vocab, i), 1.0, 500))).collect();
    drop(engine);
    for stream in left {
        assert_eq!(stream.whole().end.unwrap_err().kind, ErrorKind::Cancelled);
    }
}

#[test]
fn log_probabilities_are_those_of_the_models_logits() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, options());
    let prompt = ids(90, n_vocab, 1);
    // Once before, so that a cache could get in the way.
    one(&engine, ask(&prompt, 0.0, 1));
    let request = Request { logprobs: Some(4), prompt_logprobs: Some(2), ..ask(&prompt, 1.0, 10) };
    let whole = send(&engine, request).whole();
    let heard = &whole.answers[0];
    let tokens = [&prompt[..], &heard.ids].concat();
    let mut session = Session::new(&model, SessionOptions { n_ctx: 512, ..Default::default() }).unwrap();
    let seq = session.new_sequence().unwrap();
    let mut all = Vec::new();
    let mut each = |_: usize, row: &[f32]| {
        let next = tokens.get(all.len() + 1).copied().unwrap_or(0);
        all.push((minfer::LogProbs::new(row).of(next), minfer::top_k(row, 4)));
        Ok::<(), Error>(())
    };
    session.evaluate(seq, &tokens, &Control::default(), &mut each).unwrap();
    let said: Vec<_> = whole.prompt_logprobs.iter().chain(&heard.logprobs).collect();
    assert_eq!((whole.prompt_logprobs.len(), heard.logprobs.len()), (89, 10));
    for (i, said) in said.iter().enumerate() {
        assert_eq!((said.id, said.logprob), (tokens[i + 1], all[i].0), "{i}");
        assert_eq!(said.top, all[i].1[..if i < 89 { 2 } else { 4 }], "{i}");
    }
}

/// Allows tokens whose id is a multiple; panics or fails when told to.
#[derive(Clone, Debug)]
struct Multiples {
    of: u32,
    n_vocab: u32,
    left: usize,
    panics: bool,
}

impl ConstraintFactory for Multiples {
    fn start(&self) -> Result<Box<dyn Constraint>, Error> {
        Ok(Box::new(self.clone()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Constraint for Multiples {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), Error> {
        mask.clear();
        if self.left == 0 {
            assert!(!self.panics, "a constraint that panics");
            return Err(Error::non_finite(1, 2, f32::NAN));
        }
        self.left -= 1;
        (0..self.n_vocab).filter(|id| id % self.of == 0).for_each(|id| mask.allow(id));
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), Error> {
        assert_eq!(token % self.of, 0);
        Ok(())
    }
}

#[test]
fn constraints_hold_and_those_that_fail_fail_alone() {
    let (_file, model) = model();
    let n_vocab = model.spec().n_vocab;
    let engine = start(&model, options());
    let prompt = ids(30, n_vocab, 1);
    let under = |left, panics, temperature| {
        let rule = Multiples { of: 7, n_vocab: n_vocab as u32, left, panics };
        Request { constraint: Some(Arc::new(rule)), ..ask(&prompt, temperature, 20) }
    };
    let alone = one(&engine, ask(&prompt, 1.0, 40));
    for temperature in [0.0, 1.0] {
        let neighbour = send(&engine, ask(&prompt, 1.0, 40));
        let streams: Vec<_> = [(99, false), (5, false), (5, true)]
            .map(|(left, panics)| send(&engine, under(left, panics, temperature)))
            .into();
        let ends: Vec<_> = streams.into_iter().map(|stream| stream.whole()).collect();
        assert!(ends.iter().all(|w| w.answers[0].ids.iter().all(|id| id % 7 == 0)));
        assert_eq!(ends.iter().map(|w| w.answers[0].ids.len()).collect::<Vec<_>>(), [20, 5, 5]);
        assert!(ends[0].end.is_ok());
        assert_eq!(ends[1].end.as_ref().unwrap_err().kind, ErrorKind::NonFinite);
        let failure = ends[2].end.as_ref().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Internal);
        assert!(failure.message.contains("a constraint that panics"), "{}", failure.message);
        assert_eq!(neighbour.whole().answers[0], alone);
    }
    settle(&engine);
    assert_eq!(engine.stats().pages_running, 0);
}

#[test]
fn windows_and_other_caches_share_prefixes_too() {
    for (family, kv) in [("gemma3", KvType::Q8_0), ("phi3-window", KvType::F16), ("qwen3moe", KvType::F32)] {
        let file = common::on_disk(&TinySpec::named(family).unwrap().with_vocab().to_bytes().unwrap());
        let model = common::load(&file, 2);
        let n_vocab = model.spec().n_vocab;
        let kv_types = kv.into();
        let n_ctx = 256;
        let engine = start(&model, EngineOptions { kv_types, n_ctx, ..options() });
        let prompt = ids(140, n_vocab, 1);
        let first = send(&engine, Request { n: 2, ..ask(&prompt, 1.0, 30) }).whole();
        let again = send(&engine, ask(&prompt, 1.0, 30)).whole();
        assert_eq!(again.end.unwrap().cached_tokens, 128, "{family}");
        assert_eq!(first.answers[0], again.answers[0], "{family}");
        let sizes = SessionOptions { n_ctx, kv_types, ..Default::default() };
        let mut session = Session::new(&model, sizes).unwrap();
        let seq = session.new_sequence().unwrap();
        let request = ask(&prompt, 1.0, 30);
        let mut sampler = Sampler::new(SamplerConfig { ..request.sampling.clone() }).unwrap();
        let options = GenerateOptions { max_tokens: Some(30), ignore_eos: true, ..Default::default() };
        let control = Control::default();
        let truth =
            generate(&mut session, seq, &prompt, &mut sampler, &options, &control, &mut |_| {}).unwrap();
        assert_eq!(truth.tokens, again.answers[0].ids, "{family}");
    }
}
