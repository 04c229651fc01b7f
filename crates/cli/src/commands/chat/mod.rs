//! `minfer chat`: a conversation, at a terminal or through pipes.
//!
//! At a terminal prompts come from a line editor, and errors leave the chat as it was. Through pipes one line is one
//! prompt, answers alone go to stdout, and the first error ends the program: a script that goes on after a message
//! that was refused would take later answers for those of a conversation that never was.

mod attached;
mod input;
mod path;
mod saved;
mod screen;
mod settings;
mod store;
mod verbs;

use super::counted;
use crate::args::{ChatArgs, ChatSettings, TemplateOptions};
use crate::console::{shown, shown_name};
use crate::exit::{self, Usage};
use crate::inputs;
use crate::sampling;
use anyhow::{Result, anyhow};
use attached::Attached;
use input::{Input, Lines, Piped, Terminal};
use minfer::text::Message;
use minfer::{
    Control, Conversation, Finish, GenerateOptions, Model, Overflow, Sampler, Session, Speaker, Turn,
};
use saved::Saved;
use screen::{Closed, Screen};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs::{Line, Verb};

pub fn run(args: ChatArgs) -> Result<()> {
    let interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut lines: Box<dyn Lines> =
        if interactive { Box::new(Terminal::new()?) } else { Box::new(Piped(io::stdin().lock())) };
    let first = args.prompt.clone();
    let mut chat = Chat::start(args)?;
    chat.interactive = interactive;
    if interactive {
        chat.interrupt = crate::console::note_interrupts();
        chat.greet();
    }
    if let Some(prompt) = first {
        chat.tried(|chat| chat.ask(&prompt))?;
    }
    loop {
        match input::next(&mut *lines)? {
            Input::End => return Ok(()),
            Input::Interrupted => chat.screen.note("Ctrl-D or /exit ends the chat"),
            Input::Block(text) => chat.tried(|chat| chat.ask(&text))?,
            Input::Text(text) => {
                let mut end = false;
                chat.tried(|chat| {
                    end = chat.take(&text)?;
                    Ok(())
                })?;
                if end {
                    return Ok(());
                }
            }
        }
    }
}

/// What a saved chat has that is left out. It may be anything, so only some of it is named.
fn unknown(path: &Path, fields: &[String]) -> String {
    const MOST: usize = 5;
    let named = fields.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = fields.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("warning: {}: unknown fields are left out: {named}{more}", path.display())
}

/// A conversation with a person.
struct Chat {
    model: Model,
    session: Session,
    conversation: Conversation,
    sampler: Sampler,
    settings: ChatSettings,
    overflow: Overflow,
    /// Where the chat template comes from.
    template: TemplateOptions,
    /// Whether a person reads errors, and goes on.
    interactive: bool,
    screen: Screen,
    /// Set by Ctrl-C.
    interrupt: &'static AtomicBool,
    /// Texts of `/read` that wait for the next prompt.
    attached: Attached,
    /// The last answer's statistics.
    last: Option<String>,
}

impl Chat {
    fn start(args: ChatArgs) -> Result<Self> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let mut settings = args.settings;
        let config = sampling::config(&settings.sampling)?;
        settings.sampling.seed = Some(config.seed);
        sampling::idle(&settings.sampling).iter().for_each(|note| crate::console::note!("{note}"));
        let name = inputs::one_model(args.name.as_deref(), &args.model)?;
        let (model, mut session) = inputs::load(name, &args.model)?;
        let sampler = sampling::sampler(config, &model)?;
        let template = inputs::chat_template(&model, &args.template)?;
        let mut conversation = Conversation::new(&mut session, template)?;
        conversation.template_input().extra = args.template.chat_template_kwargs.clone().unwrap_or_default();
        conversation.set_system(args.system.as_deref());
        Ok(Chat {
            model,
            session,
            conversation,
            sampler,
            settings,
            overflow: args.on_overflow.into(),
            template: args.template,
            interactive: false,
            screen: Screen::new(args.quiet),
            interrupt: &NEVER,
            attached: Attached::default(),
            last: None,
        })
    }

    fn greet(&self) {
        let n_ctx = self.session.options().n_ctx;
        self.screen.note(&format!(
            "{} on {}, context {n_ctx}, seed {}; /help lists the commands",
            shown_name(self.model.file().path()),
            self.model.device(),
            self.sampler.config().seed
        ));
    }

    /// At a terminal errors are shown, and the chat goes on; but not without its output.
    fn tried(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match act(self) {
            Err(e) if self.interactive && !e.is::<Closed>() => {
                self.screen.error(&exit::message(&e));
                Ok(())
            }
            done => done,
        }
    }

    /// Does what a line says; `true` if it ends the chat.
    fn take(&mut self, text: &str) -> Result<bool> {
        match verbs::parse(text).map_err(Usage)? {
            Line::Prompt(prompt) if prompt.trim().is_empty() => {}
            Line::Prompt(prompt) => self.ask(prompt)?,
            Line::Command(Verb::Exit, _) => return Ok(true),
            Line::Command(verb, argument) => self.command(verb, argument)?,
        }
        Ok(false)
    }

    fn command(&mut self, verb: Verb, argument: &str) -> Result<()> {
        match verb {
            Verb::Exit => {}
            Verb::Help => self.screen.say(&verbs::help()),
            Verb::Info => self.screen.say(&self.info()?),
            Verb::Clear => self.clear(),
            Verb::Regen => {
                self.answer(|conversation, speaker| conversation.regenerate(speaker))?;
            }
            Verb::System => self.system(argument),
            Verb::Set => self.set(argument)?,
            Verb::Save | Verb::SaveAnyway => {
                self.save(&path::parse(argument).map_err(Usage)?, verb == Verb::SaveAnyway)?;
            }
            Verb::Load => self.load(&path::parse(argument).map_err(Usage)?)?,
            Verb::Read => self.read(&path::parse(argument).map_err(Usage)?)?,
        }
        Ok(())
    }

    fn ask(&mut self, prompt: &str) -> Result<()> {
        let text = self.attached.before(prompt);
        if text.trim().is_empty() {
            return Err(Usage("the message is empty".into()).into());
        }
        match self.answer(|conversation, speaker| conversation.ask(Message::new("user", text), speaker)) {
            Ok(true) => self.attached = Attached::default(),
            Ok(false) => {}
            Err(e) if self.interactive && !e.is::<Closed>() => {
                self.screen.error(&exit::message(&e));
                self.screen.note("the message is taken back; the conversation is as before");
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Shows an answer; `false` if it was stopped before it began.
    fn answer(
        &mut self,
        act: impl FnOnce(&mut Conversation, &mut Speaker<'_, '_>) -> Result<Turn, minfer::Error>,
    ) -> Result<bool> {
        self.interrupt.store(false, Ordering::Relaxed);
        // Written answers that nobody can read stop the model, as Ctrl-C does.
        let interrupt = self.interrupt;
        let options = GenerateOptions {
            max_tokens: usize::try_from(self.settings.limits.max_tokens).ok(),
            stop: self.settings.limits.stop.clone(),
            ..GenerateOptions::default()
        };
        let screen = &mut self.screen;
        let turn = act(
            &mut self.conversation,
            &mut Speaker {
                session: &mut self.session,
                sampler: &mut self.sampler,
                options: &options,
                overflow: self.overflow,
                control: Control { cancel: Some(interrupt), ..Control::default() },
                on_text: &mut |said| {
                    if !screen.said(said) {
                        interrupt.store(true, Ordering::Relaxed);
                    }
                },
            },
        );
        self.screen.end_answer()?;
        let turn = turn.map_err(|e| inputs::rendering(e.into(), &self.template))?;
        self.report(&turn)?;
        Ok(turn.answer.finish != Finish::Cancelled || !turn.answer.text.is_empty())
    }

    /// What must be said about an answer, and what it cost.
    fn report(&mut self, turn: &Turn) -> Result<()> {
        let n_ctx = self.session.options().n_ctx;
        let used = self.session.sequence_len(self.conversation.sequence())?;
        if turn.dropped > 0 {
            let dropped = counted(turn.dropped, "oldest message");
            self.screen.say(&format!("the context of {n_ctx} is full: dropped the {dropped}"));
        }
        match turn.answer.finish {
            Finish::ContextFull => {
                self.screen.say(&format!("the answer is cut short: the context of {n_ctx} is full"));
            }
            // What it cost is not known: the prompt was not computed to its end.
            Finish::Cancelled if turn.answer.text.is_empty() => {
                self.screen.say("stopped before an answer; the conversation is as before");
                return Ok(());
            }
            Finish::Cancelled => self.screen.say("stopped; what was said is part of the conversation"),
            _ => {}
        }
        let statistics = screen::statistics(turn, used, n_ctx);
        self.screen.note(&statistics);
        self.last = Some(statistics);
        Ok(())
    }

    fn clear(&mut self) {
        self.conversation.clear();
        self.last = None;
        self.screen.note("the conversation is empty");
        self.drop_attached();
    }

    /// What waits was meant for the conversation that goes.
    fn drop_attached(&mut self) {
        if !self.attached.is_empty() {
            self.screen.say(&format!("no longer before the next prompt: {}", self.attached));
            self.attached = Attached::default();
        }
    }

    fn system(&mut self, text: &str) {
        match text {
            "" => self.screen.say(self.conversation.system().unwrap_or("there is no system message")),
            "\"\"" => {
                self.conversation.set_system(None);
                self.screen.note("there is no system message now");
            }
            text => {
                self.conversation.set_system(Some(text));
                self.screen.note(&format!("the system message is now: {text}"));
            }
        }
    }

    fn set(&mut self, argument: &str) -> Result<()> {
        let (key, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
        match (key, value.trim_start()) {
            ("", _) => self.screen.say(&settings::list(&self.settings)),
            (_, "") => return Err(Usage(format!("/set {key} needs a value; /set lists the settings")).into()),
            (key, value) => {
                let mut next = self.settings.clone();
                settings::change(&mut next, key, value).map_err(Usage)?;
                self.use_settings(next, key == "seed")?;
                self.screen.note(&settings::shown(&self.settings, key));
                let idle = sampling::idle(&self.settings.sampling);
                idle.iter().filter(|note| note.starts_with(key)).for_each(|note| self.screen.note(note));
            }
        }
        Ok(())
    }

    /// Takes new settings; the draws begin anew if they changed anything about them, or `anew` asks for it.
    fn use_settings(&mut self, mut settings: ChatSettings, anew: bool) -> Result<()> {
        let config = sampling::config(&settings.sampling)?;
        settings.sampling.seed = Some(config.seed);
        if anew || config != *self.sampler.config() {
            self.sampler = sampling::sampler(config, &self.model)?;
        }
        self.settings = settings;
        Ok(())
    }

    fn save(&mut self, path: &Path, anyway: bool) -> Result<()> {
        let template = self.conversation.template_input().extra.clone();
        let settings = settings::values(&self.settings);
        let entries = self.conversation.entries();
        Saved::new(self.model_name(), template, settings, entries).write(path, anyway)?;
        self.screen.note(&format!("{} saved in {}", counted(entries.len(), "message"), path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let saved = Saved::read(path)?;
        let named = |e: anyhow::Error| e.context(path.display().to_string());
        let entries = saved.entries().map_err(named)?;
        let mut settings = self.settings.clone();
        settings::change_all(&mut settings, &saved.settings).map_err(|e| named(anyhow!("settings: {e}")))?;
        let before = self.settings.clone();
        self.use_settings(settings, true).map_err(|e| named(anyhow!("settings: {e:#}")))?;
        // Nothing fails from here on: what is loaded takes the place of all or of nothing.
        self.conversation.template_input().extra = saved.template;
        let n = entries.len();
        self.conversation.set_entries(entries);
        self.last = None;
        if !saved.unknown.is_empty() {
            self.screen.say(&unknown(path, &saved.unknown));
        }
        if saved.model != self.model_name() {
            self.screen.say(&format!("the conversation was held with {}", saved.model));
        }
        self.screen.note(&format!("{} from {}", counted(n, "message"), path.display()));
        let changed = settings::differences(&before, &self.settings);
        if !changed.is_empty() {
            self.screen.note(&format!(
                "settings of the file replace those of the command line and of /set: {}",
                changed.join(", ")
            ));
        }
        if self.conversation.unanswered() {
            self.screen.note("the last one has no answer; /regen gives it one");
        }
        self.drop_attached();
        Ok(())
    }

    fn read(&mut self, path: &Path) -> Result<()> {
        inputs::check_regular(path)?;
        let text = inputs::read_text(path)?;
        self.screen.note(&format!(
            "{} ({}) stands before the next prompt",
            path.display(),
            counted(text.len(), "byte")
        ));
        self.attached.push(path, text);
        Ok(())
    }

    fn info(&self) -> Result<String> {
        // What the cache holds of a conversation that is gone is no part of this one.
        let used = match self.last {
            Some(_) => self.session.sequence_len(self.conversation.sequence())?,
            None => 0,
        };
        let messages = counted(self.conversation.entries().len(), "message");
        let options = self.session.options();
        let rows = [
            ("model", shown(self.model.file().path())),
            ("device", self.model.device().to_owned()),
            ("context", format!("{used} of {} tokens, {messages}", options.n_ctx)),
            ("KV type", options.kv_types.to_string()),
            ("attached", self.attached.to_string()),
            ("last answer", self.last.clone().unwrap_or_else(|| "none".to_owned())),
        ];
        Ok(rows.map(|(name, value)| format!("{name:12} {value}")).join("\n"))
    }

    fn model_name(&self) -> String {
        self.model.file().path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}
