//! What is measured, as tables.

/// Engines beside minfer; `ik-rtr` is ik_llama.cpp with its weights repacked at load.
pub const ENGINES: &[&str] = &["ik", "ik-rtr", "llamacpp"];

/// A model of `scripts/test-models.sh`.
pub struct Model {
    /// As `--models` names it.
    pub key: &'static str,
    /// As the table names it.
    pub name: &'static str,
    /// File in the folder of test models.
    pub file: &'static str,
}

/// The models.
pub const MODELS: &[Model] = &[
    Model { key: "smollm2", name: "SmolLM2 135M Q4_1", file: "smollm2-135m-q4_1.gguf" },
    Model { key: "gemma3", name: "Gemma 3 270M Q4_K_M", file: "gemma3-270m-q4_k_m.gguf" },
    Model { key: "qwen2.5", name: "Qwen2.5-Coder 0.5B Q4_K_M", file: "qwen2.5-coder-0.5b-q4_k_m.gguf" },
];

/// What one process per engine and round measures.
pub struct Row {
    /// As `--rows` names it.
    pub key: &'static str,
    /// What runs.
    pub what: What,
}

/// A kind of run.
pub enum What {
    /// Rates, with these options of `minfer bench` and `scripts/peers.py rate`; `-t` is added where absent.
    Rates {
        /// Of every engine.
        shared: &'static [&'static str],
        /// Of minfer, besides.
        own: &'static [&'static str],
        /// Of the others, besides.
        peers: &'static [&'static str],
    },
    /// A fresh process: the time to its first token, and its peak memory.
    Start,
}

/// The rows.
pub const ROWS: &[Row] = &[
    Row { key: "plain", what: What::Rates { shared: &["-p", "512", "-n", "64"], own: &[], peers: &[] } },
    Row {
        key: "deep",
        what: What::Rates { shared: &["-p", "512", "-n", "64", "-d", "4096"], own: &[], peers: &[] },
    },
    Row {
        key: "one",
        what: What::Rates { shared: &["-p", "512", "-n", "64", "-t", "1"], own: &[], peers: &[] },
    },
    Row {
        key: "batch",
        what: What::Rates {
            shared: &["-p", "0", "-n", "64"],
            own: &["--batch", "1,8"],
            peers: &["--batch", "8"],
        },
    },
    Row { key: "start", what: What::Start },
];

/// What a measured value is, which says how it is shown and which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Tokens per second.
    Rate,
    /// Seconds.
    Time,
    /// Bytes.
    Memory,
}

/// Names of the two values of [`What::Start`].
pub const FIRST_TOKEN: &str = "first token of 32";
/// See [`FIRST_TOKEN`].
pub const PEAK_MEMORY: &str = "peak memory";

/// The unit of a test by its name.
pub fn unit(test: &str) -> Unit {
    match test {
        FIRST_TOKEN => Unit::Time,
        PEAK_MEMORY => Unit::Memory,
        _ => Unit::Rate,
    }
}

/// A test as the table names it, from the names of `bench --json`.
pub fn test_name(test: &str, depth: u64, batch: u64, threads: usize, row: &str) -> String {
    let (kind, size) = test.split_at(test.len().min(2));
    let kind = match kind {
        "pp" => "prefill",
        "tg" => "decode",
        other => other,
    };
    let mut name = format!("{kind} {size}");
    if depth > 0 {
        name += &format!(" at depth {depth}");
    }
    if batch > 1 {
        name += &format!(", {batch} sequences");
    }
    if row == "one" && threads == 1 {
        name += ", 1 thread";
    }
    name
}
