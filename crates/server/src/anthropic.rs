//! Anthropic's `/v1/messages`.

use crate::app::{App, Shared};
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::format::{Choice, Tools};
use crate::openai::chat::{ChatJob, tell};
use crate::prompt::{self, Conversation};
use crate::record::{Record, random_name};
use crate::sampling::{self, MOST_STOPS};
use crate::stream::{Frames, event, stream};
use crate::talk::{Answer, Reason, Said};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use minfer::SamplerConfig;
use minfer::engine::Usage;
use minfer::text::Message;
use serde_json::{Map, Value, json};
use std::sync::Arc;

struct Read {
    job: ChatJob,
    streams: bool,
    warnings: Vec<String>,
}

/// Reads a request; `counts`: for its tokens only.
fn read(mut fields: Fields, counts: bool) -> Result<Read, ApiError> {
    let model = fields.text("model")?;
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(Message::new("system", text_of("system", &system)?));
    }
    let list = fields.list("messages")?;
    let list = list.ok_or_else(|| ApiError::invalid("messages", "`messages` is missing"))?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    }
    for (i, message) in list.iter().enumerate() {
        read_message(i, message, &mut messages)?;
    }
    let tools = read_tools(&mut fields)?;
    let extra = read_thinking(&mut fields)?;
    let conversation = Conversation { messages, tools: None, extra };
    let (mut sampling, mut stop, mut max_tokens, mut streams) =
        (SamplerConfig { seed: sampling::draw_seed(), ..SamplerConfig::default() }, Vec::new(), None, false);
    if !counts {
        streams = fields.flag("stream")?.unwrap_or(false);
        let most = fields.whole("max_tokens", 1..=u64::MAX)?;
        let most = most.ok_or_else(|| ApiError::invalid("max_tokens", "`max_tokens` is missing"))?;
        max_tokens = Some(usize::try_from(most).unwrap_or(usize::MAX));
        stop = fields.texts("stop_sequences", MOST_STOPS)?;
        read_sampling(&mut fields, &mut sampling)?;
        fields.labels(&["metadata"]);
        fields.only("service_tier", &[json!("auto"), json!("standard_only")], "there is one tier")?;
    }
    let warnings = fields.finish()?;
    let job = ChatJob {
        model,
        conversation,
        tools,
        form: None,
        sampling,
        max_tokens,
        stop,
        n: 1,
        logprobs: None,
        ignore_eos: false,
    };
    Ok(Read { job, streams, warnings })
}

fn read_sampling(fields: &mut Fields, sampling: &mut SamplerConfig) -> Result<(), ApiError> {
    if let Some(x) = fields.number("temperature", 0.0..=1.0)? {
        sampling.temperature = x as f32;
    }
    if let Some(x) = fields.number("top_p", 0.0..=1.0)? {
        sampling.top_p = x as f32;
    }
    if let Some(k) = fields.whole("top_k", 0..=u64::MAX)? {
        sampling.top_k = usize::try_from(k).unwrap_or(0);
    }
    // Ours: Anthropic's requests have none.
    if let Some(seed) = sampling::seed(fields.take("seed"))? {
        sampling.seed = seed;
    }
    sampling::check(sampling)
}

fn read_thinking(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut extra = Map::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let on = match thinking.text("type")?.as_deref() {
            Some("enabled") => true,
            Some("disabled") => false,
            _ => {
                return Err(ApiError::invalid(
                    "thinking.type",
                    "`thinking.type` must be enabled or disabled",
                ));
            }
        };
        thinking.only("budget_tokens", &[], "thoughts count as tokens of the answer")?;
        fields.close(thinking)?;
        extra.insert("enable_thinking".into(), json!(on));
    }
    Ok(extra)
}

/// The text of a content: a text, or blocks of text.
fn text_of(at: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => blocks.iter().map(|block| block_text(at, block)).collect(),
        _ => Err(ApiError::invalid(at, "must be a string or a list of blocks")),
    }
}

fn block_text(at: &str, block: &Value) -> Result<String, ApiError> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_string()),
        (Some(kind), _) => {
            Err(ApiError::invalid(at, format!("a block of type `{kind}`: the model reads text")))
        }
        (None, _) => Err(ApiError::invalid(at, "a block has a `type`")),
    }
}

/// One message of theirs may be several of ours: results of tools come first.
fn read_message(i: usize, message: &Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let at = format!("messages.{i}");
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant")) => role,
        _ => return Err(ApiError::invalid(format!("{at}.role"), "must be user or assistant")),
    };
    let Value::Array(blocks) = &message["content"] else {
        messages.push(Message::new(role, text_of(&format!("{at}.content"), &message["content"])?));
        return Ok(());
    };
    let (mut text, mut calls, mut thoughts) = (String::new(), Vec::new(), String::new());
    for (k, block) in blocks.iter().enumerate() {
        let at = format!("{at}.content.{k}");
        match block["type"].as_str() {
            Some("tool_use") if role == "assistant" => {
                let function = json!({"name": block["name"], "arguments": block["input"]});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            Some("tool_result") if role == "user" => {
                let output = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => text_of(&at, content)?,
                };
                let id = block["tool_use_id"].clone();
                messages.push(Message::new("tool", output).with("tool_call_id", id));
            }
            Some("thinking") if role == "assistant" => {
                thoughts += block["thinking"].as_str().unwrap_or_default()
            }
            _ => text += &block_text(&at, block)?,
        }
    }
    if role == "user" && text.is_empty() && !blocks.is_empty() {
        return Ok(());
    }
    let mut made = Message::new(role, text);
    if !thoughts.is_empty() {
        made = made.with("reasoning_content", thoughts);
    }
    if !calls.is_empty() {
        made = made.with("tool_calls", Value::Array(calls));
    }
    messages.push(made);
    Ok(())
}

fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (i, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let at = format!("tools.{i}");
        if tool["type"].as_str().is_some_and(|kind| kind != "custom") || tool["name"].as_str().is_none() {
            return Err(ApiError::invalid(
                at,
                "a tool has a `name` and an `input_schema`; it runs at the client",
            ));
        }
        let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
        if !tool["description"].is_null() {
            function["description"] = tool["description"].clone();
        }
        list.push(json!({"type": "function", "function": function}));
    }
    let mut tools = Tools { list, choice: Choice::Auto, several: true };
    if let Some(mut choice) = fields.object("tool_choice")? {
        tools.choice = match (choice.text("type")?.as_deref(), choice.text("name")?) {
            (Some("auto"), None) => Choice::Auto,
            (Some("none"), None) => Choice::None,
            (Some("any"), None) => Choice::Required,
            (Some("tool"), Some(name)) => Choice::Named(name),
            _ => {
                return Err(ApiError::invalid("tool_choice", "must be auto, any, none, or tool with a name"));
            }
        };
        tools.several = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
        fields.close(choice)?;
    }
    tools.check()?;
    Ok(tools)
}

/// `POST /v1/messages`
pub async fn handle(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answered = answer(&app, record, &headers, &body).await;
    answered.unwrap_or_else(|error| error.respond(&error.anthropic()))
}

async fn answer(
    app: &App,
    record: Arc<Record>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let Read { job, streams, warnings } = read(app.fields(headers, body)?, false)?;
    let seed = job.sampling.seed;
    let begun = job.begin(app, record.clone()).await?;
    let head = Head { id: format!("msg_{}", random_name()), model: record.model().unwrap_or_default() };
    let mut response = if streams {
        stream(begun.talk, MessageFrames { head, open: None, blocks: 0, reason: None }).await?
    } else {
        let whole = begun.talk.whole().await?;
        json_response(StatusCode::OK, &head.message(&whole.answers[0], &whole.usage))
    };
    tell(&mut response, &begun.loaded, seed, begun.tools_in_system, &warnings);
    Ok(response)
}

/// `POST /v1/messages/count_tokens`
pub async fn count(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let counted = count_tokens(&app, &record, &headers, &body).await;
    counted.unwrap_or_else(|error| error.respond(&error.anthropic()))
}

async fn count_tokens(
    app: &App,
    record: &Record,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let Read { job, .. } = read(app.fields(headers, body)?, true)?;
    let loaded = app.model(job.model.as_deref(), record).await?;
    let conversation = Conversation { tools: job.tools.told(), ..job.conversation };
    let prompt = prompt::of_conversation(&loaded, conversation)?;
    Ok(json_response(StatusCode::OK, &json!({"input_tokens": prompt.tokens.len()})))
}

struct Head {
    id: String,
    model: String,
}

impl Head {
    fn object(&self, content: Vec<Value>) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": null, "stop_sequence": null,
        })
    }

    fn message(&self, answer: &Answer, usage_of: &Usage) -> Value {
        let mut content = Vec::new();
        if !answer.thoughts.is_empty() {
            content.push(json!({"type": "thinking", "thinking": answer.thoughts, "signature": ""}));
        }
        if !answer.text.is_empty() {
            content.push(json!({"type": "text", "text": answer.text}));
        }
        for call in &answer.calls {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            content.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
        }
        let mut value = self.object(content);
        let (reason, sequence) = stop_reason(answer.reason.as_ref());
        (value["stop_reason"], value["stop_sequence"]) = (reason, sequence);
        value["usage"] = usage(usage_of);
        value
    }
}

fn stop_reason(reason: Option<&Reason>) -> (Value, Value) {
    match reason {
        Some(Reason::Stop) => (json!("end_turn"), Value::Null),
        Some(Reason::StopString(stop)) => (json!("stop_sequence"), json!(stop)),
        Some(Reason::Length) => (json!("max_tokens"), Value::Null),
        Some(Reason::Calls) => (json!("tool_use"), Value::Null),
        None => (Value::Null, Value::Null),
    }
}

/// By Anthropic's rules `input_tokens` are those that did not come from the cache.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens, "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer_tokens,
    })
}

/// Writes Anthropic's events.
struct MessageFrames {
    head: Head,
    /// Kind of the block that is being written.
    open: Option<&'static str>,
    blocks: usize,
    reason: Option<Reason>,
}

impl MessageFrames {
    fn begin(&mut self) -> Vec<String> {
        let mut message = self.head.object(Vec::new());
        message["usage"] = usage(&Usage::default());
        vec![
            event("message_start", &json!({"type": "message_start", "message": message})),
            event("ping", &json!({"type": "ping"})),
        ]
    }

    fn delta(&mut self, kind: &'static str, block: &Value, delta: &Value) -> Vec<String> {
        let mut frames = Vec::new();
        if self.open != Some(kind) {
            frames.extend(self.close());
            let start = json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
            frames.push(event("content_block_start", &start));
            self.open = Some(kind);
        }
        let value = json!({"type": "content_block_delta", "index": self.blocks, "delta": delta});
        frames.push(event("content_block_delta", &value));
        frames
    }

    fn close(&mut self) -> Vec<String> {
        if self.open.take().is_none() {
            return Vec::new();
        }
        let value = json!({"type": "content_block_stop", "index": self.blocks});
        self.blocks += 1;
        vec![event("content_block_stop", &value)]
    }
}

impl Frames for MessageFrames {
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn said(&mut self, said: Said) -> Vec<String> {
        match said {
            Said::Started => self.begin(),
            Said::PromptRead(_) => Vec::new(),
            Said::Text(_, text, _) if text.is_empty() => Vec::new(),
            Said::Text(_, text, _) => self.delta(
                "text",
                &json!({"type": "text", "text": ""}),
                &json!({"type": "text_delta", "text": text}),
            ),
            Said::Thought(_, text) => self.delta(
                "thinking",
                &json!({"type": "thinking", "thinking": "", "signature": ""}),
                &json!({"type": "thinking_delta", "thinking": text}),
            ),
            Said::Call(_, _, call) => {
                let mut frames = self.close();
                let block = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
                frames.extend(self.delta("tool_use", &block, &delta));
                frames.extend(self.close());
                frames
            }
            Said::Finished(_, reason) => {
                self.reason = Some(reason);
                self.close()
            }
            Said::Done(usage_of) => {
                let (reason, sequence) = stop_reason(self.reason.as_ref());
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                let value = json!({"type": "message_delta", "delta": delta, "usage": usage(&usage_of)});
                vec![event("message_delta", &value), event("message_stop", &json!({"type": "message_stop"}))]
            }
            Said::Failed(error) => vec![event("error", &error.anthropic())],
        }
    }

    fn still_here(&self) -> Option<String> {
        Some(event("ping", &json!({"type": "ping"})))
    }
}
