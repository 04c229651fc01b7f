//! `minfer graph`: nodes, splits, buffers and memory, without loading weights.

use super::{megabytes, print, print_json};
use crate::args::{GraphArgs, GraphFormat};
use crate::exit::Usage;
use crate::inputs;
use anyhow::{Result, anyhow};
use minfer::graph::{
    BackendTag, Hazard, Plan, Proof, dot_plan, dump_memory, dump_plan, fusions_json, fusions_text, json_plan,
    verify_schedule,
};
use minfer::models::Stage;
use minfer::{Layout, LoadMode, MemoryForecast, SessionOptions};
use serde_json::{Value, json};
use std::fmt::Write;

pub fn run(args: &GraphArgs) -> Result<()> {
    let name = inputs::one_model(args.name.as_deref(), &args.model)?;
    let file = inputs::open_file(name, args.model.offline)?;
    let options = inputs::session_options(&file, &args.model)?;
    let layout = inputs::layout(&file, &options, &args.model)?;
    if args.check {
        let as_json = text_or_json(args.format, "--check")?;
        return check(&minfer::session_plans(&file, &options, &layout)?, &layout, as_json);
    }
    let load = inputs::load_mode(&file, &options, &layout, &args.model).unwrap_or(LoadMode::Mmap);
    let (plan, memory) = minfer::forecast(&file, &options, &layout, load)?;
    if args.explain_fusion {
        return match text_or_json(args.format, "--explain-fusion")? {
            true => print_json(&fusions_json(&plan)),
            false => print(&fusions_text(&plan)),
        };
    }
    match args.format {
        GraphFormat::Dot => print(&dot_plan(&plan)),
        GraphFormat::Memory => print(&dump_memory(&plan)),
        GraphFormat::Json => print_json(&as_json(&plan, &memory, &layout, &options)),
        GraphFormat::Text => {
            let text = dump_plan(&plan);
            print(&format!("{text}\n{layout}\n\n{}", forecast_text(&memory, options.n_ctx, options.n_batch)))
        }
    }
}

/// Whether an answer that is no graph is wanted as JSON.
fn text_or_json(format: GraphFormat, option: &str) -> Result<bool> {
    match format {
        GraphFormat::Text => Ok(false),
        GraphFormat::Json => Ok(true),
        GraphFormat::Dot | GraphFormat::Memory => {
            Err(Usage(format!("{option} answers in text or json")).into())
        }
    }
}

/// Verifies the schedules of a session's plans and says what was proved.
///
/// # Errors
/// The first hazard, after the proofs of the plans before it were printed.
fn check(plans: &[(Stage, Plan)], layout: &Layout, as_json: bool) -> Result<()> {
    let checked: Vec<_> = plans.iter().map(|(stage, plan)| (*stage, plan, verify_schedule(plan))).collect();
    if as_json {
        let list: Vec<Value> = checked.iter().map(|(stage, plan, r)| check_json(*stage, plan, r)).collect();
        print_json(&json!({ "layout": layout.to_string(), "plans": list }))?;
    } else {
        let mut text = format!("{layout}\n");
        for (stage, plan, result) in &checked {
            text += &check_text(*stage, plan, result);
        }
        print(&text)?;
    }
    let hazard = checked.iter().find_map(|(stage, plan, r)| r.err().map(|h| (stage, plan, h)));
    hazard.map_or(Ok(()), |(stage, plan, hazard)| {
        Err(anyhow!(
            "the schedule of the {} plan has a hazard: {}",
            stage_name(*stage),
            hazard.explain(&plan.graph)
        ))
    })
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Full => "full",
        Stage::Body => "body",
        Stage::Head => "head",
    }
}

fn check_text(stage: Stage, plan: &Plan, result: &Result<Proof, Hazard>) -> String {
    let computes = match stage {
        Stage::Full => "from tokens to logits",
        Stage::Body => "from tokens to hidden states",
        Stage::Head => "from hidden states to logits",
    };
    let at = plan.capacity;
    let sequences = if at.seqs == 1 { "sequence" } else { "sequences" };
    let mut text = format!(
        "\n{}, {computes}, steps of up to {} tokens, {} outputs and {} {sequences}: ",
        stage_name(stage),
        at.tokens,
        at.outputs,
        at.seqs
    );
    match result {
        Ok(proof) => {
            text += "proved\n";
            for line in proof.to_string().lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        Err(_) => text += "not proved\n",
    }
    text
}

fn check_json(stage: Stage, plan: &Plan, result: &Result<Proof, Hazard>) -> Value {
    let node =
        |id: usize| plan.graph.nodes.get(id).map(|n| json!({ "id": id, "name": n.name, "op": n.op.name() }));
    let at = plan.capacity;
    let mut value = json!({
        "stage": stage_name(stage),
        "capacity": { "tokens": at.tokens, "outputs": at.outputs, "seqs": at.seqs },
        "proved": result.is_ok(),
    });
    match result {
        Ok(p) => {
            value["proof"] = json!({
                "nodes": p.nodes, "reads": p.reads, "staged_reads": p.staged_reads, "in_place": p.in_place,
                "reused": p.reused, "inputs": p.inputs, "copies": p.copies, "syncs": p.syncs,
                "boundaries": p.boundaries,
            });
        }
        Err(h) => {
            value["hazard"] = json!({
                "rule": h.kind.rule(), "reader": node(h.reader), "value": node(h.value),
                "read": h.read.map(|r| r.to_string()), "written": h.written.map(|r| r.to_string()),
                "explained": h.explain(&plan.graph),
            });
        }
    }
    value
}

/// The plan with what it takes and where it runs.
fn as_json(plan: &Plan, memory: &MemoryForecast, layout: &Layout, options: &SessionOptions) -> Value {
    let mut value = json_plan(plan);
    value["devices"] = layout.tags().map(|tag| device_json(layout, tag)).collect();
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
    value
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use minfer::graph::{Action, Fusion, FusionSwitches};
    use minfer::{DeviceChoice, GpuLayers, ModelFile, Placement};
    use minfer_testkit::tiny::TinySpec;

    /// The plans of a tiny model whose last two of four blocks are on another device.
    fn plans() -> (Vec<(Stage, Plan)>, Layout) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, TinySpec::llama().to_bytes().unwrap()).unwrap();
        let file = ModelFile::open(&path).unwrap();
        // Norms are nodes of their own here.
        let fusions = FusionSwitches::default().with(Fusion::NormMatMul, false);
        let options = SessionOptions { n_ctx: 64, n_batch: 8, fusions, ..SessionOptions::default() };
        let chaos = DeviceChoice::Chaos { index: 0, kib: None };
        let layout = Placement::new([chaos], GpuLayers::Count(2)).resolve(&file, &options).unwrap();
        (minfer::session_plans(&file, &options, &layout).unwrap(), layout)
    }

    fn refused(plans: &[(Stage, Plan)], layout: &Layout) -> String {
        for as_json in [false, true] {
            assert_eq!(exit::code(&check(plans, layout, as_json).unwrap_err()), exit::FAILED);
        }
        check(plans, layout, false).unwrap_err().to_string()
    }

    #[test]
    fn a_broken_schedule_is_told_with_nodes_bytes_and_rule() {
        let (good, layout) = plans();
        check(&good, &layout, false).unwrap();

        let mut broken = good.clone();
        let plan = &mut broken[1].1;
        let [early, over] = ["blk.0.attn_residual", "blk.0.ffn_norm"].map(|n| plan.graph.find(n).unwrap());
        plan.memory.nodes[over].as_mut().unwrap().location = plan.memory.nodes[early].unwrap().location;
        let message = refused(&broken, &layout);
        for part in [
            "the body plan",
            "bytes are not used again before their last reader",
            "`blk.0.ffn_residual` (MatMulAdd) reads",
            "`blk.0.attn_residual` (MatMulAdd), overwritten by",
            "`blk.0.ffn_norm` (RmsNorm)",
            "value at cpu slot 0 bytes",
            "written at cpu slot 0 bytes",
        ] {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
        let json = check_json(Stage::Body, &broken[1].1, &verify_schedule(&broken[1].1));
        assert_eq!((&json["proved"], &json["hazard"]["value"]["id"]), (&false.into(), &early.into()));
        assert!(check_text(Stage::Body, &broken[1].1, &verify_schedule(&broken[1].1)).contains("not proved"));

        let mut broken = good;
        broken[0].1.schedule.retain(|a| !matches!(a, Action::Copy { .. }));
        let message = refused(&broken, &layout);
        assert!(
            message.contains("the full plan") && message.contains("is copied in every step"),
            "{message}"
        );
    }
}
