//! What only another process can show: the environment's proxies and switches, and a full disk.

use super::*;
use std::io::Read;
use std::process::{Command, Output, Stdio};

const CHILD: &str = "MINFER_TEST_NETWORK_CHILD";

/// Not a test of its own: the tests below run this executable again with only this function and an environment.
#[test]
fn child_process() {
    let Ok(spec) = std::env::var(CHILD) else { return };
    let result = SourceOptions::from_env(Arc::new(Notes::default())).and_then(|mut opts| {
        opts.retries = 0;
        resolve(&parse(&spec), &opts)
    });
    match result {
        Ok(path) => print!("[[{}]]", path.display()),
        Err(e) => print!("[[error: {e}]]"),
    }
}

/// Runs the child in an environment of nothing but a home folder and `vars`; returns what it said.
fn child(home: &TempDir, spec: &str, vars: &[(&str, &str)], shell: Option<&str>) -> String {
    let test = std::env::current_exe().unwrap();
    let mut command = match shell {
        Some(script) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", script, "sh"]).arg(&test);
            shell
        }
        None => Command::new(&test),
    };
    command.args(["--exact", "source::tests::network::child_process", "--nocapture"]).env_clear();
    command.env("HOME", home.path()).env(CHILD, spec).envs(vars.iter().copied());
    // Windows programs find no network without it.
    command.envs(std::env::var_os("SystemRoot").map(|v| ("SystemRoot", v)));
    command.env("LOCALAPPDATA", home.path());
    let Output { stdout, .. } = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    let said = text.split_once("[[").and_then(|(_, t)| t.split_once("]]")).map(|(t, _)| t.to_owned());
    said.unwrap_or_else(|| panic!("{text}"))
}

/// A proxy that tunnels and keeps the addresses asked for. Names are not looked up: all lead to `target`.
fn proxy(target: SocketAddr) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut client = stream.unwrap();
            let Some(request) = read_request(&client) else { continue };
            assert_eq!(request.method, "CONNECT");
            log.lock().unwrap().push(request.path);
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            let mut server = TcpStream::connect(target).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    (url, asked)
}

#[test]
fn proxies_of_the_environment_are_used() {
    let bytes = model(5000);
    let server = Server::start(move |request, _| match request.method.as_str() {
        "HEAD" => Reply::ok(b"").with("X-Repo-Commit", COMMITS[0]),
        _ => Reply::ok(&bytes),
    });
    let (proxy, asked) = proxy(server.address);
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        let home = TempDir::new().unwrap();
        let vars = [("HF_ENDPOINT", "http://hub.invalid"), (variable, proxy.as_str())];
        let said = child(&home, "hf:o/r/x.gguf", &vars, None);
        assert!(said.ends_with("x.gguf") && said.contains("models--o--r"), "{variable}: {said}");
        assert!(std::mem::take(&mut *asked.lock().unwrap()).iter().all(|a| a == "hub.invalid:80"));
    }
    // Exempt hosts are asked directly.
    let home = TempDir::new().unwrap();
    let vars = [("HF_ENDPOINT", server.url()), ("HTTP_PROXY", proxy), ("NO_PROXY", "127.0.0.1".to_owned())];
    let vars: Vec<(&str, &str)> = vars.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let said = child(&home, "hf:o/r/x.gguf", &vars, None);
    assert!(said.ends_with("x.gguf"), "{said}");
    assert!(asked.lock().unwrap().is_empty());
}

#[test]
fn folders_token_and_offline_come_from_the_environment() {
    let bytes = model(5000);
    let served = bytes.clone();
    let server = Server::start(move |request, _| match request.method.as_str() {
        "HEAD" => Reply::ok(b"").with("X-Repo-Commit", COMMITS[0]),
        _ => Reply::ok(&served),
    });
    let url = server.url();
    let home = TempDir::new().unwrap();
    let hf = home.path().join(".cache").join("huggingface");
    std::fs::create_dir_all(&hf).unwrap();
    std::fs::write(hf.join("token"), "hf_of_file\n").unwrap();
    for variable in ["MINFER_OFFLINE", "HF_HUB_OFFLINE"] {
        let said = child(&home, "hf:o/r/x.gguf", &[("HF_ENDPOINT", &url), (variable, "True")], None);
        assert!(said.contains("error") && said.contains("offline"), "{said}");
    }
    assert!(server.seen().is_empty());
    let token = || server.seen().last().unwrap().header("authorization").map(str::to_owned);
    let said = child(&home, "hf:o/r/x.gguf", &[("HF_ENDPOINT", &url), ("HF_HUB_OFFLINE", "0")], None);
    assert!(PathBuf::from(said).starts_with(hf.join("hub")));
    assert_eq!(token().as_deref(), Some("Bearer hf_of_file"));
    let vars = [("HF_ENDPOINT", url.as_str()), ("HF_TOKEN", "hf_of_env"), ("HF_HOME", "~/elsewhere")];
    let said = child(&home, "hf:o/r/x.gguf", &vars, None);
    assert!(PathBuf::from(said).starts_with(home.path().join("elsewhere").join("hub")));
    assert_eq!(token().as_deref(), Some("Bearer hf_of_env"));
}

#[test]
fn values_that_mean_nothing_are_named() {
    let server = Hub::of(&[("x.gguf", model(5000))]).start();
    let (home, url) = (TempDir::new().unwrap(), server.url());
    let said =
        |name, value| child(&home, "hf:o/r/x.gguf", &[("HF_ENDPOINT", url.as_str()), (name, value)], None);
    let bad = said("MINFER_OFFLINE", "ture");
    assert!(bad.starts_with("error: MINFER_OFFLINE: \"ture\" is neither true (1,"), "{bad}");
    for token in ["hf_a\nb", "hf a", "hf_\u{e4}"] {
        let bad = said("HF_TOKEN", token);
        assert!(
            bad.starts_with("error: HF_TOKEN") && !bad.contains(token) && !bad.contains("network"),
            "{bad}"
        );
    }
    let bad = child(&home, "hf:o/r/x.gguf", &[("HF_ENDPOINT", "no address")], None);
    assert!(bad.contains("HF_ENDPOINT") && !bad.contains("check the network"), "{bad}");
    assert!(server.seen().is_empty());
    // False values, and those that Hugging Face's libraries take for one, leave the network on.
    for (name, value) in [
        ("MINFER_OFFLINE", "0"),
        ("MINFER_OFFLINE", "Off"),
        ("MINFER_OFFLINE", "NO"),
        ("MINFER_OFFLINE", "false"),
        ("MINFER_OFFLINE", " "),
        ("HF_HUB_OFFLINE", "off"),
        ("HF_HUB_OFFLINE", "ture"),
    ] {
        let home = TempDir::new().unwrap();
        let path = child(&home, "hf:o/r/x.gguf", &[("HF_ENDPOINT", &url), (name, value)], None);
        assert!(path.ends_with("x.gguf") && !path.contains("error"), "{name}={value}: {path}");
    }
}

/// A limit on the length of files stands for a full disk: both fail in the middle of a write.
#[cfg(unix)]
#[test]
fn a_full_disk_is_a_clear_error_and_leaves_nothing_final() {
    let bytes = model(400_000);
    let server = Hub::of(&[("x.gguf", bytes.clone())]).start();
    let home = TempDir::new().unwrap();
    let url = server.url();
    let limited = "trap '' XFSZ; ulimit -f 200; exec \"$@\"";
    let said = child(&home, "hf:o/r", &[("HF_ENDPOINT", &url)], Some(limited));
    assert!(said.starts_with("error: writing ") && said.contains(".part"), "{said}");
    let hub = home.path().join(".cache/huggingface/hub/models--o--r");
    assert!(!hub.join("snapshots").exists() && !hub.join("blobs").join(sha256(&bytes)).exists());
    let said = child(&home, "hf:o/r", &[("HF_ENDPOINT", &url)], None);
    let mut found = Vec::new();
    std::fs::File::open(said).unwrap().read_to_end(&mut found).unwrap();
    assert_eq!(found, bytes);
    assert!(server.seen().last().unwrap().range().is_some(), "what there was room for is not fetched again");
}
