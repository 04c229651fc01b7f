//! A server under test and a client of plain sockets.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub struct Server {
    child: Child,
    pub port: u16,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// An answer.
pub struct Reply {
    pub status: u16,
    head: String,
    pub body: String,
}

/// An answer that is being written.
pub struct Stream(TcpStream);

impl Server {
    /// Starts a server and waits until it listens.
    pub fn start(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, copy) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *copy.lock().unwrap() += &(line + "\n");
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}{}", log.lock().unwrap()));
        let port = u16::try_from(told["port"].as_u64().unwrap()).unwrap();
        Server { child, port, log, reader: Some(reader) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request as it is and reads its answer.
    pub fn raw(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}").unwrap();
        read(stream)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.raw(&post(path, body))
    }

    /// Sends a request and leaves its answer to be read.
    pub fn open(&self, path: &str, body: &Value) -> Stream {
        let mut stream = self.connect();
        let request = post(path, body);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}").unwrap();
        Stream(stream)
    }

    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Waits for the end; the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let code = self.child.wait().unwrap().code();
        self.reader.take().unwrap().join().unwrap();
        code
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn read(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let head = head.to_lowercase();
    let chunked = head.contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body) } else { body.to_string() };
    Reply { status, head, body }
}

/// The text of a body that comes in chunks.
fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        text += &rest[..size];
        body = rest[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    text
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<String> {
        let prefix = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_string))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

impl Stream {
    /// The whole answer.
    pub fn reply(self) -> Reply {
        read(self.0)
    }

    /// The rest of the body.
    pub fn rest(self) -> String {
        read(self.0).body
    }
}

/// The JSON of server-sent events.
pub fn data(body: &str) -> Vec<Value> {
    let lines = body.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}
