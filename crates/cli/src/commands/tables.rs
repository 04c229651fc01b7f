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
            json!({ "device": d.tag.to_string(), "name": d.name, "total": d.memory.total, "free": d.memory.free })
        });
        return print_json(&Value::Array(list.collect()));
    }
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_string(), megabytes);
    let line = |d: &minfer::DeviceInfo| {
        let (free, total) = (size(d.memory.free), size(d.memory.total));
        format!("{}  {}, memory {free} free of {total}\n", d.tag, d.name)
    };
    print(&devices.iter().map(line).collect::<String>())
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
