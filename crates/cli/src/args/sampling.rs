//! Options of answers: how tokens are picked, when an answer ends, how prompts are made.

use super::model::from_zero;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use minfer::LogitBias;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

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
    /// Seed of the draws; -1: drawn, and printed if there are draws [default: -1]
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
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
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

#[cfg(test)]
mod tests {
    use super::super::model::from_one;
    use super::*;

    #[test]
    fn template_variables_are_an_object() {
        assert_eq!(parse_template_kwargs(r#"{"a": [1]}"#).unwrap().len(), 1);
        for (text, word) in [("{", "JSON"), ("[]", "object"), (r#"{"messages": 1}"#, "messages")] {
            assert!(parse_template_kwargs(text).unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn minus_one_as_in_llama_cpp() {
        assert_eq!((top_k("-1"), top_k("7")), (Ok(0), Ok(7)));
        assert!(seed("-1").is_ok() && seed("-2").is_err() && seed("1.5").is_err());
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(from_one("0").is_err() && from_one("99999999999999999999999").is_err());
    }
}
