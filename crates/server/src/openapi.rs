//! The OpenAPI document: which paths there are and what they take.

use serde_json::{Map, Value, json};

/// Method, path, what it does, and the fields of its body.
type Path = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const SAMPLING: [(&str, &str); 11] = [
    ("temperature", "number"),
    ("top_p", "number"),
    ("top_k", "integer"),
    ("min_p", "number"),
    ("typical_p", "number"),
    ("frequency_penalty", "number"),
    ("presence_penalty", "number"),
    ("repeat_penalty", "number"),
    ("seed", "integer"),
    ("logit_bias", "object"),
    ("stream", "boolean"),
];

const PATHS: [Path; 24] = [
    ("get", "/health", "The process answers; needs no key", &[]),
    ("get", "/ready", "Whether requests are taken", &[]),
    ("get", "/metrics", "Counts and times in Prometheus' text format", &[]),
    ("get", "/props", "Models and settings", &[]),
    ("post", "/admin/drain", "Takes nothing new from now on", &[]),
    ("get", "/openapi.json", "This document", &[]),
    ("get", "/v1/models", "The models", &[]),
    ("get", "/v1/models/{name}", "One of them", &[]),
    (
        "post",
        "/v1/chat/completions",
        "An answer to a conversation (OpenAI)",
        &[
            ("model", "string"),
            ("messages", "array"),
            ("stream_options", "object"),
            ("max_tokens", "integer"),
            ("max_completion_tokens", "integer"),
            ("stop", ""),
            ("n", "integer"),
            ("logprobs", "boolean"),
            ("top_logprobs", "integer"),
            ("response_format", "object"),
            ("grammar", "object"),
            ("tools", "array"),
            ("tool_choice", ""),
            ("parallel_tool_calls", "boolean"),
            ("ignore_eos", "boolean"),
            ("chat_template_kwargs", "object"),
        ],
    ),
    (
        "post",
        "/v1/completions",
        "A text goes on (OpenAI)",
        &[
            ("model", "string"),
            ("prompt", ""),
            ("stream_options", "object"),
            ("max_tokens", "integer"),
            ("stop", ""),
            ("n", "integer"),
            ("logprobs", "integer"),
            ("echo", "boolean"),
            ("response_format", "object"),
            ("grammar", "object"),
            ("ignore_eos", "boolean"),
        ],
    ),
    ("post", "/v1/embeddings", "Refused: the models generate texts", &[("model", "string"), ("input", "")]),
    (
        "post",
        "/v1/responses",
        "An answer, without a memory (OpenAI)",
        &[
            ("model", "string"),
            ("input", ""),
            ("instructions", "string"),
            ("max_output_tokens", "integer"),
            ("tools", "array"),
            ("tool_choice", ""),
            ("parallel_tool_calls", "boolean"),
            ("text", "object"),
            ("metadata", "object"),
        ],
    ),
    (
        "post",
        "/v1/messages",
        "An answer to a conversation (Anthropic)",
        &[
            ("model", "string"),
            ("messages", "array"),
            ("system", ""),
            ("max_tokens", "integer"),
            ("stop_sequences", "array"),
            ("tools", "array"),
            ("tool_choice", "object"),
            ("thinking", "object"),
        ],
    ),
    (
        "post",
        "/v1/messages/count_tokens",
        "Tokens of a conversation (Anthropic)",
        &[("model", "string"), ("messages", "array"), ("system", ""), ("tools", "array")],
    ),
    (
        "post",
        "/tokenize",
        "A text to ids",
        &[
            ("model", "string"),
            ("content", "string"),
            ("add_special", "boolean"),
            ("parse_special", "boolean"),
            ("with_pieces", "boolean"),
        ],
    ),
    ("post", "/detokenize", "Ids to a text", &[("model", "string"), ("tokens", "array")]),
    (
        "post",
        "/apply-template",
        "Messages to the prompt's text",
        &[("model", "string"), ("messages", "array"), ("tools", "array")],
    ),
    (
        "post",
        "/api/chat",
        "An answer to a conversation (Ollama)",
        &[
            ("model", "string"),
            ("messages", "array"),
            ("tools", "array"),
            ("format", ""),
            ("options", "object"),
            ("think", "boolean"),
            ("keep_alive", ""),
        ],
    ),
    (
        "post",
        "/api/generate",
        "An answer to a prompt (Ollama)",
        &[
            ("model", "string"),
            ("prompt", "string"),
            ("system", "string"),
            ("raw", "boolean"),
            ("format", ""),
            ("options", "object"),
            ("think", "boolean"),
            ("keep_alive", ""),
        ],
    ),
    ("get", "/api/tags", "The models (Ollama)", &[]),
    ("post", "/api/show", "One of them (Ollama)", &[("model", "string"), ("verbose", "boolean")]),
    ("get", "/api/ps", "Those that are loaded (Ollama)", &[]),
    ("get", "/api/version", "Version of the interface (Ollama)", &[]),
    ("post", "/api/embed", "Refused: the models generate texts", &[("model", "string"), ("input", "")]),
];

/// Paths whose sampling fields are OpenAI's.
const WITH_SAMPLING: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for (method, path, summary, fields) in PATHS {
        let mut operation = json!({"summary": summary, "responses": {"200": {"description": "As asked"}}});
        if method == "post" {
            let sampling = SAMPLING.iter().filter(|_| WITH_SAMPLING.contains(&path));
            let property = |(name, kind): &(&str, &str)| {
                let schema = if kind.is_empty() { json!({}) } else { json!({"type": kind}) };
                (name.to_string(), schema)
            };
            let properties: Map<String, Value> = fields.iter().chain(sampling).map(property).collect();
            let schema = json!({"type": "object", "properties": properties});
            operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
            operation["responses"]["400"] =
                json!({"description": "A field is wrong or unknown: `error.param` names it"});
        }
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "minfer", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    })
}
