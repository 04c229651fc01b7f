//! Rendered templates against Jinja2 with Hugging Face's settings (`tests/oracle/templates.py`).

use minfer_text::{ChatTemplate, LocalTime, Message, RenderInput, TemplateError, TemplateErrorKind};
use serde_json::{Map, Value};

/// 2024-07-04 09:05:03, as in the oracle.
const NOW: i64 = 1_720_083_903;

fn input(conversation: &Value, add_generation_prompt: bool) -> RenderInput {
    let message = |value: &Value| Message::from(value.as_object().unwrap().clone());
    RenderInput {
        messages: conversation["messages"].as_array().unwrap().iter().map(message).collect(),
        tools: conversation.get("tools").cloned(),
        add_generation_prompt,
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        now: Some(LocalTime::from_unix(NOW)),
        extra: Map::new(),
    }
}

/// What went wrong in a case, if anything.
fn compare(template: &ChatTemplate, input: &RenderInput, expected: &Value) -> Option<String> {
    let result = template.render(input);
    if let Some(text) = expected.get("text") {
        return match result {
            Ok(rendered) if rendered.text() == *text => None,
            Ok(rendered) => {
                Some(format!("\n  found    {:?}\n  expected {:?}", rendered.text(), text.as_str().unwrap()))
            }
            Err(error) => Some(format!("\n  found    {error}\n  expected {text}")),
        };
    }
    let kind = result.as_ref().err().map(|error| error.kind());
    if let Some(expected) = expected.get("raised") {
        let same = matches!(&result, Err(TemplateError::Raised { message }) if message == expected);
        return (!same).then(|| format!("\n  found    {result:?}\n  expected {expected}"));
    }
    (kind != Some(TemplateErrorKind::Render))
        .then(|| format!("\n  found    {result:?}\n  expected {expected}"))
}

#[test]
fn templates_render_as_in_jinja2() {
    let golden: Value = serde_json::from_str(include_str!("data/templates.json")).unwrap();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for template in golden["templates"].as_array().unwrap() {
        let (name, source) = (&template["name"], template["source"].as_str().unwrap());
        let control = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<|eot_id|>"];
        let compiled = [ChatTemplate::new(source), ChatTemplate::with_control_tokens(source, control)];
        for compiled in compiled {
            let compiled = match compiled {
                Ok(compiled) => compiled,
                Err(error) => {
                    wrong.push(format!("{name}: {error}"));
                    continue;
                }
            };
            for (key, results) in template["results"].as_object().unwrap() {
                for (expected, generate) in results.as_array().unwrap().iter().zip([true, false]) {
                    let input = input(&golden["conversations"][key], generate);
                    if let Some(difference) = compare(&compiled, &input, expected) {
                        wrong.push(format!("{name}, {key}, {generate}: {difference}"));
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 700, "{compared}");
}
