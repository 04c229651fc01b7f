//! `minfer devices`, `knobs` and `completions`.

use super::{megabytes, print, print_json};
use crate::args::Cli;
use anyhow::Result;
use clap::CommandFactory;
use serde_json::{Value, json};

pub fn devices(as_json: bool) -> Result<()> {
    let devices = minfer::devices()?;
    if as_json {
        let list = devices.iter().map(|d| {
            let sets = d.instruction_sets.iter().map(|i| {
                json!({ "name": i.name, "available": i.available, "used": i.used, "tested_on": i.tested_on })
            });
            json!({
                "device": d.tag.to_string(), "name": d.name, "total": d.memory.total, "free": d.memory.free,
                "instruction_sets": sets.collect::<Vec<_>>(),
            })
        });
        return print_json(&Value::Array(list.collect()));
    }
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_string(), megabytes);
    let line = |d: &minfer::DeviceInfo| {
        let (free, total) = (size(d.memory.free), size(d.memory.total));
        let sets: String = d.instruction_sets.iter().map(instruction_set).collect();
        format!("{}  {}, memory {free} free of {total}\n{sets}", d.tag, d.name)
    };
    print(&devices.iter().map(line).collect::<String>())
}

/// A line on an instruction set.
fn instruction_set(set: &minfer::InstructionSet) -> String {
    let state = match (set.used, set.available) {
        (true, _) => "in use",
        (false, true) => "there",
        (false, false) => "not in this processor",
    };
    let tested = match set.tested_on {
        "processor" => "",
        _ => "; tested on an emulator alone",
    };
    format!("     {:<10}  {state}{tested}\n", set.name)
}

pub fn knobs(as_json: bool) -> Result<()> {
    let tables = [(true, minfer::KNOBS), (false, minfer::OTHER_VARIABLES)];
    if as_json {
        let row = |k: &minfer::Knob, own: bool| json!({ "name": k.name, "value": k.value, "default": k.default, "help": k.help, "own": own });
        let list = tables.iter().flat_map(|(own, knobs)| knobs.iter().map(|k| row(k, *own)));
        return print_json(&Value::Array(list.collect()));
    }
    let mut text = String::new();
    for (own, knobs) in tables {
        if !own {
            text += "\nRead as others define them:\n\n";
        }
        for k in knobs {
            text += &format!("{}={}\n    {} [default: {}]\n", k.name, k.value, k.help, k.default);
        }
    }
    print(&text)
}

pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "minfer", &mut text);
    print(&String::from_utf8(text)?)
}
