//! `minfer bench serve`: closed-loop load on a server. So many clients, each of which sends its next request when the
//! last one has ended.

use super::super::print;
use super::client::{Answer, Ask, Target};
use super::texts::{Counter, Draws, prompt};
use crate::args::BenchServeArgs;
use crate::console::note;
use crate::exit::printable;
use anyhow::{Result, anyhow, bail};
use minfer::knob_value;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub fn run(args: &BenchServeArgs) -> Result<()> {
    let key = args.api_key.clone().or_else(|| knob_value("MINFER_API_KEY"));
    let target = Target::new(&args.url, key, Duration::from_secs(args.timeout as u64));
    let model = match &args.model {
        Some(name) => name.clone(),
        None => target.model().map_err(|e| anyhow!("{}: {}", args.url, printable(&e)))?,
    };
    let ask = Ask { model, chat: args.chat, max_tokens: args.max_tokens, ignore_eos: args.ignore_eos };
    let (texts, exact) = texts(args, &target)?;
    let ask = warm_up(&target, ask)?;
    let started = Instant::now();
    let answers = load(args.clients, &texts, |text| target.ask(&ask, text));
    let summary = Summary::new(&answers, started.elapsed());
    let value = summary.json(args, &ask, exact);
    print(&if args.json { value.to_string() } else { table(args, &summary, exact) })?;
    match answers.iter().filter(|a| a.is_err()).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} requests failed", answers.len()),
    }
}

/// The prompts, and whether their lengths were counted by the server.
fn texts(args: &BenchServeArgs, target: &Target) -> Result<(Vec<String>, bool)> {
    let mut draws = Draws::new(args.seed);
    let exact = target.count("the").is_ok();
    if !exact {
        note!("the server has no /tokenize: a word is taken for a token");
    }
    let count = |text: &str| target.count(text);
    let count: Option<&Counter<'_, String>> = if exact { Some(&count) } else { None };
    let (low, high) = args.prompt_tokens;
    let texts = (0..args.requests).map(|_| {
        let tokens = draws.between(low, high);
        prompt(&mut draws, tokens, count)
    });
    let texts = texts.collect::<Result<_, _>>().map_err(|e| anyhow!("/tokenize: {}", printable(&e)))?;
    Ok((texts, exact))
}

/// One request that is not counted: loads the model, and finds out whether the server takes `ignore_eos`.
fn warm_up(target: &Target, ask: Ask) -> Result<Ask> {
    let short = Ask { max_tokens: 4, ..ask.clone() };
    let Err(first) = target.ask(&short, "A warm-up.") else { return Ok(ask) };
    if ask.ignore_eos && target.ask(&Ask { ignore_eos: false, ..short }, "A warm-up.").is_ok() {
        note!("the server does not take ignore_eos: answers may be shorter ({})", printable(&first));
        return Ok(Ask { ignore_eos: false, ..ask });
    }
    bail!("the first request failed: {}", printable(&first))
}

/// Runs all requests with so many clients; the answers in the order of the texts.
fn load<A: Send>(clients: usize, texts: &[String], ask: impl Fn(&str) -> A + Sync) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::with_capacity(texts.len()));
    std::thread::scope(|scope| {
        for _ in 0..clients.min(texts.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(text) = texts.get(i) else { return };
                    let answer = ask(text);
                    if let Ok(mut answers) = answers.lock() {
                        answers.push((i, answer));
                    }
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_default();
    answers.sort_by_key(|&(i, _)| i);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// What all requests together show.
struct Summary {
    wall: Duration,
    /// Of answered requests, each sorted, in milliseconds.
    first: Vec<f64>,
    gaps: Vec<f64>,
    whole: Vec<f64>,
    prompt_tokens: Option<usize>,
    answer_tokens: usize,
    cached_tokens: usize,
    failures: BTreeMap<String, usize>,
}

impl Summary {
    fn new(answers: &[Result<Answer, String>], wall: Duration) -> Summary {
        let good = || answers.iter().filter_map(|a| a.as_ref().ok());
        let mut failures = BTreeMap::new();
        for why in answers.iter().filter_map(|a| a.as_ref().err()) {
            *failures.entry(why.clone()).or_default() += 1;
        }
        Summary {
            wall,
            first: sorted(good().map(|a| a.first)),
            gaps: sorted(good().flat_map(|a| a.gaps.iter().copied())),
            whole: sorted(good().map(|a| a.whole)),
            prompt_tokens: good().map(|a| a.prompt_tokens).sum(),
            answer_tokens: good().map(|a| a.answer_tokens).sum(),
            cached_tokens: good().map(|a| a.cached_tokens).sum(),
            failures,
        }
    }

    /// Tokens of answers per second, of all clients together.
    fn rate(&self) -> f64 {
        self.answer_tokens as f64 / self.wall.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn json(&self, args: &BenchServeArgs, ask: &Ask, exact: bool) -> Value {
        let spread = |v: &[f64]| json!({ "p50": at(v, 0.5), "p99": at(v, 0.99), "max": at(v, 1.0) });
        json!({
            "url": args.url, "model": ask.model, "endpoint": if ask.chat { "chat" } else { "completions" },
            "clients": args.clients, "requests": args.requests, "seed": args.seed,
            "prompt_tokens_wanted": [args.prompt_tokens.0, args.prompt_tokens.1], "prompts_counted": exact,
            "max_tokens": ask.max_tokens, "ignore_eos": ask.ignore_eos,
            "answered": self.first.len(), "failed": self.failures.values().sum::<usize>(),
            "failures": self.failures, "seconds": rounded(self.wall.as_secs_f64()),
            "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "answer_tokens": self.answer_tokens, "tokens_per_second": rounded(self.rate()),
            "requests_per_second": rounded(self.first.len() as f64 / self.wall.as_secs_f64().max(1e-9)),
            "ttft_ms": spread(&self.first), "itl_ms": spread(&self.gaps), "request_ms": spread(&self.whole),
        })
    }
}

fn rounded(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut list: Vec<f64> = times.map(|t| t.as_secs_f64() * 1e3).collect();
    list.sort_by(f64::total_cmp);
    list
}

/// The value that a share of a sorted list does not exceed; `None` of an empty one.
fn at(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().map(rounded)
}

fn table(args: &BenchServeArgs, s: &Summary, exact: bool) -> String {
    let failed: usize = s.failures.values().sum();
    let prompt = s.prompt_tokens.map_or("unknown".to_owned(), |n| n.to_string());
    let about = if exact { "" } else { "about " };
    let mut text = format!(
        "{} clients, {} requests, {failed} failed, {:.1} s\n{prompt} tokens of prompts ({about}{} to {} each, {} cached), \
         {} of answers: {:.1} tokens/s\n\n{:20}{:>10}{:>10}{:>10}\n",
        args.clients,
        args.requests,
        s.wall.as_secs_f64(),
        args.prompt_tokens.0,
        args.prompt_tokens.1,
        s.cached_tokens,
        s.answer_tokens,
        s.rate(),
        "ms",
        "p50",
        "p99",
        "max",
    );
    for (name, list) in [("first token", &s.first), ("between tokens", &s.gaps), ("request", &s.whole)] {
        let cell = |share| at(list, share).map_or("-".to_owned(), |x| format!("{x:.1}"));
        text += &format!("{name:20}{:>10}{:>10}{:>10}\n", cell(0.5), cell(0.99), cell(1.0));
    }
    for (why, count) in &s.failures {
        text += &format!("{count} x {}\n", printable(why));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first: u64, gaps: &[u64]) -> Answer {
        let ms = Duration::from_millis;
        Answer {
            first: ms(first),
            gaps: gaps.iter().copied().map(ms).collect(),
            whole: ms(first + gaps.iter().sum::<u64>()),
            prompt_tokens: Some(10),
            answer_tokens: gaps.len() + 1,
            cached_tokens: 2,
        }
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|s| at(&hundred, s)), [Some(50.0), Some(99.0), Some(100.0)]);
        assert_eq!([0.5, 0.99, 1.0].map(|s| at(&[7.0], s)), [Some(7.0); 3]);
        assert_eq!(at(&[], 0.5), None);
    }

    #[test]
    fn sums_leave_failures_out_and_count_them() {
        let answers = [
            Ok(answer(20, &[5, 7])),
            Err("status 503".to_owned()),
            Ok(answer(40, &[])),
            Err("status 503".into()),
        ];
        let s = Summary::new(&answers, Duration::from_secs(2));
        assert_eq!((s.first, s.gaps), (vec![20.0, 40.0], vec![5.0, 7.0]));
        assert_eq!((s.prompt_tokens, s.answer_tokens, s.cached_tokens), (Some(20), 4, 4));
        assert_eq!(s.failures, BTreeMap::from([("status 503".to_owned(), 2)]));
        let unknown = Answer { prompt_tokens: None, ..answer(1, &[]) };
        assert_eq!(Summary::new(&[Ok(unknown)], Duration::ZERO).prompt_tokens, None);
    }

    #[test]
    fn clients_work_at_once_and_answers_keep_their_order() {
        let texts: Vec<String> = (0..20).map(|i| i.to_string()).collect();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let got = load(4, &texts, |text| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            now.fetch_sub(1, Ordering::SeqCst);
            text.to_owned()
        });
        assert_eq!(got, texts);
        assert_eq!(most.into_inner(), 4);
    }
}
