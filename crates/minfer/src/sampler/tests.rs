//! Every method against a plain implementation of its definition, in f64 and without care for speed: the tokens that
//! survive, exactly, and the frequencies of 20,000 draws by the chi-square test at a level of 0.0001.

use super::dry::Breakers;
use super::*;
use std::collections::BTreeMap;

const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, 0.0, -1.0, 2.5];
/// A longer tail, and ties at several places.
const WIDE: [f32; 14] = [0.5, 3.0, 2.0, 2.0, -1.0, 2.5, 1.5, 1.25, 0.5, 0.5, -3.0, 0.0, 2.5, 1.0];
const DRAWS: usize = 20_000;

fn plain() -> SamplerConfig {
    SamplerConfig::plain()
}

// ---- The definitions, in plain form. A removed token is `None`. ----

type Logits = Vec<Option<f64>>;

fn probabilities(logits: &Logits, temperature: f64) -> Vec<f64> {
    let best = logits.iter().flatten().fold(f64::MIN, |a, &b| a.max(b));
    let weights: Vec<f64> =
        logits.iter().map(|l| l.map_or(0.0, |l| ((l - best) / temperature).exp())).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Ids of what is left, best first; ties by id.
fn ranking(logits: &Logits) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).filter(|&i| logits[i].is_some()).collect();
    ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
    ids
}

fn keep(logits: &Logits, ids: &[usize]) -> Logits {
    let mut left = vec![None; logits.len()];
    ids.iter().for_each(|&i| left[i] = logits[i]);
    left
}

/// The shortest beginning of `ids` that has the probability `mass`.
fn reach<'a>(ids: &'a [usize], p: &[f64], mass: f64) -> &'a [usize] {
    let mut sum = 0.0;
    let n = ids.iter().position(|&i| {
        sum += p[i];
        sum >= mass
    });
    &ids[..n.map_or(ids.len(), |n| n + 1)]
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum()
}

fn penalised(c: &SamplerConfig, logits: &[f32], text: &[u32], breakers: &[u32]) -> Logits {
    let mut out: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for bias in &c.logit_bias {
        out[bias.id as usize] += f64::from(bias.bias);
    }
    let recent = &text[text.len().saturating_sub(c.repeat_last_n)..];
    for (id, logit) in out.iter_mut().enumerate() {
        let count = recent.iter().filter(|&&t| t as usize == id).count() as f64;
        if count > 0.0 {
            let r = f64::from(c.repeat_penalty);
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            *logit -= count * f64::from(c.frequency_penalty) + f64::from(c.presence_penalty);
        }
    }
    for (id, length) in repeats(c, text, breakers) {
        if !breakers.contains(&id) && length >= c.dry_allowed_length {
            let excess = (length - c.dry_allowed_length) as i32;
            out[id as usize] -= f64::from(c.dry_multiplier) * f64::from(c.dry_base).powi(excess);
        }
    }
    out.into_iter().map(|l| Some(l).filter(|l| l.is_finite())).collect()
}

/// DRY: for each token of the text the longest repetition that it would make longer.
fn repeats(c: &SamplerConfig, text: &[u32], breakers: &[u32]) -> BTreeMap<u32, usize> {
    let text = &text[text.len().saturating_sub(c.dry_penalty_last_n)..];
    let mut longest = BTreeMap::new();
    for next in 1..text.len() {
        let before = text[..next].iter().rev().zip(text.iter().rev());
        let n = before.take_while(|(a, b)| a == b && !breakers.contains(b)).count();
        let entry = longest.entry(text[next]).or_insert(n);
        *entry = n.max(*entry);
    }
    longest
}

fn filtered(c: &SamplerConfig, logits: Logits, xtc: bool) -> Logits {
    let mut l = logits;
    if c.top_n_sigma > 0.0 {
        let all: Vec<f64> = l.iter().flatten().copied().collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let sigma = (all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / all.len() as f64).sqrt();
        let least = all.iter().fold(f64::MIN, |a, &b| a.max(b)) - f64::from(c.top_n_sigma) * sigma;
        l = l.iter().map(|x| x.filter(|&x| x >= least)).collect();
    }
    if c.top_k > 0 {
        let ids = ranking(&l);
        l = keep(&l, &ids[..c.top_k.min(ids.len())]);
    }
    if c.typical_p < 1.0 {
        let p = probabilities(&l, 1.0);
        let entropy = entropy(&p);
        let distance = |i: usize| (-p[i].ln() - entropy).abs();
        let mut ids = ranking(&l);
        ids.sort_by(|&a, &b| distance(a).partial_cmp(&distance(b)).unwrap());
        l = keep(&l, reach(&ids, &p, f64::from(c.typical_p)));
    }
    let p = probabilities(&l, 1.0);
    let ids = ranking(&l);
    let top_p = if c.top_p < 1.0 { reach(&ids, &p, f64::from(c.top_p)) } else { &ids };
    let enough = |i: &usize| p[*i] >= f64::from(c.min_p) * p[ids[0]];
    l = keep(&l, &top_p.iter().copied().filter(enough).collect::<Vec<_>>());
    if xtc {
        let p = probabilities(&l, 1.0);
        let (ids, threshold) = (ranking(&l), f64::from(c.xtc_threshold));
        let above = ids.iter().filter(|&&i| p[i] >= threshold).count();
        l = keep(&l, &ids[above.max(1) - 1..]);
    }
    l
}

fn temperature(c: &SamplerConfig, logits: &Logits) -> f64 {
    let (t, range) = (f64::from(c.temperature), f64::from(c.dynatemp_range));
    let n = logits.iter().flatten().count() as f64;
    if range == 0.0 || n < 2.0 {
        return t;
    }
    let share = (entropy(&probabilities(logits, 1.0)) / n.ln()).powf(f64::from(c.dynatemp_exp));
    (t - range).max(0.0) + (t + range - (t - range).max(0.0)) * share
}

/// The exact distribution of a draw.
fn distribution(c: &SamplerConfig, logits: &[f32], text: &[u32]) -> Vec<f64> {
    let mut out = vec![0.0; logits.len()];
    let chance = f64::from(c.xtc_probability);
    for (xtc, chance) in [(true, chance), (false, 1.0 - chance)] {
        let left = filtered(c, penalised(c, logits, text, &[]), xtc);
        let p = probabilities(&left, temperature(c, &left));
        out.iter_mut().zip(&p).for_each(|(out, p)| *out += chance * p);
    }
    out
}

// ---- Comparisons ----

/// Pearson's chi-square test, cells that expect fewer than 5 taken together; what cannot happen must not.
#[track_caller]
fn assert_frequencies(counts: &[usize], expected: &[f64]) {
    let draws: usize = counts.iter().sum();
    let (mut cells, mut rest) = (Vec::new(), (0.0, 0.0));
    for (id, (&count, &p)) in counts.iter().zip(expected).enumerate() {
        assert!(p > 0.0 || count == 0, "token {id} was drawn {count} times and has no probability");
        let (count, want) = (count as f64, p * draws as f64);
        match want {
            w if w >= 5.0 => cells.push((count, w)),
            w => rest = (rest.0 + count, rest.1 + w),
        }
    }
    if rest.1 > 1e-9 {
        cells.push(rest);
    }
    let statistic: f64 = cells.iter().map(|(got, want)| (got - want).powi(2) / want).sum();
    let freedom = (cells.len() - 1) as f64;
    if freedom == 0.0 {
        return;
    }
    // Wilson and Hilferty's approximation of the quantile 0.9999.
    let part = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - part + 3.719 * part.sqrt()).powi(3);
    assert!(statistic <= limit, "chi-square {statistic:.1} over {limit:.1}: {counts:?}, {expected:?}");
}

fn sampler_with(config: &SamplerConfig, text: &[u32]) -> Sampler {
    let mut sampler = Sampler::new(config.clone()).unwrap();
    text.iter().for_each(|&id| sampler.accept(id));
    sampler
}

#[track_caller]
fn assert_draws(config: SamplerConfig, logits: &[f32], text: &[u32]) {
    let mut sampler = sampler_with(&config, text);
    let mut counts = vec![0; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(logits).unwrap().id as usize] += 1;
    }
    assert_frequencies(&counts, &distribution(&config, logits, text));
}

/// Ids that the filters leave, ascending; XTC acts if its probability is 1.
fn survivors(config: &SamplerConfig, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler_with(config, &[]);
    sampler.candidates.load(logits);
    sampler.change_logits().unwrap();
    sampler.filter();
    let mut ids = sampler.candidates.ids();
    ids.sort_unstable();
    ids
}

/// Compares the survivors of many random distributions, a third of them with ties.
fn assert_survivors(set: impl Fn(&mut SamplerConfig, f32)) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for case in 0..600 {
        let n = 1 + rng.next_u32() as usize % 40;
        let spread = 1.0 + 5.0 * unit(&mut rng);
        let mut logits: Vec<f32> = (0..n).map(|_| (unit(&mut rng) - 0.5) * spread).collect();
        if case % 3 == 0 {
            logits.iter_mut().for_each(|l| *l = (*l * 2.0).round() / 2.0);
        }
        let mut config = plain();
        set(&mut config, unit(&mut rng));
        let left = filtered(&config, penalised(&config, &logits, &[], &[]), config.xtc_probability == 1.0);
        let want: Vec<u32> = (0..n as u32).filter(|&i| left[i as usize].is_some()).collect();
        assert_eq!(survivors(&config, &logits), want, "{config:?} {logits:?}");
    }
}

// ---- The draw itself ----

#[test]
fn draws_follow_the_softmax() {
    for temperature in [0.5, 1.0, 2.0] {
        assert_draws(SamplerConfig { temperature, ..plain() }, &WIDE, &[]);
    }
    assert_draws(plain(), &[0.3], &[]);
    assert_draws(plain(), &[1.0; 7], &[]);
}

#[test]
fn greedy_takes_the_best_and_the_lowest_id_among_equals() {
    let mut sampler = Sampler::new(SamplerConfig::greedy()).unwrap();
    assert_eq!(sampler.sample(&LOGITS).unwrap().id, 1);
    assert_eq!(sampler.sample(&[0.0, 7.0, 7.0]).unwrap(), Sampled { id: 1, probability: 1.0 });
}

#[test]
fn same_seed_same_draws() {
    let everything = SamplerConfig { xtc_probability: 0.5, typical_p: 0.9, dynatemp_range: 0.5, ..plain() };
    let mirostat = |version| SamplerConfig { mirostat: Some(version), ..plain() };
    for base in [plain(), everything, mirostat(Mirostat::V1), mirostat(Mirostat::V2)] {
        let ids = |seed| {
            let mut s = Sampler::new(SamplerConfig { seed, ..base.clone() }).unwrap();
            (0..50).map(|_| s.sample(&WIDE).unwrap().id).collect::<Vec<_>>()
        };
        assert_eq!(ids(7), ids(7));
        assert_ne!(ids(7), ids(8));
    }
}

#[test]
fn the_stream_of_draws_is_fixed() {
    let mut s = Sampler::new(SamplerConfig { seed: 42, ..plain() }).unwrap();
    let ids: Vec<u32> = (0..12).map(|_| s.sample(&LOGITS).unwrap().id).collect();
    // A change here changes everybody's texts.
    assert_eq!(ids, [1, 5, 1, 0, 2, 1, 1, 5, 5, 1, 5, 1]);
}

#[test]
fn non_finite_logits_are_errors() {
    let mut s = Sampler::new(SamplerConfig::greedy()).unwrap();
    let error = s.sample(&[0.0, f32::NAN]).unwrap_err();
    assert!(error.kind() == ErrorKind::NonFinite && error.to_string().contains("token 1"), "{error}");
    assert_eq!(s.sample(&[f32::INFINITY]).unwrap_err().kind(), ErrorKind::NonFinite);
    assert_eq!(s.sample(&[]).unwrap_err().kind(), ErrorKind::Input);
}

// ---- Bias and penalties ----

#[test]
fn biases_shift_and_ban() {
    let bias = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    for texts in [&["0+2", "1-1.5"][..], &["1-inf", "5=-inf"], &["2+1", "2+1", "3-inf", "3+9"]] {
        assert_draws(SamplerConfig { logit_bias: bias(texts), ..plain() }, &LOGITS, &[]);
    }
    let greedy = SamplerConfig { logit_bias: bias(&["1-inf"]), ..SamplerConfig::greedy() };
    assert_eq!(Sampler::new(greedy).unwrap().sample(&LOGITS).unwrap().id, 5);
    for (texts, word) in [(&["6+1"][..], "token 6"), (&["0-inf", "0-inf", "1-inf"], "every")] {
        let mut s = Sampler::new(SamplerConfig { logit_bias: bias(texts), ..plain() }).unwrap();
        let error = s.sample(&LOGITS[..2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(word == "every" || error.to_string().contains(word), "{error}");
    }
    // A ban outlasts penalties, and extreme values stay numbers.
    let config = SamplerConfig {
        logit_bias: bias(&["0-inf", "1+3e38"]),
        frequency_penalty: -100.0,
        repeat_penalty: 0.01,
        ..plain()
    };
    let mut s = sampler_with(&config, &[0, 0, 1]);
    assert_eq!(s.sample(&[1.0, 3e38, -3e38]).unwrap(), Sampled { id: 1, probability: 1.0 });
}

#[test]
fn penalties_follow_their_formulas() {
    let text = [1, 4, 4, 0, 1, 3, 3, 3, 2, 1];
    for window in [0, 1, 4, 64, usize::MAX] {
        let base = SamplerConfig { repeat_last_n: window, ..plain() };
        assert_draws(SamplerConfig { repeat_penalty: 1.7, ..base.clone() }, &LOGITS, &text);
        assert_draws(SamplerConfig { frequency_penalty: 0.4, ..base.clone() }, &LOGITS, &text);
        assert_draws(SamplerConfig { presence_penalty: -0.6, ..base.clone() }, &LOGITS, &text);
        let all =
            SamplerConfig { repeat_penalty: 1.3, frequency_penalty: 0.2, presence_penalty: 0.3, ..base };
        assert_draws(all.clone(), &LOGITS, &text);
        assert_draws(all, &LOGITS, &[]);
    }
}

#[test]
fn what_is_forgotten_is_not_penalised() {
    let config = SamplerConfig { presence_penalty: 50.0, dry_multiplier: 50.0, ..plain() };
    let mut s =
        sampler_with(&SamplerConfig { dry_sequence_breakers: Vec::new(), ..config }, &[1, 5, 1, 5, 1]);
    s.forget();
    s.candidates.load(&LOGITS);
    s.change_logits().unwrap();
    assert_eq!(s.candidates.logits().collect::<Vec<_>>(), LOGITS);
}

fn dry() -> SamplerConfig {
    SamplerConfig { dry_multiplier: 0.8, dry_sequence_breakers: Vec::new(), ..plain() }
}

#[test]
fn dry_draws_follow_its_definition() {
    let text = [0, 1, 2, 5, 3, 0, 1, 2, 1, 0, 1, 2];
    assert_draws(dry(), &LOGITS, &text);
    assert_draws(SamplerConfig { dry_base: 1.2, dry_allowed_length: 1, ..dry() }, &LOGITS, &text);
    assert_draws(SamplerConfig { dry_penalty_last_n: 7, ..dry() }, &LOGITS, &text);
    assert_draws(dry(), &LOGITS, &[]);
    assert_draws(dry(), &LOGITS, &[3]);
}

/// 2,000 texts over few letters, with breakers of one token, windows and free lengths.
#[test]
fn dry_penalties_are_those_of_the_plain_search() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for case in 0..2000 {
        let n = rng.next_u32() as usize % 60;
        let letters = 1 + rng.next_u32() % 5;
        let text: Vec<u32> = (0..n).map(|_| rng.next_u32() % letters).collect();
        let mut config = dry();
        config.dry_allowed_length = case % 4;
        config.dry_penalty_last_n = if case % 3 == 0 { 1 + case % 20 } else { usize::MAX };
        let broken: &[u32] = if case % 2 == 0 { &[] } else { &[4, 1] };
        let mut s = Sampler::new(config.clone()).unwrap();
        let pieces = (0..6u32).map(|id| if broken.contains(&id) { b"a\nb".to_vec() } else { b"c".to_vec() });
        s.dry = Some(Dry::with_breakers(&config, Breakers::new(&["\n".to_owned()], pieces)));
        text.iter().for_each(|&id| s.accept(id));
        s.candidates.load(&LOGITS);
        s.change_logits().unwrap();
        let want = penalised(&config, &LOGITS, &text, broken);
        for (got, want) in s.candidates.logits().zip(want) {
            let want = want.unwrap();
            let close = (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(1.0);
            assert!(close || want < -1e7 && got < -1e7, "{got} {want}: {config:?} {broken:?} {text:?}");
        }
    }
}

#[test]
fn dry_with_breakers_needs_the_texts_of_tokens() {
    let with = SamplerConfig { dry_multiplier: 1.0, ..plain() };
    assert_eq!(Sampler::new(with.clone()).err().map(|e| e.kind()), Some(ErrorKind::Input));
    assert!(Sampler::new(SamplerConfig { dry_penalty_last_n: 0, ..with }).is_ok());
}

/// A penalty that no f32 holds is the strongest one, and no infinity.
#[test]
fn dry_saturates() {
    let text = vec![1; 5000];
    let mut s = sampler_with(&dry(), &text);
    let sampled = s.sample(&LOGITS).unwrap();
    assert!(sampled.id != 1 && sampled.probability.is_finite());
    assert_eq!(sampler_with(&dry(), &text).sample(&[0.0]).unwrap().id, 0);
}

// ---- Filters ----

#[test]
fn filters_leave_what_their_definitions_say() {
    assert_survivors(|c, x| c.top_k = (x * 45.0) as usize);
    assert_survivors(|c, x| c.top_p = x);
    assert_survivors(|c, x| c.min_p = x);
    assert_survivors(|c, x| c.typical_p = x);
    assert_survivors(|c, x| c.top_n_sigma = x * 3.0);
    assert_survivors(|c, x| (c.xtc_probability, c.xtc_threshold) = (1.0, x / 2.0));
    assert_survivors(|c, x| {
        (c.top_n_sigma, c.top_k, c.typical_p, c.top_p, c.min_p) = (2.5, 25, 0.5 + x / 2.0, 0.9, 0.02);
        (c.xtc_probability, c.xtc_threshold) = (1.0, 0.1);
    });
}

#[test]
fn filtered_draws_follow_their_distributions() {
    for temperature in [0.5, 1.0, 2.0] {
        let base = SamplerConfig { temperature, ..plain() };
        let xtc = SamplerConfig { xtc_probability: 0.4, xtc_threshold: 0.1, ..base.clone() };
        let many = SamplerConfig { top_n_sigma: 2.0, top_k: 11, typical_p: 0.95, top_p: 0.97, ..xtc.clone() };
        for config in [
            SamplerConfig { top_k: 3, ..base.clone() },
            SamplerConfig { top_p: 0.7, ..base.clone() },
            SamplerConfig { min_p: 0.3, ..base.clone() },
            SamplerConfig { typical_p: 0.6, ..base.clone() },
            SamplerConfig { top_n_sigma: 1.0, ..base.clone() },
            SamplerConfig { dynatemp_range: 0.4, ..base.clone() },
            SamplerConfig { dynatemp_range: 1.5, dynatemp_exp: 0.5, ..base.clone() },
            SamplerConfig { xtc_probability: 1.0, ..xtc.clone() },
            xtc,
            SamplerConfig { dynatemp_range: 0.3, ..many.clone() },
            many,
        ] {
            assert_draws(config, &WIDE, &[]);
        }
    }
}

#[test]
fn the_ends_of_ranges() {
    // Probabilities 1/2, 1/4, 1/4, exactly enough of them for thresholds on the edge.
    let halves = [2f32.ln(), 0.0, 0.0];
    let left = |set: &dyn Fn(&mut SamplerConfig), logits: &[f32]| {
        let mut config = plain();
        set(&mut config);
        survivors(&config, logits)
    };
    for logits in [&[0.7][..], &halves, &[1.0; 5]] {
        let all: Vec<u32> = (0..logits.len() as u32).collect();
        assert_eq!(left(&|c| c.typical_p = 1.0, logits), all);
        assert_eq!(left(&|c| c.top_p = 1.0, logits), all);
        assert_eq!(left(&|c| c.top_n_sigma = 0.0, logits), all);
        assert_eq!(left(&|c| c.top_k = 9, logits), all);
        assert_eq!(left(&|c| c.top_p = 0.0, logits), [0]);
        assert_eq!(left(&|c| c.typical_p = 0.0, logits).len(), 1);
        // No token reaches the threshold, or all do.
        assert_eq!(left(&|c| (c.xtc_probability, c.xtc_threshold) = (0.0, 0.0), logits), all);
        assert_eq!(
            left(&|c| (c.xtc_probability, c.xtc_threshold) = (1.0, 0.0), logits),
            all[all.len() - 1..]
        );
    }
    assert_eq!(left(&|c| c.min_p = 1.0, &halves), [0]);
    assert_eq!(left(&|c| c.min_p = 1.0, &[1.0; 5]), [0, 1, 2, 3, 4]);
    assert_eq!(left(&|c| c.top_p = 0.49, &halves), [0]);
    assert_eq!(left(&|c| c.top_p = 0.51, &halves), [0, 1]);
    let xtc = |threshold| left(&|c| (c.xtc_probability, c.xtc_threshold) = (1.0, threshold), &halves);
    assert_eq!((xtc(0.251), xtc(0.249)), (vec![0, 1, 2], vec![2]));
    // Of equals top-k takes the lowest ids.
    assert_eq!(left(&|c| c.top_k = 2, &[1.0; 5]), [0, 1]);
}

/// The one-pass selection against a sort, in vocabularies many times its buffer.
#[test]
fn the_k_best_of_many() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (levels, k) in [(3, 40), (1 << 20, 40), (1 << 20, 1), (50, 700), (2, 5000)] {
        let logits: Vec<f32> = (0..5000).map(|_| (rng.next_u32() % levels) as f32).collect();
        let mut want: Vec<u32> = (0..5000).collect();
        want.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        want.truncate(k);
        want.sort_unstable();
        assert_eq!(survivors(&SamplerConfig { top_k: k, ..plain() }, &logits), want);
        let ascending: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let last: Vec<u32> = (5000 - k as u32..5000).collect();
        assert_eq!(survivors(&SamplerConfig { top_k: k, ..plain() }, &ascending), last);
    }
}

/// Vocabularies of which the filters put a part in order at a time.
#[test]
fn filters_of_many() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for (spread, p) in [(1.0, 0.05), (1.0, 0.5), (4.0, 0.9), (4.0, 0.99)] {
        let logits: Vec<f32> = (0..3000).map(|_| spread * unit(&mut rng)).collect();
        let typical = SamplerConfig { typical_p: p, ..plain() };
        let min_p = SamplerConfig { min_p: 1.0 - p, ..plain() };
        for config in [SamplerConfig { top_p: p, ..plain() }, typical, min_p] {
            let left = filtered(&config, penalised(&config, &logits, &[], &[]), false);
            let want: Vec<u32> = (0..3000).filter(|&i| left[i as usize].is_some()).collect();
            assert_eq!(survivors(&config, &logits), want);
        }
    }
}

// ---- Mirostat ----

/// What mirostat leaves with the limit `mu`, by the paper.
fn mirostat_left(c: &SamplerConfig, logits: &[f32], mu: f64) -> Logits {
    let all: Logits = logits.iter().map(|&l| Some(f64::from(l))).collect();
    let p = probabilities(&all, f64::from(c.temperature));
    let ids = ranking(&all);
    let k = if c.mirostat == Some(Mirostat::V2) {
        ids.iter().filter(|&&i| -p[i].log2() <= mu).count()
    } else {
        let (mut tb, mut tt) = (0.0, 0.0);
        for i in 1..ids.len().min(100) {
            let t = ((i + 1) as f64 / i as f64).ln();
            tb += t * (p[ids[i - 1]] / p[ids[i]]).ln();
            tt += t * t;
        }
        let (s, n) = (tb / tt, ids.len() as f64);
        let epsilon = s - 1.0;
        (epsilon * mu.exp2() / (1.0 - n.powf(-epsilon))).powf(1.0 / s).round() as usize
    };
    keep(&all, &ids[..k.clamp(1, ids.len())])
}

fn zipf(n: usize, exponent: f32) -> Vec<f32> {
    // Some order other than best first.
    (0..n).map(|i| -exponent * (((i * 37) % n + 1) as f32).ln()).collect()
}

/// With a learning rate of 0 the limit stays at twice the target.
#[test]
fn mirostat_draws_follow_its_definition() {
    for version in [Mirostat::V1, Mirostat::V2] {
        for (temperature, target) in [(1.0, 1.0), (1.0, 1.7), (0.7, 1.3), (1.5, 2.0), (1.0, 0.0), (1.0, 50.0)]
        {
            let config = SamplerConfig {
                mirostat: Some(version),
                mirostat_lr: 0.0,
                mirostat_ent: target,
                temperature,
                ..plain()
            };
            for logits in [&WIDE[..], &zipf(200, 1.2)] {
                let left = mirostat_left(&config, logits, 2.0 * f64::from(target));
                let mut counts = vec![0; logits.len()];
                let mut s = Sampler::new(config.clone()).unwrap();
                for _ in 0..DRAWS {
                    counts[s.sample(logits).unwrap().id as usize] += 1;
                }
                assert_frequencies(&counts, &probabilities(&left, f64::from(temperature)));
            }
        }
    }
}

/// The limit after every draw is that of the paper's recursion, and the mean surprise ends up at the target.
#[test]
fn mirostat_learns() {
    for version in [Mirostat::V1, Mirostat::V2] {
        let config = SamplerConfig { mirostat: Some(version), mirostat_ent: 3.0, ..plain() };
        let mut s = Sampler::new(config.clone()).unwrap();
        let (mut mu, mut sum) = (6.0, 0.0);
        for step in 0..3000 {
            let logits = zipf(300 + step % 3, 1.05 + (step % 7) as f32 / 20.0);
            let id = s.sample(&logits).unwrap().id as usize;
            if step < 200 {
                assert!(mirostat_left(&config, &logits, mu)[id].is_some(), "{version:?} step {step}");
            }
            let all = logits.iter().map(|&l| Some(f64::from(l))).collect();
            let surprise = -probabilities(&all, 1.0)[id].log2();
            mu -= f64::from(config.mirostat_lr) * (surprise - 3.0);
            let limit = f64::from(s.mirostat.as_ref().unwrap().limit());
            assert!((limit - mu).abs() < 1e-2, "{version:?} step {step}: {limit} {mu}");
            sum += surprise;
        }
        let mean = sum / 3000.0;
        assert!((mean - 3.0).abs() < 0.1, "{version:?}: {mean}");
    }
}

#[test]
fn mirostat_with_one_token_or_equal_ones() {
    for version in [Mirostat::V1, Mirostat::V2] {
        let mut s = Sampler::new(SamplerConfig { mirostat: Some(version), ..plain() }).unwrap();
        assert_eq!(s.sample(&[0.5]).unwrap(), Sampled { id: 0, probability: 1.0 });
        for _ in 0..2000 {
            assert!(s.sample(&[0.5; 9]).unwrap().id < 9);
            assert!(s.sample(&[0.0, -3e38, 3e38]).unwrap().id == 2);
        }
    }
}
