//! What clients see when an engine panics.

use minfer::engine::{Engine, EngineOptions};
use minfer::{LoadOptions, Model};
use minfer_server::{Config, Loaded, MAX_BODY, Source, serve};
use minfer_testkit::tiny::TinySpec;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Status and body of an answer.
fn ask(address: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

/// R52, R139: requests in the step that panics are answered with 500, the next one works, and the log says what happened.
#[test]
fn a_panic_is_a_500_and_the_next_request_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, TinySpec::llama().with_vocab().to_bytes().unwrap()).unwrap();
    let engine: Arc<Mutex<Option<Arc<Engine>>>> = Arc::default();
    let log = Arc::new(Mutex::new(String::new()));
    let (ours, lines) = (engine.clone(), log.clone());
    let load = move || {
        let model = Model::load(&path, LoadOptions { threads: Some(2), ..LoadOptions::default() })?;
        let started =
            Arc::new(Engine::start(&model, EngineOptions { n_ctx: 512, ..EngineOptions::default() })?);
        *ours.lock().unwrap() = Some(started.clone());
        Ok(Loaded { model, engine: started, template: Err("none".into()) })
    };
    let config = Config {
        address: "127.0.0.1:0".parse().unwrap(),
        models: vec![Source { name: "tiny".into(), bytes: 1, load: Box::new(load) }],
        memory: None,
        keep_alive: None,
        keys: Vec::new(),
        hosts: Vec::new(),
        origins: Vec::new(),
        max_body: MAX_BODY,
        timeout: Duration::from_secs(60),
        grace: Duration::from_secs(1),
        lenient: false,
        page: false,
        log: Box::new(move |line| *lines.lock().unwrap() += &format!("{line}\n")),
    };
    let (sender, address) = channel();
    std::thread::spawn(move || serve(config, move |address| sender.send(address).unwrap()));
    let address = address.recv_timeout(Duration::from_secs(60)).unwrap();
    let engine = engine.lock().unwrap().clone().unwrap();
    let body = r#"{"prompt": "one two three", "max_tokens": 9, "seed": 1, "ignore_eos": true}"#;
    let (status, before) = ask(address, "/v1/completions", body);
    assert_eq!(status, 200, "{before}");
    for _ in 0..3 {
        engine.panic_next_step();
        let (status, answer) = ask(address, "/v1/completions", body);
        assert_eq!(status, 500, "{answer}");
        assert!(answer.contains("server_error") && answer.contains("the engine failed"), "{answer}");
        let (status, after) = ask(address, "/v1/completions", body);
        let text =
            |answer: &str| answer.split("\"text\":").nth(1).unwrap().split(",\"").next().unwrap().to_string();
        assert_eq!((status, text(&after)), (200, text(&before)));
        assert_eq!(ask(address, "/ready", "").0, 200);
    }
    let log = log.lock().unwrap().clone();
    assert_eq!(log.lines().filter(|line| line.contains("a test asked for it")).count(), 3, "{log}");
}
