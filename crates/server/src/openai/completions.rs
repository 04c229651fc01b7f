//! `/v1/completions`: a text goes on.

use super::{fingerprint, finish_reason, now, timings, usage};
use crate::app::Shared;
use crate::config::Loaded;
use crate::error::{ApiError, json_response, set_header};
use crate::fields::Fields;
use crate::format::{self, Form, Tools};
use crate::prompt;
use crate::record::{Record, random_name};
use crate::sampling::{self, MOST_STOPS};
use crate::stream::{Frames, data, stream};
use crate::talk::{Answer, Ask, Said, Whole};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use minfer::SamplerConfig;
use minfer::engine::{Request, TokenLogProb};
use minfer::text::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// OpenAI's number of tokens where a request says none.
const FEW: usize = 16;

struct Read {
    model: Option<String>,
    prompt: Prompt,
    sampling: SamplerConfig,
    max_tokens: usize,
    stop: Vec<String>,
    n: usize,
    logprobs: Option<usize>,
    echo: bool,
    ignore_eos: bool,
    form: Option<Form>,
    streams: bool,
    with_usage: bool,
    warnings: Vec<String>,
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

fn read(mut fields: Fields) -> Result<Read, ApiError> {
    let model = fields.text("model")?;
    let prompt = read_prompt(fields.take("prompt"))?;
    let streams = fields.flag("stream")?.unwrap_or(false);
    let with_usage = super::chat::stream_options(&mut fields, streams)?;
    let sampling = sampling::read(&mut fields)?;
    let max_tokens = fields.whole("max_tokens", 0..=u64::MAX)?;
    let max_tokens = max_tokens.map_or(FEW, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let stop = fields.texts("stop", MOST_STOPS)?;
    let n = fields.whole("n", 1..=128)?.unwrap_or(1) as usize;
    let logprobs = fields.whole("logprobs", 0..=20)?.map(|n| n as usize);
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && streams {
        return Err(ApiError::invalid("echo", "`echo` of a stream is not supported"));
    }
    let ignore_eos = fields.flag("ignore_eos")?.unwrap_or(false);
    let form = format::read(&mut fields)?;
    fields.labels(&["user"]);
    fields.only("best_of", &[json!(n)], "all answers are given")?;
    fields.only("suffix", &[json!("")], "the models that run here go on at the end of a text")?;
    let warnings = fields.finish()?;
    Ok(Read {
        model,
        prompt,
        sampling,
        max_tokens,
        stop,
        n,
        logprobs,
        echo,
        ignore_eos,
        form,
        streams,
        with_usage,
        warnings,
    })
}

fn read_prompt(value: Option<Value>) -> Result<Prompt, ApiError> {
    let wrong = |what: &str| ApiError::invalid("prompt", format!("`prompt` {what}"));
    match value {
        None => Err(wrong("is missing")),
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(tokens)] => tokens_of(tokens).map(Prompt::Tokens),
            [Value::String(_) | Value::Array(_), ..] => {
                Err(wrong("has several texts: send a request for each"))
            }
            tokens => tokens_of(tokens).map(Prompt::Tokens),
        },
        Some(_) => Err(wrong("must be a string or a list of token ids")),
    }
}

fn tokens_of(list: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    ids.ok_or_else(|| ApiError::invalid("prompt", "`prompt` must be a string or a list of token ids"))
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
    let read = read(app.fields(&headers, &body)?)?;
    let loaded = app.model(read.model.as_deref(), &record).await?;
    let tokens = match &read.prompt {
        Prompt::Text(text) => prompt::of_text(&loaded, text)?,
        Prompt::Tokens(tokens) => tokens.clone(),
    };
    let constraint = format::constraint(&loaded, read.form.as_ref(), &Tools::default(), None)?;
    let seed = read.sampling.seed;
    let request = Request {
        n: read.n,
        max_tokens: Some(read.max_tokens),
        stop: read.stop,
        ignore_eos: read.ignore_eos,
        logprobs: read.logprobs,
        prompt_logprobs: read.logprobs.filter(|_| read.echo),
        constraint,
        ..Request::new(tokens.clone(), read.sampling)
    };
    let ask = Ask { request, splitter: None, tools: None, timeout: app.timeout() };
    let talk = app.talk(loaded.clone(), ask, record.clone())?;
    let model = record.model().unwrap_or_default();
    let head =
        Head { id: format!("cmpl-{}", random_name()), created: now(), model, seed, loaded: loaded.clone() };
    let logprobs = read.logprobs.is_some();
    let mut response = if read.streams {
        let offsets = vec![0; read.n];
        stream(talk, CompletionFrames { head, with_usage: read.with_usage, logprobs, offsets }).await?
    } else {
        let whole = talk.whole().await?;
        let echo = if read.echo { Some((&read.prompt, tokens.as_slice())) } else { None };
        let mut response = json_response(StatusCode::OK, &head.whole(&whole, logprobs, echo)?);
        set_header(&mut response, "x-minfer-cached-tokens", &whole.usage.cached_tokens.to_string());
        set_header(&mut response, "x-minfer-queue-ms", &record.queue_ms().unwrap_or_default().to_string());
        response
    };
    super::chat::tell(&mut response, &loaded, seed, false, &read.warnings);
    Ok(response)
}

struct Head {
    id: String,
    created: u64,
    model: String,
    seed: u64,
    loaded: Arc<Loaded>,
}

impl Head {
    fn object(&self) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "system_fingerprint": fingerprint(&self.loaded), "seed": self.seed,
        })
    }

    fn whole(
        &self,
        whole: &Whole,
        logprobs: bool,
        echo: Option<(&Prompt, &[u32])>,
    ) -> Result<Value, ApiError> {
        let tokenizer = prompt::tokenizer(&self.loaded)?;
        let prompt = match echo {
            Some((Prompt::Text(text), _)) => text.clone(),
            Some((Prompt::Tokens(tokens), _)) => tokenizer.decode(tokens),
            None => String::new(),
        };
        let choice = |(i, answer): (usize, &Answer)| {
            let reason = answer.reason.as_ref().map(finish_reason);
            let mut list = Columns::default();
            if let (true, Some((_, tokens))) = (logprobs, echo) {
                // Nothing comes before the first token, so it has no probability.
                list.push(tokenizer, tokens[0], None, &[]);
                whole
                    .prompt_logprobs
                    .iter()
                    .for_each(|t| list.push(tokenizer, t.id, Some(t.logprob), &t.top));
            }
            answer.logprobs.iter().for_each(|t| list.push(tokenizer, t.id, Some(t.logprob), &t.top));
            json!({
                "index": i, "text": prompt.clone() + &answer.text, "finish_reason": reason,
                "logprobs": if logprobs { list.value() } else { Value::Null },
            })
        };
        let mut value = self.object();
        value["choices"] = whole.answers.iter().enumerate().map(choice).collect();
        value["usage"] = usage(&whole.usage);
        value["timings"] = timings(&whole.usage);
        Ok(value)
    }
}

/// The columns of a completion's `logprobs`.
#[derive(Default)]
struct Columns {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
    /// Characters before the next token.
    at: usize,
}

impl Columns {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprob: Option<f64>, top: &[(u32, f64)]) {
        let text = |id| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        let shown = text(id);
        self.offsets.push(json!(self.at));
        self.at += shown.chars().count();
        self.tokens.push(json!(shown));
        self.logprobs.push(json!(logprob));
        let top: Map<String, Value> = top.iter().map(|&(id, p)| (text(id), json!(p))).collect();
        self.top.push(if top.is_empty() { Value::Null } else { Value::Object(top) });
    }

    fn value(self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.logprobs, "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}

struct CompletionFrames {
    head: Head,
    with_usage: bool,
    logprobs: bool,
    offsets: Vec<usize>,
}

impl CompletionFrames {
    fn chunk(&mut self, answer: usize, text: &str, list: &[TokenLogProb], reason: Value) -> Vec<String> {
        let mut columns = Columns { at: self.offsets[answer], ..Columns::default() };
        // The tokenizer was there when the request was read.
        if let Ok(tokenizer) = prompt::tokenizer(&self.head.loaded) {
            list.iter().for_each(|t| columns.push(tokenizer, t.id, Some(t.logprob), &t.top));
        }
        self.offsets[answer] = columns.at;
        let logprobs = if self.logprobs { columns.value() } else { Value::Null };
        let mut value = self.head.object();
        value["choices"] =
            json!([{"index": answer, "text": text, "logprobs": logprobs, "finish_reason": reason}]);
        if self.with_usage {
            value["usage"] = Value::Null;
        }
        vec![data(&value)]
    }
}

impl Frames for CompletionFrames {
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn said(&mut self, said: Said) -> Vec<String> {
        match said {
            Said::Text(i, text, list) => self.chunk(i, &text, &list, Value::Null),
            Said::Finished(i, reason) => self.chunk(i, "", &[], json!(finish_reason(&reason))),
            Said::Done(usage_of) => {
                let mut frames = Vec::new();
                if self.with_usage {
                    let mut value = self.head.object();
                    value["choices"] = json!([]);
                    value["usage"] = usage(&usage_of);
                    value["timings"] = timings(&usage_of);
                    frames.push(data(&value));
                }
                frames.push("data: [DONE]\n\n".into());
                frames
            }
            Said::Failed(error) => vec![data(&error.openai()), "data: [DONE]\n\n".into()],
            Said::Started | Said::PromptRead(_) | Said::Thought(..) | Said::Call(..) => Vec::new(),
        }
    }

    fn still_here(&self) -> Option<String> {
        Some(": still here\n\n".into())
    }
}
