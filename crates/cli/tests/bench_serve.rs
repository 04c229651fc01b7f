//! `minfer bench serve` against a scripted server: what it asks, what it measures, and what it says of failures.

mod common;

use common::{fails, output, succeeds};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// Answers one request; what it wrote ends the connection.
type Script = fn(path: &str, body: &Value, to: &mut TcpStream);

/// A server on a port of its own, with all that it was asked. It lives as long as the test's process.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    fn new(script: Script) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let log = log.clone();
                thread::spawn(move || {
                    let Some((path, body)) = request(&stream) else { return };
                    log.lock().unwrap().push((path.clone(), body.clone()));
                    script(&path, &body, &mut stream);
                });
            }
        });
        Server { url, asked }
    }

    fn bench(&self, args: &[&str]) -> std::process::Output {
        output(&[&["bench", "serve", &self.url], args].concat())
    }

    fn asked(&self, wanted: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(path, _)| path == wanted).map(|(_, body)| body.clone()).collect()
    }
}

fn request(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or_default()))
}

fn reply(to: &mut TcpStream, status: &str, body: &Value) {
    let body = body.to_string();
    let _ = write!(
        to,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn open_stream(to: &mut TcpStream) {
    let _ = write!(to, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
}

fn event(to: &mut TcpStream, data: &Value) {
    let _ = write!(to, "data: {data}\n\n");
    let _ = to.flush();
}

/// What every script answers the same: the list of models, and tokens as words and one at the start.
fn common_paths(path: &str, body: &Value, to: &mut TcpStream) -> bool {
    match path {
        "/v1/models" => reply(to, "200 OK", &json!({ "data": [{ "id": "scripted" }] })),
        "/tokenize" => {
            let words = body["content"].as_str().unwrap_or_default().split(' ').count();
            reply(to, "200 OK", &json!({ "tokens": vec![0; words + 1] }));
        }
        _ => return false,
    }
    true
}

/// 60 ms to the first of four tokens, 20 ms between them.
fn steady(path: &str, body: &Value, to: &mut TcpStream) {
    if common_paths(path, body, to) {
        return;
    }
    open_stream(to);
    thread::sleep(Duration::from_millis(40));
    for i in 0..4 {
        thread::sleep(Duration::from_millis(20));
        event(to, &json!({ "choices": [{ "index": 0, "text": format!(" word{i}") }] }));
    }
    let prompt = body["prompt"].as_str().map_or(0, |t| t.split(' ').count() + 1);
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": 4 });
    event(to, &json!({ "choices": [], "usage": usage }));
    let _ = write!(to, "data: [DONE]\n\n");
}

#[test]
fn times_and_counts_are_those_of_the_server() {
    let server = Server::new(steady);
    let args = ["--clients", "3", "--requests", "9", "--prompt-tokens", "5-9", "--max-tokens", "4", "--json"];
    let value: Value = serde_json::from_str(&succeeds(&server.bench(&args))).unwrap();
    assert_eq!(
        (&value["model"], &value["answered"], &value["failed"]),
        (&json!("scripted"), &json!(9), &json!(0))
    );
    assert_eq!((&value["answer_tokens"], &value["prompts_counted"]), (&json!(36), &json!(true)));
    let ms = |what: &str, which: &str| value[what][which].as_f64().unwrap();
    assert!(ms("ttft_ms", "p50") >= 59.0 && ms("itl_ms", "p50") >= 18.0, "{value}");
    assert!(ms("request_ms", "max") >= 119.0 && ms("ttft_ms", "max") >= ms("ttft_ms", "p50"), "{value}");
    // Three rounds of 120 ms and more.
    assert!(value["seconds"].as_f64().unwrap() >= 0.36, "{value}");
    let asked = server.asked("/v1/completions");
    assert_eq!(asked.len(), 10, "nine and a warm-up");
    for body in &asked[1..] {
        let tokens = body["prompt"].as_str().unwrap().split(' ').count() + 1;
        assert!((5..=9).contains(&tokens), "{body}");
        assert_eq!((&body["stream"], &body["max_tokens"]), (&json!(true), &json!(4)));
        assert!(body.get("ignore_eos").is_none());
    }
}

/// Takes no `ignore_eos`, knows chat alone, has no `/tokenize`.
fn picky(path: &str, body: &Value, to: &mut TcpStream) {
    match path {
        "/v1/models" => reply(to, "200 OK", &json!({ "data": [{ "id": "picky" }] })),
        "/v1/chat/completions" if body.get("ignore_eos").is_some() => {
            reply(to, "400 Bad Request", &json!({ "error": { "message": "unknown field ignore_eos" } }));
        }
        "/v1/chat/completions" => {
            open_stream(to);
            event(to, &json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }));
            event(to, &json!({ "choices": [{ "delta": { "content": "one" } }] }));
            event(to, &json!({ "choices": [{ "delta": { "content": " two" } }] }));
            let _ = write!(to, "data: [DONE]\n\n");
        }
        _ => reply(to, "404 Not Found", &json!({})),
    }
}

#[test]
fn servers_that_lack_things_are_measured_and_that_is_said() {
    let server = Server::new(picky);
    let o = server.bench(&[
        "--chat",
        "--ignore-eos",
        "--requests",
        "4",
        "--clients",
        "2",
        "--prompt-tokens",
        "6",
    ]);
    let text = succeeds(&o);
    assert!(text.contains("2 clients, 4 requests, 0 failed") && text.contains("8 of answers"), "{text}");
    assert!(text.contains("unknown tokens of prompts (about 6 to 6 each"), "{text}");
    let said = common::stderr(&o);
    assert!(said.contains("no /tokenize") && said.contains("does not take ignore_eos"), "{said}");
}

/// Answers the warm-up; of the others, one kind of failure each.
fn failing(path: &str, body: &Value, to: &mut TcpStream) {
    if common_paths(path, body, to) {
        return;
    }
    let words = body["prompt"].as_str().map_or(0, |t| t.split(' ').count());
    if words == 2 {
        return steady(path, body, to);
    }
    match words % 2 {
        0 => reply(to, "503 Service Unavailable", &json!({ "error": { "message": "the queue is full" } })),
        _ => {
            open_stream(to);
            event(to, &json!({ "choices": [{ "text": "cut" }] }));
        }
    }
}

#[test]
fn failures_are_told_by_kind_and_fail_the_command() {
    let server = Server::new(failing);
    let said = fails(&server.bench(&["--requests", "3", "--clients", "1", "--prompt-tokens", "9"]), FAILED);
    assert!(said.contains("3 of 3 requests failed"), "{said}");
    let o = server.bench(&["--requests", "2", "--prompt-tokens", "9", "--json"]);
    let value: Value = serde_json::from_str(common::stdout(&o).trim()).unwrap();
    assert_eq!(value["failures"], json!({ "status 503: the queue is full": 2 }));
    let o = server.bench(&["--requests", "2", "--prompt-tokens", "8", "--json"]);
    let value: Value = serde_json::from_str(common::stdout(&o).trim()).unwrap();
    assert_eq!(value["failures"], json!({ "the stream ended without [DONE]": 2 }));
    assert_eq!((&value["failed"], &value["ttft_ms"]["p50"]), (&json!(2), &Value::Null));
}

#[test]
fn bad_options_and_no_server() {
    fails(&output(&["bench", "serve"]), USAGE);
    fails(&output(&["bench", "serve", "http://127.0.0.1:1", "--prompt-tokens", "9-3"]), USAGE);
    let said = fails(&output(&["bench", "serve", "http://127.0.0.1:1"]), FAILED);
    assert!(said.contains("http://127.0.0.1:1"), "{said}");
}
