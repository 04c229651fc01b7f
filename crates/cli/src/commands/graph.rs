//! `minfer graph`: nodes, splits, buffers and memory, without loading weights.

use super::{megabytes, print, print_json};
use crate::args::{GraphArgs, GraphFormat};
use crate::inputs;
use anyhow::Result;
use minfer::graph::{BackendTag, FusionSwitches, dot_plan, dump_plan, json_plan};
use minfer::{Layout, MemoryForecast};
use serde_json::{Value, json};

pub fn run(args: &GraphArgs) -> Result<()> {
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    let file = inputs::open_file(name, args.model.offline)?;
    let mut options = inputs::session_options(&file, &args.model)?;
    if args.no_fuse {
        options.fusions = FusionSwitches::NONE;
    }
    let layout = inputs::layout(&file, &options, &args.model)?;
    let (plan, memory) = minfer::forecast(&file, &options, &layout, args.model.load.into())?;
    match args.format {
        GraphFormat::Dot => print(&dot_plan(&plan)),
        GraphFormat::Json => {
            let mut value = json_plan(&plan);
            value["devices"] = layout.tags().map(|tag| device_json(&layout, tag)).collect();
            value["forecast"] = json!({
                "n_ctx": options.n_ctx,
                "n_batch": options.n_batch,
                "weights": memory.sum(|d| d.weights),
                "kv": memory.sum(|d| d.kv),
                "arenas": memory.sum(|d| d.arenas),
                "scratch": memory.sum(|d| d.scratch),
                "tokenizer": memory.tokenizer,
                "program": memory.program,
                "peak": memory.peak(),
            });
            print_json(&value)
        }
        GraphFormat::Text => {
            let text = dump_plan(&plan);
            print(&format!("{text}\n{layout}\n\n{}", forecast_text(&memory, options.n_ctx, options.n_batch)))
        }
    }
}

fn device_json(layout: &Layout, tag: BackendTag) -> Value {
    json!({ "device": tag.to_string(), "runs": layout.describe(tag) })
}

fn forecast_text(m: &MemoryForecast, n_ctx: usize, n_batch: usize) -> String {
    let rows = [
        ("weights", m.sum(|d| d.weights)),
        ("KV cache", m.sum(|d| d.kv)),
        ("values of the graph", m.sum(|d| d.arenas)),
        ("work space", m.sum(|d| d.scratch)),
        ("vocabulary, metadata", m.tokenizer),
        ("program", m.program),
        ("peak", m.peak()),
    ];
    let lines = rows.map(|(what, bytes)| format!("  {what:<22} {:>12}\n", megabytes(bytes)));
    format!("memory with a context of {n_ctx} and steps of {n_batch} tokens:\n{}", lines.concat())
}
