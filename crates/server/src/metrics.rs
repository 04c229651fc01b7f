//! Counts and times in Prometheus' text format, under our names and under those of vLLM that routers look for.

use minfer::engine::EngineStats;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Times in buckets.
#[derive(Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str) {
        head(out, name, "histogram");
        let mut below = 0;
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS.map(Some).into_iter().chain([None])) {
            below += bucket.load(Ordering::Relaxed);
            let bound = bound.map_or("+Inf".into(), |b| b.to_string());
            line(out, &format!("{name}_bucket{{le=\"{bound}\"}}"), below as f64);
        }
        line(out, &format!("{name}_sum"), self.micros.load(Ordering::Relaxed) as f64 / 1e6);
        line(out, &format!("{name}_count"), below as f64);
    }
}

/// Why answers ended, as they are counted.
const REASONS: [&str; 4] = ["stop", "length", "tool_calls", "error"];

/// What the server counts itself.
#[derive(Default)]
pub struct Metrics {
    /// From a request's arrival to its first token.
    pub first_token: Histogram,
    /// Between two tokens of a request.
    pub inter_token: Histogram,
    /// From a request's arrival to its end.
    pub whole: Histogram,
    ended: [AtomicU64; REASONS.len()],
}

/// An engine's counts, with its model's name.
pub struct EngineCounts<'a> {
    /// The model.
    pub model: &'a str,
    /// Its counts.
    pub stats: EngineStats,
}

impl Metrics {
    /// Counts an answer's end.
    pub fn finished(&self, reason: &str) {
        if let Some(i) = REASONS.iter().position(|known| *known == reason) {
            self.ended[i].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of it as text.
    pub fn text(&self, engines: &[EngineCounts<'_>]) -> String {
        let mut out = String::new();
        type Row = (&'static str, &'static str, &'static str, fn(&EngineStats) -> f64);
        let rows: [Row; 10] = [
            ("minfer_requests_waiting", "vllm:num_requests_waiting", "gauge", |s| s.waiting as f64),
            ("minfer_sequences_running", "vllm:num_requests_running", "gauge", |s| s.running as f64),
            ("minfer_kv_cache_usage", "vllm:kv_cache_usage_perc", "gauge", |s| {
                if s.pages == 0 { 0.0 } else { s.pages_running as f64 / s.pages as f64 }
            }),
            ("minfer_kv_pages", "", "gauge", |s| s.pages as f64),
            ("minfer_kv_pages_cached", "", "gauge", |s| s.pages_cached as f64),
            ("minfer_preemptions_total", "vllm:num_preemptions_total", "counter", |s| s.preemptions as f64),
            ("minfer_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", "counter", |s| {
                s.prefix_queries as f64
            }),
            ("minfer_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "counter", |s| {
                s.prefix_hits as f64
            }),
            ("minfer_prompt_tokens_total", "vllm:prompt_tokens_total", "counter", |s| s.prompt_tokens as f64),
            ("minfer_generation_tokens_total", "vllm:generation_tokens_total", "counter", |s| {
                s.answer_tokens as f64
            }),
        ];
        for (ours, theirs, kind, value) in rows {
            for name in [ours, theirs].into_iter().filter(|name| !name.is_empty()) {
                head(&mut out, name, kind);
                for EngineCounts { model, stats } in engines {
                    line(&mut out, &format!("{name}{{model_name={}}}", quoted(model)), value(stats));
                }
            }
        }
        head(&mut out, "vllm:cache_config_info", "gauge");
        for EngineCounts { model, stats } in engines {
            let labels = format!(
                "block_size=\"{}\",num_gpu_blocks=\"{}\",model_name={}",
                minfer::graph::PAGE,
                stats.pages,
                quoted(model)
            );
            line(&mut out, &format!("vllm:cache_config_info{{{labels}}}"), 1.0);
        }
        for name in ["minfer_answers_total", "vllm:request_success_total"] {
            head(&mut out, name, "counter");
            for (reason, n) in REASONS.iter().zip(&self.ended) {
                let n = n.load(Ordering::Relaxed) as f64;
                line(&mut out, &format!("{name}{{finished_reason=\"{reason}\"}}"), n);
            }
        }
        for (histogram, ours, theirs) in [
            (&self.first_token, "minfer_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
            (&self.inter_token, "minfer_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
            (&self.whole, "minfer_request_seconds", "vllm:e2e_request_latency_seconds"),
        ] {
            histogram.write(&mut out, ours);
            histogram.write(&mut out, theirs);
        }
        out
    }
}

fn head(out: &mut String, name: &str, kind: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, value: f64) {
    let _ = writeln!(out, "{name} {value}");
}

/// A label's value.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_name_once_with_its_type() {
        let metrics = Metrics::default();
        metrics.first_token.observe(Duration::from_millis(30));
        metrics.first_token.observe(Duration::from_secs(1000));
        metrics.finished("stop");
        let stats = EngineStats { waiting: 3, pages: 8, pages_running: 2, ..EngineStats::default() };
        let text = metrics.text(&[EngineCounts { model: "a\"b", stats }]);
        for wanted in [
            "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 3",
            "minfer_kv_cache_usage{model_name=\"a\\\"b\"} 0.25",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.05\"} 1",
            "minfer_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2",
            "minfer_time_to_first_token_seconds_sum 1000.03",
            "vllm:request_success_total{finished_reason=\"stop\"} 1",
            "vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"8\",model_name=\"a\\\"b\"} 1",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted} in\n{text}");
        }
        let mut types: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all);
    }
}
