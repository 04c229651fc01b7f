//! `minfer eval`: perplexity of a text, and KL divergence against a reference file.

use super::print;
use crate::args::EvalArgs;
use crate::exit::Usage;
use crate::inputs;
use crate::tensors_io::{Origin, TopLogProbs};
use anyhow::{Context, Result, bail, ensure};
use minfer::text::EncodeOptions;
use minfer::{Batch, Control, Error, LogProbs, Model, SeqId, Session, Wanted, top_k};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

pub fn run(args: &EvalArgs) -> Result<()> {
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    let (reference, origin) = args.reference.as_deref().map(TopLogProbs::read).transpose()?.unzip();
    let origin = origin.unwrap_or_default();
    if args.top == 0 {
        return Err(Usage("--top must be at least 1".into()).into());
    }
    let (model, mut session) = inputs::load(name, &args.model)?;
    let tokens = tokens(args, &model, reference.as_ref())?;
    check_vocabulary(args, &tokens, reference.as_ref(), &origin, model.spec().n_vocab)?;
    // Hashing a large file takes seconds.
    let hashed = args.out.is_some() || origin.model_sha256.is_some();
    let sha256 = if hashed { Some(file_sha256(model.file().parts())?) } else { None };
    if origin.model_sha256.as_ref().is_some_and(|recorded| Some(recorded) != sha256.as_ref()) {
        crate::console::note!(
            "warning: {} was recorded from another file than this model's (model_sha256)",
            source(args)
        );
    }
    let mut collected = evaluate(args, &mut session, &tokens, reference.as_ref())?;
    if args.greedy > 0 {
        collected.top.greedy = continue_greedily(&mut session, collected.seq, &collected.last, args.greedy)?;
    }
    if let Some(out) = &args.out {
        let mut metadata = HashMap::new();
        metadata.insert("source".into(), format!("minfer {}", env!("CARGO_PKG_VERSION")));
        metadata.insert("n_vocab".into(), model.spec().n_vocab.to_string());
        metadata.extend(sha256.map(|sha256| ("model_sha256".into(), sha256)));
        collected.top.write(out, metadata)?;
    }
    show(args, &collected, reference.as_ref())
}

/// The file that the ids come from.
fn source(args: &EvalArgs) -> String {
    let path = args.reference.as_ref().or(args.ids.as_ref()).or(args.file.as_ref());
    path.map_or_else(String::new, |path| path.display().to_string())
}

/// The ids to evaluate.
fn tokens(args: &EvalArgs, model: &Model, reference: Option<&TopLogProbs>) -> Result<Vec<u32>> {
    let mut tokens = all_tokens(args, model, reference)?;
    ensure!(tokens.len() >= 2, "{}: too short: at least 2 tokens are needed", source(args));
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    match tokens.len() {
        n @ 0..2 => Err(Usage(format!("--limit {n}: at least 2 tokens are needed")).into()),
        _ => Ok(tokens),
    }
}

/// Refuses ids and recordings that belong to another vocabulary.
fn check_vocabulary(
    args: &EvalArgs,
    tokens: &[u32],
    reference: Option<&TopLogProbs>,
    origin: &Origin,
    n_vocab: usize,
) -> Result<()> {
    let recorded = origin.n_vocab.unwrap_or(n_vocab);
    ensure!(
        recorded == n_vocab,
        "{}: recorded with a vocabulary of {recorded} tokens, the model's has {n_vocab}",
        source(args)
    );
    let recorded = reference.iter().flat_map(|r| r.ids.iter().chain(&r.greedy));
    if let Some(id) = tokens.iter().chain(recorded).find(|&&id| id as usize >= n_vocab) {
        bail!("{}: there is no token {id} among the model's {n_vocab}", source(args));
    }
    let k = reference.map_or(0, |r| r.k);
    ensure!(k <= n_vocab, "{}: {k} ids per position of a vocabulary of {n_vocab}", source(args));
    Ok(())
}

/// Ids of the reference, of a file, or of a text.
fn all_tokens(args: &EvalArgs, model: &Model, reference: Option<&TopLogProbs>) -> Result<Vec<u32>> {
    match (reference, &args.ids, &args.file) {
        (Some(reference), ..) => Ok(reference.tokens.clone()),
        (None, Some(path), _) => {
            let text = inputs::read_text(path)?;
            let id =
                |word: &str| word.parse::<u32>().with_context(|| format!("{}: `{word}`", path.display()));
            text.split_whitespace().map(id).collect()
        }
        (None, None, Some(path)) => {
            let text = inputs::read_text(path)?;
            Ok(model.tokenizer()?.encode(&text, EncodeOptions::default()))
        }
        (None, None, None) => Err(Usage("nothing to evaluate: give --ids, -f or --reference".into()).into()),
    }
}

/// What one pass over the tokens gives.
struct Collected {
    seq: SeqId,
    top: TopLogProbs,
    /// Sum of the negative log-probabilities of the tokens 1..n.
    nll: f64,
    kl: Vec<f64>,
    agree: usize,
    hash: Sha256,
    /// Logits after the last token.
    last: Vec<f32>,
}

fn evaluate(
    args: &EvalArgs,
    session: &mut Session,
    tokens: &[u32],
    reference: Option<&TopLogProbs>,
) -> Result<Collected> {
    let seq = session.new_sequence()?;
    let k = args.top.min(session.model().spec().n_vocab);
    let top = TopLogProbs { tokens: tokens.to_vec(), k, ids: vec![], logprobs: vec![], greedy: vec![] };
    let (kl, hash, last) = (Vec::new(), Sha256::new(), Vec::new());
    let mut c = Collected { seq, top, nll: 0.0, kl, agree: 0, hash, last };
    session.evaluate(seq, tokens, &Control::default(), &mut |i, logits| {
        check_finite(i, logits)?;
        let best = top_k(logits, k.max(reference.map_or(0, |r| r.k)));
        if let Some(&next) = tokens.get(i + 1) {
            c.nll -= LogProbs::new(logits).of(next);
        } else {
            c.last = logits.to_vec();
        }
        if let Some(reference) = reference {
            let (ids, logprobs) = reference.row(i);
            c.kl.push(kl_divergence(ids, logprobs, &best[..reference.k.min(best.len())]));
            c.agree += usize::from(ids.first() == best.first().map(|b| &b.0));
        }
        if args.logits_hash {
            logits.iter().for_each(|x| c.hash.update(x.to_le_bytes()));
        }
        c.top.ids.extend(best[..k].iter().map(|b| b.0));
        c.top.logprobs.extend(best[..k].iter().map(|b| b.1 as f32));
        Ok(())
    })?;
    Ok(c)
}

fn check_finite(position: usize, logits: &[f32]) -> Result<(), Error> {
    match logits.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(id) => Err(Error::non_finite(position, id, logits[id])),
    }
}

/// KL(reference || ours) over the reference's ids plus one bucket for the rest. An id that our list lacks
/// takes our smallest listed value.
fn kl_divergence(ids: &[u32], logprobs: &[f32], ours: &[(u32, f64)]) -> f64 {
    const LEAST_REST: f64 = 1e-12;
    // Both sides are compared as files hold them: log-probabilities in f32.
    let listed: HashMap<u32, f64> = ours.iter().map(|&(id, lp)| (id, f64::from(lp as f32))).collect();
    let smallest = ours.last().map_or(0.0, |b| f64::from(b.1 as f32));
    let (mut kl, mut rest_p, mut rest_q) = (0.0, 1.0, 1.0);
    for (id, &log_p) in ids.iter().zip(logprobs) {
        let (log_p, log_q) = (f64::from(log_p), listed.get(id).copied().unwrap_or(smallest));
        kl += log_p.exp() * (log_p - log_q);
        rest_p -= log_p.exp();
        rest_q -= log_q.exp();
    }
    let (rest_p, rest_q) = (rest_p.max(LEAST_REST), rest_q.max(LEAST_REST));
    kl + rest_p * (rest_p / rest_q).ln()
}

fn continue_greedily(session: &mut Session, seq: SeqId, last: &[f32], n: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::with_capacity(n);
    let mut next = top_k(last, 1)[0].0;
    loop {
        ids.push(next);
        if ids.len() == n {
            return Ok(ids);
        }
        let mut batch = Batch::new();
        batch.add(seq, &[next], Wanted::Last);
        next = top_k(session.step(&batch, &Control::default())?.row(0), 1)[0].0;
    }
}

/// The value below which `share` of the sorted values lie, between neighbours by their distance.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

fn show(args: &EvalArgs, c: &Collected, reference: Option<&TopLogProbs>) -> Result<()> {
    let n = c.top.tokens.len();
    let mean_nll = c.nll / (n - 1) as f64;
    let mut object = json!({ "n": n, "mean_nll": mean_nll, "perplexity": mean_nll.exp() });
    if let Some(reference) = reference {
        let mut sorted = c.kl.clone();
        sorted.sort_by(f64::total_cmp);
        object["kl_mean"] = json!(c.kl.iter().sum::<f64>() / c.kl.len() as f64);
        object["kl_p99"] = json!(percentile(&sorted, 0.99));
        object["kl_max"] = json!(sorted[sorted.len() - 1]);
        object["top1_agreement"] = json!(c.agree as f64 / c.kl.len() as f64);
        if !c.top.greedy.is_empty() && !reference.greedy.is_empty() {
            let same = c.top.greedy.iter().zip(&reference.greedy).take_while(|(a, b)| a == b).count();
            object["greedy_equal"] = json!(same);
        }
    }
    if !c.top.greedy.is_empty() {
        object["greedy"] = json!(c.top.greedy);
    }
    if args.logits_hash {
        object["logits_sha256"] = json!(hex(&c.hash.clone().finalize()));
    }
    if args.json {
        return print(&object.to_string());
    }
    let lines = object.as_object().into_iter().flatten().map(|(key, value)| format!("{key:<16} {value}\n"));
    print(&lines.collect::<String>())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The hash of a file, or of the parts of a split model one after another.
fn file_sha256(parts: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    for path in parts {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        std::io::copy(&mut file, &mut hash).with_context(|| path.display().to_string())?;
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_by_hand() {
        let lp = |p: f64| p.ln() as f32;
        let ours = [(1, 0.5f64.ln()), (0, 0.25f64.ln())];
        let same = kl_divergence(&[1, 0], &[lp(0.5), lp(0.25)], &ours);
        assert!(same.abs() < 1e-7, "{same}");
        // Reference: 0.6 on id 1, 0.2 on id 7 (which takes our 0.25), rest 0.2 against 0.25.
        let want = 0.6 * (0.6f64 / 0.5).ln() + 0.2 * (0.2f64 / 0.25).ln() + 0.2 * (0.2f64 / 0.25).ln();
        let got = kl_divergence(&[1, 7], &[lp(0.6), lp(0.2)], &ours);
        assert!((got - want).abs() < 1e-6, "{got} against {want}");
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(percentile(&[0.0, 10.0], 0.75), 7.5);
        assert_eq!(percentile(&[4.0], 0.99), 4.0);
    }
}
