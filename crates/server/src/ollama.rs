//! Ollama's `/api`.

use crate::app::{App, Shared};
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::format::{self, Choice, Form, Tools};
use crate::models::Status;
use crate::openai::chat::{ChatJob, tell};
use crate::prompt::{self, Conversation};
use crate::record::Record;
use crate::sampling::{self, MOST_STOPS};
use crate::stream::{Frames, stream};
use crate::talk::{Answer, Ask, Call, Reason, Said, Talk};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use minfer::SamplerConfig;
use minfer::engine::{Request, Usage};
use minfer::text::{LocalTime, Message};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

/// The version of Ollama's interface that this follows: clients ask for the least that they need.
const VERSION: &str = "0.12.0";

/// What both kinds of request have.
struct Common {
    model: Option<String>,
    form: Option<Form>,
    sampling: SamplerConfig,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    extra: Map<String, Value>,
    streams: bool,
}

fn read_common(fields: &mut Fields) -> Result<Common, ApiError> {
    let model = fields.text("model")?;
    let streams = fields.flag("stream")?.unwrap_or(true);
    let form = match fields.take("format") {
        None => None,
        Some(Value::String(word)) if word.is_empty() => None,
        Some(Value::String(word)) if word == "json" => Some(Form::Object),
        Some(schema @ Value::Object(_)) => Some(Form::Schema(schema)),
        Some(_) => return Err(ApiError::invalid("format", "`format` must be \"json\" or a schema")),
    };
    let mut extra = Map::new();
    if let Some(think) = fields.flag("think")? {
        extra.insert("enable_thinking".into(), json!(think));
    }
    // How long models stay is the server's to say; a client's wish is no promise.
    fields.labels(&["keep_alive"]);
    let mut sampling = SamplerConfig { seed: sampling::draw_seed(), ..SamplerConfig::default() };
    let (mut max_tokens, mut stop) = (None, Vec::new());
    if let Some(mut options) = fields.object("options")? {
        read_options(&mut options, &mut sampling, &mut max_tokens)?;
        stop = options.texts("stop", MOST_STOPS)?;
        fields.close(options)?;
    }
    Ok(Common { model, form, sampling, max_tokens, stop, extra, streams })
}

fn read_options(
    options: &mut Fields,
    sampling: &mut SamplerConfig,
    max_tokens: &mut Option<usize>,
) -> Result<(), ApiError> {
    for (name, range, target) in [
        ("temperature", 0.0..=100.0, &mut sampling.temperature),
        ("top_p", 0.0..=1.0, &mut sampling.top_p),
        ("min_p", 0.0..=1.0, &mut sampling.min_p),
        ("typical_p", 0.0..=1.0, &mut sampling.typical_p),
        ("repeat_penalty", 0.0..=100.0, &mut sampling.repeat_penalty),
        ("frequency_penalty", -2.0..=2.0, &mut sampling.frequency_penalty),
        ("presence_penalty", -2.0..=2.0, &mut sampling.presence_penalty),
    ] {
        if let Some(x) = options.number(name, range)? {
            *target = x as f32;
        }
    }
    if let Some(k) = options.whole("top_k", 0..=u64::MAX)? {
        sampling.top_k = usize::try_from(k).unwrap_or(0);
    }
    if let Some(seed) = sampling::seed(options.take("seed"))? {
        sampling.seed = seed;
    }
    for (name, target) in [("repeat_last_n", true), ("num_predict", false)] {
        let Some(value) = options.take(name) else { continue };
        let n = match (value.as_u64(), value.as_i64()) {
            (Some(n), _) => usize::try_from(n).unwrap_or(usize::MAX),
            // As many as there are.
            (None, Some(-2 | -1)) => usize::MAX,
            _ => return Err(ApiError::invalid(format!("options.{name}"), "must be a whole number, or -1")),
        };
        match target {
            true => sampling.repeat_last_n = n,
            false => *max_tokens = Some(n).filter(|&n| n != usize::MAX),
        }
    }
    let fixed = "the server's start decides it";
    for name in ["num_ctx", "num_batch", "num_gpu", "num_thread", "num_keep", "main_gpu", "use_mmap", "numa"]
    {
        options.only(name, &[], fixed)?;
    }
    sampling::check(sampling)
}

fn read_messages(list: &[Value]) -> Result<Vec<Message>, ApiError> {
    let read = |(i, message): (usize, &Value)| {
        let at = |name: &str| format!("messages[{i}].{name}");
        let role = message["role"].as_str().filter(|r| ["system", "user", "assistant", "tool"].contains(r));
        let role =
            role.ok_or_else(|| ApiError::invalid(at("role"), "must be system, user, assistant or tool"))?;
        let mut made = Message::new(role, message["content"].as_str().unwrap_or_default());
        for (key, value) in message.as_object().into_iter().flatten() {
            match key.as_str() {
                "role" | "content" => {}
                "images" if value.as_array().is_none_or(Vec::is_empty) => {}
                "images" => return Err(ApiError::invalid(at("images"), "the model reads text")),
                "thinking" => made = made.with("reasoning_content", value.clone()),
                "tool_name" => made = made.with("name", value.clone()),
                "tool_calls" | "tool_call_id" if value.is_null() => {}
                "tool_calls" => {
                    let calls = value.as_array().map(Vec::as_slice).unwrap_or_default();
                    let call = |c: &Value| json!({"type": "function", "function": c["function"]});
                    made = made.with("tool_calls", calls.iter().map(call).collect::<Vec<_>>());
                }
                "tool_call_id" => made = made.with(key, value.clone()),
                _ => {
                    return Err(ApiError::invalid(
                        at(key),
                        format!("there is no field `{key}` in a message"),
                    ));
                }
            }
        }
        Ok(made)
    };
    list.iter().enumerate().map(read).collect()
}

/// `POST /api/chat`
pub async fn chat(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answered = answer_chat(&app, record, &headers, &body).await;
    answered.unwrap_or_else(|error| error.respond(&error.ollama()))
}

async fn answer_chat(
    app: &App,
    record: Arc<Record>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let mut fields = app.fields(headers, body)?;
    let common = read_common(&mut fields)?;
    let list = fields.list("messages")?.unwrap_or_default();
    let messages = read_messages(&list)?;
    let list = fields.list("tools")?.unwrap_or_default();
    let tools = Tools { list, choice: Choice::Auto, several: true };
    let warnings = fields.finish()?;
    if messages.is_empty() {
        return loads_only(app, common.model.as_deref(), &record, "chat").await;
    }
    let conversation = Conversation { messages, tools: None, extra: common.extra };
    let seed = common.sampling.seed;
    let job = ChatJob {
        model: common.model,
        conversation,
        tools,
        form: common.form,
        sampling: common.sampling,
        max_tokens: common.max_tokens,
        stop: common.stop,
        n: 1,
        logprobs: None,
        ignore_eos: false,
    };
    let begun = job.begin(app, record.clone()).await?;
    let head = Head {
        model: record.model().unwrap_or_default(),
        chat: true,
        began,
        loaded: began.elapsed().as_nanos(),
    };
    let mut response = write(begun.talk, head, common.streams).await?;
    tell(&mut response, &begun.loaded, seed, begun.tools_in_system, &warnings);
    Ok(response)
}

/// `POST /api/generate`
pub async fn generate(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answered = answer_generate(&app, record, &headers, &body).await;
    answered.unwrap_or_else(|error| error.respond(&error.ollama()))
}

async fn answer_generate(
    app: &App,
    record: Arc<Record>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let mut fields = app.fields(headers, body)?;
    let common = read_common(&mut fields)?;
    let text = fields.text("prompt")?.unwrap_or_default();
    let system = fields.text("system")?;
    let raw = fields.flag("raw")?.unwrap_or(false);
    fields.only("suffix", &[json!("")], "the models that run here go on at the end of a text")?;
    fields.only("images", &[json!([])], "the model reads text")?;
    fields.only("template", &[json!("")], "the model's own template is used")?;
    fields.only("context", &[json!([])], "nothing is kept: send the whole text")?;
    let warnings = fields.finish()?;
    if text.is_empty() {
        return loads_only(app, common.model.as_deref(), &record, "generate").await;
    }
    let loaded = app.model(common.model.as_deref(), &record).await?;
    let (tokens, splitter) = if raw || loaded.template.is_err() {
        (prompt::of_text(&loaded, &text)?, None)
    } else {
        let mut messages: Vec<Message> =
            system.map(|system| Message::new("system", system)).into_iter().collect();
        messages.push(Message::new("user", text));
        let conversation = Conversation { messages, tools: None, extra: common.extra };
        let prompt = prompt::of_conversation(&loaded, conversation)?;
        (prompt.tokens, prompt.splitter)
    };
    let constraint = format::constraint(&loaded, common.form.as_ref(), &Tools::default(), None)?;
    let seed = common.sampling.seed;
    let request = Request {
        max_tokens: common.max_tokens,
        stop: common.stop,
        show_control: splitter.is_some(),
        constraint,
        ..Request::new(tokens, common.sampling)
    };
    let ask = Ask { request, splitter, tools: None, timeout: app.timeout() };
    let talk = app.talk(loaded.clone(), ask, record.clone())?;
    let head = Head {
        model: record.model().unwrap_or_default(),
        chat: false,
        began,
        loaded: began.elapsed().as_nanos(),
    };
    let mut response = write(talk, head, common.streams).await?;
    tell(&mut response, &loaded, seed, false, &warnings);
    Ok(response)
}

/// Without a prompt a request only loads its model.
async fn loads_only(
    app: &App,
    model: Option<&str>,
    record: &Record,
    kind: &str,
) -> Result<Response, ApiError> {
    app.model(model, record).await?;
    let mut value = json!({
        "model": record.model(), "created_at": timestamp(), "done": true, "done_reason": "load",
    });
    match kind {
        "chat" => value["message"] = json!({"role": "assistant", "content": ""}),
        _ => value["response"] = json!(""),
    }
    Ok(json_response(StatusCode::OK, &value))
}

async fn write(talk: Talk, head: Head, streams: bool) -> Result<Response, ApiError> {
    let mut frames = OllamaFrames { head, reason: None };
    if streams {
        return stream(talk, frames).await;
    }
    let whole = talk.whole().await?;
    let answer = &whole.answers[0];
    frames.reason.clone_from(&answer.reason);
    let mut value = frames.head.said(answer);
    frames.end(&mut value, &whole.usage);
    Ok(json_response(StatusCode::OK, &value))
}

fn timestamp() -> String {
    LocalTime::now_utc().rfc3339()
}

struct Head {
    model: String,
    chat: bool,
    began: Instant,
    /// Nanoseconds until the model was there.
    loaded: u128,
}

impl Head {
    fn said(&self, answer: &Answer) -> Value {
        let mut value = json!({"model": self.model, "created_at": timestamp()});
        if self.chat {
            let mut message = json!({"role": "assistant", "content": answer.text});
            if !answer.thoughts.is_empty() {
                message["thinking"] = json!(answer.thoughts);
            }
            if !answer.calls.is_empty() {
                message["tool_calls"] = answer.calls.iter().map(call).collect();
            }
            value["message"] = message;
        } else {
            value["response"] = json!(answer.text);
            if !answer.thoughts.is_empty() {
                value["thinking"] = json!(answer.thoughts);
            }
        }
        value["done"] = json!(false);
        value
    }
}

fn call(call: &Call) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    json!({"function": {"name": call.name, "arguments": arguments}})
}

/// Writes lines of JSON.
struct OllamaFrames {
    head: Head,
    reason: Option<Reason>,
}

impl OllamaFrames {
    fn end(&self, value: &mut Value, usage: &Usage) {
        let reason = if self.reason == Some(Reason::Length) { "length" } else { "stop" };
        value["done"] = json!(true);
        value["done_reason"] = json!(reason);
        let nanos = |t: std::time::Duration| t.as_nanos() as u64;
        value["total_duration"] = json!(nanos(self.head.began.elapsed()));
        value["load_duration"] = json!(self.head.loaded as u64);
        value["prompt_eval_count"] = json!(usage.prompt_tokens);
        value["prompt_eval_duration"] = json!(nanos(usage.prefill));
        value["eval_count"] = json!(usage.answer_tokens);
        value["eval_duration"] = json!(nanos(usage.decode));
    }

    fn line(&self, answer: &Answer) -> Vec<String> {
        vec![format!("{}\n", self.head.said(answer))]
    }
}

impl Frames for OllamaFrames {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn said(&mut self, said: Said) -> Vec<String> {
        match said {
            Said::Started | Said::PromptRead(_) => Vec::new(),
            Said::Text(_, text, _) if text.is_empty() => Vec::new(),
            Said::Text(_, text, _) => self.line(&Answer { text, ..Answer::default() }),
            Said::Thought(_, thoughts) => self.line(&Answer { thoughts, ..Answer::default() }),
            Said::Call(_, _, call) => self.line(&Answer { calls: vec![call], ..Answer::default() }),
            Said::Finished(_, reason) => {
                self.reason = Some(reason);
                Vec::new()
            }
            Said::Done(usage) => {
                let mut value = self.head.said(&Answer::default());
                self.end(&mut value, &usage);
                vec![format!("{value}\n")]
            }
            Said::Failed(error) => vec![format!("{}\n", error.ollama())],
        }
    }

    fn still_here(&self) -> Option<String> {
        None
    }
}

/// `GET /api/tags`
pub async fn tags(State(app): Shared) -> Response {
    let models: Vec<Value> = app.models.statuses().iter().map(described).collect();
    json_response(StatusCode::OK, &json!({"models": models}))
}

/// `GET /api/ps`: those that are loaded.
pub async fn ps(State(app): Shared) -> Response {
    let statuses = app.models.statuses();
    let loaded = statuses.iter().filter_map(|status| {
        let context = status.loaded.as_ref()?.engine.n_ctx();
        let mut value = described(status);
        value["size_vram"] = json!(0);
        value["context_length"] = json!(context);
        value["expires_at"] = json!("9999-12-31T23:59:59Z");
        Some(value)
    });
    json_response(StatusCode::OK, &json!({"models": loaded.collect::<Vec<_>>()}))
}

fn described(status: &Status) -> Value {
    json!({
        "name": status.name, "model": status.name, "size": status.bytes, "digest": "",
        "modified_at": "1970-01-01T00:00:00Z", "details": details(status),
    })
}

fn details(status: &Status) -> Value {
    let family = status.loaded.as_ref().map(|loaded| loaded.model.spec().arch);
    let families: Vec<_> = family.into_iter().collect();
    json!({
        "parent_model": "", "format": "gguf", "family": family.unwrap_or_default(), "families": families,
        "parameter_size": "", "quantization_level": "",
    })
}

/// `POST /api/show`
pub async fn show(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let shown = show_model(&app, &record, &headers, &body).await;
    shown.unwrap_or_else(|error| error.respond(&error.ollama()))
}

async fn show_model(
    app: &App,
    record: &Record,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let mut fields = app.fields(headers, body)?;
    let name = fields.text("model")?.or(fields.text("name")?);
    fields.labels(&["verbose"]);
    fields.finish()?;
    let loaded = app.model(name.as_deref(), record).await?;
    let name = record.model().unwrap_or_default();
    let statuses = app.models.statuses();
    let details = statuses.iter().find(|s| s.name == name).map(details).unwrap_or_default();
    let template = loaded.template.as_ref().map_or("", |template| template.source.as_str());
    let mut abilities = vec!["completion"];
    if minfer::text::ToolFormat::of_template(template).is_some() {
        abilities.push("tools");
    }
    let arch = &loaded.model.spec().arch;
    let info = json!({
        "general.architecture": arch, format!("{arch}.context_length"): loaded.model.spec().n_ctx_train,
        format!("{arch}.embedding_length"): loaded.model.spec().n_embd,
    });
    let value = json!({
        "modelfile": "", "parameters": "", "template": template, "details": details, "model_info": info,
        "capabilities": abilities, "modified_at": "1970-01-01T00:00:00Z",
    });
    Ok(json_response(StatusCode::OK, &value))
}

/// `GET /api/version`
pub async fn version() -> Response {
    json_response(StatusCode::OK, &json!({"version": VERSION, "minfer": env!("CARGO_PKG_VERSION")}))
}

/// `POST /api/embed`: no model that runs here has embeddings of texts.
pub async fn embed(State(app): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let refused = || {
        let name = app.fields(&headers, &body)?.text("model")?;
        let name = app.models.name_of(name.as_deref())?;
        let message = format!("`{name}` generates texts: it has no pooling that makes embeddings of them");
        Err::<(), _>(ApiError::bad_body(message))
    };
    refused().map_or_else(|error| error.respond(&error.ollama()), |()| StatusCode::NO_CONTENT.into_response())
}
