//! From messages to the tokens of a prompt.

use crate::config::{Loaded, Template};
use crate::error::ApiError;
use minfer::text::{EncodeOptions, Message, ReasoningSplitter, RenderInput, Rendered, Tokenizer, ToolFormat};
use serde_json::{Map, Value, json};

/// A conversation that wants an answer.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Oldest first.
    pub messages: Vec<Message>,
    /// In OpenAI's form.
    pub tools: Option<Value>,
    /// Further variables for the template.
    pub extra: Map<String, Value>,
}

/// A prompt.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Keeps thoughts apart in the answer.
    pub splitter: Option<ReasoningSplitter>,
    /// How calls look in the answer, if tools were given.
    pub tools: Option<ToolFormat>,
    /// Whether the tools were told in the system message, since the template knows none.
    pub tools_in_system: bool,
}

/// The tokenizer of a model.
///
/// # Errors
/// It has none.
pub fn tokenizer(loaded: &Loaded) -> Result<&Tokenizer, ApiError> {
    loaded.model.tokenizer().map_err(|e| ApiError::engine(e.to_string()))
}

/// Renders a conversation by the model's template and tokenises it.
///
/// # Errors
/// The model has no template, or it refuses the conversation.
pub fn of_conversation(loaded: &Loaded, conversation: Conversation) -> Result<Prompt, ApiError> {
    let tokenizer = tokenizer(loaded)?;
    let template = loaded.template.as_ref().map_err(|why| ApiError::invalid("messages", why.clone()))?;
    let Conversation { mut messages, mut tools, extra } = conversation;
    let own = ToolFormat::of_template(&template.source);
    let tools_in_system = tools.is_some() && own.is_none();
    let format = tools.as_ref().map(|_| own.unwrap_or(ToolFormat::Tagged));
    if let (true, Some(list)) = (tools_in_system, tools.take()) {
        tell(&mut messages, ToolFormat::instructions(&list));
        messages.iter_mut().for_each(spell_out);
    }
    let rendered = render(template, tokenizer, messages, tools, extra)?;
    let tokens = tokenizer.encode_parts(&rendered.parts, true);
    let splitter = template.compiled.reasoning().map(|r| r.splitter(&rendered));
    Ok(Prompt { tokens, text: rendered.text(), splitter, tools: format, tools_in_system })
}

fn render(
    template: &Template,
    tokenizer: &Tokenizer,
    messages: Vec<Message>,
    tools: Option<Value>,
    extra: Map<String, Value>,
) -> Result<Rendered, ApiError> {
    let text_of = |id: Option<u32>| Some(tokenizer.token_text(id?)?.to_owned());
    let input = RenderInput {
        messages,
        tools,
        add_generation_prompt: true,
        bos_token: text_of(tokenizer.bos()),
        eos_token: text_of(tokenizer.eos()),
        now: None,
        extra,
    };
    let rendered = template.compiled.render(&input).and_then(Rendered::not_empty);
    rendered
        .map_err(|e| ApiError::invalid("messages", format!("the model's chat template refuses this: {e}")))
}

/// Adds to the system message, or makes one.
fn tell(messages: &mut Vec<Message>, text: String) {
    match messages.first_mut().filter(|m| m.role() == "system") {
        Some(system) => {
            let before = system.fields.get("content").and_then(Value::as_str).unwrap_or_default();
            let content = format!("{before}\n\n{text}");
            system.fields.insert("content".into(), content.into());
        }
        None => messages.insert(0, Message::new("system", text)),
    }
}

/// Writes calls and their results as text, for templates that know neither.
fn spell_out(message: &mut Message) {
    let fields = &mut message.fields;
    if let Some(Value::Array(calls)) = fields.shift_remove("tool_calls") {
        let mut text = fields.get("content").and_then(Value::as_str).unwrap_or_default().to_string();
        for call in calls {
            let call = json!({"name": call["function"]["name"], "arguments": call["function"]["arguments"]});
            text += &format!("\n<tool_call>\n{call}\n</tool_call>");
        }
        fields.insert("content".into(), text.trim_start().into());
    }
    if message.role() == "tool" {
        let text = message.fields.get("content").and_then(Value::as_str).unwrap_or_default();
        let text = format!("<tool_response>\n{text}\n</tool_response>");
        message.fields = Message::new("user", text).fields;
    }
}

/// Tokenises a prompt that is no conversation.
///
/// # Errors
/// The model has no tokenizer.
pub fn of_text(loaded: &Loaded, text: &str) -> Result<Vec<u32>, ApiError> {
    Ok(tokenizer(loaded)?.encode(text, EncodeOptions::default()))
}
