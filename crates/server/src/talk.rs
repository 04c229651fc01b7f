//! A request on its way through an engine: events become what was said, thoughts and calls of tools apart from text.

use crate::config::Loaded;
use crate::error::ApiError;
use crate::record::{Busy, Record};
use minfer::Finish;
use minfer::engine::{Event, Request, Ticket, TokenLogProb, Usage};
use minfer::text::{ReasoningSplitter, Thought, ToolFormat, ToolParser, ToolPiece};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Events that a client may be behind; one that does not read is cancelled.
const BEHIND: usize = 16 << 10;

/// What to ask an engine, and how to read what it says.
pub struct Ask {
    /// The request.
    pub request: Request,
    /// Keeps thoughts apart.
    pub splitter: Option<ReasoningSplitter>,
    /// Keeps calls apart.
    pub tools: Option<ToolFormat>,
    /// The latest end.
    pub timeout: Duration,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it.
    Stop,
    /// A stop string of the request.
    StopString(String),
    /// No more tokens were wanted, or the context is full.
    Length,
    /// It called tools.
    Calls,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Names it in the conversation.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON.
    pub arguments: String,
}

/// What was said.
#[derive(Clone, Debug)]
pub enum Said {
    /// It left the queue.
    Started,
    /// The prompt was read.
    PromptRead(Vec<TokenLogProb>),
    /// Text of an answer; it may be empty where there are log-probabilities.
    Text(usize, String, Vec<TokenLogProb>),
    /// A thought.
    Thought(usize, String),
    /// A whole call, the n-th of its answer.
    Call(usize, usize, Call),
    /// An answer ended.
    Finished(usize, Reason),
    /// All ended.
    Done(Usage),
    /// It failed.
    Failed(ApiError),
}

/// Takes one answer apart.
struct Speaker {
    splitter: Option<ReasoningSplitter>,
    tools: Option<ToolParser>,
    calls: usize,
}

impl Speaker {
    fn say(&mut self, answer: usize, thoughts: Vec<Thought>, said: &mut VecDeque<Said>) {
        for thought in thoughts {
            match thought {
                Thought::Reasoning(text) => said.push_back(Said::Thought(answer, text)),
                Thought::Answer(text) => {
                    let pieces = match &mut self.tools {
                        Some(tools) => tools.push(&text),
                        None => vec![ToolPiece::Text(text)],
                    };
                    self.pieces(answer, pieces, said);
                }
            }
        }
    }

    fn pieces(&mut self, answer: usize, pieces: Vec<ToolPiece>, said: &mut VecDeque<Said>) {
        for piece in pieces {
            match piece {
                ToolPiece::Text(text) => said.push_back(Said::Text(answer, text, Vec::new())),
                ToolPiece::Call { name, arguments } => {
                    let id = format!("call_{}", crate::record::random_name());
                    let call = Call { id, name, arguments: Value::Object(arguments).to_string() };
                    said.push_back(Said::Call(answer, self.calls, call));
                    self.calls += 1;
                }
            }
        }
    }

    fn push(&mut self, answer: usize, text: &str, said: &mut VecDeque<Said>) {
        if text.is_empty() {
            return;
        }
        let thoughts = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => vec![Thought::Answer(text.to_string())],
        };
        self.say(answer, thoughts, said);
    }

    fn end(&mut self, answer: usize, said: &mut VecDeque<Said>) {
        let rest = self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default();
        self.say(answer, rest, said);
        let rest = self.tools.as_mut().map(ToolParser::finish).unwrap_or_default();
        self.pieces(answer, rest, said);
    }
}

/// A request under way. Dropping it cancels the request.
pub struct Talk {
    /// The model, which stays as long as the request runs.
    _loaded: Arc<Loaded>,
    _ticket: Ticket,
    events: mpsc::Receiver<Event>,
    speakers: Vec<Speaker>,
    said: VecDeque<Said>,
    deadline: Instant,
    over: bool,
    record: Arc<Record>,
    _busy: Busy,
}

impl Talk {
    /// Hands a request to the model's engine.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn start(loaded: Arc<Loaded>, ask: Ask, record: Arc<Record>, busy: Busy) -> Result<Talk, ApiError> {
        let (sender, events) = mpsc::channel(BEHIND);
        let Ask { request, splitter, tools, timeout } = ask;
        let speaker = || Speaker { splitter: splitter.clone(), tools: tools.map(ToolParser::new), calls: 0 };
        let speakers = (0..request.n).map(|_| speaker()).collect();
        let ticket = loaded.engine.submit(request, Box::new(move |event| sender.try_send(event).is_ok()))?;
        let deadline = Instant::now() + timeout;
        let said = VecDeque::new();
        Ok(Talk {
            _loaded: loaded,
            _ticket: ticket,
            events,
            speakers,
            said,
            deadline,
            over: false,
            record,
            _busy: busy,
        })
    }

    /// What is said next; `None` after the end.
    pub async fn next(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Some(said);
            }
            if self.over {
                return None;
            }
            match timeout_at(self.deadline, self.events.recv()).await {
                Ok(Some(event)) => self.hear(event),
                Ok(None) => self.fail(ApiError::engine("the engine has stopped")),
                Err(_) => {
                    let error = ApiError::unavailable("the request took too long", Duration::from_secs(1));
                    self.fail(error);
                }
            }
        }
    }

    /// Waits until the request leaves the queue or fails, but not longer than this.
    ///
    /// # Errors
    /// It failed before anything was said.
    pub async fn begun(&mut self, patience: Duration) -> Result<(), ApiError> {
        let first = tokio::time::timeout(patience, self.next()).await;
        match first {
            Ok(Some(Said::Failed(error))) => Err(error),
            Ok(Some(said)) => {
                self.said.push_front(said);
                Ok(())
            }
            Ok(None) | Err(_) => Ok(()),
        }
    }

    fn fail(&mut self, error: ApiError) {
        self.over = true;
        self.record.fail(&error);
        self.said.push_back(Said::Failed(error));
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Started { cached_tokens, queued } => {
                self.record.start(cached_tokens, queued);
                self.said.push_back(Said::Started);
            }
            Event::PromptRead { logprobs } => self.said.push_back(Said::PromptRead(logprobs)),
            Event::Token { answer, text, logprob, .. } => {
                self.record.token();
                self.speakers[answer].push(answer, &text, &mut self.said);
                if let Some(logprob) = logprob {
                    self.add_logprob(answer, logprob);
                }
            }
            Event::Finished { answer, text, finish, .. } => {
                let speaker = &mut self.speakers[answer];
                speaker.push(answer, &text, &mut self.said);
                speaker.end(answer, &mut self.said);
                let reason = match finish {
                    Finish::EndToken(_) | Finish::StopString(_) if speaker.calls > 0 => Reason::Calls,
                    Finish::EndToken(_) => Reason::Stop,
                    Finish::StopString(stop) => Reason::StopString(stop),
                    Finish::MaxTokens | Finish::ContextFull | Finish::Cancelled => Reason::Length,
                };
                self.record.finish(&reason);
                self.said.push_back(Said::Finished(answer, reason));
            }
            Event::Done(usage) => {
                self.over = true;
                self.record.done(usage);
                self.said.push_back(Said::Done(usage));
            }
            Event::Failed(failure) => self.fail(failure.into()),
        }
    }

    /// To the text that came with its token, or by itself.
    fn add_logprob(&mut self, answer: usize, logprob: TokenLogProb) {
        match self.said.back_mut() {
            Some(Said::Text(of, _, list)) if *of == answer => list.push(logprob),
            _ => self.said.push_back(Said::Text(answer, String::new(), vec![logprob])),
        }
    }

    /// All that is said.
    ///
    /// # Errors
    /// The request failed.
    pub async fn whole(mut self) -> Result<Whole, ApiError> {
        let mut whole = Whole { answers: vec![Answer::default(); self.speakers.len()], ..Whole::default() };
        while let Some(said) = self.next().await {
            match said {
                Said::Started => {}
                Said::PromptRead(logprobs) => whole.prompt_logprobs = logprobs,
                Said::Text(i, text, logprobs) => {
                    whole.answers[i].text += &text;
                    whole.answers[i].logprobs.extend(logprobs);
                }
                Said::Thought(i, text) => whole.answers[i].thoughts += &text,
                Said::Call(i, _, call) => whole.answers[i].calls.push(call),
                Said::Finished(i, reason) => whole.answers[i].reason = Some(reason),
                Said::Done(usage) => whole.usage = usage,
                Said::Failed(error) => return Err(error),
            }
        }
        Ok(whole)
    }
}

/// All of a request's answers.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    /// The answers.
    pub answers: Vec<Answer>,
    /// Of the prompt's tokens but the first.
    pub prompt_logprobs: Vec<TokenLogProb>,
    /// Tokens and times.
    pub usage: Usage,
}

/// One of them.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its thoughts.
    pub thoughts: String,
    /// Its calls.
    pub calls: Vec<Call>,
    /// If they were wanted.
    pub logprobs: Vec<TokenLogProb>,
    /// Why it ended.
    pub reason: Option<Reason>,
}
