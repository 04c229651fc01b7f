//! `/v1/chat/completions`

use super::{fingerprint, finish_reason, logprobs, now, timings, usage};
use crate::app::{App, Shared};
use crate::config::Loaded;
use crate::error::{ApiError, json_response, set_header};
use crate::fields::Fields;
use crate::format::{self, Form, Tools, calls_for_template};
use crate::prompt::{self, Conversation};
use crate::record::{Record, random_name};
use crate::sampling::{self, MOST_STOPS};
use crate::stream::{Frames, data, stream};
use crate::talk::{Answer, Ask, Call, Said, Talk, Whole};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use minfer::SamplerConfig;
use minfer::engine::{Request, TokenLogProb, Usage};
use minfer::text::Message;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A conversation that wants answers, whatever protocol it came by.
pub(crate) struct ChatJob {
    pub model: Option<String>,
    pub conversation: Conversation,
    pub tools: Tools,
    pub form: Option<Form>,
    pub sampling: SamplerConfig,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub n: usize,
    pub logprobs: Option<usize>,
    pub ignore_eos: bool,
}

/// A job on its way.
pub(crate) struct Begun {
    pub talk: Talk,
    pub loaded: Arc<Loaded>,
    pub tools_in_system: bool,
}

impl ChatJob {
    /// Hands the job to its model.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot run now.
    pub(crate) async fn begin(self, app: &App, record: Arc<Record>) -> Result<Begun, ApiError> {
        let loaded = app.model(self.model.as_deref(), &record).await?;
        let mut conversation = self.conversation;
        conversation.tools = self.tools.told();
        // Long texts and large schemas take their time, which is not the runtime's.
        let (prompt, constraint) = tokio::task::block_in_place(|| {
            let prompt = prompt::of_conversation(&loaded, conversation)?;
            let constraint = format::constraint(&loaded, self.form.as_ref(), &self.tools, prompt.tools)?;
            Ok::<_, ApiError>((prompt, constraint))
        })?;
        // Marks of thoughts and calls may be control tokens.
        let show_control = prompt.splitter.is_some() || prompt.tools.is_some();
        let request = Request {
            n: self.n,
            max_tokens: self.max_tokens,
            stop: self.stop,
            ignore_eos: self.ignore_eos,
            show_control,
            logprobs: self.logprobs,
            constraint,
            ..Request::new(prompt.tokens, self.sampling)
        };
        let splitter = prompt.splitter;
        let ask = Ask { request, splitter, tools: prompt.tools, timeout: app.timeout() };
        let talk = app.talk(loaded.clone(), ask, record)?;
        Ok(Begun { talk, loaded, tools_in_system: prompt.tools_in_system })
    }
}

/// Headers that tell what was used.
pub(crate) fn tell(
    response: &mut Response,
    loaded: &Loaded,
    seed: u64,
    tools_in_system: bool,
    warnings: &[String],
) {
    set_header(response, "x-minfer-device", loaded.model.device());
    set_header(response, "x-minfer-context", &loaded.engine.n_ctx().to_string());
    set_header(response, "x-minfer-seed", &seed.to_string());
    if tools_in_system {
        set_header(response, "x-minfer-tools", "told in the system message");
    }
    if !warnings.is_empty() {
        set_header(response, "x-minfer-warning", &warnings.join("; "));
    }
}

/// Handles a request.
///
/// # Errors
/// What is wrong with it, or why it failed.
pub async fn handle(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields = app.fields(&headers, &body)?;
    let Read { job, streams, with_usage, warnings } = read(fields)?;
    let (seed, wants_logprobs) = (job.sampling.seed, job.logprobs.is_some());
    let begun = job.begin(&app, record.clone()).await?;
    let model = app.models.name_of(None)?.to_string();
    let model = record.model().unwrap_or(model);
    let loaded = begun.loaded;
    let head = Head {
        id: format!("chatcmpl-{}", random_name()),
        created: now(),
        model,
        seed,
        loaded: loaded.clone(),
    };
    let mut response = if streams {
        let frames = ChatFrames { head, with_usage, wants_logprobs, spoke: vec![false; 128] };
        stream(begun.talk, frames).await?
    } else {
        let whole = begun.talk.whole().await?;
        let mut response = json_response(StatusCode::OK, &head.whole(&whole, wants_logprobs)?);
        set_header(&mut response, "x-minfer-cached-tokens", &whole.usage.cached_tokens.to_string());
        set_header(&mut response, "x-minfer-queue-ms", &record.queue_ms().unwrap_or_default().to_string());
        response
    };
    tell(&mut response, &loaded, seed, begun.tools_in_system, &warnings);
    Ok(response)
}

struct Read {
    job: ChatJob,
    streams: bool,
    with_usage: bool,
    warnings: Vec<String>,
}

fn read(mut fields: Fields) -> Result<Read, ApiError> {
    let model = fields.text("model")?;
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| ApiError::invalid("messages", "`messages` is missing"))?;
    let messages = read_messages(&messages)?;
    let streams = fields.flag("stream")?.unwrap_or(false);
    let with_usage = stream_options(&mut fields, streams)?;
    let sampling = sampling::read(&mut fields)?;
    let max_tokens = max_tokens(&mut fields)?;
    let stop = fields.texts("stop", MOST_STOPS)?;
    let n = fields.whole("n", 1..=128)?.unwrap_or(1) as usize;
    let logprobs = chat_logprobs(&mut fields)?;
    let form = format::read(&mut fields)?;
    let tools = format::read_tools(&mut fields)?;
    let ignore_eos = fields.flag("ignore_eos")?.unwrap_or(false);
    let extra = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(extra)) => extra,
        Some(_) => {
            return Err(ApiError::invalid(
                "chat_template_kwargs",
                "`chat_template_kwargs` must be an object",
            ));
        }
    };
    fields.labels(&["user", "metadata", "safety_identifier", "prompt_cache_key"]);
    fields.only("store", &[json!(false)], "nothing is kept")?;
    fields.only("service_tier", &[json!("auto"), json!("default")], "there is one tier")?;
    fields.only("modalities", &[json!(["text"])], "answers are text")?;
    let warnings = fields.finish()?;
    let conversation = Conversation { messages, tools: None, extra };
    let job =
        ChatJob { model, conversation, tools, form, sampling, max_tokens, stop, n, logprobs, ignore_eos };
    Ok(Read { job, streams, with_usage, warnings })
}

/// Whether a stream ends with its usage.
pub(super) fn stream_options(fields: &mut Fields, streams: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !streams {
        return Err(ApiError::invalid("stream_options", "`stream_options` without `stream`"));
    }
    let with_usage = options.flag("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[json!(false)], "frames have the length they have")?;
    fields.close(options)?;
    Ok(with_usage)
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.whole("max_tokens", 0..=u64::MAX)?;
    let new = fields.whole("max_completion_tokens", 0..=u64::MAX)?;
    match (old, new) {
        (Some(a), Some(b)) if a != b => {
            let message = "`max_tokens` and `max_completion_tokens` say different things";
            Err(ApiError::invalid("max_tokens", message))
        }
        (a, b) => Ok(b.or(a).map(|n| usize::try_from(n).unwrap_or(usize::MAX))),
    }
}

fn chat_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0..=20)?;
    match (wanted, top) {
        (false, Some(1..)) => Err(ApiError::invalid("top_logprobs", "`top_logprobs` without `logprobs`")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
    }
}

/// Messages as templates know them.
pub(crate) fn read_messages(list: &[Value]) -> Result<Vec<Message>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty"));
    }
    list.iter().enumerate().map(|(i, message)| read_message(i, message)).collect()
}

fn read_message(i: usize, message: &Value) -> Result<Message, ApiError> {
    let at = |name: &str| format!("messages[{i}]{name}");
    let Value::Object(map) = message else {
        return Err(ApiError::invalid(at(""), "a message is an object"));
    };
    let role = map.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = match role {
        // OpenAI's later word for what templates call the system.
        "developer" => "system",
        "system" | "user" | "assistant" | "tool" => role,
        _ => {
            let message = "`role` must be system, developer, user, assistant or tool";
            return Err(ApiError::invalid(at(".role"), message));
        }
    };
    let mut made = Message::new(role, text_of(&at(".content"), map.get("content"))?);
    for (key, value) in map {
        match key.as_str() {
            "role" | "content" | "refusal" | "annotations" | "audio" | "function_call" if value.is_null() => {
            }
            "role" | "content" => {}
            "annotations" if value.as_array().is_some_and(Vec::is_empty) => {}
            "name" | "tool_call_id" | "reasoning_content" => made = made.with(key, value.clone()),
            "tool_calls" => match value {
                Value::Array(calls) => made = made.with(key, calls_for_template(calls)),
                Value::Null => {}
                _ => return Err(ApiError::invalid(at(".tool_calls"), "`tool_calls` must be a list")),
            },
            _ => {
                return Err(ApiError::invalid(
                    at(&format!(".{key}")),
                    format!("there is no field `{key}` in a message"),
                ));
            }
        }
    }
    Ok(made)
}

/// The text of a content: a text, or a list of texts.
pub(crate) fn text_of(at: &str, content: Option<&Value>) -> Result<String, ApiError> {
    let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text" | "input_text" | "output_text"), Some(text)) => Ok(text.to_string()),
        (Some(kind), _) => {
            Err(ApiError::invalid(at, format!("content of type `{kind}`: the model reads text")))
        }
        (None, _) => Err(ApiError::invalid(at, "a part of a content has a `type`")),
    };
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        Some(_) => Err(ApiError::invalid(at, "`content` must be a string or a list of parts")),
    }
}

/// What all frames of an answer begin with.
struct Head {
    id: String,
    created: u64,
    model: String,
    seed: u64,
    loaded: Arc<Loaded>,
}

impl Head {
    fn object(&self, kind: &str) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": fingerprint(&self.loaded), "seed": self.seed,
        })
    }

    fn whole(&self, whole: &Whole, wants_logprobs: bool) -> Result<Value, ApiError> {
        let choice = |(i, answer): (usize, &Answer)| {
            let reason = answer.reason.as_ref().map(finish_reason);
            let mut choice =
                json!({"index": i, "message": message(answer), "logprobs": null, "finish_reason": reason});
            if wants_logprobs {
                choice["logprobs"] =
                    json!({"content": logprobs(&self.loaded, &answer.logprobs)?, "refusal": null});
            }
            Ok(choice)
        };
        let mut value = self.object("chat.completion");
        value["choices"] = whole.answers.iter().enumerate().map(choice).collect::<Result<_, ApiError>>()?;
        value["usage"] = usage(&whole.usage);
        value["timings"] = timings(&whole.usage);
        Ok(value)
    }
}

fn message(answer: &Answer) -> Value {
    let content = match answer.calls.is_empty() || !answer.text.trim().is_empty() {
        true => json!(answer.text),
        false => Value::Null,
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.thoughts.is_empty() {
        message["reasoning_content"] = json!(answer.thoughts);
    }
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

fn call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// Writes chunks.
struct ChatFrames {
    head: Head,
    with_usage: bool,
    wants_logprobs: bool,
    /// Answers whose role was told.
    spoke: Vec<bool>,
}

impl ChatFrames {
    fn chunk(&mut self, answer: usize, mut delta: Value, logprobs: Value, reason: Value) -> Vec<String> {
        let first = !std::mem::replace(&mut self.spoke[answer], true);
        if first {
            delta["role"] = json!("assistant");
        }
        let mut value = self.head.object("chat.completion.chunk");
        value["choices"] =
            json!([{"index": answer, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]);
        if self.with_usage {
            value["usage"] = Value::Null;
        }
        vec![data(&value)]
    }

    fn logprobs(&self, list: &[TokenLogProb]) -> Value {
        match self.wants_logprobs {
            // The tokenizer was there when the request was read.
            true => {
                json!({"content": logprobs(&self.head.loaded, list).unwrap_or_default(), "refusal": null})
            }
            false => Value::Null,
        }
    }

    fn done(&self, usage_of: &Usage) -> Vec<String> {
        let mut frames = Vec::new();
        if self.with_usage {
            let mut value = self.head.object("chat.completion.chunk");
            value["choices"] = json!([]);
            value["usage"] = usage(usage_of);
            value["timings"] = timings(usage_of);
            frames.push(data(&value));
        }
        frames.push("data: [DONE]\n\n".into());
        frames
    }
}

impl Frames for ChatFrames {
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn said(&mut self, said: Said) -> Vec<String> {
        match said {
            Said::Started | Said::PromptRead(_) => Vec::new(),
            Said::Text(i, text, list) => {
                let logprobs = self.logprobs(&list);
                self.chunk(i, json!({"content": text}), logprobs, Value::Null)
            }
            Said::Thought(i, text) => {
                self.chunk(i, json!({"reasoning_content": text}), Value::Null, Value::Null)
            }
            Said::Call(i, n, one) => {
                let mut value = call(&one);
                value["index"] = json!(n);
                self.chunk(i, json!({"tool_calls": [value]}), Value::Null, Value::Null)
            }
            Said::Finished(i, reason) => self.chunk(i, json!({}), Value::Null, json!(finish_reason(&reason))),
            Said::Done(usage) => self.done(&usage),
            Said::Failed(error) => vec![data(&error.openai()), "data: [DONE]\n\n".into()],
        }
    }

    fn still_here(&self) -> Option<String> {
        Some(": still here\n\n".into())
    }
}
