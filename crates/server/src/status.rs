//! How the server is: for people, routers and start scripts.

use crate::app::Shared;
use crate::error::{ApiError, json_response};
use crate::metrics::EngineCounts;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// `GET /health`: the process answers. It never waits for a model.
pub async fn health() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

/// `GET /ready`: whether requests are taken: a model is there, its engine works, and the server is not going down.
///
/// # Errors
/// 503 with the reason.
pub async fn ready(State(app): Shared) -> Result<Response, ApiError> {
    let not = |why: &str| Err(ApiError::unavailable(why, Duration::from_secs(1)));
    if app.is_draining() {
        return not("the server is going down");
    }
    let statuses = app.models.statuses();
    let broken =
        |s: &&crate::models::Status| s.loaded.as_ref().is_some_and(|loaded| !loaded.engine.stats().healthy);
    if let Some(status) = statuses.iter().find(broken) {
        return not(&format!("the engine of `{}` has failed", status.name));
    }
    if statuses.iter().any(|s| s.is_loading) && statuses.iter().all(|s| s.loaded.is_none()) {
        return not("a model is being loaded");
    }
    Ok(json_response(StatusCode::OK, &json!({"status": "ready"})))
}

/// `GET /metrics`, in Prometheus' text format.
pub async fn metrics(State(app): Shared) -> Response {
    let statuses = app.models.statuses();
    let counts = statuses.iter().filter_map(|status| {
        let stats = status.loaded.as_ref()?.engine.stats();
        Some(EngineCounts { model: &status.name, stats })
    });
    let text = app.metrics.text(&counts.collect::<Vec<_>>());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// `GET /props`: what is used.
pub async fn props(State(app): Shared) -> Response {
    let model = |status: &crate::models::Status| {
        let mut value =
            json!({"name": status.name, "bytes": status.bytes, "loaded": status.loaded.is_some()});
        if let Some(loaded) = &status.loaded {
            let options = loaded.engine.options();
            value["device"] = json!(loaded.model.device());
            value["context"] = json!(options.n_ctx);
            value["parallel"] = json!(options.max_running);
            value["max_queue"] = json!(options.max_queue);
            value["prefix_cache"] = json!(options.prefix_cache);
            value["chat_template"] = json!(loaded.template.as_ref().map(|t| t.source.as_str()).ok());
        }
        value
    };
    let models: Vec<Value> = app.models.statuses().iter().map(model).collect();
    let value = json!({"version": env!("CARGO_PKG_VERSION"), "lenient": app.lenient, "models": models});
    json_response(StatusCode::OK, &value)
}

/// `POST /admin/drain`: what SIGTERM does first, for a hook before it.
pub async fn drain(State(app): Shared) -> Response {
    app.drain();
    json_response(StatusCode::OK, &json!({"status": "draining", "busy": app.busy.now()}))
}

/// `GET /openapi.json`
pub async fn openapi() -> Response {
    json_response(StatusCode::OK, &crate::openapi::document())
}
