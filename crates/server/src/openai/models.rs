//! `/v1/models` and `/v1/embeddings`.

use crate::app::Shared;
use crate::error::{ApiError, json_response};
use crate::models::Status;
use crate::record::Record;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /v1/models`
pub async fn list(State(app): Shared) -> Response {
    let data: Vec<Value> = app.models.statuses().iter().map(shown).collect();
    json_response(StatusCode::OK, &json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{name}`
///
/// # Errors
/// 404.
pub async fn one(State(app): Shared, Path(name): Path<String>) -> Result<Response, ApiError> {
    let name = app.models.name_of(Some(&name))?;
    let statuses = app.models.statuses();
    let found = statuses.iter().find(|s| s.name == name).map(shown);
    Ok(json_response(StatusCode::OK, &found.unwrap_or_default()))
}

fn shown(status: &Status) -> Value {
    let mut value = json!({
        "id": status.name, "object": "model", "created": 0, "owned_by": "minfer",
        "loaded": status.loaded.is_some(), "bytes": status.bytes,
    });
    if let Some(loaded) = &status.loaded {
        value["max_model_len"] = json!(loaded.engine.n_ctx());
        value["context_length"] = json!(loaded.engine.n_ctx());
        value["device"] = json!(loaded.model.device());
        value["chat"] = json!(loaded.template.is_ok());
    }
    value
}

/// `POST /v1/embeddings`: no model that runs here has embeddings of texts.
///
/// # Errors
/// Always.
pub async fn embeddings(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&headers, &body)?;
    let name = fields.text("model")?;
    let name = app.models.name_of(name.as_deref())?;
    record.set_model(name);
    Err(ApiError::invalid(
        "model",
        format!("`{name}` generates texts: it has no pooling that makes embeddings of them"),
    ))
}
