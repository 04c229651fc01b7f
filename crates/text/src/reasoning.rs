//! Models that think before they answer: the tags around their thoughts, and a stream split at these tags.
//!
//! No file says which tags its model uses, but its chat template does: it cuts thoughts out of earlier answers.

use std::mem;

use crate::Rendered;

/// Pairs of tags; a template that has the closing one is for a model that thinks between the two.
const BLOCKS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("\u{25c1}think\u{25b7}", "\u{25c1}/think\u{25b7}"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<thinking>", "</thinking>"),
];

/// The marks around thoughts that may be single tokens.
pub(crate) fn marks() -> impl Iterator<Item = &'static str> {
    BLOCKS.iter().flat_map(|(open, close)| [*open, *close])
}

/// Marks between channels, and whether what follows is a thought; `None` if it is nothing by itself.
const CHANNELS: &[(&str, Option<bool>)] = &[
    ("<|channel|>analysis<|message|>", Some(true)),
    ("<|channel|>commentary<|message|>", Some(false)),
    ("<|channel|>final<|message|>", Some(false)),
    ("<|start|>assistant", None),
    ("<|end|>", None),
    ("<|return|>", None),
];

/// How a model marks its thoughts.
///
/// The marks may be control tokens: an answer must be turned into text with these shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    open: &'static str,
    close: &'static str,
    channels: bool,
}

impl Reasoning {
    /// What the model of a template uses; `None` if nothing in the template is about thoughts.
    pub fn of_template(source: &str) -> Option<Self> {
        if source.contains("<|channel|>analysis") {
            return Some(Reasoning {
                open: "<|channel|>analysis<|message|>",
                close: "<|channel|>final<|message|>",
                channels: true,
            });
        }
        let found = BLOCKS.iter().find(|(_, close)| source.contains(close));
        found.map(|(open, close)| Reasoning { open, close, channels: false })
    }

    /// The mark before thoughts.
    pub fn open(&self) -> &'static str {
        self.open
    }

    /// The mark between thoughts and the answer.
    pub fn close(&self) -> &'static str {
        self.close
    }

    /// Whether a prompt ends with the opening mark, so that the model's first words are thoughts.
    pub fn opened_by(&self, prompt: &Rendered) -> bool {
        prompt.text().trim_end().ends_with(self.open)
    }

    /// A splitter for the answer to a prompt.
    pub fn splitter(&self, prompt: &Rendered) -> ReasoningSplitter {
        ReasoningSplitter::new(*self, self.opened_by(prompt))
    }

    /// The marks that count in a state: text, and what follows.
    fn marks(&self, state: State) -> impl Iterator<Item = (&'static str, Option<bool>)> {
        let block = match state {
            _ if self.channels => None,
            State::Start => Some((self.open, Some(true))),
            State::Thought => Some((self.close, Some(false))),
            State::Answer => None,
        };
        let channels = if self.channels { CHANNELS } else { &[] };
        block.into_iter().chain(channels.iter().copied())
    }
}

/// A stretch of what a model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thought {
    /// Said to itself.
    Reasoning(String),
    /// Said to the user.
    Answer(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come, in which thoughts may still begin.
    Start,
    /// In thoughts.
    Thought,
    /// In the answer. Where thoughts are one block, no more follow, and a tag in the answer is text.
    Answer,
}

/// Splits a stream of text into thoughts and answer, without the marks and the line breaks next to them.
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    reasoning: Reasoning,
    state: State,
    /// What can't be said yet: it may become a mark, or be followed by one.
    held: String,
    /// Only marks and line breaks have come since the last change.
    fresh: bool,
}

impl ReasoningSplitter {
    /// A splitter at the start of an answer; `opened` if the prompt ended with the opening mark.
    pub fn new(reasoning: Reasoning, opened: bool) -> Self {
        let state = if opened { State::Thought } else { State::Start };
        ReasoningSplitter { reasoning, state, held: String::new(), fresh: true }
    }

    /// What is certain after some more text.
    pub fn push(&mut self, text: &str) -> Vec<Thought> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while let Some((at, mark, next)) = self.next_mark() {
            let before = self.held[..at].to_owned();
            self.held.drain(..at + mark.len());
            // Before a block of thoughts is only white space.
            if self.state != State::Start || self.reasoning.channels {
                self.say(before.trim_end_matches('\n'), &mut out);
            }
            self.state = match next {
                Some(true) => State::Thought,
                Some(false) => State::Answer,
                None => self.state,
            };
            self.fresh = true;
        }
        let certain = self.held.len() - self.uncertain();
        let text: String = self.held.drain(..certain).collect();
        self.say(&text, &mut out);
        out
    }

    /// The rest, when the answer has ended.
    pub fn finish(&mut self) -> Vec<Thought> {
        let mut out = Vec::new();
        let rest = mem::take(&mut self.held);
        self.say(&rest, &mut out);
        out
    }

    /// The first mark in what is held: where, which, and what follows.
    fn next_mark(&self) -> Option<(usize, &'static str, Option<bool>)> {
        let found = self.reasoning.marks(self.state).filter_map(|(mark, next)| {
            let at = self.held.find(mark)?;
            // Thoughts are a block at the start, or no thoughts.
            let counts = self.reasoning.channels
                || self.state != State::Start
                || self.held[..at].chars().all(char::is_whitespace);
            counts.then_some((at, mark, next))
        });
        found.min_by_key(|(at, _, _)| *at)
    }

    /// How much of the end of what is held is not certain: it could be the beginning of a mark, or line breaks before
    /// one.
    fn uncertain(&self) -> usize {
        if self.state == State::Start && !self.reasoning.channels {
            let words = self.held.trim_start();
            let may_open = self.reasoning.open.starts_with(words);
            return if may_open { self.held.len() } else { 0 };
        }
        let partial = |mark: &str| {
            let starts = self.held.char_indices().map(|(at, _)| &self.held[at..]);
            starts.map(str::len).find(|len| mark.starts_with(&self.held[self.held.len() - len..]))
        };
        let partial =
            self.reasoning.marks(self.state).filter_map(|(mark, _)| partial(mark)).max().unwrap_or(0);
        let certain = &self.held[..self.held.len() - partial];
        match self.reasoning.marks(self.state).next() {
            Some(_) => self.held.len() - certain.trim_end_matches('\n').len(),
            None => 0,
        }
    }

    fn say(&mut self, text: &str, out: &mut Vec<Thought>) {
        let text =
            if self.fresh && self.state != State::Start { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        let same = match (self.state, out.last_mut()) {
            (State::Thought, Some(Thought::Reasoning(last))) => Some(last),
            (State::Start | State::Answer, Some(Thought::Answer(last))) => Some(last),
            _ => None,
        };
        match same {
            Some(last) => last.push_str(text),
            None if self.state == State::Thought => out.push(Thought::Reasoning(text.to_owned())),
            None => out.push(Thought::Answer(text.to_owned())),
        }
        if self.state == State::Start {
            self.state = State::Answer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, Message, RenderInput};

    /// Thoughts and answer of a text that comes in pieces of `size` characters.
    fn split(reasoning: Reasoning, opened: bool, text: &str, size: usize) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(reasoning, opened);
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(size).map(|chunk| chunk.iter().collect::<String>());
        let mut thoughts: Vec<Thought> = pieces.flat_map(|piece| splitter.push(&piece)).collect();
        thoughts.extend(splitter.finish());
        let mut both = (String::new(), String::new());
        for thought in thoughts {
            match thought {
                Thought::Reasoning(text) => both.0 += &text,
                Thought::Answer(text) => both.1 += &text,
            }
        }
        both
    }

    fn check(source: &str, opened: bool, cases: &[(&str, &str, &str)]) {
        let reasoning = Reasoning::of_template(source).unwrap();
        for (text, thoughts, answer) in cases {
            for size in [1, 2, 3, 7, 1000] {
                let found = split(reasoning, opened, text, size);
                assert_eq!(found, ((*thoughts).to_owned(), (*answer).to_owned()), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn blocks_are_split() {
        let cases = [
            ("<think>\nhm\n\nso\n</think>\n\nYes.\n", "hm\n\nso", "Yes.\n"),
            ("\n <think></think>Yes", "", "Yes"),
            ("<thi", "", "<thi"),
            ("<thing> is <think>x</think>", "", "<thing> is <think>x</think>"),
            ("<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
            ("<think>never </thin ends\n", "never </thin ends\n", ""),
            (" plain\n", "", " plain\n"),
            ("", "", ""),
            ("<think>\u{e4}\u{1f642}</think>\u{e4}", "\u{e4}\u{1f642}", "\u{e4}"),
        ];
        check("{{ x.split('</think>') }}", false, &cases);
        check("{{ x.split('[/THINK]') }}", false, &[("[THINK]a[/THINK]b", "a", "b")]);
    }

    #[test]
    fn the_prompt_may_open_the_block() {
        let cases = [("hm\n</think>\n\nYes", "hm", "Yes"), ("\nhm", "hm", ""), ("</think>x", "", "x")];
        check("</think>", true, &cases);
    }

    #[test]
    fn channels_are_split() {
        let cases = [
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
                "hm",
                "Yes",
            ),
            // As it looks where control tokens are not shown.
            ("<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>Yes", "hm", "Yes"),
            ("<|channel|>final<|message|>Yes <|x", "", "Yes <|x"),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
                "ab",
                "",
            ),
            ("plain", "", "plain"),
        ];
        check("<|channel|>analysis<|message|>", false, &cases);
    }

    #[test]
    fn pieces_come_as_soon_as_they_are_certain() {
        let mut splitter = ReasoningSplitter::new(Reasoning::of_template("</think>").unwrap(), false);
        let answer = |text: &str| vec![Thought::Answer(text.to_owned())];
        let thought = |text: &str| vec![Thought::Reasoning(text.to_owned())];
        assert_eq!(splitter.push("<think>"), []);
        assert_eq!(splitter.push("\nhm\n"), thought("hm"));
        assert_eq!(splitter.push("so </"), thought("\nso "));
        assert_eq!(splitter.push("b>"), thought("</b>"));
        assert_eq!(splitter.push("</think>\n"), []);
        assert_eq!(splitter.push("Yes\n"), answer("Yes\n"));
        assert_eq!(splitter.push("<think>"), answer("<think>"));
    }

    #[test]
    fn templates_tell_their_tags() {
        let source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{{ tail }}";
        let template = ChatTemplate::new(source).unwrap();
        let reasoning = template.reasoning().unwrap();
        assert_eq!((reasoning.open(), reasoning.close()), ("<think>", "</think>"));
        let tails = [("<think>\n", true), ("<think>", true), ("<think>\n\n</think>\n\n", false), ("", false)];
        for (tail, opened) in tails {
            let mut input =
                RenderInput { messages: vec![Message::new("user", "<think>")], ..Default::default() };
            input.extra.insert("tail".to_owned(), format!("A:{tail}").into());
            assert_eq!(reasoning.opened_by(&template.render(&input).unwrap()), opened, "{tail:?}");
        }
        assert_eq!(ChatTemplate::new("{{ messages }}").unwrap().reasoning(), None);
    }
}
