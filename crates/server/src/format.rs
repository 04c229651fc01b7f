//! What a request says of the form of its answers: JSON, a schema, a grammar, calls of tools.

use crate::config::Loaded;
use crate::error::ApiError;
use crate::fields::Fields;
use minfer::text::ToolFormat;
use minfer::{ConstraintFactory, Error, ErrorKind, Grammar};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The form of the answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A JSON object.
    Object,
    /// JSON of a schema.
    Schema(Value),
    /// A regular expression.
    Regex(String),
    /// A grammar in Lark's notation.
    Lark(String),
}

/// Which tools the answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// As the model likes.
    #[default]
    Auto,
    /// None; the tools are not even told.
    None,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// In OpenAI's form, for the template; empty if there are none.
    pub list: Vec<Value>,
    /// Which may be called.
    pub choice: Choice,
    /// Whether one answer may have several calls.
    pub several: bool,
}

/// Reads OpenAI's `response_format`, and `grammar`, which is ours: `{"type": "lark" | "regex", "value": ..}`.
///
/// # Errors
/// A form that there is not.
pub fn read(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let mut form = None;
    if let Some(mut inner) = fields.object("response_format")? {
        form = match inner.text("type")?.as_deref() {
            Some("text") => None,
            Some("json_object") => Some(Form::Object),
            Some("json_schema") => Some(Form::Schema(json_schema(&mut inner)?)),
            _ => {
                let message = "`response_format.type` must be text, json_object or json_schema";
                return Err(ApiError::invalid("response_format.type", message));
            }
        };
        fields.close(inner)?;
    }
    if let Some(mut inner) = fields.object("grammar")? {
        let value = inner.text("value")?;
        let value = value.ok_or_else(|| ApiError::invalid("grammar.value", "`grammar.value` is missing"))?;
        let own = match inner.text("type")?.as_deref() {
            Some("lark") => Form::Lark(value),
            Some("regex") => Form::Regex(value),
            _ => return Err(ApiError::invalid("grammar.type", "`grammar.type` must be lark or regex")),
        };
        fields.close(inner)?;
        if form.replace(own).is_some() {
            return Err(ApiError::invalid("grammar", "a grammar and a response format: one is possible"));
        }
    }
    Ok(form)
}

fn json_schema(fields: &mut Fields) -> Result<Value, ApiError> {
    let inner = fields.object("json_schema")?;
    let mut inner = inner.ok_or_else(|| {
        ApiError::invalid("response_format.json_schema", "`response_format.json_schema` is missing")
    })?;
    inner.labels(&["name", "description"]);
    // Every schema is strict here.
    inner.flag("strict")?;
    let schema = inner.take("schema");
    fields.close(inner)?;
    schema.ok_or_else(|| {
        ApiError::invalid(
            "response_format.json_schema.schema",
            "`response_format.json_schema.schema` is missing",
        )
    })
}

/// Reads OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.
///
/// # Errors
/// A tool that is no function, or a choice of one that there is not.
pub fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let several = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    for (i, tool) in list.iter().enumerate() {
        let at = format!("tools[{i}]");
        let named = tool["function"]["name"].as_str().is_some_and(|name| !name.is_empty());
        if tool["type"] != "function" || !named {
            return Err(ApiError::invalid(
                at,
                "a tool is `{\"type\": \"function\", \"function\": {\"name\": ..}}`",
            ));
        }
    }
    let choice = match fields.take("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "required" => Choice::Required,
            _ => return Err(wrong_choice()),
        },
        Some(value) => match value["function"]["name"].as_str() {
            Some(name) if value["type"] == "function" => Choice::Named(name.to_string()),
            _ => return Err(wrong_choice()),
        },
    };
    let tools = Tools { list, choice, several };
    tools.check()?;
    Ok(tools)
}

fn wrong_choice() -> ApiError {
    let message = "`tool_choice` must be auto, none, required or \
                   `{\"type\": \"function\", \"function\": {\"name\": ..}}`";
    ApiError::invalid("tool_choice", message)
}

impl Tools {
    /// Whether the choice fits the tools.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<(), ApiError> {
        let has = |name: &str| self.list.iter().any(|tool| tool["function"]["name"] == name);
        match &self.choice {
            Choice::Required if self.list.is_empty() => {
                Err(ApiError::invalid("tool_choice", "a call is required, and there are no tools"))
            }
            Choice::Named(name) if !has(name) => {
                Err(ApiError::invalid("tool_choice", format!("there is no tool `{name}`")))
            }
            _ => Ok(()),
        }
    }

    /// What the template is told.
    pub fn told(&self) -> Option<Value> {
        let none = self.list.is_empty() || self.choice == Choice::None;
        (!none).then(|| Value::Array(self.list.clone()))
    }

    /// Names and schemas of the arguments of those that must be called; none if none must.
    fn forced(&self) -> Option<Vec<(String, Value)>> {
        let wanted = |name: &str| match &self.choice {
            Choice::Auto | Choice::None => false,
            Choice::Required => true,
            Choice::Named(one) => one == name,
        };
        let of = |tool: &Value| {
            let function = &tool["function"];
            let name = function["name"].as_str()?;
            let anything = || json!({"type": "object"});
            let schema =
                function.get("parameters").filter(|p| !p.is_null()).cloned().unwrap_or_else(anything);
            wanted(name).then(|| (name.to_string(), schema))
        };
        let forced: Vec<_> = self.list.iter().filter_map(of).collect();
        (!forced.is_empty()).then_some(forced)
    }
}

/// What answers are held to.
///
/// # Errors
/// 400 with what cannot be honoured.
pub fn constraint(
    loaded: &Loaded,
    form: Option<&Form>,
    tools: &Tools,
    format: Option<ToolFormat>,
) -> Result<Option<Arc<dyn ConstraintFactory>>, ApiError> {
    let forced = tools.forced();
    let (at, made) = match (form, forced, format) {
        (Some(_), Some(_), _) => {
            let message = "a response format and a call that is required: one is possible";
            return Err(ApiError::invalid("tool_choice", message));
        }
        (None, Some(forced), Some(format)) => {
            let several = tools.several && !matches!(tools.choice, Choice::Named(_));
            ("tools", loaded.model.guide().and_then(|guide| guide.tool_calls(format, &forced, several)))
        }
        (Some(form), ..) => ("response_format", of_form(loaded, form)),
        _ => return Ok(None),
    };
    let grammar = made.map_err(|e| match e.kind() {
        ErrorKind::Input => ApiError::invalid(at, e.to_string()),
        _ => ApiError::engine(e.to_string()),
    })?;
    Ok(Some(grammar))
}

fn of_form(loaded: &Loaded, form: &Form) -> Result<Arc<Grammar>, Error> {
    let guide = loaded.model.guide()?;
    match form {
        Form::Object => guide.json_object(),
        Form::Schema(schema) => guide.json_schema(schema),
        Form::Regex(pattern) => guide.regex(pattern),
        Form::Lark(grammar) => guide.lark(grammar),
    }
}

/// The arguments of calls as objects: clients write them as texts, templates expect objects.
pub fn calls_for_template(calls: &[Value]) -> Value {
    let call = |call: &Value| {
        let mut call = call.as_object().cloned().unwrap_or_default();
        if let Some(Value::Object(function)) = call.get_mut("function") {
            let parsed = function
                .get("arguments")
                .and_then(Value::as_str)
                .map(serde_json::from_str::<Map<String, Value>>);
            if let Some(Ok(arguments)) = parsed {
                function.insert("arguments".into(), Value::Object(arguments));
            }
        }
        Value::Object(call)
    };
    Value::Array(calls.iter().map(call).collect())
}
