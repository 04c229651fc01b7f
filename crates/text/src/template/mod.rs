//! Chat templates: a conversation becomes a prompt by the Jinja template that the model's file carries.
//!
//! Rendering follows what Hugging Face's libraries do with Jinja2: `trim_blocks` and `lstrip_blocks`, loop controls,
//! Python's string and dict methods, `tojson` as `json.dumps`, `raise_exception`, `strftime_now`, and `generation`
//! blocks. A template that fails is an error; no other template takes its place.
//!
//! # The trust border
//!
//! The prompt must be tokenised with the control tokens that the template writes, and without those that a message
//! only spells. So the two are kept apart from the start:
//!
//! - Before the template is compiled, every control token's text in its literal text and string constants is replaced
//!   by one private-use character, its *stand-in*. So are the values of `bos_token` and `eos_token`.
//! - Strings of the conversation never contain a stand-in: if one does, the character is exchanged for an unused one.
//! - After rendering, stand-ins become [`Part::Special`], and everything else is [`Part::Plain`].
//!
//! Whatever a template does to a message (trim, split, slice, lower-case, glue together), the result consists of the
//! message's characters, and none of them is a stand-in. A template that searches a message for a control token's text
//! does not find it, which is the point: what a user types is not a control token.
//!
//! Some templates assemble control tokens from a role (`'<|' + message.role + '|>'`). Only for control tokens that
//! consist of a known role and text of the template, and are nowhere spelt out in it, the rendered text is searched.
//! In strings of the conversation one character of each such text, and of each beginning or end that the template's
//! own text could complete, is exchanged beforehand, so that only what the template assembled is found.
//!
//! An exchanged character is visible to a template in one way only: `tojson(ensure_ascii=true)` spells out its code.
//!
//! # What a hostile template can cost
//!
//! Steps are counted, and what gets a name (by `set`, in a loop, as a macro's argument) is refused when it is nested too
//! deeply or, written out, too large (`filters.rs`). Inside an expression the engine counts the bytes and list items that
//! operators and filters make as steps: 64 bytes a step, and a multiplication is refused before it makes more than what is
//! left, or more than 100 MB of text. One thing is counted only when it is there: the text of a list. A list that holds one
//! large text very often, taken for a text by `~`, `join` or a filter of texts, is not bounded.
//!
//! # Known differences from Jinja2
//!
//! - Text added to what `safe` marked is not escaped for HTML.
//! - A control token that the template assembles from pieces other than a role is text.
//! - `joiner`, `cycler`, `include`, `import` and filters that make HTML are not there: an error.

mod filters;
mod guard;
mod json;
mod methods;
mod python;
mod source;
mod time;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};

use crate::Part;
use crate::error::TemplateError;
use crate::reasoning::Reasoning;
use crate::tokenizer::Tokenizer;
use guard::{Border, Guard};

pub use time::LocalTime;

/// Steps a template may take: an instruction, or about 64 bytes of text made. Bounds time (about a second) and memory.
const FUEL: u64 = 10_000_000;

/// The template's name inside its environment; without an extension, so nothing is escaped.
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    border: Arc<Border>,
    reasoning: Option<Reasoning>,
}

/// One message of a conversation: its fields, in the order in which a template that dumps them shows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `role` (`system`, `user`, `assistant`, `tool`), `content` (a text, `null`, or a list of parts, as the template
    /// expects it), and further fields such as `tool_calls` or `name`.
    pub fields: Map<String, Json>,
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message::default().with("role", role.into()).with("content", content.into())
    }

    /// The message with one more field.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Json>) -> Self {
        self.fields.insert(key.into(), value.into());
        self
    }

    /// Who speaks; empty if no role is given.
    pub fn role(&self) -> &str {
        self.fields.get("role").and_then(Json::as_str).unwrap_or_default()
    }
}

impl From<Map<String, Json>> for Message {
    fn from(fields: Map<String, Json>) -> Self {
        Message { fields }
    }
}

/// What a template renders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderInput {
    /// The conversation, oldest message first.
    pub messages: Vec<Message>,
    /// Tools the model may call, a list in the form that the template expects.
    pub tools: Option<Json>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a text.
    pub bos_token: Option<String>,
    /// Text of the token that ends a text.
    pub eos_token: Option<String>,
    /// What `strftime_now` shows; the system's clock in UTC if absent.
    pub now: Option<LocalTime>,
    /// Further variables of the template. They are data: control tokens in them are text.
    pub extra: Map<String, Json>,
}

/// A rendered prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt, control tokens apart from text; for [`Tokenizer::encode_parts`].
    pub parts: Vec<Part>,
}

impl Rendered {
    /// The prompt as one text, as Jinja2 renders it.
    pub fn text(&self) -> String {
        self.parts.iter().map(Part::text).collect()
    }

    /// The prompt, if there is one.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Empty`] without any text: a model could only answer something else.
    pub fn not_empty(self) -> Result<Self, TemplateError> {
        if self.parts.iter().all(|part| part.text().is_empty()) {
            Err(TemplateError::Empty)
        } else {
            Ok(self)
        }
    }
}

/// What `raise_exception` leaves in an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template that knows no control tokens: what it renders is one [`Part::Plain`].
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`] with the line.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_control_tokens(source, [])
    }

    /// Compiles a template for a tokenizer with its control tokens.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`] with the line.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::with_control_tokens(source, tokenizer.control_texts())
    }

    /// Compiles a template in which these texts are control tokens.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`] with the line.
    pub fn with_control_tokens<'a>(
        source: &str,
        control: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, TemplateError> {
        let border = Border::new(source, control).ok_or_else(|| TemplateError::Syntax {
            line: 0,
            message: "no private-use characters are left to stand for control tokens".to_owned(),
        })?;
        let border = Arc::new(border);
        let rewritten = source::rewrite(source, &|text| border.hide(text));
        let compile = || -> Result<Environment<'static>, Error> {
            let mut env = environment()?;
            env.add_template_owned(NAME, rewritten)?;
            Ok(env)
        };
        match compile() {
            Ok(env) => Ok(ChatTemplate { env, border, reasoning: Reasoning::of_template(source) }),
            Err(error) => Err(TemplateError::Syntax {
                line: error.line().unwrap_or(0),
                message: border.reveal(&describe(&error)),
            }),
        }
    }

    /// How the template's model marks its thoughts, if it has any.
    pub fn reasoning(&self) -> Option<Reasoning> {
        self.reasoning
    }

    /// Renders a conversation.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Raised`] if the template refuses the conversation, [`TemplateError::Render`] if it fails,
    /// [`TemplateError::OutOfFuel`] if it runs for too long.
    pub fn render(&self, input: &RenderInput) -> Result<Rendered, TemplateError> {
        let mut guard = Guard::new(&self.border, input);
        let context = context(&mut guard, input);
        let template = self.env.get_template(NAME).map_err(|error| self.render_error(&error, &guard))?;
        match template.render(context) {
            Ok(text) => Ok(Rendered { parts: guard.parts(&text) }),
            Err(error) => Err(self.render_error(&error, &guard)),
        }
    }

    fn render_error(&self, error: &Error, guard: &Guard<'_>) -> TemplateError {
        let line = error.line().unwrap_or(0);
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if let Some(Raised(message)) = cause.downcast_ref() {
                return TemplateError::Raised { message: guard.reveal(message) };
            }
            if cause.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::OutOfFuel { line, fuel: FUEL };
            }
            source = cause.source();
        }
        TemplateError::Render { line, message: guard.reveal(&describe(error)) }
    }
}

/// An error in words, with its cause where that says more.
fn describe(error: &Error) -> String {
    let mut message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    message
}

/// Jinja as Hugging Face's libraries set it up.
fn environment() -> Result<Environment<'static>, Error> {
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build()?;
    let mut env = Environment::new();
    env.set_syntax(syntax);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&python::str(state, value)?)?),
    });
    filters::install(&mut env);
    env.add_function("raise_exception", raise_exception);
    Ok(env)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The template's variables.
fn context(guard: &mut Guard<'_>, input: &RenderInput) -> Value {
    let mut vars: Vec<(String, Value)> = Vec::new();
    for (name, text) in [("bos_token", &input.bos_token), ("eos_token", &input.eos_token)] {
        if let Some(text) = text {
            vars.push((name.to_owned(), guard.trusted(text).into()));
        }
    }
    for (name, value) in &input.extra {
        vars.push((name.clone(), guard.data(value)));
    }
    let messages: Vec<Value> = input.messages.iter().map(|message| guard.message(message)).collect();
    let tools = input.tools.as_ref().map_or(Value::from(()), |tools| guard.data(tools));
    let now = input.now.unwrap_or_else(LocalTime::now_utc);
    let clock = move |format: String| now.strftime(&format);
    vars.extend([
        ("messages".to_owned(), Value::from(messages)),
        ("tools".to_owned(), tools),
        ("documents".to_owned(), input.extra.get("documents").map_or(Value::from(()), |d| guard.data(d))),
        ("add_generation_prompt".to_owned(), Value::from(input.add_generation_prompt)),
        ("strftime_now".to_owned(), Value::from_function(clock)),
    ]);
    Value::from_pairs(vars)
}
