//! The naive forward pass against recordings of llama.cpp, the tiny models against what they promise.

use minfer_gguf::{Gguf, TensorType};
use minfer_testkit::compare::centred_nmse;
use minfer_testkit::golden::{self, Golden, TOLERANCE};
use minfer_testkit::naive::{Fault, NaiveModel};
use minfer_testkit::rng::{Rng, fingerprint};
use minfer_testkit::tiny::family::{Key, QkNorm, RopeFactors};
use minfer_testkit::tiny::{FAMILIES, Family, TinySpec, Types, broken, vocab};

/// Bound for families with GELU: llama.cpp reads it from a table of 16-bit floats.
const GELU_LIMIT: f64 = 1e-5;

/// Bounds on a family's error, and on that of the same arithmetic as llama.cpp's if that differs.
fn limits(family: &Family) -> Vec<(Option<Fault>, f64)> {
    match family.arch.starts_with("gemma") {
        true => vec![(None, GELU_LIMIT), (Some(Fault::HalfGelu), TOLERANCE)],
        false => vec![(None, TOLERANCE)],
    }
}

/// File and recording of a family from the golden folder, if they are there.
fn recorded(family: &str) -> Option<(NaiveModel, Golden)> {
    let Some(folder) = golden::folder() else {
        #[expect(clippy::print_stderr, reason = "a skipped comparison must not pass in silence")]
        {
            eprintln!("SKIPPED: no golden folder (set MINFER_GOLDEN), {family} not compared");
        }
        return None;
    };
    let read = |name: String| std::fs::read(folder.join("archs").join(name)).ok();
    let model = NaiveModel::parse(&read(format!("{family}.gguf"))?).unwrap();
    let golden = Golden::parse(&read(format!("{family}.safetensors"))?).unwrap();
    Some((model, golden))
}

#[test]
fn naive_model_agrees_with_llama_cpp() {
    for family in FAMILIES {
        let Some((model, golden)) = recorded(family.name) else { continue };
        let mut ids = golden.tokens.clone();
        ids.extend(&golden.greedy);
        for (fault, limit) in limits(&family) {
            let found = model.log_probs(&golden.tokens, fault).unwrap();
            let error = centred_nmse(&golden.log_probs, &found, golden.n_vocab);
            assert!(error <= limit, "{}: {fault:?} {error:e}", family.name);
        }
        let log_probs = model.log_probs(&ids, None).unwrap();
        let rows: Vec<&[f64]> = log_probs.chunks(golden.n_vocab).skip(golden.tokens.len() - 1).collect();
        for (i, &id) in golden.greedy.iter().enumerate() {
            let best = (0..golden.n_vocab).max_by(|&a, &b| rows[i][a].total_cmp(&rows[i][b]));
            assert_eq!(best, Some(id as usize), "{}: greedy token {i}", family.name);
        }
    }
}

#[test]
fn comparison_with_llama_cpp_sees_mistakes() {
    for family in FAMILIES {
        let Some((model, golden)) = recorded(family.name) else { continue };
        for fault in faults(&family) {
            let wrong = model.log_probs(&golden.tokens, Some(fault)).unwrap();
            let error = centred_nmse(&golden.log_probs, &wrong, golden.n_vocab);
            assert!(error > 1e-4, "{}: {fault:?} gives {error:e}", family.name);
        }
    }
}

/// The mistakes that a family can show.
fn faults(family: &Family) -> Vec<Fault> {
    let key = |name: &str| family.keys.iter().any(|(key, _)| *key == name);
    let window = family.keys.iter().any(|(name, value)| {
        *name == "attention.sliding_window" && matches!(value, Key::U32(size) if *size < 1024)
    });
    let experts = family.experts.is_some();
    let clamped = family.arch == "gpt-oss";
    let yarn = family.keys.iter().any(|(_, value)| *value == Key::Text("yarn"));
    let magnitude = yarn && !key("rope.scaling.yarn_log_multiplier") || key("rope.scaling.attn_factor");
    let scaled = key("rope.scaling.factor");
    let shows = [
        (true, &[Fault::OtherRopeStyle, Fault::NoMask, Fault::ScaleOff, Fault::PositionOff][..]),
        (true, &[Fault::OtherActivation, Fault::SwappedGateUp]),
        (family.shape.n_kv_head > 1, &[Fault::SwappedKvHeads]),
        (family.rope_factors != RopeFactors::None, &[Fault::NoRopeFactors]),
        (family.rope_factors == RopeFactors::LongShort, &[Fault::OtherRopeFactors]),
        (family.qkv_bias, &[Fault::NoQkvBias]),
        (family.output_bias, &[Fault::NoOutputBias]),
        (window, &[Fault::WiderWindow, Fault::NoWindow][..]),
        (window && family.arch != "phi3", &[Fault::WindowLayers]),
        (family.arch == "gemma3", &[Fault::OneRopeBase]),
        (window && scaled && family.arch != "gpt-oss", &[Fault::ScaledWindowRope]),
        (family.arch.starts_with("gemma"), &[Fault::NoEmbeddingScale, Fault::NoPostNorm]),
        (family.arch == "olmo2", &[Fault::NoPostNorm]),
        (key("attn_logit_softcapping"), &[Fault::NoScoreCap]),
        (key("final_logit_softcapping"), &[Fault::NoLogitCap]),
        (key("attention.scale"), &[Fault::NoAttentionScale]),
        (key("embedding_scale"), &[Fault::NoEmbeddingScale]),
        (key("residual_scale"), &[Fault::NoResidualScale]),
        (key("logit_scale"), &[Fault::NoLogitScale]),
        (family.qk_norm != QkNorm::None, &[Fault::NoQkNorm, Fault::QkNormAfterRope]),
        (family.qk_norm == QkNorm::Row, &[Fault::QkNormByHead]),
        (family.arch == "smollm3", &[Fault::RopeEverywhere]),
        (scaled, &[Fault::NoRopeScaling]),
        (yarn, &[Fault::NoYarnRamp]),
        (family.name == "gpt-oss-ramp", &[Fault::RoundedYarnCorners]),
        (magnitude, &[Fault::NoRopeMagnitude, Fault::MagnitudeOfQueriesOnly]),
        (key("attention.temperature_scale"), &[Fault::NoTemperature, Fault::EarlyTemperature]),
        (experts, &[Fault::ExpertOrder, Fault::ExpertSum, Fault::FewerExperts]),
        (family.experts.is_some_and(|e| e.biases), &[Fault::NoRouterBias, Fault::NoExpertBias]),
        (family.sinks, &[Fault::NoSinks]),
        (clamped, &[Fault::NoClamp, Fault::NoSigmoidFactor, Fault::NoUpOffset]),
    ];
    shows.into_iter().filter(|(shown, _)| *shown).flat_map(|(_, list)| list.iter().copied()).collect()
}

fn text(n: usize, n_vocab: usize) -> Vec<u32> {
    let mut rng = Rng::new(9);
    (0..n).map(|_| rng.below(n_vocab) as u32).collect()
}

#[test]
fn naive_model_agrees_with_the_recordings_of_the_repository() {
    for fixture in golden::fixtures().unwrap() {
        let (name, golden) = (fixture.name, fixture.golden);
        let bytes = fixture.spec.to_bytes().unwrap();
        assert_eq!(format!("{:016x}", fingerprint(&bytes)), fixture.fingerprint, "{name}: the file changed");
        let model = NaiveModel::parse(&bytes).unwrap();
        let error = |fault| {
            let found = model.log_probs(&golden.tokens, fault).unwrap();
            centred_nmse(&golden.log_probs, &found, golden.n_vocab)
        };
        if let Some(tolerance) = fixture.tolerance {
            assert!(error(None) <= tolerance, "{name}: {:e}", error(None));
        }
        if let Some(fault) = fixture.deviation {
            assert!(error(Some(fault)) <= TOLERANCE, "{name}: {fault:?} gives {:e}", error(Some(fault)));
        }
        let seen = |f: &Fault| Some(*f) != fixture.deviation;
        for fault in faults(&fixture.spec.family).into_iter().filter(seen) {
            let found = error(Some(fault));
            assert!(found > 1e-4, "{name}: {fault:?} gives {found:e}");
        }
    }
}

#[test]
fn written_models_never_change() {
    let expected = [
        ("llama", 0xea68_9aa3_407e_5d43),
        ("llama3-rope", 0x7645_af6d_aadd_ae3f),
        ("qwen2", 0x981b_60fc_71fa_0483),
    ];
    let found =
        expected.map(|(name, _)| (name, fingerprint(&TinySpec::named(name).unwrap().to_bytes().unwrap())));
    assert_eq!(found, expected);
}

#[test]
fn every_type_and_shape_can_be_written() {
    let f32 = NaiveModel::parse(&TinySpec::llama().wide().to_bytes().unwrap()).unwrap();
    let ids = text(6, 256);
    let exact = f32.log_probs(&ids, None).unwrap();
    for &ty in TensorType::ALL.iter().filter(|ty| minfer_gguf::can_encode(**ty)) {
        let spec = TinySpec::llama().wide().with_types(Types::all(ty));
        let model = NaiveModel::parse(&spec.to_bytes().unwrap()).unwrap();
        let error = centred_nmse(&exact, &model.log_probs(&ids, None).unwrap(), 256);
        // Four bits lose about a percent per matrix, which the layers multiply; more than 1 would be noise.
        let limit = if ty.row_bytes(256).unwrap() < 128 { 0.9 } else { 0.25 };
        assert!(error < limit && (error == 0.0) == (ty == TensorType::F32), "{ty}: {error}");
    }
    let spec = TinySpec::qwen2().with_vocab().with_tied_output();
    let bytes = spec.to_bytes().unwrap();
    let file = Gguf::read(&bytes[..], bytes.len() as u64).unwrap();
    assert!(file.tensor("output.weight").is_none());
    let tokens = file.metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens[vocab::IM_END as usize], "<|im_end|>");
    assert_eq!(tokens.len() as u64, file.tensor("token_embd.weight").unwrap().rows());
    let model = NaiveModel::parse(&bytes).unwrap();
    assert!(model.log_probs(&ids, None).unwrap().iter().all(|p| p.is_finite()));
}

#[test]
fn every_family_can_be_quantised_and_is_recorded() {
    let fixtures = golden::fixtures().unwrap();
    for family in FAMILIES {
        assert!(fixtures.iter().any(|f| f.spec.family == family), "{}", family.name);
        let spec = TinySpec::new(family).wide().with_types(Types::all(TensorType::Q4K));
        let model = NaiveModel::parse(&spec.to_bytes().unwrap()).unwrap();
        assert!(model.log_probs(&[1, 2], None).unwrap().iter().all(|p| p.is_finite()), "{}", family.name);
    }
}

#[test]
fn broken_models_are_broken() {
    let spec = TinySpec::llama();
    let whole = spec.to_bytes().unwrap();
    for case in broken::all(&spec).unwrap() {
        assert_ne!(case.bytes, whole, "{}", case.name);
        if !case.refused_at_load {
            let model = NaiveModel::parse(&case.bytes).unwrap();
            assert!(model.logits(&[1, 2], None).unwrap().iter().any(|v| v.is_nan()), "{}", case.name);
        }
        if case.name.starts_with("cut") || case.name == "empty" {
            assert!(Gguf::read(&case.bytes[..], case.bytes.len() as u64).is_err(), "{}", case.name);
        }
    }
}
