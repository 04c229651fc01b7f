//! The server's state, and which path leads where.

use crate::config::{Config, Loaded};
use crate::error::{ApiError, set_header};
use crate::fields::Fields;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::record::{Count, Log, Record, random_name};
use crate::talk::{Ask, Talk};
use crate::{anthropic, ollama, openai, page, status, tokens};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the next part of a body may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all requests share.
pub struct App {
    /// The models.
    pub models: Arc<Models>,
    /// Counts of the server's own.
    pub metrics: Arc<Metrics>,
    /// Generations under way.
    pub busy: Count,
    guard: Guard,
    log: Log,
    draining: AtomicBool,
    max_body: usize,
    timeout: Duration,
    /// Whether unknown fields are passed over with a warning.
    pub lenient: bool,
    page: bool,
}

/// The state as handlers get it.
pub type Shared = State<Arc<App>>;

impl App {
    /// A server's state, before any model is loaded.
    pub fn new(config: Config) -> Arc<App> {
        let Config { address, models, memory, keep_alive, keys, hosts, origins, .. } = config;
        Arc::new(App {
            models: Arc::new(Models::new(models, memory, keep_alive)),
            metrics: Arc::default(),
            busy: Count::default(),
            guard: Guard::new(address, keys, hosts, origins),
            log: Arc::from(config.log),
            draining: AtomicBool::new(false),
            max_body: config.max_body,
            timeout: config.timeout,
            lenient: config.lenient,
            page: config.page,
        })
    }

    /// Not ready from now on; what runs goes on to its end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.models.drain();
    }

    /// Whether the server is on its way down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The fields of a body.
    ///
    /// # Errors
    /// It is not sent as JSON, or is none.
    pub fn fields(&self, headers: &HeaderMap, body: &[u8]) -> Result<Fields, ApiError> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        // Without a type it cannot be a form of another site's page: those always have one.
        if !(kind.is_empty() || kind.eq_ignore_ascii_case("application/json")) {
            let error = ApiError::bad_body(format!("the body is `{kind}`, not application/json"));
            return Err(ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..error });
        }
        Fields::parse(body, self.lenient)
    }

    /// The model that a request means.
    ///
    /// # Errors
    /// As [`Models::get`]; 503 when the server is going down.
    pub async fn model(&self, asked: Option<&str>, record: &Record) -> Result<Arc<Loaded>, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("the server is going down", Duration::from_secs(5)));
        }
        record.set_model(self.models.name_of(asked)?);
        self.models.get(asked).await
    }

    /// Begins a generation.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn talk(&self, loaded: Arc<Loaded>, ask: Ask, record: Arc<Record>) -> Result<Talk, ApiError> {
        Talk::start(loaded, ask, record, self.busy.enter())
    }

    /// How long a request may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// All paths.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new()
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .route("/props", get(status::props))
        .route("/admin/drain", post(status::drain))
        .route("/openapi.json", get(status::openapi))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{name}", get(openai::models::one))
        .route("/v1/chat/completions", post(openai::chat::handle))
        .route("/v1/completions", post(openai::completions::handle))
        .route("/v1/embeddings", post(openai::models::embeddings))
        .route("/v1/responses", post(openai::responses::handle))
        .route("/v1/messages", post(anthropic::handle))
        .route("/v1/messages/count_tokens", post(anthropic::count))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/show", post(ollama::show))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version))
        .route("/api/embed", post(ollama::embed));
    if app.page {
        router = router
            .route("/", get(page::html))
            .route("/app.js", get(page::script))
            .route("/style.css", get(page::style));
    }
    router
        .fallback(|request: Request| async move { ApiError::no_path(request.uri().path()) })
        .method_not_allowed_fallback(|request: Request| async move {
            ApiError::wrong_method(request.uri().path())
        })
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), around))
        .with_state(app)
}

/// What every request goes through: its record, the guard, the limit of its body.
async fn around(State(app): Shared, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_string();
    let id = request.headers().get("x-request-id").and_then(|v| v.to_str().ok());
    let given = id.filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()));
    let id = given.map_or_else(|| format!("req-{}", random_name()), str::to_string);
    let method = request.method().as_str();
    let record = Arc::new(Record::new(id.clone(), method, &path, app.metrics.clone(), app.log.clone()));
    request.extensions_mut().insert(record.clone());
    let origin = app.guard.allowed_origin(request.headers()).map(str::to_string);
    let mut response = match app.guard.check(&path, request.headers()) {
        Err(error) => shaped(&path, &error),
        Ok(()) if request.method() == Method::OPTIONS && origin.is_some() => preflight(),
        Ok(()) => match bounded(request, app.max_body).await {
            Ok(request) => next.run(request).await,
            Err(error) => shaped(&path, &error),
        },
    };
    set_header(&mut response, "x-request-id", &id);
    if let Some(origin) = origin {
        set_header(&mut response, "access-control-allow-origin", &origin);
        set_header(&mut response, "vary", "origin");
    }
    record.set_status(response.status().as_u16());
    recorded(response, record)
}

/// An error in the shape of the path's protocol.
fn shaped(path: &str, error: &ApiError) -> Response {
    match path {
        _ if path.starts_with("/v1/messages") => error.respond(&error.anthropic()),
        _ if path.starts_with("/api/") => error.respond(&error.ollama()),
        _ => error.respond(&error.openai()),
    }
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_header(&mut response, "access-control-allow-methods", "GET, POST");
    let names = "authorization, content-type, x-api-key, x-request-id, anthropic-version";
    set_header(&mut response, "access-control-allow-headers", names);
    response
}

/// The request with its body read, if that is not too large.
async fn bounded(request: Request, limit: usize) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    let said = parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if said.is_some_and(|said| said > limit) {
        return Err(ApiError::too_large(limit));
    }
    let mut stream = body.into_data_stream();
    let mut bytes: Vec<u8> = Vec::new();
    let slow =
        |_| ApiError { status: StatusCode::REQUEST_TIMEOUT, ..ApiError::bad_body("the body does not come") };
    while let Some(chunk) = tokio::time::timeout(PATIENCE, stream.next()).await.map_err(slow)? {
        let chunk = chunk.map_err(|e| ApiError::bad_body(format!("the body ended early: {e}")))?;
        if bytes.len() + chunk.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Request::from_parts(parts, Body::from(Bytes::from(bytes))))
}

/// The record lives as long as a stream does: its line is written at the end.
fn recorded(response: Response, record: Arc<Record>) -> Response {
    let streams =
        [HeaderValue::from_static("text/event-stream"), HeaderValue::from_static("application/x-ndjson")];
    if !response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| streams.contains(kind)) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let stream = body.into_data_stream().map(move |chunk| {
        let _alive = &record;
        chunk
    });
    Response::from_parts(parts, Body::from_stream(stream))
}
