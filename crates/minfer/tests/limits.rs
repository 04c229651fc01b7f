//! What cannot be done is an error that says so, and leaves the session usable.

mod common;

use common::{ids, load, on_disk, session, session_with, tiny};
use minfer::{
    Batch, Control, ErrorKind, GenerateOptions, KvType, KvTypes, Layout, LoadMode, LoadOptions, Model,
    ModelFile, Sampler, SamplerConfig, SeqId, Session, SessionOptions, Wanted,
};
use minfer_testkit::tiny::{TinySpec, Tokenizer, broken};
use std::sync::atomic::AtomicBool;

fn feed(session: &mut Session, seq: SeqId, tokens: &[u32]) -> Result<Vec<f32>, minfer::Error> {
    let mut batch = Batch::new();
    batch.add(seq, tokens, Wanted::Last);
    session.step(&batch, &Control::default()).map(|l| l.row(0).to_vec())
}

#[test]
fn a_full_context_is_an_error_with_both_numbers_and_nothing_is_lost() {
    let file = tiny("llama");
    let model = load(&file, 1);
    let mut session = session(&model, 64, 1);
    let seq = session.new_sequence().unwrap();
    feed(&mut session, seq, &ids(250, 256, 0)).unwrap();
    let e = feed(&mut session, seq, &ids(7, 256, 0)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Context);
    assert!(e.to_string().contains("256") && e.to_string().contains("257"), "{e}");
    assert_eq!(session.sequence_len(seq).unwrap(), 250);
    feed(&mut session, seq, &ids(6, 256, 0)).unwrap();
    assert_eq!(session.sequence_len(seq).unwrap(), 256);
    assert_eq!(feed(&mut session, seq, &[1]).unwrap_err().kind(), ErrorKind::Context);
}

#[test]
fn senseless_requests_are_refused() {
    let file = tiny("llama");
    let model = load(&file, 1);
    let mut session = session(&model, 64, 1);
    let seq = session.new_sequence().unwrap();
    assert_eq!(feed(&mut session, seq, &[256]).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(feed(&mut session, seq, &[]).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(session.new_sequence().unwrap_err().kind(), ErrorKind::Input);
    let mut twice = Batch::new();
    twice.add(seq, &[1], Wanted::Last).add(seq, &[2], Wanted::Last);
    assert_eq!(session.step(&twice, &Control::default()).err().unwrap().kind(), ErrorKind::Input);
    session.remove_sequence(seq).unwrap();
    assert_eq!(feed(&mut session, seq, &[1]).unwrap_err().kind(), ErrorKind::Input);
    let long = SessionOptions { n_ctx: 1 << 20, ..Default::default() };
    let error = Session::new(&model, long).err().unwrap();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Input);
    for part in ["1048576", "1024", "would take 512 MiB", "MiB are free"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let endless = SessionOptions { n_ctx: usize::MAX, max_seqs: usize::MAX, ..Default::default() };
    assert_eq!(Session::new(&model, endless).err().unwrap().kind(), ErrorKind::Input);
}

/// R52: a step that ends early costs no more than itself.
#[test]
fn a_cancelled_step_leaves_the_sequence_as_it_was() {
    let file = tiny("qwen2");
    let model = load(&file, 2);
    let mut session = session(&model, 16, 1);
    let seq = session.new_sequence().unwrap();
    let before = feed(&mut session, seq, &ids(20, 256, 1)).unwrap();
    let stop = AtomicBool::new(true);
    let mut batch = Batch::new();
    batch.add(seq, &ids(40, 256, 2), Wanted::Last);
    let control = Control { cancel: Some(&stop), ..Control::default() };
    assert_eq!(session.step(&batch, &control).err().unwrap().kind(), ErrorKind::Cancelled);
    assert_eq!(session.sequence_len(seq).unwrap(), 20);
    session.truncate(seq, 0).unwrap();
    assert_eq!(before, feed(&mut session, seq, &ids(20, 256, 1)).unwrap());
}

#[test]
fn a_model_with_nan_weights_is_caught_when_it_speaks() {
    let mut spec = TinySpec::named("llama").unwrap();
    spec.tokenizer = Tokenizer::Gpt2("smollm");
    let mut tiny = spec.build().unwrap();
    tiny.poison("blk.1.ffn_down.weight").unwrap();
    let file = on_disk(&tiny.to_bytes().unwrap());
    let model = load(&file, 1);
    let mut session = session(&model, 64, 1);
    let seq = session.new_sequence().unwrap();
    let mut sampler = Sampler::new(SamplerConfig::greedy()).unwrap();
    let options = GenerateOptions { max_tokens: Some(4), ..Default::default() };
    let e = minfer::generate(
        &mut session,
        seq,
        &[1, 2],
        &mut sampler,
        &options,
        &Control::default(),
        &mut |_| {},
    )
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NonFinite);
    assert_eq!(session.sequence_len(seq).unwrap(), 0, "the cache may hold NaN and is dropped");
}

#[test]
fn broken_files_are_refused_with_a_reason() {
    let spec = TinySpec::named("qwen2").unwrap();
    for broken in broken::all(&spec).unwrap() {
        let file = on_disk(&broken.bytes);
        let result = Model::load(&file.path, LoadOptions::default());
        if !broken.refused_at_load {
            result.unwrap_or_else(|e| panic!("{}: {e}", broken.name));
            continue;
        }
        let e = result.err().unwrap_or_else(|| panic!("{} was loaded", broken.name));
        assert_eq!(e.kind(), ErrorKind::Model, "{}: {e}", broken.name);
        assert!(e.to_string().starts_with(&file.path.display().to_string()), "{}: {e}", broken.name);
        assert!(!e.to_string().contains('\n'), "{}: {e}", broken.name);
    }
}

#[test]
fn the_forecast_of_the_cache_is_what_a_session_allocates() {
    let file = tiny("qwen2");
    let model = load(&file, 1);
    for (k, v) in KvType::ALL.into_iter().flat_map(|k| KvType::ALL.map(|v| (k, v))) {
        let session = session_with(&model, 64, 2, KvTypes { k, v });
        let opened = ModelFile::open(&file.path).unwrap();
        let (_, forecast) =
            minfer::forecast(&opened, session.options(), &Layout::default(), LoadMode::Read).unwrap();
        assert_eq!(forecast.sum(|d| d.kv), session.kv_bytes(), "{k}, {v}");
    }
}

/// Phi 3's factors for long contexts are weights that only such sessions read.
#[test]
fn sessions_beyond_the_original_context_find_their_factors() {
    let file = tiny("phi3-short");
    let model = load(&file, 1);
    for n_ctx in [256, 1024] {
        let options = SessionOptions { n_ctx, n_batch: 64, ..Default::default() };
        let mut session = Session::new(&model, options).unwrap();
        let seq = session.new_sequence().unwrap();
        feed(&mut session, seq, &ids(5, 256, 0)).unwrap();
    }
}
