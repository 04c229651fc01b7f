//! `/v1/responses`, without a memory: each request brings its whole conversation.

use super::chat::{ChatJob, tell, text_of};
use super::now;
use crate::app::Shared;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::format::{Choice, Form, Tools};
use crate::prompt::Conversation;
use crate::record::{Record, random_name};
use crate::sampling;
use crate::stream::{Frames, event, stream};
use crate::talk::{Answer, Call, Reason, Said};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use minfer::engine::Usage;
use minfer::text::Message;
use serde_json::{Map, Value, json};
use std::sync::Arc;

struct Read {
    job: ChatJob,
    streams: bool,
    echo: Value,
    warnings: Vec<String>,
}

fn read(mut fields: Fields) -> Result<Read, ApiError> {
    let model = fields.text("model")?;
    let mut messages = Vec::new();
    let instructions = fields.text("instructions")?;
    messages.extend(instructions.clone().map(|text| Message::new("system", text)));
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(Message::new("user", text)),
        Some(Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                messages.push(read_item(i, item)?);
            }
        }
        _ => return Err(ApiError::invalid("input", "`input` must be a string or a list of items")),
    }
    let streams = fields.flag("stream")?.unwrap_or(false);
    let max_tokens = fields.whole("max_output_tokens", 1..=u64::MAX)?;
    let mut tools = read_tools(&mut fields)?;
    tools.several = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let form = read_form(&mut fields)?;
    let sampling = sampling::read(&mut fields)?;
    let metadata = fields.take("metadata").unwrap_or(json!({}));
    fields.labels(&["user", "safety_identifier", "prompt_cache_key"]);
    fields.only("store", &[json!(false)], "nothing is kept: send `\"store\": false`")?;
    fields.only("previous_response_id", &[], "nothing is kept: send the whole conversation")?;
    fields.only("background", &[json!(false)], "answers are given at once")?;
    fields.only("truncation", &[json!("disabled")], "no prompt is shortened")?;
    fields.only("include", &[json!([])], "there is nothing more to include")?;
    fields.only("service_tier", &[json!("auto"), json!("default")], "there is one tier")?;
    let warnings = fields.finish()?;
    let echo = json!({
        "instructions": instructions, "max_output_tokens": max_tokens, "metadata": metadata,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "tools": tools.list,
        "parallel_tool_calls": tools.several, "seed": sampling.seed,
    });
    let conversation = Conversation { messages, tools: None, extra: Map::new() };
    let max_tokens = max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let (stop, logprobs) = (Vec::new(), None);
    let job = ChatJob {
        model,
        conversation,
        tools,
        form,
        sampling,
        max_tokens,
        stop,
        n: 1,
        logprobs,
        ignore_eos: false,
    };
    Ok(Read { job, streams, echo, warnings })
}

fn read_item(i: usize, item: &Value) -> Result<Message, ApiError> {
    let at = format!("input[{i}]");
    let wrong = |message: String| ApiError::invalid(at.clone(), message);
    let text = |name: &str| {
        item[name].as_str().map(str::to_string).ok_or_else(|| wrong(format!("`{name}` is missing")))
    };
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = match item["role"].as_str() {
                Some("developer") => "system",
                Some(role @ ("system" | "user" | "assistant")) => role,
                _ => return Err(wrong("`role` must be system, developer, user or assistant".into())),
            };
            Ok(Message::new(role, text_of(&format!("{at}.content"), item.get("content"))?))
        }
        "function_call" => {
            let arguments = serde_json::from_str::<Map<String, Value>>(&text("arguments")?);
            let arguments = arguments.map_err(|e| wrong(format!("`arguments`: {e}")))?;
            let function = json!({"name": text("name")?, "arguments": arguments});
            let call = json!({"id": text("call_id")?, "type": "function", "function": function});
            Ok(Message::new("assistant", "").with("tool_calls", json!([call])))
        }
        "function_call_output" => {
            let output = text_of(&format!("{at}.output"), item.get("output"))?;
            Ok(Message::new("tool", output).with("tool_call_id", text("call_id")?))
        }
        other => Err(wrong(format!("an item of type `{other}` is not supported"))),
    }
}

fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let Value::Object(mut function) = tool else {
            return Err(ApiError::invalid(at, "a tool is an object"));
        };
        if function.shift_remove("type") != Some(json!("function")) || !function.contains_key("name") {
            return Err(ApiError::invalid(at, "a tool is `{\"type\": \"function\", \"name\": ..}`"));
        }
        function.shift_remove("strict");
        list.push(json!({"type": "function", "function": function}));
    }
    let choice = match fields.take("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(word)) if word == "auto" => Choice::Auto,
        Some(Value::String(word)) if word == "none" => Choice::None,
        Some(Value::String(word)) if word == "required" => Choice::Required,
        Some(value) => match value["name"].as_str() {
            Some(name) if value["type"] == "function" => Choice::Named(name.to_string()),
            _ => {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "`tool_choice` must be auto, none, required or a function",
                ));
            }
        },
    };
    let tools = Tools { list, choice, several: true };
    tools.check()?;
    Ok(tools)
}

fn read_form(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let form = match text.object("format")? {
        None => None,
        Some(mut format) => {
            let form = match format.text("type")?.as_deref() {
                Some("text") => None,
                Some("json_object") => Some(Form::Object),
                Some("json_schema") => {
                    format.labels(&["name", "description", "strict"]);
                    let schema = format.take("schema");
                    Some(Form::Schema(schema.ok_or_else(|| {
                        ApiError::invalid("text.format.schema", "`text.format.schema` is missing")
                    })?))
                }
                _ => {
                    let message = "`text.format.type` must be text, json_object or json_schema";
                    return Err(ApiError::invalid("text.format.type", message));
                }
            };
            text.close(format)?;
            form
        }
    };
    text.only("verbosity", &[json!("medium")], "the model has no such setting")?;
    fields.close(text)?;
    Ok(form)
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
    let Read { job, streams, echo, warnings } = read(app.fields(&headers, &body)?)?;
    let seed = job.sampling.seed;
    let begun = job.begin(&app, record.clone()).await?;
    let model = record.model().unwrap_or_default();
    let head = Head { id: format!("resp_{}", random_name()), created: now(), model, echo };
    let mut response = if streams {
        let frames =
            ResponseFrames { head, sequence: 0, answer: Answer::default(), items: Vec::new(), open: None };
        stream(begun.talk, frames).await?
    } else {
        let whole = begun.talk.whole().await?;
        let answer = &whole.answers[0];
        let status = status_of(answer.reason.as_ref());
        json_response(StatusCode::OK, &head.response(status, items(answer), Some(&whole.usage)))
    };
    tell(&mut response, &begun.loaded, seed, begun.tools_in_system, &warnings);
    Ok(response)
}

struct Head {
    id: String,
    created: u64,
    model: String,
    echo: Value,
}

impl Head {
    fn response(&self, status: &str, output: Vec<Value>, usage: Option<&Usage>) -> Value {
        let mut value = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "background": false, "error": null, "incomplete_details": null, "model": self.model,
            "output": output, "previous_response_id": null, "store": false, "tool_choice": "auto",
            "text": {"format": {"type": "text"}}, "truncation": "disabled", "usage": null,
        });
        if let (Value::Object(value), Value::Object(echo)) = (&mut value, &self.echo) {
            value.extend(echo.clone());
        }
        if status == "incomplete" {
            value["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(usage) = usage {
            value["usage"] = json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.answer_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.answer_tokens,
            });
        }
        value
    }
}

fn status_of(reason: Option<&Reason>) -> &'static str {
    if reason == Some(&Reason::Length) { "incomplete" } else { "completed" }
}

fn items(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if !answer.thoughts.is_empty() {
        items.push(thoughts(&format!("rs_{}", random_name()), &answer.thoughts));
    }
    if !answer.text.is_empty() || answer.calls.is_empty() {
        items.push(message(&format!("msg_{}", random_name()), &answer.text, "completed"));
    }
    items.extend(answer.calls.iter().map(call));
    items
}

fn thoughts(id: &str, text: &str) -> Value {
    json!({"type": "reasoning", "id": id, "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn message(id: &str, text: &str, status: &str) -> Value {
    let content = if status == "in_progress" { json!([]) } else { json!([part(text)]) };
    json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
}

fn call(call: &Call) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_{}", call.id), "call_id": call.id, "name": call.name,
        "arguments": call.arguments, "status": "completed",
    })
}

/// Writes OpenAI's events.
struct ResponseFrames {
    head: Head,
    sequence: u64,
    answer: Answer,
    /// Items that are whole.
    items: Vec<Value>,
    /// Name of the message that is being written.
    open: Option<String>,
}

impl ResponseFrames {
    fn event(&mut self, kind: &str, mut value: Value) -> String {
        value["type"] = json!(kind);
        value["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        event(kind, &value)
    }

    fn begin(&mut self) -> Vec<String> {
        let response = self.head.response("in_progress", Vec::new(), None);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": response})))
            .into()
    }

    fn text(&mut self, text: &str) -> Vec<String> {
        let index = self.items.len();
        let mut frames = Vec::new();
        if self.open.is_none() {
            let id = format!("msg_{}", random_name());
            let item = message(&id, "", "in_progress");
            frames
                .push(self.event("response.output_item.added", json!({"output_index": index, "item": item})));
            let added = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part("")});
            frames.push(self.event("response.content_part.added", added));
            self.open = Some(id);
        }
        self.answer.text += text;
        let delta = json!({
            "item_id": self.open, "output_index": index, "content_index": 0, "delta": text, "logprobs": [],
        });
        frames.push(self.event("response.output_text.delta", delta));
        frames
    }

    fn close(&mut self) -> Vec<String> {
        let Some(id) = self.open.take() else { return Vec::new() };
        let (index, text) = (self.items.len(), std::mem::take(&mut self.answer.text));
        let item = message(&id, &text, "completed");
        self.items.push(item.clone());
        let place = json!({"item_id": id, "output_index": index, "content_index": 0});
        let (mut done, mut whole) = (place.clone(), place);
        done["text"] = json!(text);
        done["logprobs"] = json!([]);
        whole["part"] = part(&text);
        vec![
            self.event("response.output_text.done", done),
            self.event("response.content_part.done", whole),
            self.event("response.output_item.done", json!({"output_index": index, "item": item})),
        ]
    }

    fn call(&mut self, one: &Call) -> Vec<String> {
        let mut frames = self.close();
        let (index, item) = (self.items.len(), call(one));
        let mut empty = item.clone();
        (empty["arguments"], empty["status"]) = (json!(""), json!("in_progress"));
        frames.push(self.event("response.output_item.added", json!({"output_index": index, "item": empty})));
        let place = json!({"item_id": item["id"], "output_index": index});
        let (mut delta, mut done) = (place.clone(), place);
        delta["delta"] = json!(one.arguments);
        (done["arguments"], done["name"]) = (json!(one.arguments), json!(one.name));
        frames.push(self.event("response.function_call_arguments.delta", delta));
        frames.push(self.event("response.function_call_arguments.done", done));
        frames.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        self.items.push(item);
        frames
    }
}

impl Frames for ResponseFrames {
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn said(&mut self, said: Said) -> Vec<String> {
        match said {
            Said::Started => self.begin(),
            Said::PromptRead(_) => Vec::new(),
            Said::Thought(_, text) => {
                self.answer.thoughts += &text;
                Vec::new()
            }
            Said::Text(_, text, _) if text.is_empty() => Vec::new(),
            Said::Text(_, text, _) => {
                let mut frames = self.thoughts();
                frames.extend(self.text(&text));
                frames
            }
            Said::Call(_, _, one) => {
                let mut frames = self.thoughts();
                frames.extend(self.call(&one));
                frames
            }
            Said::Finished(_, reason) => {
                let mut frames = self.thoughts();
                frames.extend(self.close());
                self.answer.reason = Some(reason);
                frames
            }
            Said::Done(usage) => {
                let status = status_of(self.answer.reason.as_ref());
                let response = self.head.response(status, self.items.clone(), Some(&usage));
                vec![self.event(&format!("response.{status}"), json!({"response": response}))]
            }
            Said::Failed(error) => {
                let mut response = self.head.response("failed", self.items.clone(), None);
                response["error"] = json!({"code": "server_error", "message": error.message});
                vec![self.event("response.failed", json!({"response": response}))]
            }
        }
    }

    fn still_here(&self) -> Option<String> {
        Some(": still here\n\n".into())
    }
}

impl ResponseFrames {
    /// The item of thoughts that are over.
    fn thoughts(&mut self) -> Vec<String> {
        let text = std::mem::take(&mut self.answer.thoughts);
        if text.is_empty() {
            return Vec::new();
        }
        let mut frames = self.close();
        let (index, item) = (self.items.len(), thoughts(&format!("rs_{}", random_name()), &text));
        self.items.push(item.clone());
        let value = json!({"output_index": index, "item": item});
        frames.push(self.event("response.output_item.added", value.clone()));
        frames.push(self.event("response.output_item.done", value));
        frames
    }
}
