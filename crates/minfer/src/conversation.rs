//! A conversation: messages go through the model's chat template, and each turn computes only what is new.
//!
//! The KV cache grows by appending. For every answer the whole conversation is rendered again, compared with what is
//! in the cache, and only the rest is computed. Where a template rewrites what was said (some leave out the reasoning
//! of earlier answers), the cache is cut at the first difference; [`Turn::rewritten`] counts what that cost.
//!
//! Messages are data: no text in them becomes a control token (see [`minfer_text::template`]).

mod history;

use crate::error::{Error, ErrorKind};
use crate::generate::{Answer, Finish, GenerateOptions, generate};
use crate::kv_cache::SeqId;
use crate::model::Model;
use crate::sampler::Sampler;
use crate::session::{Control, Session};
use history::{Fit, History};
use minfer_text::{
    ChatTemplate, LocalTime, Message, Reasoning, ReasoningSplitter, RenderInput, Rendered, TemplateError,
    TemplateErrorKind, Thought, Tokenizer,
};

/// What happens when a conversation outgrows the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// An error with both numbers; the conversation stays as it was.
    #[default]
    Stop,
    /// The oldest turns are dropped, system messages stay. An answer then finds at least an eighth of the context
    /// free (or as much as it may take), and when something is dropped it is enough to free a quarter.
    DropOldest,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Role, content and further fields.
    pub message: Message,
    /// Whether it is an answer that somebody cut short.
    pub interrupted: bool,
}

impl From<Message> for Entry {
    fn from(message: Message) -> Self {
        Entry { message, interrupted: false }
    }
}

/// What it takes to answer.
pub struct Speaker<'a, 'c> {
    /// The session in which the conversation lives, always the same.
    pub session: &'a mut Session,
    /// Picks the tokens.
    pub sampler: &'a mut Sampler,
    /// When an answer ends.
    pub options: &'a GenerateOptions,
    /// What happens when the context is full.
    pub overflow: Overflow,
    /// Stops an answer from elsewhere.
    pub control: Control<'c>,
    /// Gets thoughts and answer as they grow; thoughts only where the template is for a model that has some.
    pub on_text: &'a mut dyn FnMut(&Thought),
}

/// An answer and what it cost.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What the model wrote, thoughts and the marks around them included.
    pub answer: Answer,
    /// What it said to the user: the content of the new message.
    pub text: String,
    /// What it said to itself: the `reasoning_content` of the new message.
    pub thoughts: String,
    /// Tokens that were computed before the first new one.
    pub prefilled: usize,
    /// Tokens that were in the cache and stayed.
    pub reused: usize,
    /// Tokens that were in the cache and had to go, because the rendering has something else in their place.
    pub rewritten: usize,
    /// Messages that were dropped to make room.
    pub dropped: usize,
}

/// Messages, and their tokens in the KV cache of a session.
pub struct Conversation {
    model: Model,
    template: ChatTemplate,
    seq: SeqId,
    entries: Vec<Entry>,
    base: RenderInput,
    history: History,
}

impl Conversation {
    /// An empty conversation in a new sequence of a session.
    ///
    /// # Errors
    /// The model has no tokenizer, or all sequences of the session are in use.
    pub fn new(session: &mut Session, template: ChatTemplate) -> Result<Self, Error> {
        let model = session.model().clone();
        let tokenizer = model.tokenizer()?;
        let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_owned);
        let base = RenderInput {
            add_generation_prompt: true,
            bos_token: text_of(tokenizer.bos()),
            eos_token: text_of(tokenizer.eos()),
            // One time for all turns: else a template that shows it would rewrite the history as time goes by.
            now: Some(LocalTime::now_utc()),
            ..RenderInput::default()
        };
        let seq = session.new_sequence()?;
        Ok(Conversation { template, seq, entries: Vec::new(), base, history: History::default(), model })
    }

    /// The messages, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Puts other messages in the place of all.
    pub fn set_entries(&mut self, entries: Vec<Entry>) {
        self.entries = entries;
    }

    /// Everything that the template gets besides messages: tools, its own variables, the time.
    pub fn template_input(&mut self) -> &mut RenderInput {
        &mut self.base
    }

    /// The system message at the beginning, if there is one.
    pub fn system(&self) -> Option<&str> {
        let first = self.entries.first().filter(|e| e.message.role() == "system")?;
        first.message.fields.get("content")?.as_str()
    }

    /// Sets or removes the system message at the beginning.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.entries.first().is_some_and(|e| e.message.role() == "system") {
            self.entries.remove(0);
        }
        if let Some(text) = text {
            self.entries.insert(0, Message::new("system", text).into());
        }
    }

    /// Forgets all messages but the system message at the beginning.
    pub fn clear(&mut self) {
        self.entries.truncate(self.system_len());
    }

    /// Its sequence in the session.
    pub fn sequence(&self) -> SeqId {
        self.seq
    }

    /// The ids that are in the cache or, as the last one of an answer, about to go there.
    pub fn ids(&self) -> Vec<u32> {
        self.history.ids().collect()
    }

    /// Says something and gets the answer; both are then part of the conversation. An answer that was stopped before
    /// its first character leaves the conversation as it was.
    ///
    /// # Errors
    /// The template refuses the conversation ([`ErrorKind::Input`]) or fails ([`ErrorKind::Model`]), it does not fit the context
    /// ([`ErrorKind::Context`]), or as [`generate`](generate()). The messages are then as before.
    pub fn ask(&mut self, message: Message, speaker: &mut Speaker<'_, '_>) -> Result<Turn, Error> {
        let before = self.entries.clone();
        self.entries.push(message.into());
        self.answer_or_restore(before, speaker)
    }

    /// Answers again what was answered last, or for the first time what still waits for its answer (see
    /// [`unanswered`](Self::unanswered)).
    ///
    /// # Errors
    /// As [`ask`](Self::ask), or there is nothing to answer.
    pub fn regenerate(&mut self, speaker: &mut Speaker<'_, '_>) -> Result<Turn, Error> {
        let before = self.entries.clone();
        self.entries.pop_if(|e| e.message.role() == "assistant");
        if !self.unanswered() {
            self.entries = before;
            return Err(Error::input("there is nothing to answer yet"));
        }
        self.answer_or_restore(before, speaker)
    }

    /// Whether the last message is one that waits for an answer: the user's or a tool's, as in a conversation that
    /// came by [`set_entries`](Self::set_entries).
    pub fn unanswered(&self) -> bool {
        self.entries.last().is_some_and(|e| matches!(e.message.role(), "user" | "tool"))
    }

    fn answer_or_restore(
        &mut self,
        before: Vec<Entry>,
        speaker: &mut Speaker<'_, '_>,
    ) -> Result<Turn, Error> {
        let turn = self.answer(speaker);
        match &turn {
            Ok(turn) if turn.answer.finish != Finish::Cancelled || !turn.answer.text.is_empty() => {
                let mut message = Message::new("assistant", turn.text.as_str());
                if !turn.thoughts.is_empty() {
                    message = message.with("reasoning_content", turn.thoughts.as_str());
                }
                let interrupted = turn.answer.finish == Finish::Cancelled;
                self.entries.push(Entry { message, interrupted });
            }
            _ => self.entries = before,
        }
        turn
    }

    fn answer(&mut self, speaker: &mut Speaker<'_, '_>) -> Result<Turn, Error> {
        let model = self.model.clone();
        let tokenizer = model.tokenizer()?;
        let (Prompt { fit, thinking }, dropped) = self.fitting(tokenizer, speaker)?;
        let cached = speaker.session.sequence_len(self.seq)?;
        // Logits come only with a token that is computed, so the last one is computed again if none is new.
        let reused = cached.min(fit.kept - usize::from(fit.rest.is_empty() && fit.kept > 0));
        speaker.session.truncate(self.seq, reused)?;
        let kept: Vec<u32> = self.history.ids().take(fit.kept).collect();
        let prompt = [&kept[reused..], &fit.rest].concat();
        speaker.sampler.forget();
        kept[..reused].iter().for_each(|&id| speaker.sampler.accept(id));
        let reasoning = self.template.reasoning();
        let marks_are_control = reasoning.is_some_and(|r| marks_are_control(tokenizer, r));
        let options = GenerateOptions {
            show_control: speaker.options.show_control || marks_are_control,
            ..speaker.options.clone()
        };
        let splitter = reasoning.map(|r| ReasoningSplitter::new(r, thinking));
        let mut said =
            Said { splitter, text: String::new(), thoughts: String::new(), on_text: speaker.on_text };
        let answer = generate(
            speaker.session,
            self.seq,
            &prompt,
            speaker.sampler,
            &options,
            &speaker.control,
            &mut |text| said.push(text),
        );
        said.finish();
        let (text, thoughts) = (said.text, said.thoughts);
        // Without an answer the history stays as it was; what the cache lost of it is computed again when needed.
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                speaker.session.truncate(self.seq, reused)?;
                return Err(e);
            }
        };
        if speaker.session.sequence_len(self.seq)? > reused {
            self.history.apply(&fit);
            self.history.write(&answer.tokens);
        }
        let rewritten = cached.saturating_sub(fit.kept);
        Ok(Turn { answer, text, thoughts, prefilled: prompt.len(), reused, rewritten, dropped })
    }

    /// The rendering compared with the history, and how many messages had to go before it fitted the context.
    fn fitting(
        &mut self,
        tokenizer: &Tokenizer,
        speaker: &Speaker<'_, '_>,
    ) -> Result<(Prompt, usize), Error> {
        let limit = speaker.session.options().n_ctx;
        let mut prompt = self.render(tokenizer)?;
        let all = self.entries.len();
        if speaker.overflow == Overflow::DropOldest {
            let answer = speaker.options.max_tokens.unwrap_or(usize::MAX).min(limit / 8);
            if prompt.len() + answer > limit {
                while prompt.len() + limit / 4 > limit && self.drop_oldest_turn() {
                    prompt = self.render(tokenizer)?;
                }
            }
        }
        match prompt.len() {
            n if n > limit => Err(Error::context(n, limit)),
            _ => Ok((prompt, all - self.entries.len())),
        }
    }

    fn render(&self, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
        let messages = self.entries.iter().map(|e| e.message.clone()).collect();
        let input = RenderInput { messages, ..self.base.clone() };
        let rendered = self.template.render(&input).and_then(Rendered::not_empty).map_err(template_error)?;
        let thinking = self.template.reasoning().is_some_and(|r| r.opened_by(&rendered));
        Ok(Prompt { fit: self.history.fit(tokenizer, &rendered.parts), thinking })
    }

    /// Removes the oldest question with all that followed up to the next one, unless it is the last.
    fn drop_oldest_turn(&mut self) -> bool {
        let start = self.system_len();
        let is_user = |e: &Entry| e.message.role() == "user";
        let next = self.entries.iter().skip(start + 1).position(is_user);
        if let Some(next) = next {
            self.entries.drain(start..start + 1 + next);
        }
        next.is_some()
    }

    fn system_len(&self) -> usize {
        self.entries.iter().take_while(|e| e.message.role() == "system").count()
    }
}

/// A rendered conversation.
struct Prompt {
    fit: Fit,
    /// Whether it ends in the middle of thoughts.
    thinking: bool,
}

impl Prompt {
    /// Number of ids.
    fn len(&self) -> usize {
        self.fit.kept + self.fit.rest.len()
    }
}

/// An answer on its way out, told apart from thoughts.
struct Said<'a> {
    splitter: Option<ReasoningSplitter>,
    text: String,
    thoughts: String,
    on_text: &'a mut dyn FnMut(&Thought),
}

impl Said<'_> {
    fn push(&mut self, text: &str) {
        let said = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => vec![Thought::Answer(text.to_owned())],
        };
        self.say(&said);
    }

    fn finish(&mut self) {
        let rest = self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default();
        self.say(&rest);
    }

    fn say(&mut self, said: &[Thought]) {
        for thought in said {
            match thought {
                Thought::Answer(text) => self.text.push_str(text),
                Thought::Reasoning(text) => self.thoughts.push_str(text),
            }
            (self.on_text)(thought);
        }
    }
}

/// Whether the marks around thoughts are made of control tokens, which texts do not show.
fn marks_are_control(tokenizer: &Tokenizer, reasoning: Reasoning) -> bool {
    let marks = [reasoning.open(), reasoning.close()];
    tokenizer.control_texts().any(|control| marks.iter().any(|mark| mark.contains(control)))
}

/// Callers find the [`TemplateError`] as the source, and can say where they have the template from.
fn template_error(error: TemplateError) -> Error {
    let kind = match error.kind() {
        TemplateErrorKind::Raised => ErrorKind::Input,
        _ => ErrorKind::Model,
    };
    Error::caused(kind, error)
}
