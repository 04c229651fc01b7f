//! The page to chat on: three files in the program itself, which ask nobody else for anything.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Only what this server itself serves, and no script but its own.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, text).into_response()
}

/// `/`
pub async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("../web/index.html"))
}

/// `/app.js`
pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../web/app.js"))
}

/// `/style.css`
pub async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("../web/style.css"))
}
