//! What `minfer bench` prints: a table, or a line of JSON per test.

use super::super::{counted, print};
use super::work::{Test, Work};
use crate::console::shown;
use anyhow::Result;
use minfer::{Ceilings, MachineProbe, OpCost, Session};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// All that is known of a test.
pub struct Measured {
    pub test: Test,
    /// Tokens per second of all sequences, one per repetition; never empty.
    pub rates: Vec<f64>,
    pub work: Work,
    /// Before and after.
    pub ceilings: Option<[Ceilings; 2]>,
    /// Number of threads and their instruction set.
    pub threads: Option<(usize, &'static str)>,
    pub ops: Option<Ops>,
}

/// Where the time of a test goes.
pub struct Ops {
    /// By kind, most time first.
    pub costs: Vec<OpCost>,
    /// Of the whole test, what lies between the operations included.
    pub took: Duration,
}

/// Prints tests as they come.
pub struct Report {
    model: String,
    json: bool,
    /// Of all tests.
    ceilings: Vec<Ceilings>,
    /// Tables of operations; they stand below that of the tests.
    ops: String,
}

const HEAD: &str =
    "   test   depth  batch    tokens/s      lowest     highest   of reading  of multiply-adds";

impl Report {
    pub fn new(session: &Session, json: bool) -> Result<Report> {
        let (path, device) = (session.model().file().path(), session.model().device());
        let model = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !json {
            print(&format!("{}, {device}\n\n{HEAD}", shown(path)))?;
        }
        Ok(Report { model, json, ceilings: Vec::new(), ops: String::new() })
    }

    pub fn test(&mut self, m: &Measured) -> Result<()> {
        if self.json {
            return print(&as_json(&self.model, m).to_string());
        }
        self.ceilings.extend(m.ceilings.iter().flatten());
        if let Some(ops) = &m.ops {
            self.ops += &ops_text(&m.test, ops);
        }
        print(&row(m))
    }

    pub fn end(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        match &self.ceilings[..] {
            [] => print(&self.ops),
            list => print(&format!("\nceilings: {}\n{}", ceilings_text(list), self.ops)),
        }
    }
}

/// `minfer bench --ceilings`.
pub fn ceilings(probe: &MachineProbe, c: Ceilings, json: bool) -> Result<()> {
    if json {
        let value = json!({
            "threads": probe.threads(), "isa": probe.isa(),
            "read_bytes_per_second": c.read.round(), "multiply_adds_per_second": c.multiply_adds.round(),
        });
        return print(&value.to_string());
    }
    print(&format!("{}: {}", threads_text(probe.threads(), probe.isa()), ceilings_text(&[c])))
}

fn threads_text(threads: usize, isa: &str) -> String {
    format!("{} ({isa})", counted(threads, "thread"))
}

/// What was measured, or from what to what.
fn ceilings_text(list: &[Ceilings]) -> String {
    let range = |of: fn(&Ceilings) -> f64| {
        let mut all: Vec<f64> = list.iter().map(|c| of(c) / 1e9).collect();
        all.sort_by(f64::total_cmp);
        let [low, high] = [all.first(), all.last()].map(|x| format!("{:.1}", x.copied().unwrap_or_default()));
        if low == high { low } else { format!("{low} to {high}") }
    };
    format!("{} GB/s of reading, {} G multiply-adds/s", range(|c| c.read), range(|c| c.multiply_adds))
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn row(m: &Measured) -> String {
    let Test { depth, batch, .. } = m.test;
    let rate = median(&m.rates);
    let low = m.rates.iter().copied().fold(f64::INFINITY, f64::min);
    let high = m.rates.iter().copied().fold(0.0, f64::max);
    let mut text =
        format!("{:>7} {depth:>7} {batch:>6} {rate:>11.2} {low:>11.2} {high:>11.2}", m.test.name());
    if let Some(ceilings) = m.ceilings {
        let reached = m.work.reached(rate, ceilings);
        let _ = write!(text, " {:>10.1} % {:>15.1} %", 100.0 * reached.read, 100.0 * reached.multiply_adds);
    }
    text
}

/// `x` with so many digits behind the point.
fn rounded(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

fn as_json(model: &str, m: &Measured) -> Value {
    let rate = median(&m.rates);
    let rates: Vec<f64> = m.rates.iter().map(|&r| rounded(r, 2)).collect();
    let mut value = json!({
        "engine": "minfer", "test": m.test.name(), "tokens_per_second": rates, "median": rounded(rate, 2),
        "model": model, "depth": m.test.depth, "batch": m.test.batch,
        "bytes_per_token": m.work.bytes.round(), "multiply_adds_per_token": m.work.multiply_adds.round(),
    });
    if let Some((threads, isa)) = m.threads {
        value["threads"] = threads.into();
        value["isa"] = isa.into();
    }
    if let Some(ceilings) = m.ceilings {
        let reached = m.work.reached(rate, ceilings);
        value["read_bytes_per_second"] = json!(ceilings.map(|c| c.read.round()));
        value["multiply_adds_per_second"] = json!(ceilings.map(|c| c.multiply_adds.round()));
        value["of_read"] = rounded(reached.read, 4).into();
        value["of_multiply_adds"] = rounded(reached.multiply_adds, 4).into();
    }
    if let Some(ops) = &m.ops {
        value["ops"] = ops.costs.iter().map(op_json).collect();
        value["ops_seconds"] = ops.took.as_secs_f64().into();
    }
    value
}

fn op_json(cost: &OpCost) -> Value {
    json!({
        "op": cost.op, "of": cost.of, "calls": cost.calls, "seconds": cost.took.as_secs_f64(),
        "bytes": cost.bytes.round(), "multiply_adds": cost.multiply_adds.round(),
    })
}

/// A table of one test's operations.
fn ops_text(test: &Test, ops: &Ops) -> String {
    let Test { depth, batch, .. } = test;
    let mut text = format!(
        "\n{}, depth {depth}, batch {batch}: {:.2} ms\n  share        ms    calls  us/call    GB/s  GMAC/s\n",
        test.name(),
        1e3 * ops.took.as_secs_f64()
    );
    let all = ops.took.as_secs_f64().max(f64::MIN_POSITIVE);
    let rate = |work: f64, seconds: f64| match work > 0.0 && seconds > 0.0 {
        true => format!("{:.1}", work / seconds / 1e9),
        false => String::new(),
    };
    for cost in &ops.costs {
        let seconds = cost.took.as_secs_f64();
        let _ = writeln!(
            text,
            "{:>5.1} % {:>9.3} {:>8} {:>8.1} {:>7} {:>7}  {} {}",
            100.0 * seconds / all,
            1e3 * seconds,
            cost.calls,
            1e6 * seconds / cost.calls.max(1) as f64,
            rate(cost.bytes, seconds),
            rate(cost.multiply_adds, seconds),
            cost.op,
            cost.of,
        );
    }
    let between = all - ops.costs.iter().map(|c| c.took.as_secs_f64()).sum::<f64>();
    let _ =
        writeln!(text, "{:>5.1} % {:>9.3} {:36}between operations", 100.0 * between / all, 1e3 * between, "");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::work::Kind;

    fn measured() -> Measured {
        Measured {
            test: Test { kind: Kind::Decode, tokens: 64, depth: 128, batch: 2 },
            rates: vec![90.0, 110.0, 100.0],
            work: Work { bytes: 5e8, multiply_adds: 1e9 },
            ceilings: Some([Ceilings { read: 1e11, multiply_adds: 2e12 }; 2]),
            threads: Some((2, "avx2")),
            ops: None,
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn json_says_what_was_measured_and_reached() {
        let value = as_json("m.gguf", &measured());
        let wanted = json!({
            "engine": "minfer", "test": "tg64", "tokens_per_second": [90.0, 110.0, 100.0], "median": 100.0,
            "model": "m.gguf", "depth": 128, "batch": 2, "bytes_per_token": 5e8, "multiply_adds_per_token": 1e9,
            "threads": 2, "isa": "avx2", "read_bytes_per_second": [1e11, 1e11],
            "multiply_adds_per_second": [2e12, 2e12], "of_read": 0.5, "of_multiply_adds": 0.05,
        });
        assert_eq!(value, wanted);
        let elsewhere = as_json("m.gguf", &Measured { ceilings: None, threads: None, ..measured() });
        assert!(elsewhere.get("of_read").is_none() && elsewhere.get("threads").is_none());
    }

    #[test]
    fn the_row_stands_below_its_heads() {
        let text = row(&measured());
        assert_eq!(text.len(), HEAD.len(), "{HEAD}\n{text}");
        assert!(text.contains("50.0 %") && text.contains("5.0 %") && text.contains("110.00"), "{text}");
    }

    #[test]
    fn operations_and_what_lies_between_are_the_whole() {
        let cost = OpCost {
            op: "MatMul",
            of: "q4_0 32 x 8".into(),
            calls: 2,
            took: Duration::from_millis(30),
            bytes: 3e7,
            multiply_adds: 0.0,
        };
        let ops = Ops { costs: vec![cost], took: Duration::from_millis(40) };
        let text = ops_text(&measured().test, &ops);
        for part in
            ["tg64, depth 128, batch 2: 40.00 ms", " 75.0 %", " 25.0 %", "15000.0", "    1.0 ", "q4_0 32 x 8"]
        {
            assert!(text.contains(part), "`{part}` is not in\n{text}");
        }
        assert_eq!(op_json(&ops.costs[0])["seconds"], 0.03);
    }
}
