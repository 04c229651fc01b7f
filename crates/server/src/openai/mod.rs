//! OpenAI's paths.

pub mod chat;
pub mod completions;
pub mod models;
pub mod responses;

use crate::config::Loaded;
use crate::error::ApiError;
use crate::prompt::tokenizer;
use crate::talk::Reason;
use minfer::engine::{TokenLogProb, Usage};
use minfer::text::Tokenizer;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A name of what computes: equal names, seeds and requests give equal answers.
pub(crate) fn fingerprint(loaded: &Loaded) -> String {
    format!("minfer-{}-{:08x}", env!("CARGO_PKG_VERSION"), loaded.model.id() as u32)
}

/// OpenAI's word for the end of an answer.
pub(crate) fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::StopString(_) => "stop",
        Reason::Length => "length",
        Reason::Calls => "tool_calls",
    }
}

/// OpenAI's `usage`, with times beside it.
pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.answer_tokens,
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// Milliseconds of a request: ours, beside OpenAI's fields.
pub(crate) fn timings(usage: &Usage) -> Value {
    let ms = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    json!({"queue_ms": ms(usage.queued), "prefill_ms": ms(usage.prefill), "decode_ms": ms(usage.decode)})
}

/// A token as `logprobs` show it.
fn shown(tokenizer: &Tokenizer, id: u32, logprob: f64) -> Value {
    let bytes = tokenizer.token_bytes(id);
    json!({"token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes})
}

/// The `content` of chat's `logprobs`.
///
/// # Errors
/// The model has no tokenizer.
pub(crate) fn logprobs(loaded: &Loaded, list: &[TokenLogProb]) -> Result<Value, ApiError> {
    let tokenizer = tokenizer(loaded)?;
    let one = |token: &TokenLogProb| {
        let mut value = shown(tokenizer, token.id, token.logprob);
        value["top_logprobs"] = token.top.iter().map(|&(id, p)| shown(tokenizer, id, p)).collect();
        value
    };
    Ok(list.iter().map(one).collect())
}
