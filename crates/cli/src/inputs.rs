//! From arguments to models, sessions and texts.

use crate::args::{Load, ModelOptions, TemplateOptions};
use crate::console::LoadBar;
use crate::exit::{Lacking, Usage};
use crate::source::{self, ModelSpec, SourceOptions, StderrReporter};
use anyhow::{Context, Result};
use minfer::text::{ChatTemplate, TemplateError, TemplateErrorKind, Tokenizer};
use minfer::{
    KvTypes, Layout, LoadMode, LoadOptions, Model, ModelFile, Placement, Session, SessionOptions, knob_value,
};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Context when the user asks for none, if the model has that much.
const DEFAULT_CTX: usize = 8192;

/// The local file of a MODEL argument; the catalogue's default if there is none.
pub fn resolve(name: Option<&str>, offline: bool) -> Result<PathBuf> {
    let spec = ModelSpec::parse(name.unwrap_or(source::catalogue::DEFAULT))?;
    let mut options = SourceOptions::from_env(Arc::new(StderrReporter::new()))?;
    options.offline |= offline;
    Ok(source::resolve(&spec, &options)?)
}

/// Opens the file of a MODEL argument without its weights.
pub fn open_file(name: Option<&str>, offline: bool) -> Result<ModelFile> {
    Ok(ModelFile::open(&resolve(name, offline)?)?)
}

/// Of a positional argument and `--model`, the one that was given.
pub fn one_model<'a>(positional: Option<&'a str>, options: &'a ModelOptions) -> Result<Option<&'a str>> {
    match (positional, options.model.as_deref()) {
        (Some(a), Some(b)) => Err(Usage(format!("two models: `{a}` and `{b}`")).into()),
        (a, b) => Ok(a.or(b)),
    }
}

/// Sizes of a session for a file.
pub fn session_options(file: &ModelFile, options: &ModelOptions) -> Result<SessionOptions> {
    let trained = file.spec()?.n_ctx_train;
    let n_ctx = options.ctx_size.unwrap_or(trained.min(DEFAULT_CTX));
    let trace = knob_value("MINFER_GRAPH_TRACE").map(|_| {
        let print = |text: &str| crate::console::note!("{}", text.trim_end());
        Arc::new(print) as minfer::GraphTrace
    });
    Ok(SessionOptions {
        n_ctx,
        n_batch: options.batch_size.min(n_ctx),
        kv_types: KvTypes { k: options.cache_type_k.into(), v: options.cache_type_v.into() },
        fusions: options.fusions(),
        graph_trace: trace,
        ..SessionOptions::default()
    })
}

/// Which device runs which block.
pub fn layout(file: &ModelFile, sizes: &SessionOptions, options: &ModelOptions) -> Result<Layout> {
    let placement = Placement { devices: options.device.clone(), gpu_layers: options.gpu_layers };
    Ok(placement.resolve(file, sizes)?)
}

/// How the file is reached; tells if memory decided that.
///
/// # Errors
/// It fits in no way.
pub fn load_mode(
    file: &ModelFile,
    sizes: &SessionOptions,
    layout: &Layout,
    options: &ModelOptions,
) -> Result<LoadMode> {
    let mode = match options.load {
        Load::Read => return Ok(LoadMode::Read),
        Load::Mmap => return Ok(LoadMode::Mmap),
        Load::Auto => minfer::choose_load(file, sizes, layout)?,
    };
    if mode == LoadMode::Mmap {
        crate::console::note!("memory is short: the weights stay in the mapped file, which is slower");
    }
    Ok(mode)
}

/// Loads a model and opens a session on it.
pub fn load(name: Option<&str>, options: &ModelOptions) -> Result<(Model, Session)> {
    load_for(name, options, 1)
}

/// Loads a model and opens a session on it for several sequences at once.
pub fn load_for(name: Option<&str>, options: &ModelOptions, max_seqs: usize) -> Result<(Model, Session)> {
    let file = open_file(name, options.offline)?;
    let sizes = SessionOptions { max_seqs, ..session_options(&file, options)? };
    let layout = layout(&file, &sizes, options)?;
    let load = load_mode(&file, &sizes, &layout, options)?;
    minfer::check_memory(&file, &sizes, &layout, load)?;
    let mut bar = LoadBar::new();
    let mut progress = |p| bar.update(p);
    let model = Model::from_file(
        file,
        LoadOptions {
            threads: options.threads,
            layout,
            load,
            tokenizer: true,
            progress: Some(&mut progress),
        },
    )?;
    drop(bar);
    // A command that needs a tokenizer says itself why there is none.
    if let Ok(tokenizer) = model.tokenizer() {
        warn_of_merges(tokenizer);
    }
    let session = Session::new(&model, sizes)?;
    Ok((model, session))
}

/// Says that a tokenizer's table contradicts itself in a way that still gives ids.
pub fn warn_of_merges(tokenizer: &Tokenizer) {
    match tokenizer.unknown_merges() {
        0 => {}
        n => crate::console::note!(
            "warning: {n} of the file's merges (tokenizer.ggml.merges) name texts that are no tokens"
        ),
    }
}

/// The chat template: the one in the user's file, else the model's own.
pub fn chat_template(model: &Model, options: &TemplateOptions) -> Result<ChatTemplate> {
    let Some(path) = &options.chat_template else {
        let own = model.file().chat_template()?;
        return own.ok_or_else(|| no_template(model.file().path()).into());
    };
    let named = |e: &dyn std::fmt::Display| anyhow::anyhow!("--chat-template {}: {e}", path.display());
    let bytes = read_bounded(path).map_err(|e| named(&e))?;
    let source = String::from_utf8(bytes).map_err(|e| named(&format!("not UTF-8 text: {e}")))?;
    ChatTemplate::for_tokenizer(&source, model.tokenizer()?).map_err(|e| named(&e))
}

/// Why there is no chat template, and what to do.
fn no_template(path: &Path) -> Lacking {
    let base = source::catalogue::CATALOGUE.iter().find(|e| e.base && path.ends_with(e.file));
    let why = base.map_or(String::new(), |e| format!(": {} is a base model, which continues texts", e.name));
    Lacking(format!(
        "the model has no chat template{why}; --chat-template FILE gives one, `minfer run --raw` continues a text \
         without"
    ))
}

/// An error of rendering with where the template comes from; any other as it is.
///
/// A conversation that the template refuses is the user's to change: exit code 2. A template of the user's that fails is
/// a file that cannot be used: 1. A model's own template that fails makes the model unusable: 3.
pub fn rendering(error: anyhow::Error, options: &TemplateOptions) -> anyhow::Error {
    let Some(cause) = error.chain().find_map(|cause| cause.downcast_ref::<TemplateError>()) else {
        return error;
    };
    let own = options.chat_template.as_ref();
    let from = own.map_or("the model's own template".to_owned(), |path| path.display().to_string());
    let text = format!("{cause} ({from})");
    match (cause.kind(), own) {
        (TemplateErrorKind::Raised, _) => Usage(text).into(),
        (_, Some(_)) => anyhow::anyhow!("{text}"),
        (_, None) => error.context(text),
    }
}

/// Largest text that is read: far more than any context takes.
const MOST_TEXT: u64 = 256 << 20;

/// A file's bytes. One without an end is an error before it takes all memory.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(std::fs::File::open(path)?)
}

fn read_at_most(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MOST_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_TEXT {
        return Err(io::Error::other(format!("more than {} MiB of text", MOST_TEXT >> 20)));
    }
    Ok(bytes)
}

/// Refuses what is no file on a disk: a pipe without a writer would hang, and nothing could interrupt it.
pub fn check_regular(path: &Path) -> Result<()> {
    let named = || path.display().to_string();
    if std::fs::metadata(path).with_context(named)?.is_file() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{}: not a regular file", path.display()))
}

/// A text that was written with an editor or by `echo`, without the line end that those put after it.
pub fn without_line_end(mut text: String) -> String {
    let end = ["\r\n", "\n"].iter().find(|end| text.ends_with(**end)).map_or(0, |end| end.len());
    text.truncate(text.len() - end);
    text
}

/// A text file, or why not.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = read_bounded(path).with_context(|| path.display().to_string())?;
    String::from_utf8(bytes).with_context(|| format!("{}: not UTF-8 text", path.display()))
}

/// All of stdin, unless a person sits there.
pub fn stdin_text(missing: &str) -> Result<String> {
    if io::stdin().is_terminal() {
        return Err(Usage(missing.to_string()).into());
    }
    let bytes = read_at_most(io::stdin().lock()).context("stdin")?;
    String::from_utf8(bytes).context("stdin: not UTF-8 text")
}
