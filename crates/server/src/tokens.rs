//! `/tokenize`, `/detokenize`, `/apply-template`: what the model sees.

use crate::app::Shared;
use crate::error::{ApiError, json_response};
use crate::openai::chat::read_messages;
use crate::prompt::{self, Conversation};
use crate::record::Record;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use minfer::text::EncodeOptions;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `POST /tokenize`: `content` to ids.
///
/// # Errors
/// What is wrong with the request.
pub async fn tokenize(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&headers, &body)?;
    let model = fields.text("model")?;
    let content = fields.text("content")?;
    let content = content.ok_or_else(|| ApiError::invalid("content", "`content` is missing"))?;
    let add_bos = fields.flag("add_special")?.unwrap_or(false);
    let parse_special = fields.flag("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let loaded = app.model(model.as_deref(), &record).await?;
    let tokenizer = prompt::tokenizer(&loaded)?;
    let ids = tokenizer.encode(&content, EncodeOptions { add_bos, parse_special });
    let piece = |id: &u32| json!({"id": id, "piece": String::from_utf8_lossy(&tokenizer.token_bytes(*id))});
    let tokens: Value = if with_pieces { ids.iter().map(piece).collect() } else { json!(ids) };
    Ok(json_response(StatusCode::OK, &json!({"tokens": tokens})))
}

/// `POST /detokenize`: `tokens` to text.
///
/// # Errors
/// What is wrong with the request.
pub async fn detokenize(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&headers, &body)?;
    let model = fields.text("model")?;
    let list = fields.list("tokens")?;
    let list = list.ok_or_else(|| ApiError::invalid("tokens", "`tokens` is missing"))?;
    fields.finish()?;
    let loaded = app.model(model.as_deref(), &record).await?;
    let tokenizer = prompt::tokenizer(&loaded)?;
    let known = |id: &u64| (*id as usize) < tokenizer.n_vocab();
    let ids: Option<Vec<u32>> = list.iter().map(|v| v.as_u64().filter(known).map(|id| id as u32)).collect();
    let ids = ids.ok_or_else(|| ApiError::invalid("tokens", "`tokens` must be ids of the vocabulary"))?;
    Ok(json_response(StatusCode::OK, &json!({"content": tokenizer.decode(&ids)})))
}

/// `POST /apply-template`: messages to the prompt's text.
///
/// # Errors
/// What is wrong with the request.
pub async fn apply_template(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&headers, &body)?;
    let model = fields.text("model")?;
    let messages = read_messages(&fields.list("messages")?.unwrap_or_default())?;
    let tools = crate::format::read_tools(&mut fields)?.told();
    fields.finish()?;
    let loaded = app.model(model.as_deref(), &record).await?;
    let prompt = prompt::of_conversation(&loaded, Conversation { messages, tools, extra: Map::new() })?;
    Ok(json_response(StatusCode::OK, &json!({"prompt": prompt.text, "n_tokens": prompt.tokens.len()})))
}
