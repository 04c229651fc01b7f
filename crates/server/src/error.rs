//! What a client is told when a request is refused or fails.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use minfer::ErrorKind;
use minfer::engine::{Failure, Refusal};
use serde_json::{Value, json};
use std::time::Duration;

/// An error of a request, in OpenAI's terms.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// `invalid_request_error` and the like.
    pub kind: &'static str,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// The field of the request that is at fault.
    pub param: Option<String>,
    /// What is wrong, for people.
    pub message: String,
    /// When it may work.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// 400: the request makes no sense or asks for what there is not.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// 400 about the body as a whole.
    pub fn bad_body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the prompt does not fit.
    pub fn context(prompt: usize, limit: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens."
        );
        let error = Self::invalid("messages", message);
        ApiError { code: Some("context_length_exceeded"), ..error }
    }

    /// 401.
    pub fn no_key() -> Self {
        let message = "an API key is needed: `Authorization: Bearer KEY`";
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    /// 403: a request that a page of another site may have caused.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: there is no such path.
    pub fn no_path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", format!("there is no {path}"))
    }

    /// 404: there is no such model.
    pub fn no_model(name: &str, known: &[&str]) -> Self {
        let message = format!("there is no model `{name}`; there are: {}", known.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, "not_found_error", message);
        ApiError { code: Some("model_not_found"), param: Some("model".into()), ..error }
    }

    /// 405.
    pub fn wrong_method(path: &str) -> Self {
        let message = format!("{path} is not asked for this way");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 503: now is not the time.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// 500: the engine, not the request, is at fault.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// In OpenAI's shape.
    pub fn openai(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }

    /// In Anthropic's shape.
    pub fn anthropic(&self) -> Value {
        let kind = if self.kind == "server_error" { "api_error" } else { self.kind };
        let message = match &self.param {
            Some(param) => format!("{param}: {}", self.message),
            None => self.message.clone(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// In Ollama's shape.
    pub fn ollama(&self) -> Value {
        match &self.param {
            Some(param) => json!({"error": format!("{param}: {}", self.message)}),
            None => json!({"error": self.message}),
        }
    }

    /// An answer with this status and headers, and a body of a shape.
    pub fn respond(&self, body: &Value) -> Response {
        let mut response = json_response(self.status, body);
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(&self.openai())
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::QueueFull { retry_after, .. } => Self::unavailable(refusal.to_string(), retry_after),
            Refusal::Closed => Self::unavailable("the server is going down", Duration::from_secs(5)),
            Refusal::Context { prompt, limit } => Self::context(prompt, limit),
            Refusal::Invalid(e) => Self::bad_body(e.to_string()),
            other => Self::engine(other.to_string()),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            ErrorKind::Input => Self::bad_body(failure.message),
            ErrorKind::Cancelled => Self::unavailable(failure.message, Duration::from_secs(1)),
            _ => Self::engine(failure.message),
        }
    }
}

/// A body of JSON.
pub fn json_response(status: StatusCode, body: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, json)], body.to_string()).into_response()
}

/// Sets a header whose value may not be one.
pub fn set_header(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}
