//! What was measured, and the table of it.

use super::rows::{ENGINES, Unit, unit};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// minfer's name among the engines.
pub const OURS: &str = "minfer";

/// One test of one model over all rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The model, as the table names it.
    pub model: String,
    /// The test, as the table names it.
    pub test: String,
    /// Values by engine, one per round; an engine that could not run has none.
    pub values: BTreeMap<String, Vec<f64>>,
    /// What else there is to say of minfer's value.
    pub note: String,
}

/// All lines, and where and with what they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Date, machine, versions: one paragraph.
    pub where_and_what: String,
    /// Lines in the order of the table.
    pub lines: Vec<Line>,
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

impl Line {
    /// How many times better minfer is than an engine: the median of the rounds' ratios.
    pub fn ratio(&self, engine: &str) -> Option<f64> {
        let (ours, theirs) = (self.values.get(OURS)?, self.values.get(engine)?);
        let ratio = |(ours, theirs): (&f64, &f64)| match unit(&self.test) {
            Unit::Rate => ours / theirs,
            Unit::Time | Unit::Memory => theirs / ours,
        };
        median(&ours.iter().zip(theirs).map(ratio).collect::<Vec<_>>())
    }

    fn median(&self, engine: &str) -> Option<f64> {
        median(self.values.get(engine)?)
    }

    /// Of ik_llama.cpp's two ways to run, the better one here.
    fn best_ik(&self) -> &'static str {
        match (self.ratio("ik"), self.ratio("ik-rtr")) {
            (Some(plain), Some(repacked)) if repacked < plain => "ik-rtr",
            (None, Some(_)) => "ik-rtr",
            _ => "ik",
        }
    }

    fn shown(&self, engine: &str) -> String {
        let Some(value) = self.median(engine) else { return "–".into() };
        let number = match unit(&self.test) {
            Unit::Rate if value < 100.0 => format!("{value:.1}"),
            Unit::Rate => format!("{value:.0}"),
            Unit::Time => format!("{value:.2} s"),
            Unit::Memory => format!("{:.0} MB", value / 1e6),
        };
        if engine == "ik-rtr" { format!("{number} (rtr)") } else { number }
    }

    fn markdown(&self, model: &str) -> String {
        let ik = self.best_ik();
        let ratio = |engine| self.ratio(engine).map_or("–".into(), |r| format!("{r:.2}"));
        let cells = [
            model.into(),
            self.test.clone(),
            self.shown(OURS),
            self.shown(ik),
            ratio(ik),
            self.shown("llamacpp"),
            ratio("llamacpp"),
            self.note.clone(),
        ];
        format!("| {} |", cells.join(" | "))
    }
}

impl Results {
    /// The paragraph and the table.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{}\n\n| Model | Test | minfer | ik_llama.cpp | × | llama.cpp | × | |\n|---|---|---|---|---|---|---|---|\n",
            self.where_and_what
        );
        let mut last = "";
        for line in &self.lines {
            // A model is named once.
            let model = if line.model == last { "" } else { &line.model };
            let _ = writeln!(text, "{}", line.markdown(model));
            last = &line.model;
        }
        text
    }

    /// Everything, every round.
    ///
    /// # Errors
    /// None so far.
    pub fn to_json(&self) -> Result<String> {
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|l| json!({ "model": l.model, "test": l.test, "note": l.note, "values": l.values }))
            .collect();
        Ok(serde_json::to_string_pretty(&json!({ "where": self.where_and_what, "lines": lines }))?)
    }

    /// What [`Results::to_json`] wrote.
    ///
    /// # Errors
    /// Something else.
    pub fn parse(text: &str) -> Result<Results> {
        let value: Value = serde_json::from_str(text)?;
        let string = |value: &Value| value.as_str().map(str::to_owned).context("not a file of bench-peers");
        let lines = value["lines"].as_array().context("not a file of bench-peers")?;
        let line = |line: &Value| -> Result<Line> {
            let numbers = |engine: &str| -> Option<Vec<f64>> {
                line["values"][engine].as_array()?.iter().map(Value::as_f64).collect()
            };
            let engines = ENGINES.iter().copied().chain([OURS]);
            Ok(Line {
                model: string(&line["model"])?,
                test: string(&line["test"])?,
                note: string(&line["note"])?,
                values: engines.filter_map(|e| Some((e.to_owned(), numbers(e)?))).collect(),
            })
        };
        Ok(Results {
            where_and_what: string(&value["where"])?,
            lines: lines.iter().map(line).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::rows::{FIRST_TOKEN, PEAK_MEMORY};

    fn line(test: &str, values: &[(&str, &[f64])]) -> Line {
        let values = values.iter().map(|(engine, list)| ((*engine).to_owned(), list.to_vec())).collect();
        Line { model: "M".into(), test: test.into(), values, note: "80 %".into() }
    }

    #[test]
    fn ratios_are_medians_of_the_rounds_ratios() {
        // A slow minute halves both; the ratio of the medians would be 100 / 40.
        let l = line("decode 64", &[(OURS, &[100.0, 50.0, 110.0]), ("ik", &[50.0, 25.0, 40.0])]);
        assert_eq!(l.ratio("ik"), Some(2.0));
        assert_eq!(l.ratio("llamacpp"), None);
        let less_is_better = line(FIRST_TOKEN, &[(OURS, &[0.2]), ("llamacpp", &[0.5])]);
        assert_eq!(less_is_better.ratio("llamacpp"), Some(2.5));
        assert_eq!((median(&[]), median(&[1.0, 4.0, 2.0, 3.0])), (None, Some(2.5)));
    }

    #[test]
    fn the_table() {
        let results = Results {
            where_and_what: "Somewhere.".into(),
            lines: vec![
                line(
                    "decode 64",
                    &[(OURS, &[120.0]), ("ik", &[50.0]), ("ik-rtr", &[60.0]), ("llamacpp", &[40.0])],
                ),
                line(PEAK_MEMORY, &[(OURS, &[2e8]), ("llamacpp", &[3e8])]),
                Line { model: "N".into(), ..line(FIRST_TOKEN, &[(OURS, &[0.25]), ("llamacpp", &[0.5])]) },
            ],
        };
        let table = results.markdown();
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| M | decode 64 | 120 | 60.0 (rtr) | 2.00 | 40.0 | 3.00 | 80 % |",
                "|  | peak memory | 200 MB | – | – | 300 MB | 1.50 | 80 % |",
                "| N | first token of 32 | 0.25 s | – | – | 0.50 s | 2.00 | 80 % |",
            ]
        );
        assert!(table.starts_with("Somewhere.\n\n| Model |"), "{table}");
        assert_eq!(Results::parse(&results.to_json().unwrap()).unwrap(), results);
        assert!(Results::parse("{}").is_err());
    }
}
