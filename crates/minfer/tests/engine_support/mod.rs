//! Requests to an engine on a tiny model, and what they heard.
#![allow(dead_code, reason = "each test file uses a part")]

use minfer::engine::{Engine, EngineOptions, Event, Failure, Refusal, Request, Ticket, TokenLogProb, Usage};
use minfer::{Finish, Model, SamplerConfig};
use minfer_testkit::tiny::TinySpec;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A model with a vocabulary.
pub fn model() -> (crate::common::OnDisk, Model) {
    let file = crate::common::on_disk(&TinySpec::llama().with_vocab().to_bytes().unwrap());
    let model = crate::common::load(&file, 2);
    (file, model)
}

/// Small sizes, so that everything gets scarce.
pub fn options() -> EngineOptions {
    EngineOptions { n_ctx: 512, max_running: 8, step_tokens: 64, chunk_tokens: 16, ..Default::default() }
}

pub fn start(model: &Model, options: EngineOptions) -> Engine {
    Engine::start(model, options).unwrap()
}

/// A request for up to `n` tokens, at a temperature and with seed 7; it goes on past end tokens.
pub fn ask(prompt: &[u32], temperature: f32, n: usize) -> Request {
    let sampling = SamplerConfig { temperature, seed: 7, ..SamplerConfig::plain() };
    let base = Request::new(prompt.to_vec(), sampling);
    Request { max_tokens: Some(n), ignore_eos: true, ..base }
}

/// An answer as it was heard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    pub text: String,
    pub ids: Vec<u32>,
    pub finish: Option<Finish>,
    pub logprobs: Vec<TokenLogProb>,
}

/// A request under way.
pub struct Stream {
    pub ticket: Option<Ticket>,
    pub events: Receiver<Event>,
}

/// All of a request.
#[derive(Debug)]
pub struct Whole {
    pub answers: Vec<Heard>,
    pub prompt_logprobs: Vec<TokenLogProb>,
    pub end: Result<Usage, Failure>,
}

pub fn send(engine: &Engine, request: Request) -> Stream {
    try_send(engine, request).unwrap()
}

pub fn try_send(engine: &Engine, request: Request) -> Result<Stream, Refusal> {
    let (sender, events) = channel();
    let ticket = engine.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
    Ok(Stream { ticket: Some(ticket), events })
}

impl Stream {
    /// Everything up to the end.
    pub fn whole(self) -> Whole {
        let (mut answers, mut prompt_logprobs) = (vec![Heard::default(); 16], Vec::new());
        let mut n = 0;
        loop {
            match self.events.recv_timeout(Duration::from_secs(60)).expect("an event within a minute") {
                Event::Started { .. } => {}
                Event::PromptRead { logprobs } => prompt_logprobs = logprobs,
                Event::Token { answer, id, text, logprob } => {
                    let heard: &mut Heard = &mut answers[answer];
                    heard.text += &text;
                    heard.ids.push(id);
                    heard.logprobs.extend(logprob);
                    n = n.max(answer + 1);
                }
                Event::Finished { answer, text, finish, .. } => {
                    answers[answer].text += &text;
                    answers[answer].finish = Some(finish);
                    n = n.max(answer + 1);
                }
                Event::Done(usage) => {
                    answers.truncate(n);
                    return Whole { answers, prompt_logprobs, end: Ok(usage) };
                }
                Event::Failed(failure) => {
                    answers.truncate(n);
                    return Whole { answers, prompt_logprobs, end: Err(failure) };
                }
            }
        }
    }

    /// Waits for an event of a kind.
    pub fn until(&self, wanted: impl Fn(&Event) -> bool) {
        while !wanted(&self.events.recv_timeout(Duration::from_secs(60)).expect("an event within a minute")) {
        }
    }
}

/// The only answer to a request.
pub fn one(engine: &Engine, request: Request) -> Heard {
    let whole = send(engine, request).whole();
    whole.end.unwrap();
    assert_eq!(whole.answers.len(), 1);
    whole.answers.into_iter().next().unwrap()
}

/// Waits until nothing runs.
pub fn settle(engine: &Engine) {
    for _ in 0..6000 {
        if engine.is_idle() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("still busy: {:?}", engine.stats());
}
