//! `minfer serve` as its clients see it: a tiny model, plain sockets.

#![cfg(unix)]

mod common;
mod http;

use common::{fails, minfer, output, speaking, write};
use http::{Reply, Server, Stream, data};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn model(folder: &TempDir) -> String {
    let bytes = speaking().to_bytes().unwrap();
    write(folder.path(), "tiny.gguf", &bytes).to_string_lossy().into_owned()
}

fn start(more: &[&str]) -> (TempDir, Server) {
    let folder = TempDir::new().unwrap();
    let model = model(&folder);
    let args = [&["serve", &model, "--port", "0", "-t", "2", "-c", "512"], more].concat();
    let server = Server::start(minfer(&args));
    (folder, server)
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": user("hello"), "max_tokens": 12, "seed": 7, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text_of(reply: &Reply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_string()
}

#[test]
fn answers_are_whole_or_in_pieces_and_tell_what_was_used() {
    let (_folder, server) = start(&[]);
    let whole = server.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let value = whole.json();
    assert_eq!(value["object"], "chat.completion");
    assert_eq!(value["model"], "tiny");
    assert_eq!((&value["seed"], &value["usage"]["completion_tokens"]), (&json!(7), &json!(12)));
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    for name in
        ["x-request-id", "x-minfer-device", "x-minfer-seed", "x-minfer-cached-tokens", "x-minfer-queue-ms"]
    {
        assert!(whole.header(name).is_some(), "{name}");
    }
    assert_eq!(whole.header("x-minfer-context").as_deref(), Some("512"));
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let frames = data(&server.post("/v1/chat/completions", &chat(more)).body);
    let pieces = frames.iter().filter_map(|f| f["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text_of(&whole));
    assert_eq!(frames[0]["choices"][0]["delta"]["role"], "assistant");
    let last = frames.last().unwrap();
    assert_eq!(
        (last["choices"].as_array().unwrap().len(), &last["usage"]["completion_tokens"]),
        (0, &json!(12))
    );
    // A text that goes on, with what was said and log-probabilities.
    let body = json!({"prompt": "one two", "max_tokens": 4, "logprobs": 2, "echo": true, "temperature": 0});
    let value = server.post("/v1/completions", &body).json();
    let choice = &value["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("one two"));
    let n = value["usage"]["total_tokens"].as_u64().unwrap() as usize;
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), n);
    assert!(choice["logprobs"]["token_logprobs"][0].is_null());
    // Several answers, each with its own end.
    let value = server
        .post("/v1/chat/completions", &chat(json!({"n": 3, "logprobs": true, "top_logprobs": 2})))
        .json();
    assert_eq!(value["choices"].as_array().unwrap().len(), 3);
    assert_eq!(value["choices"][0]["message"]["content"], text_of(&whole).as_str());
    assert_eq!(value["choices"][2]["logprobs"]["content"].as_array().unwrap().len(), 12);
    // A seed that was drawn can be used again.
    let drawn = server.post("/v1/chat/completions", &chat(json!({"seed": null}))).json();
    let again = server.post("/v1/chat/completions", &chat(json!({"seed": drawn["seed"]}))).json();
    assert_eq!(drawn["choices"], again["choices"]);
}

#[test]
fn wrong_requests_are_named() {
    let (_folder, server) = start(&["--max-body", "8"]);
    let refused = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        let error = reply.json()["error"].clone();
        (reply.status, error["param"].as_str().unwrap_or_default().to_string(), error)
    };
    for (more, param) in [
        (json!({"temperature": 3}), "temperature"),
        (json!({"tempreature": 1}), "tempreature"),
        (json!({"top_p": "x"}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}), "messages[0].mood"),
        (json!({"stop": ["a", 1]}), "stop"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": true, "type": "array"}}}}),
            "response_format",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [{"type": "magic"}]}), "tools[0]"),
        (json!({"store": true}), "store"),
        (json!({"functions": []}), "functions"),
        (json!({"audio": {}}), "audio"),
    ] {
        let (status, named, error) = refused("/v1/chat/completions", chat(more.clone()));
        assert_eq!((status, named.as_str()), (400, param), "{more}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let (status, _, error) =
        refused("/v1/chat/completions", chat(json!({"messages": user(&"word ".repeat(600))})));
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("512"), "{error}");
    let (status, param, error) = refused("/v1/chat/completions", chat(json!({"model": "gpt-4"})));
    assert_eq!((status, param.as_str(), &error["code"]), (404, "model", &json!("model_not_found")));
    assert_eq!(refused("/v1/embeddings", json!({"model": "tiny", "input": "x"})).0, 400);
    assert_eq!(server.get("/v1/nothing").status, 404);
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"user": "x".repeat(9000)}))).status, 413);
    assert_eq!(
        server
            .raw("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n{\"a\"")
            .status,
        400
    );
    let form = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(server.raw(form).status, 415);
    assert_eq!(server.raw("GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n").status, 403);
    assert_eq!(
        server.raw("GET /health HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n\r\n").status,
        403
    );
    let with_id = "GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine-1\r\n\r\n";
    assert_eq!(server.raw(with_id).header("x-request-id").as_deref(), Some("mine-1"));
}

#[test]
fn lenient_servers_tell_what_they_passed_over() {
    let (_folder, server) = start(&["--lenient"]);
    let reply = server.post("/v1/chat/completions", &chat(json!({"tempreature": 1, "store": true})));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let warning = reply.header("x-minfer-warning").unwrap();
    assert!(warning.contains("tempreature") && warning.contains("store"), "{warning}");
}

#[test]
fn keys_guard_everything_but_health() {
    let folder = TempDir::new().unwrap();
    let file = write(folder.path(), "keys", b"first\n\nsecond\n");
    let (_folder, server) = start(&["--api-key", "third", "--api-key-file", file.to_str().unwrap()]);
    assert_eq!(server.get("/health").status, 200);
    for path in ["/ready", "/metrics", "/v1/models", "/props", "/api/tags", "/openapi.json"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for key in ["first", "second", "third"] {
        let bearer =
            format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
        assert_eq!(server.raw(&bearer).status, 200, "{key}");
        let header = format!("GET /api/tags HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
        assert_eq!(server.raw(&header).status, 200, "{key}");
    }
    let wrong =
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: fourth\r\ncontent-length: 2\r\n\r\n{}";
    let reply = server.raw(wrong);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
    let model = model(&folder);
    let open = output(&["serve", &model, "--host", "0.0.0.0", "--port", "0"]);
    assert!(fails(&open, 2).contains("--api-key"), "an address that others can reach");
}

#[test]
fn every_path_of_the_document_answers() {
    let (_folder, server) = start(&[]);
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20);
    for (path, methods) in paths {
        let path = path.replace("{name}", "tiny");
        let reply = match methods.get("get") {
            Some(_) => server.get(&path),
            None if path == "/admin/drain" => continue,
            None => server.post(&path, &json!({"no such field": 1})),
        };
        let expected = if methods.get("get").is_some() { 200 } else { 400 };
        assert_eq!(reply.status, expected, "{path}: {}", reply.body);
    }
    assert!(server.get("/").body.contains("<html"));
    let tokens = server.post("/tokenize", &json!({"content": "hello you"})).json()["tokens"].clone();
    assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).json()["content"], "hello you");
    let prompt = server.post("/apply-template", &json!({"messages": user("hi")})).json();
    assert!(prompt["prompt"].as_str().unwrap().contains("hi"));
}

#[test]
fn anthropic_and_ollama_get_their_own_shapes() {
    let (_folder, server) = start(&[]);
    let body =
        json!({"model": "tiny", "max_tokens": 8, "messages": user("hello"), "system": "be brief", "seed": 3});
    let whole = server.post("/v1/messages", &body).json();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let frames = data(&server.post("/v1/messages", &streamed).body);
    let kinds: Vec<_> = frames.iter().map(|f| f["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("message_start", "message_stop"));
    let text: String = frames.iter().filter_map(|f| f["delta"]["text"].as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"].as_str().unwrap_or_default());
    let counted =
        server.post("/v1/messages/count_tokens", &json!({"messages": user("hello"), "system": "be brief"}));
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted.json()["input_tokens"].as_u64(), Some(input));
    let error = server.post("/v1/messages", &json!({"messages": user("x")})).json();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));

    let options = json!({"num_predict": 6, "seed": 3, "temperature": 0.5});
    let body =
        json!({"model": "tiny:latest", "messages": user("hello"), "options": options, "stream": false});
    let whole = server.post("/api/chat", &body).json();
    assert_eq!((&whole["done"], &whole["message"]["role"]), (&json!(true), &json!("assistant")));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = server.post("/api/chat", &streamed);
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = lines.iter().filter_map(|l| l["message"]["content"].as_str()).collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    assert_eq!(lines.last().unwrap()["eval_count"], whole["eval_count"]);
    let raw = json!({"prompt": "one two", "raw": true, "stream": false, "options": {"num_predict": 3}});
    assert_eq!(server.post("/api/generate", &raw).json()["done"], true);
    assert!(
        server.post("/api/chat", &json!({"messages": user("x"), "mood": 1})).json()["error"]
            .as_str()
            .unwrap()
            .contains("mood")
    );
    assert_eq!(server.post("/api/show", &json!({"model": "tiny"})).json()["details"]["family"], "llama");
    assert_eq!(server.get("/api/tags").json()["models"][0]["name"], "tiny");
    assert_eq!(server.get("/api/ps").json()["models"][0]["context_length"], 512);

    let body = json!({"model": "tiny", "input": "hello", "max_output_tokens": 16, "seed": 3, "store": false});
    let whole = server.post("/v1/responses", &body).json();
    assert_eq!((&whole["object"], &whole["store"]), (&json!("response"), &json!(false)));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let frames = data(&server.post("/v1/responses", &streamed).body);
    assert_eq!(frames[0]["type"], "response.created");
    let numbers: Vec<_> = frames.iter().map(|f| f["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..frames.len() as u64).collect::<Vec<_>>());
    let last = frames.last().unwrap();
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(server.post("/v1/responses", &json!({"input": "x", "previous_response_id": "r"})).status, 400);
}

#[test]
fn forms_and_tools_are_kept_to() {
    let (_folder, server) = start(&[]);
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
                        "required": ["a", "b"], "additionalProperties": false});
    let form = json!({"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": true}});
    for seed in 0..5 {
        let more = json!({"response_format": form, "seed": seed, "max_tokens": 200, "ignore_eos": false});
        let reply = server.post("/v1/chat/completions", &chat(more));
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop", "{}", reply.body);
        let value: Value = serde_json::from_str(&text_of(&reply)).unwrap();
        assert!(["x", "y"].contains(&value["a"].as_str().unwrap()) && value["b"].is_boolean(), "{value}");
    }
    let function = json!({"name": "add", "parameters": {"type": "object",
        "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false}});
    let more = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required",
                      "parallel_tool_calls": false, "max_tokens": 300, "ignore_eos": false});
    let reply = server.post("/v1/chat/completions", &chat(more.clone()));
    let choice = &reply.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{}", reply.body);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "add");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!([1, 2].contains(&arguments["n"].as_i64().unwrap()));
    assert!(reply.header("x-minfer-tools").is_some(), "this template knows no tools");
    let mut streamed = chat(more);
    streamed["stream"] = json!(true);
    let frames = data(&server.post("/v1/chat/completions", &streamed).body);
    let calls: Vec<_> =
        frames.iter().filter_map(|f| f["choices"][0]["delta"]["tool_calls"].as_array()).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0][0]["function"], call["function"]);
}

#[test]
fn a_full_queue_is_503_and_health_does_not_wait() {
    let (_folder, server) = start(&["--parallel", "1", "--max-queue", "2"]);
    let long = chat(json!({"max_tokens": 400, "stream": true}));
    let streams: Vec<_> = (0..40).map(|_| server.open("/v1/chat/completions", &long)).collect();
    let began = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("vllm:num_requests_waiting{model_name=\"tiny\"} "), "{metrics}");
    // Half of the clients go away; the others are answered or refused.
    let mut refused = 0;
    for reply in streams.into_iter().step_by(2).map(Stream::reply) {
        match reply.status {
            200 => assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body),
            status => {
                assert_eq!((status, &reply.json()["error"]["type"]), (503, &json!("overloaded_error")));
                assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
                refused += 1;
            }
        }
    }
    assert!((1..20).contains(&refused), "{refused} of 20");
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 200);
}

#[test]
fn sigterm_lets_running_streams_end() {
    let (_folder, mut server) = start(&["--parallel", "4"]);
    let long = chat(json!({"max_tokens": 300, "stream": true}));
    let streams: Vec<_> = (0..6).map(|_| server.open("/v1/chat/completions", &long)).collect();
    thread::sleep(Duration::from_millis(100));
    server.terminate();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(server.get("/ready").status, 503);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).status, 503);
    for stream in streams {
        let body = stream.rest();
        assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
        assert_eq!(data(&body).iter().filter(|f| f["choices"][0]["finish_reason"] == "length").count(), 1);
    }
    assert_eq!(server.wait(), Some(0));
    let log = server.log();
    let lines: Vec<Value> =
        log.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect();
    let done = lines.iter().filter(|l| l["status"] == 200 && l["answer_tokens"] == 300);
    assert_eq!(done.count(), 6, "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_second_model_is_loaded_when_it_is_asked_for() {
    let folder = TempDir::new().unwrap();
    let (a, bytes) = (model(&folder), speaking().to_bytes().unwrap());
    let b = write(folder.path(), "other.gguf", &bytes).to_string_lossy().into_owned();
    let args = ["serve", &a, "-m", &b, "--port", "0", "-t", "1", "-c", "256", "--keep-alive", "1"];
    let server = Server::start(minfer(&args));
    let loaded = || -> Vec<bool> {
        let list = server.get("/v1/models").json();
        list["data"].as_array().unwrap().iter().map(|m| m["loaded"].as_bool().unwrap()).collect()
    };
    assert_eq!(loaded(), [true, false]);
    let reply = server.post("/v1/chat/completions", &chat(json!({"model": "other"})));
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("other")));
    let deadline = Instant::now() + Duration::from_secs(10);
    while loaded() != [false, false] {
        assert!(Instant::now() < deadline, "models that nobody uses go");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": "tiny"}))).status, 200);
}
