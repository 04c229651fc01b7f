//! `minfer plan`: what a model will take and how fast it will be, before it is loaded.

use super::{megabytes, print, print_json};
use crate::args::PlanArgs;
use crate::inputs;
use anyhow::Result;
use minfer::graph::BackendTag;
use minfer::models::ModelSpec;
use minfer::{DeviceMemory, Layout, LoadMode, MemoryForecast, ModelFile, SessionOptions, SpeedForecast};
use serde_json::json;
use std::fmt::Write;

/// All that the command says.
struct Report {
    file: ModelFile,
    spec: ModelSpec,
    options: SessionOptions,
    layout: Layout,
    load: LoadMode,
    memory: MemoryForecast,
    speed: Option<SpeedForecast>,
}

pub fn run(args: &PlanArgs) -> Result<()> {
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    let file = inputs::open_file(name, args.model.offline)?;
    let mut options = inputs::session_options(&file, &args.model)?;
    options.max_seqs = args.sequences;
    let layout = inputs::layout(&file, &options, &args.model)?;
    // What fits in no way is shown as it needs least.
    let load = inputs::load_mode(&file, &options, &layout, &args.model).unwrap_or(LoadMode::Mmap);
    let (_, memory) = minfer::forecast(&file, &options, &layout, load)?;
    let fits = memory.fits(options.n_ctx);
    // Only the CPU is measured, and only with repacked weights.
    let measured = layout.n_offloaded() == 0 && load == LoadMode::Read;
    let speed = match fits.is_ok() && !args.no_speed && measured {
        true => Some(minfer::forecast_speed(&file, &options, args.model.threads)?),
        false => None,
    };
    let report = Report { spec: file.spec()?, file, options, layout, load, memory, speed };
    if args.json {
        print_json(&as_json(&report))?;
    } else {
        print(&as_text(&report))?;
    }
    Ok(fits?)
}

fn as_json(r: &Report) -> serde_json::Value {
    let (m, o) = (&r.memory, &r.options);
    let speed = r.speed.map(|s| {
        let (w, m) = (s.work, s.machine);
        json!({
            "decode_tokens_per_second": s.decode,
            "prefill_tokens_per_second": s.prefill,
            "per_token": {
                "block_bytes": w.block_bytes, "head_bytes": w.head_bytes, "kv_bytes": w.kv_bytes,
                "block_multiply_adds": w.block_products, "attention_multiply_adds": w.attention,
            },
            "measured": {
                "threads": m.threads, "block_type": m.block_type.name(), "head_type": m.head_type.name(),
                "read_bytes_per_second": m.read, "block_bytes_per_second": m.blocks,
                "head_bytes_per_second": m.head, "batch_multiply_adds_per_second": m.batch,
                "float_multiply_adds_per_second": m.float,
            },
        })
    });
    json!({
        "path": r.file.path(), "architecture": r.spec.arch, "layers": r.spec.layers.len(),
        "parameters": r.spec.n_params(), "active_parameters": r.spec.n_active_params(),
        "n_ctx": o.n_ctx, "n_batch": o.n_batch, "sequences": o.max_seqs,
        "load": r.load.name(), "cache_type_k": o.kv_types.k.name(), "cache_type_v": o.kv_types.v.name(),
        "devices": m.devices.iter().map(|d| device_json(r, d)).collect::<Vec<_>>(),
        "host": { "tokenizer": m.tokenizer, "program": m.program, "loading": m.loading, "mapped": m.mapped },
        "loading_peak": m.loading_peak(), "peak": m.peak(), "needed": m.needed(),
        "fits": m.fits(o.n_ctx).is_ok(), "speed": speed,
    })
}

fn device_json(r: &Report, d: &DeviceMemory) -> serde_json::Value {
    json!({
        "device": d.device.to_string(), "runs": runs(r, d), "weights": d.weights, "kv": d.kv, "arenas": d.arenas,
        "arenas_live": d.arenas_live, "arenas_usage": d.arenas_usage(), "scratch": d.scratch, "total": d.total(), "free": d.free,
    })
}

/// What a device runs, if not everything.
fn runs(r: &Report, d: &DeviceMemory) -> Option<String> {
    (!r.layout.shares().is_empty()).then(|| r.layout.describe(d.device))
}

fn as_text(r: &Report) -> String {
    let (spec, o) = (&r.spec, &r.options);
    let (all, active) = (spec.n_params(), spec.n_active_params());
    let millions = |n: usize| format!("{:.1} M", n as f64 / 1e6);
    let per_token = if active == all { String::new() } else { format!(", {} per token", millions(active)) };
    let sequences = if o.max_seqs == 1 { "1 sequence".into() } else { format!("{} sequences", o.max_seqs) };
    let mut text = format!(
        "{}\n{}, {} layers, {} parameters{per_token}\n\
         {sequences} with a context of {}, steps of {} tokens, KV cache in {}\n\
         weights {}\n\n",
        crate::console::shown(r.file.path()),
        spec.arch,
        spec.layers.len(),
        millions(all),
        o.n_ctx,
        o.n_batch,
        o.kv_types,
        match r.load {
            LoadMode::Read => "read and repacked (--load read)",
            LoadMode::Mmap => "in the mapped file (--load mmap)",
        },
    );
    text += &memory_text(r);
    if let Some(speed) = &r.speed {
        text += &speed_text(speed, o.n_ctx);
    } else if r.layout.n_offloaded() > 0 {
        text += "\nspeed: no forecast, only that of the cpu is measured\n";
    } else if r.load == LoadMode::Mmap {
        text += "\nspeed: no forecast, only that of repacked weights is measured\n";
    }
    text
}

fn memory_text(r: &Report) -> String {
    let m = &r.memory;
    let row = |what: &str, bytes: u64| format!("  {what:<26} {:>12}\n", megabytes(bytes));
    let free = |free: Option<u64>, fits: bool| {
        let fits = if fits { "fits" } else { "does not fit" };
        let free = free.map_or("unknown".into(), |free| format!("{}: {fits}", megabytes(free)));
        format!("  {:<26} {free:>12}\n", "free")
    };
    let mut text = String::new();
    for d in &m.devices {
        let runs = runs(r, d).map_or(String::new(), |runs| format!(": {runs}"));
        let _ = writeln!(text, "memory on {}{runs}", d.device);
        for (what, bytes) in [
            ("weights", d.weights),
            ("KV cache", d.kv),
            ("values of the graph", d.arenas),
            ("work space", d.scratch),
        ] {
            text += &row(what, bytes);
            if what == "values of the graph" {
                let used = (100.0 * d.arenas_usage()).floor();
                let _ = writeln!(text, "  {:<26} {:>12}", "  of it in use at most", format!("{used} %"));
            }
        }
        // The CPU's comes last, with the program's.
        if d.device != BackendTag::CPU {
            text += &row("in all", d.total());
            text += &free(d.free, d.fits());
        }
    }
    text += "memory of the program\n";
    text += &row("vocabulary, metadata", m.tokenizer);
    text += &row("program", m.program);
    for (what, bytes) in [("file, mapped", m.mapped), ("largest tensor, read", m.loading)] {
        if bytes > 0 {
            text += &row(what, bytes);
        }
    }
    text += if m.devices.len() == 1 { "in all\n" } else { "memory of the host in all\n" };
    text += &row("most while loading", m.loading_peak());
    text += &row("most", m.peak());
    text += &free(m.free(), m.free().is_none_or(|free| m.needed() <= free));
    text
}

fn speed_text(s: &SpeedForecast, n_ctx: usize) -> String {
    let m = &s.machine;
    let giga = |rate: f64| format!("{:.1} G", rate / 1e9);
    let threads = if m.threads == 1 { "1 thread".into() } else { format!("{} threads", m.threads) };
    let measured = [
        ("memory, read", format!("{}B/s", giga(m.read))),
        ("products, one token", format!("{}B/s of {} weights", giga(m.blocks), m.block_type)),
        ("products, output head", format!("{}B/s of {} weights", giga(m.head), m.head_type)),
        ("products, a batch", format!("{} multiply-adds/s with {} weights", giga(m.batch), m.block_type)),
        ("attention", format!("{} multiply-adds/s, as products of f32", giga(m.float))),
    ];
    let mut text = format!("\nspeed, measured just now with {threads}\n");
    for (what, rate) in measured {
        let _ = writeln!(text, "  {what:<26} {rate:>12}");
    }
    let _ = write!(
        text,
        "speed, a forecast from that: the work between products is left out\n\
         \x20 {:<26} {:>8.1} tokens/s with {} in the cache\n\
         \x20 {:<26} {:>8.1} tokens/s of a prompt of {n_ctx}\n",
        "decode",
        s.decode,
        n_ctx / 2,
        "prefill",
        s.prefill,
    );
    text
}
