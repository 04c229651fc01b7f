//! `minfer bench`: prefill and decode rates, measured as `llama-bench` does: no tokenising, no sampling.

use super::print;
use crate::args::BenchArgs;
use crate::exit::Usage;
use crate::inputs;
use anyhow::Result;
use minfer::{Batch, Control, SeqId, Session, Wanted};
use serde_json::json;
use std::time::Instant;

pub fn run(args: &BenchArgs) -> Result<()> {
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    if args.prompt == 0 && args.generate == 0 {
        return Err(Usage("nothing to measure: -p 0 -n 0".into()).into());
    }
    let mut options = args.model.clone();
    options.ctx_size.get_or_insert(args.prompt.max(args.generate));
    let (_, mut session) = inputs::load(name, &options)?;
    let sequence = session.new_sequence()?;
    if args.prompt > 0 {
        let rates = measure(&mut session, sequence, args.reps, args.prompt, args.prompt)?;
        show(args, &format!("pp{}", args.prompt), &rates)?;
    }
    if args.generate > 0 {
        let rates = measure(&mut session, sequence, args.reps, args.generate, 1)?;
        show(args, &format!("tg{}", args.generate), &rates)?;
    }
    Ok(())
}

/// Tokens per second of feeding `count` tokens, `step` at a time, from an empty cache; once to warm up.
fn measure(session: &mut Session, seq: SeqId, reps: usize, count: usize, step: usize) -> Result<Vec<f64>> {
    let n_vocab = session.model().spec().n_vocab;
    let tokens: Vec<u32> = (0..count).map(|i| ((7919 * i + 13) % n_vocab) as u32).collect();
    let mut rates = Vec::with_capacity(reps);
    for rep in 0..=reps {
        session.truncate(seq, 0)?;
        let started = Instant::now();
        for chunk in tokens.chunks(step) {
            let mut batch = Batch::new();
            batch.add(seq, chunk, Wanted::Last);
            session.step(&batch, &Control::default())?;
        }
        if rep > 0 {
            rates.push(count as f64 / started.elapsed().as_secs_f64());
        }
    }
    Ok(rates)
}

fn show(args: &BenchArgs, test: &str, rates: &[f64]) -> Result<()> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median =
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    let rounded = |x: f64| (x * 100.0).round() / 100.0;
    if args.json {
        let list: Vec<f64> = rates.iter().copied().map(rounded).collect();
        let object = json!({
            "engine": "minfer", "test": test, "tokens_per_second": list, "median": rounded(median)
        });
        return print(&object.to_string());
    }
    let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
    print(&format!("{test:>7}  {median:>9.2} tokens/s  (of {}: {low:.2} to {high:.2})", rates.len()))
}
