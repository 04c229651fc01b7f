//! Answers that fit a grammar: JSON, JSON of a schema, a regular expression, Lark, or calls of tools.
//!
//! The work is done by `llguidance`, which computes before each token which tokens may come. A schema or a grammar that it
//! cannot honour in full is an error that names what it is about: no keyword is passed over.

mod schema;

use crate::constraint::{Constraint, ConstraintFactory, TokenMask};
use crate::error::{Error, ErrorKind};
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use minfer_text::{Tokenizer, ToolFormat};
use serde_json::{Value, json};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

/// Makes grammars for a model's vocabulary.
pub struct Guide {
    factory: ParserFactory,
    /// The token that ends a text, as the grammar knows it, and all that do.
    end: u32,
    ends: Arc<[u32]>,
}

impl Guide {
    /// For a tokenizer.
    ///
    /// # Errors
    /// It has no token that ends a text.
    pub fn new(tokenizer: &Tokenizer) -> Result<Guide, Error> {
        let n = tokenizer.n_vocab() as u32;
        let ends: Arc<[u32]> = (0..n).filter(|&id| tokenizer.is_eog(id)).collect();
        let own = tokenizer.eos().filter(|id| ends.contains(id));
        let end = own.or_else(|| ends.first().copied());
        let end =
            end.ok_or_else(|| Error::new(ErrorKind::Model, "the model has no token that ends a text"))?;
        let words: Vec<Vec<u8>> = (0..n).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n, end), &words);
        let env: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| refused("vocabulary", &e))?;
        factory.quiet();
        // What an error says is for people who wrote a schema, not for those who debug the parser.
        factory.limits_mut().verbose_errors = false;
        Ok(Guide { factory, end, ends })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// None is expected.
    pub fn json_object(&self) -> Result<Arc<Grammar>, Error> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// JSON that a schema allows, written as on one line: `{"a": 1, "b": [2, 3]}`.
    ///
    /// # Errors
    /// A keyword that is not supported, by name, or a schema that nothing fits.
    pub fn json_schema(&self, schema: &Value) -> Result<Arc<Grammar>, Error> {
        schema::check(schema)?;
        self.grammar("schema", TopLevelGrammar::from_json_schema(schema::one_line(schema)))
    }

    /// A text that a regular expression matches as a whole.
    ///
    /// # Errors
    /// It is none, or uses look-around or back-references.
    pub fn regex(&self, pattern: &str) -> Result<Arc<Grammar>, Error> {
        self.grammar("regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// A text of a grammar in Lark's notation, in which `start` is the whole.
    ///
    /// # Errors
    /// It is none.
    pub fn lark(&self, grammar: &str) -> Result<Arc<Grammar>, Error> {
        self.grammar("grammar", TopLevelGrammar::from_lark(grammar.to_string()))
    }

    /// One call of a tool, or several if they may be; `tools` are name and schema of the arguments.
    ///
    /// # Errors
    /// As [`Guide::json_schema`], or there are no tools.
    pub fn tool_calls(
        &self,
        format: ToolFormat,
        tools: &[(String, Value)],
        several: bool,
    ) -> Result<Arc<Grammar>, Error> {
        if tools.is_empty() {
            return Err(Error::input("no tool may be called"));
        }
        let call = |(name, arguments): &(String, Value)| {
            schema::check(arguments).map_err(|e| Error::input(format!("tool `{name}`: {e}")))?;
            Ok(json!({
                "type": "object",
                "properties": {"name": {"const": name}, format.arguments(): arguments},
                "required": ["name", format.arguments()],
                "additionalProperties": false,
            }))
        };
        let calls = tools.iter().map(call).collect::<Result<Vec<_>, Error>>()?;
        let one = if calls.len() == 1 { calls[0].clone() } else { json!({"anyOf": calls}) };
        let (open, close) = format.around();
        let quoted = |text: &str| if text.is_empty() { String::new() } else { Value::from(text).to_string() };
        let whole = match format {
            ToolFormat::Tagged if several => {
                format!("({0} call {1} (\"\\n\" {0} call {1})*)", quoted(open), quoted(close))
            }
            ToolFormat::Listed if several => {
                format!("{} call (\", \" call)* {}", quoted(open), quoted(close))
            }
            _ => format!("{} call {}", quoted(open), quoted(close)),
        };
        self.lark(&format!("start: {whole}\ncall: %json {}\n", schema::one_line(&one)))
    }

    fn grammar(&self, what: &'static str, grammar: TopLevelGrammar) -> Result<Arc<Grammar>, Error> {
        let parser = self.factory.create_parser(grammar).map_err(|e| refused(what, &e))?;
        let mut start = Matcher::new(Ok(parser));
        // What cannot be computed at all shows in the first mask.
        start.compute_mask().map_err(|e| refused(what, &e))?;
        let (end, ends) = (self.end, self.ends.clone());
        Ok(Arc::new(Grammar { start: Mutex::new(start), end, ends }))
    }
}

/// The bytes of a token; those that stand for no text begin with a mark that no text has.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if tokenizer.is_control(id) || tokenizer.is_eog(id) {
        let text = tokenizer.token_text(id).unwrap_or_default();
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
    }
    bytes
}

fn refused(what: &str, error: &dyn fmt::Display) -> Error {
    Error::input(format!("the {what} cannot be honoured: {error}"))
}

/// A compiled grammar.
pub struct Grammar {
    start: Mutex<Matcher>,
    end: u32,
    ends: Arc<[u32]>,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl ConstraintFactory for Grammar {
    fn start(&self) -> Result<Box<dyn Constraint>, Error> {
        let matcher = self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Ok(Box::new(State { matcher, end: self.end, ends: self.ends.clone() }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Where an answer is in its grammar.
struct State {
    matcher: Matcher,
    end: u32,
    ends: Arc<[u32]>,
}

impl Constraint for State {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), Error> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| refused("grammar", &e))?;
        mask.clear();
        mask.words_mut().iter_mut().zip(allowed.as_slice()).for_each(|(to, from)| *to = *from);
        if mask.allows(self.end) {
            self.ends.iter().for_each(|&end| mask.allow(end));
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), Error> {
        let token = if self.ends.contains(&token) { self.end } else { token };
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|e| refused("grammar", &e))
    }
}
