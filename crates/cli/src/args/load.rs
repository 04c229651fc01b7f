//! Options of `minfer bench serve`.

use super::model::from_one;
use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum BenchVerb {
    /// Measure a running server with many clients: first token, gaps between tokens, throughput
    Serve(BenchServeArgs),
}

#[derive(Args, Clone)]
pub struct BenchServeArgs {
    /// The server's address, such as http://127.0.0.1:8080: any that has OpenAI's /v1/completions
    pub url: String,
    /// Clients at once; each sends its next request when the last one has ended
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = from_one)]
    pub clients: usize,
    /// Requests of all clients together
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = from_one)]
    pub requests: usize,
    /// Tokens of the prompts, a number or a range
    #[arg(long, value_name = "A-B", default_value = "20-80", value_parser = parse_range)]
    pub prompt_tokens: (usize, usize),
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128, allow_negative_numbers = true, value_parser = from_one)]
    pub max_tokens: usize,
    /// Ask for answers of full length, where the server knows the field `ignore_eos`
    #[arg(long)]
    pub ignore_eos: bool,
    /// Use /v1/chat/completions: the server's template adds tokens to the prompts
    #[arg(long)]
    pub chat: bool,
    /// What the texts are drawn from. With the same number a second run meets its own prompts in the server's cache
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Model to ask for; the first of the server's list if not given
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,
    /// Key to send; MINFER_API_KEY of the environment if not given
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Seconds that a request may take
    #[arg(long, value_name = "S", default_value_t = 600, allow_negative_numbers = true, value_parser = from_one)]
    pub timeout: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn parse_range(text: &str) -> Result<(usize, usize), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let number = |s: &str| s.trim().parse::<usize>().ok().filter(|&n| (1..=1_000_000).contains(&n));
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low <= high => Ok((low, high)),
        _ => Err("a number of tokens such as 64, or a range such as 20-80, is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_range;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("20-80"), Ok((20, 80)));
        assert_eq!(parse_range("64"), Ok((64, 64)));
        for bad in ["", "-", "0", "9-3", "a-b", "5-", "-5", "1-99999999"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
