//! `minfer serve`: from arguments to the server.

use super::print;
use crate::args::ServeArgs;
use crate::console::note;
use crate::exit::Usage;
use crate::inputs;
use anyhow::{Context, Result};
use minfer::engine::{Engine, EngineOptions};
use minfer::text::ChatTemplate;
use minfer::{Layout, LoadMode, LoadOptions, Model, ModelFile, SessionOptions, knob_value};
use minfer_server::{Config, Loaded, Source, Template, serve};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub fn run(args: &ServeArgs) -> Result<()> {
    let keys = keys(args)?;
    if keys.is_empty() && !args.no_api_key && !args.host.is_loopback() {
        let message = format!(
            "others can reach {}: --api-key KEY lets in only those who have it, --no-api-key everybody",
            args.host
        );
        return Err(Usage(message).into());
    }
    let models = sources(args)?;
    let names: Vec<String> = models.iter().map(|m| m.name.clone()).collect();
    let seconds = |n: usize| Duration::from_secs(n as u64);
    let logs = !args.no_log;
    let config = Config {
        address: SocketAddr::new(args.host, args.port),
        models,
        memory: args.memory.map(|mib| (mib as u64) << 20),
        keep_alive: args.keep_alive.map(seconds),
        keys,
        hosts: args.allow_host.clone(),
        origins: args.allow_origin.clone(),
        max_body: args.max_body.saturating_mul(1024),
        timeout: seconds(args.request_timeout),
        grace: seconds(args.grace),
        lenient: args.lenient,
        page: !args.no_page,
        log: Box::new(move |line| {
            if logs {
                note!("{line}");
            }
        }),
    };
    // From here on signals are the server's.
    crate::console::note_interrupts();
    let mut told = Ok(());
    serve(config, |address| {
        note!("serving {} at http://{address}", names.join(", "));
        // For programs that start this one.
        told =
            print(&serde_json::json!({"address": address.to_string(), "port": address.port()}).to_string());
    })?;
    told
}

/// All keys.
fn keys(args: &ServeArgs) -> Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    keys.extend(knob_value("MINFER_API_KEY"));
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string));
        if keys.is_empty() {
            anyhow::bail!("{}: there is no key in it", path.display());
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err(Usage("an empty API key".into()).into());
    }
    Ok(keys)
}

/// The models, by the names that requests give: as on the command line, or the file's name without its ending.
fn sources(args: &ServeArgs) -> Result<Vec<Source>> {
    let mut given: Vec<Option<&str>> = args.names.iter().map(|n| Some(n.as_str())).collect();
    given.extend(args.model.model.as_deref().map(Some));
    if given.is_empty() {
        given.push(None);
    }
    let mut sources: Vec<Source> = Vec::new();
    for name in given {
        let source = source(args, name)?;
        if sources.iter().any(|other| other.name == source.name) {
            return Err(Usage(format!("two models are called `{}`", source.name)).into());
        }
        sources.push(source);
    }
    Ok(sources)
}

/// How one model is loaded, with what that takes.
#[derive(Clone)]
struct Plan {
    path: std::path::PathBuf,
    engine: EngineOptions,
    layout: Layout,
    load: LoadMode,
    threads: Option<usize>,
}

fn source(args: &ServeArgs, name: Option<&str>) -> Result<Source> {
    let path = inputs::resolve(name, args.model.offline)?;
    let file = ModelFile::open(&path)?;
    let sizes = inputs::session_options(&file, &args.model)?;
    let engine = EngineOptions {
        n_ctx: sizes.n_ctx,
        max_running: args.parallel,
        step_tokens: sizes.n_batch,
        chunk_tokens: args.chunk,
        kv_pages: args.kv_pages,
        prefix_cache: !args.no_prefix_cache,
        max_queue: args.max_queue,
        kv_types: sizes.kv_types,
        fusions: sizes.fusions,
    };
    let sizes: SessionOptions = engine.session();
    let layout = inputs::layout(&file, &sizes, &args.model)?;
    let load = inputs::load_mode(&file, &sizes, &layout, &args.model)?;
    minfer::check_memory(&file, &sizes, &layout, load)?;
    let (_, forecast) = minfer::forecast(&file, &sizes, &layout, load)?;
    let bytes = forecast.devices.iter().map(|d| d.weights + d.kv + d.arenas).sum();
    let plan = Plan { path: path.clone(), engine, layout, load, threads: args.model.threads };
    Ok(Source { name: shown_name(name, &path), bytes, load: Box::new(move || load_model(&plan)) })
}

fn shown_name(name: Option<&str>, path: &Path) -> String {
    let name = name.unwrap_or(crate::source::catalogue::DEFAULT);
    if Path::new(name).exists() || name.ends_with(".gguf") {
        return path.file_stem().map_or_else(|| name.to_string(), |stem| stem.to_string_lossy().into_owned());
    }
    name.to_string()
}

fn load_model(plan: &Plan) -> Result<Loaded, minfer::Error> {
    let file = ModelFile::open(&plan.path)?;
    let options = LoadOptions {
        threads: plan.threads,
        layout: plan.layout.clone(),
        load: plan.load,
        tokenizer: true,
        progress: None,
    };
    let model = Model::from_file(file, options)?;
    let engine = Arc::new(Engine::start(&model, plan.engine.clone())?);
    let template = template(&model);
    Ok(Loaded { model, engine, template })
}

/// The model's chat template, or why there is none.
fn template(model: &Model) -> Result<Template, String> {
    let source = model.file().chat_template_source().map_err(|e| e.to_string())?;
    let source = source.ok_or("the model has no chat template: /v1/completions continues texts")?;
    let compiled = model.tokenizer().map_err(|e| e.to_string()).and_then(|tokenizer| {
        ChatTemplate::for_tokenizer(source, tokenizer).map_err(|e| format!("the model's chat template: {e}"))
    })?;
    Ok(Template { compiled, source: source.to_string() })
}
