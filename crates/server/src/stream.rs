//! Answers that are written while they are made.

use crate::error::{ApiError, set_header};
use crate::talk::{Said, Talk};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;

/// How long a client hears nothing before it hears that we are still here.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long the status of an answer waits for its request to leave the queue.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes what is said in the frames of a protocol.
pub trait Frames: Send + 'static {
    /// `text/event-stream` or `application/x-ndjson`.
    fn content_type(&self) -> &'static str;
    /// Frames of something that was said, in order.
    fn said(&mut self, said: Said) -> Vec<String>;
    /// What is sent when nothing was said for a while.
    fn still_here(&self) -> Option<String>;
}

/// A frame of server-sent events without a name.
pub fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A frame of server-sent events with a name.
pub fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// The answer to a request as a stream. Errors before anything was said have their own status.
///
/// # Errors
/// The request failed before it began.
pub async fn stream(mut talk: Talk, frames: impl Frames) -> Result<Response, ApiError> {
    talk.begun(PATIENCE).await?;
    let content_type = HeaderValue::from_static(frames.content_type());
    let chunks = unfold((talk, frames), |(mut talk, mut frames)| async move {
        loop {
            let text = match tokio::time::timeout(KEEP_ALIVE, talk.next()).await {
                Ok(None) => return None,
                Ok(Some(said)) => frames.said(said).concat(),
                Err(_) => frames.still_here().unwrap_or_default(),
            };
            if !text.is_empty() {
                return Some((Ok::<_, Infallible>(Bytes::from(text)), (talk, frames)));
            }
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that gathers a stream would hold back every token.
    set_header(&mut response, "x-accel-buffering", "no");
    Ok(response)
}
