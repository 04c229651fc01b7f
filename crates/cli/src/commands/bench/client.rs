//! One client of `minfer bench serve`: sends a request, reads the stream, notes when what came.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Most bytes of an answer that is no stream.
const MOST: u64 = 8 << 20;

/// Where requests go.
pub struct Target {
    agent: Agent,
    /// Without a slash at the end, and without `/v1`.
    url: String,
    key: Option<String>,
}

/// What is asked, but for the text.
#[derive(Clone)]
pub struct Ask {
    pub model: String,
    pub chat: bool,
    pub max_tokens: usize,
    pub ignore_eos: bool,
}

/// A finished answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// From the request to the first text.
    pub first: Duration,
    /// Between an event with text and the next.
    pub gaps: Vec<Duration>,
    /// From the request to the end of the stream.
    pub whole: Duration,
    /// As the server counts, or `None` if it does not tell.
    pub prompt_tokens: Option<usize>,
    /// As the server counts, or events with text.
    pub answer_tokens: usize,
    /// Prompt tokens that the server had in its cache.
    pub cached_tokens: usize,
}

impl Target {
    /// Straight to the server: a proxy would be measured too.
    pub fn new(url: &str, key: Option<String>, timeout: Duration) -> Target {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_global(Some(timeout))
            .user_agent(concat!("minfer-bench/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Target { agent, url, key }
    }

    /// First model of the server's list.
    pub fn model(&self) -> Result<String, String> {
        let list = self.get("/v1/models")?;
        let id = list["data"][0]["id"].as_str().or_else(|| list["models"][0]["name"].as_str());
        id.map(str::to_owned).ok_or_else(|| "the server lists no model".to_owned())
    }

    /// Tokens of a text as a prompt; an error if the server has no `/tokenize`.
    pub fn count(&self, text: &str) -> Result<usize, String> {
        let reply = self.post("/tokenize", &json!({ "content": text, "add_special": true }))?;
        let body: Value = read(reply)?;
        body["tokens"].as_array().map(Vec::len).ok_or_else(|| "/tokenize gave no tokens".to_owned())
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        read(checked(request.call())?)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Reply, String> {
        let mut request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .header("accept-encoding", "identity");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        checked(request.send(body.to_string()))
    }

    /// Sends a request and reads its stream to the end.
    ///
    /// # Errors
    /// What went wrong, in words that are equal for equal failures.
    pub fn ask(&self, ask: &Ask, text: &str) -> Result<Answer, String> {
        let (path, body) = ask.request(text);
        let started = Instant::now();
        let reply = self.post(path, &body)?;
        Stream::default().read(reply, started)
    }
}

impl Ask {
    fn request(&self, text: &str) -> (&'static str, Value) {
        let mut body = json!({
            "model": self.model, "max_tokens": self.max_tokens, "temperature": 0, "stream": true,
            "stream_options": { "include_usage": true },
        });
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if self.chat {
            body["messages"] = json!([{ "role": "user", "content": text }]);
            return ("/v1/chat/completions", body);
        }
        body["prompt"] = text.into();
        ("/v1/completions", body)
    }
}

type Reply = ureq::http::Response<ureq::Body>;

fn checked(reply: Result<Reply, ureq::Error>) -> Result<Reply, String> {
    let reply = reply.map_err(|e| e.to_string())?;
    if reply.status().is_success() {
        return Ok(reply);
    }
    let status = reply.status();
    let said = read(reply).ok().and_then(|b: Value| b["error"]["message"].as_str().map(str::to_owned));
    Err(match said {
        Some(said) => format!("status {}: {said}", status.as_u16()),
        None => format!("status {}", status.as_u16()),
    })
}

fn read(reply: Reply) -> Result<Value, String> {
    let body = reply.into_body().into_reader().take(MOST);
    serde_json::from_reader(body).map_err(|e| format!("the answer is no JSON: {e}"))
}

/// What a stream has said so far.
#[derive(Default)]
struct Stream {
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Duration>,
    usage: Option<Value>,
    done: bool,
}

impl Stream {
    fn read(mut self, reply: Reply, started: Instant) -> Result<Answer, String> {
        let mut lines = BufReader::new(reply.into_body().into_reader());
        let mut line = String::new();
        while !self.done {
            line.clear();
            let length = lines.read_line(&mut line).map_err(|e| format!("the stream broke off: {e}"))?;
            if length == 0 {
                break;
            }
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                self.event(data.trim_start(), Instant::now())?;
            }
        }
        self.end(started)
    }

    fn event(&mut self, data: &str, now: Instant) -> Result<(), String> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value =
            serde_json::from_str(data).map_err(|_| "an event of the stream is no JSON".to_owned())?;
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            return Err(format!(
                "error in the stream: {}",
                error["message"].as_str().unwrap_or("no message")
            ));
        }
        if event["usage"].is_object() {
            self.usage = Some(event["usage"].clone());
        }
        let choice = &event["choices"][0];
        let texts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        if texts.iter().any(|t| t.as_str().is_some_and(|t| !t.is_empty())) {
            if let Some(last) = self.last {
                self.gaps.push(now - last);
            }
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
        Ok(())
    }

    fn end(self, started: Instant) -> Result<Answer, String> {
        let whole = started.elapsed();
        if !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        let first = self.first.ok_or("the answer has no text")? - started;
        let usage = self.usage.unwrap_or_default();
        let number = |value: &Value| value.as_u64().map(|n| n as usize);
        Ok(Answer {
            first,
            whole,
            prompt_tokens: number(&usage["prompt_tokens"]),
            answer_tokens: number(&usage["completion_tokens"]).unwrap_or(self.gaps.len() + 1),
            cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
            gaps: self.gaps,
        })
    }
}
