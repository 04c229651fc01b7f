//! Renders chat templates in bulk, for comparisons with another engine (`scripts/templates.py`).
//!
//! Each line of stdin is a job: `{"template": TEXT, "control": [TEXT...], "inputs": [INPUT...]}` with inputs
//! `{"messages": [...], "tools": ..., "generate": BOOL, "tokens": {NAME: TEXT}, "kwargs": {...}}`. Each line of stdout
//! answers one job: `{"compile": ERROR}`, or `{"results": [RESULT...]}` with `{"text": TEXT, "special": [TEXT...]}`,
//! `{"raised": MESSAGE}` or `{"error": MESSAGE}`. The clock stands at the argument, seconds since 1970.

use std::io::{self, BufRead, Write};

use minfer_text::{ChatTemplate, LocalTime, Message, Part, RenderInput, TemplateError};
use serde_json::{Map, Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let seconds: i64 = std::env::args().nth(1).ok_or("usage: render SECONDS < JOBS")?.parse()?;
    let now = LocalTime::from_unix(seconds);
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut out, &answer(&job, now)?)?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

fn answer(job: &Value, now: LocalTime) -> Result<Value, Failure> {
    let source = job["template"].as_str().ok_or("a job without a template")?;
    let control = job["control"].as_array().map_or(&[][..], Vec::as_slice);
    let template = match ChatTemplate::with_control_tokens(source, control.iter().filter_map(Value::as_str)) {
        Ok(template) => template,
        Err(error) => return Ok(json!({ "compile": error.to_string() })),
    };
    let inputs = job["inputs"].as_array().ok_or("a job without inputs")?;
    let results: Result<Vec<Value>, Failure> =
        inputs.iter().map(|value| Ok(render(&template, &input(value, now)?))).collect();
    Ok(json!({ "results": results? }))
}

fn input(value: &Value, now: LocalTime) -> Result<RenderInput, Failure> {
    let message = |value: &Value| value.as_object().cloned().map(Message::from);
    let messages = value["messages"].as_array().ok_or("an input without messages")?;
    let token = |name: &str| value["tokens"][name].as_str().map(str::to_owned);
    Ok(RenderInput {
        messages: messages.iter().map(message).collect::<Option<_>>().ok_or("a message is no object")?,
        tools: value.get("tools").filter(|tools| !tools.is_null()).cloned(),
        add_generation_prompt: value["generate"] == true,
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        now: Some(now),
        extra: value["kwargs"].as_object().cloned().unwrap_or_else(Map::new),
    })
}

fn render(template: &ChatTemplate, input: &RenderInput) -> Value {
    match template.render(input) {
        Ok(rendered) => {
            let special: Vec<&str> = rendered
                .parts
                .iter()
                .filter(|part| matches!(part, Part::Special(_)))
                .map(Part::text)
                .collect();
            json!({ "text": rendered.text(), "special": special })
        }
        Err(TemplateError::Raised { message }) => json!({ "raised": message }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}
