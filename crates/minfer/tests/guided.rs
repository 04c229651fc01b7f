//! Whatever is drawn, an answer under a grammar fits it.

mod common;
mod engine_support;

use engine_support::{ask, model, send, start};
use minfer::engine::{EngineOptions, Request};
use minfer::text::{ToolFormat, ToolParser, ToolPiece};
use minfer::{Finish, Grammar, Model};
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers of random models, of which those that ended are given.
fn answers(model: &Model, grammar: &Arc<Grammar>, n: usize) -> Vec<String> {
    let engine = start(model, EngineOptions { n_ctx: 1024, ..engine_support::options() });
    let streams: Vec<_> = (0..n as u64)
        .map(|seed| {
            let mut request = ask(&[1, 2, 3], 1.5, 600);
            request.sampling.seed = seed;
            send(&engine, Request { constraint: Some(grammar.clone()), ignore_eos: false, ..request })
        })
        .collect();
    let mut ended = Vec::new();
    for stream in streams {
        let whole = stream.whole();
        whole.end.unwrap();
        let heard = whole.answers.into_iter().next().unwrap();
        if matches!(heard.finish, Some(Finish::EndToken(_))) {
            ended.push(heard.text);
        }
    }
    ended
}

#[test]
fn schemas_are_honoured_whatever_is_drawn() {
    let (_file, model) = model();
    let guide = model.guide().unwrap();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"enum": ["Ada", "Köln"]},
            "age": {"type": "integer", "minimum": 3, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    let texts = answers(&model, &guide.json_schema(&schema).unwrap(), 40);
    assert!(texts.len() >= 38, "{}", texts.len());
    for text in &texts {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(["Ada", "Köln"].contains(&value["name"].as_str().unwrap()), "{text}");
        assert!((3..=120).contains(&value["age"].as_i64().unwrap()), "{text}");
        assert!((1..=3).contains(&value["tags"].as_array().unwrap().len()), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
    }
    assert!(texts.iter().any(|text| text != &texts[0]));
}

#[test]
fn expressions_and_grammars_are_honoured() {
    let (_file, model) = model();
    let guide = model.guide().unwrap();
    let dates = answers(&model, &guide.regex("[0-9]{4}-[01][0-9]-[0-3][0-9]").unwrap(), 20);
    assert_eq!(dates.len(), 20);
    let is_date = |text: &String| {
        let parts: Vec<_> = text.split('-').map(str::len).collect();
        parts == [4, 2, 2] && text.chars().all(|c| c == '-' || c.is_ascii_digit())
    };
    assert!(dates.iter().all(is_date), "{dates:?}");
    let sums =
        answers(&model, &guide.lark("start: NUMBER (\"+\" NUMBER){0,3}\nNUMBER: /[0-9]{1,3}/").unwrap(), 20);
    assert_eq!(sums.len(), 20);
    assert!(sums.iter().all(|text| text.split('+').all(|n| n.parse::<u32>().is_ok())), "{sums:?}");
}

#[test]
fn calls_of_tools_are_calls_of_those_tools() {
    let (_file, model) = model();
    let guide = model.guide().unwrap();
    let tools = [
        ("now".to_string(), json!({"type": "object", "properties": {}, "additionalProperties": false})),
        (
            "add".to_string(),
            json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
                   "required": ["a"], "additionalProperties": false}),
        ),
    ];
    for format in [ToolFormat::Tagged, ToolFormat::Bare, ToolFormat::Listed] {
        for several in [false, true] {
            let grammar = guide.tool_calls(format, &tools, several).unwrap();
            let texts = answers(&model, &grammar, 16);
            assert!(texts.len() >= 12, "{format:?}: {}", texts.len());
            for text in texts {
                let mut parser = ToolParser::new(format);
                let mut pieces = parser.push(&text);
                pieces.extend(parser.finish());
                let is_call = |piece: &ToolPiece| match piece {
                    ToolPiece::Call { name, arguments } if name == "now" => arguments.is_empty(),
                    ToolPiece::Call { name, arguments } => name == "add" && arguments["a"].as_i64().is_some(),
                    ToolPiece::Text(text) => text.trim().is_empty(),
                };
                assert!(pieces.iter().all(is_call), "{text}");
                let calls = pieces.iter().filter(|p| matches!(p, ToolPiece::Call { .. })).count();
                assert!(calls == 1 || several && calls > 1, "{text}");
            }
        }
    }
    assert!(guide.tool_calls(ToolFormat::Tagged, &[], true).is_err());
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let (_file, model) = model();
    let guide = model.guide().unwrap();
    for (schema, word) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}), "not"),
        (json!({"type": "string", "format": "no-such-format"}), "no-such-format"),
        (json!({"x-guidance": {"lenient": true}, "type": "object"}), "x-guidance"),
        (json!({"properties": {"a": {"x-guidance": {}}}}), "x-guidance"),
        (json!({"$ref": "https://example.org/schema.json"}), "ref"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "minimum"),
        (json!("text"), "object"),
    ] {
        let error = guide.json_schema(&schema).unwrap_err().to_string();
        assert!(error.contains(word), "{schema}: {error}");
    }
    assert!(guide.regex("(?=a)b").is_err());
    assert!(guide.lark("start: missing").unwrap_err().to_string().contains("missing"));
    // A name that is a keyword elsewhere is only a name here.
    guide.json_schema(&json!({"type": "object", "properties": {"x-guidance": {"type": "null"}}})).unwrap();
}
