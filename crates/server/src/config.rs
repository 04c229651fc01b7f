//! What the server is told at its start.

use minfer::engine::Engine;
use minfer::text::ChatTemplate;
use minfer::{Error, Model};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A model that is there to be used.
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// What runs it.
    pub engine: Arc<Engine>,
    /// Its chat template, or why it cannot be chatted with.
    pub template: Result<Template, String>,
}

/// A chat template with its text.
pub struct Template {
    /// Compiled.
    pub compiled: ChatTemplate,
    /// As in the file.
    pub source: String,
}

/// A model by name, loaded when it is first asked for.
pub struct Source {
    /// The name that requests give.
    pub name: String,
    /// Bytes it will take, weights and KV cache.
    pub bytes: u64,
    /// Loads it.
    pub load: Box<dyn Fn() -> Result<Loaded, Error> + Send + Sync>,
}

/// How the server behaves.
pub struct Config {
    /// Where it listens; port 0: any that is free.
    pub address: SocketAddr,
    /// The models; the first is used where a request names none.
    pub models: Vec<Source>,
    /// Most bytes of all models that are loaded at once; `None`: no bound.
    pub memory: Option<u64>,
    /// How long a model stays that nobody uses; `None`: for ever.
    pub keep_alive: Option<Duration>,
    /// Keys, one of which each request must show; none: no key is asked for.
    pub keys: Vec<String>,
    /// Names by which clients may call this machine, besides addresses of the loopback and `localhost`.
    pub hosts: Vec<String>,
    /// Pages of other sites that may use the server.
    pub origins: Vec<String>,
    /// Largest body in bytes.
    pub max_body: usize,
    /// How long a request may take from its body to its end.
    pub timeout: Duration,
    /// How long running answers may go on after the first signal.
    pub grace: Duration,
    /// Unknown and unsupported fields are warnings.
    pub lenient: bool,
    /// Whether `/` is a page to chat on.
    pub page: bool,
    /// Takes the log, a line of JSON per request.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
}

/// Most bytes of a body if nothing else is said.
pub const MAX_BODY: usize = 4 << 20;
