//! Conversations: each turn computes only what is new, and what is in the cache is what was said.

mod common;

use minfer::text::{ChatTemplate, EncodeOptions, Message, Thought};
use minfer::{
    Answer, Control, Conversation, Entry, ErrorKind, Finish, GenerateOptions, Model, Overflow, Sampler,
    SamplerConfig, Session, SessionOptions, Speaker, Turn, generate,
};
use minfer_testkit::tiny::{TinySpec, vocab};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// What earlier answers become in some templates: here, nothing of them is left.
const FORGETFUL: &str = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n\
{%- if m.role == 'assistant' and not loop.last %}(left out){% else %}{{ m.content }}{% endif -%}\
<|im_end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

struct Talk {
    session: Session,
    sampler: Sampler,
    options: GenerateOptions,
    overflow: Overflow,
    conversation: Conversation,
}

fn model() -> (common::OnDisk, Model) {
    let file = common::on_disk(&TinySpec::llama().with_vocab().to_bytes().unwrap());
    let model = common::load(&file, 2);
    (file, model)
}

impl Talk {
    fn new(model: &Model, template: &str, n_ctx: usize, config: SamplerConfig) -> Talk {
        let options = SessionOptions { n_ctx, n_batch: 16, ..Default::default() };
        let mut session = Session::new(model, options).unwrap();
        let template = ChatTemplate::for_tokenizer(template, model.tokenizer().unwrap()).unwrap();
        let conversation = Conversation::new(&mut session, template).unwrap();
        let options = GenerateOptions { max_tokens: Some(12), ..Default::default() };
        let sampler = Sampler::new(config).unwrap();
        Talk { session, sampler, options, overflow: Overflow::Stop, conversation }
    }

    fn with<T>(
        &mut self,
        control: Control<'_>,
        on_text: &mut dyn FnMut(&Thought),
        act: impl FnOnce(&mut Conversation, &mut Speaker<'_, '_>) -> T,
    ) -> T {
        let mut speaker = Speaker {
            session: &mut self.session,
            sampler: &mut self.sampler,
            options: &self.options,
            overflow: self.overflow,
            control,
            on_text,
        };
        act(&mut self.conversation, &mut speaker)
    }

    fn try_ask(&mut self, text: &str) -> Result<Turn, minfer::Error> {
        self.with(Control::default(), &mut |_| {}, |c, s| c.ask(Message::new("user", text), s))
    }

    fn ask(&mut self, text: &str) -> Turn {
        self.try_ask(text).unwrap()
    }

    fn again(&mut self) -> Turn {
        self.with(Control::default(), &mut |_| {}, |c, s| c.regenerate(s)).unwrap()
    }

    fn cached(&self) -> usize {
        self.session.sequence_len(self.conversation.sequence()).unwrap()
    }

    fn contents(&self) -> Vec<String> {
        let content = |e: &Entry| e.message.fields["content"].as_str().unwrap().to_owned();
        self.conversation.entries().iter().map(content).collect()
    }
}

fn greedy() -> SamplerConfig {
    SamplerConfig::greedy()
}

/// What a model that was told these ids says.
fn fresh(model: &Model, ids: &[u32]) -> Answer {
    let mut session = Session::new(model, SessionOptions { n_ctx: 1024, ..Default::default() }).unwrap();
    let seq = session.new_sequence().unwrap();
    let mut sampler = Sampler::new(greedy()).unwrap();
    let options = GenerateOptions { max_tokens: Some(12), ..Default::default() };
    generate(&mut session, seq, ids, &mut sampler, &options, &Control::default(), &mut |_| {}).unwrap()
}

#[test]
fn each_turn_prefills_only_its_own_tokens() {
    let (_file, model) = model();
    let tokenizer = model.tokenizer().unwrap();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions { add_bos: true, parse_special: true });
    let first = talk.ask("hello there");
    assert_eq!(first.reused, 0);
    assert_eq!(
        first.prefilled,
        encode("<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n").len()
    );
    for text in ["how are you", "and then", "12"] {
        let cached = talk.cached();
        let last = *talk.conversation.ids().last().unwrap();
        let turn = talk.ask(text);
        // The last token of an answer is picked but not computed; if it ended the answer, the template repeats it.
        let open = if tokenizer.is_eog(last) { "" } else { "<|im_end|>" };
        let own = format!("{open}\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!((turn.reused, turn.rewritten), (cached, 0));
        assert_eq!(turn.prefilled, 1 + encode(&own).len(), "{:?}", turn.answer.finish);
        assert_eq!(turn.answer.prompt_tokens, turn.prefilled);
    }
}

#[test]
fn the_cache_holds_what_the_conversation_says() {
    let (_file, model) = model();
    let tokenizer = model.tokenizer().unwrap();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    talk.conversation.set_system(Some("be brief"));
    for text in ["hello", "why is that so", "né <|im_end|> 漢"] {
        let turn = talk.ask(text);
        let ids = talk.conversation.ids();
        let prompt = &ids[..ids.len() - turn.answer.tokens.len()];
        assert_eq!(fresh(&model, prompt).tokens, turn.answer.tokens);
        let written = ids.iter().filter(|id| **id == vocab::IM_START).count();
        assert_eq!(written, talk.conversation.entries().len(), "a message spelt a control token");
    }
    let shown: Vec<u8> = talk.conversation.ids().iter().flat_map(|id| tokenizer.token_bytes(*id)).collect();
    let shown = String::from_utf8_lossy(&shown).into_owned();
    for text in talk.contents() {
        assert!(shown.contains(&text), "{text:?} is not in {shown:?}");
    }
}

#[test]
fn tokens_stay_as_the_model_wrote_them() {
    let (_file, model) = model();
    let tokenizer = model.tokenizer().unwrap();
    let mut differ = 0;
    for seed in 0..20 {
        let config = SamplerConfig { temperature: 2.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..greedy() };
        let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, config);
        let first = talk.ask("hello");
        let said = &first.answer.tokens;
        let whole = !said.iter().any(|id| tokenizer.is_control(*id));
        let other = tokenizer.encode(&first.answer.text, EncodeOptions::default()) != *said;
        talk.ask("more");
        if whole && other {
            differ += 1;
            assert!(talk.conversation.ids().windows(said.len()).any(|w| w == said), "seed {seed}");
        }
    }
    assert!(differ > 0, "no answer that would be tokenised otherwise");
}

#[test]
fn a_template_that_rewrites_history_cuts_the_cache() {
    let (_file, model) = model();
    let mut talk = Talk::new(&model, FORGETFUL, 1024, greedy());
    talk.ask("hello");
    let cached = talk.cached();
    let second = talk.ask("more");
    assert!(second.rewritten > 0 && second.reused + second.rewritten == cached);
    // As if the whole had been told at once.
    let mut other = Talk::new(&model, FORGETFUL, 1024, greedy());
    let entries = talk.conversation.entries();
    other.conversation.set_entries(entries[..2].to_vec());
    let told = other.ask("more");
    assert_eq!(told.answer.tokens, second.answer.tokens);
    assert_eq!(other.conversation.ids(), talk.conversation.ids());
    assert!(told.prefilled > second.prefilled);
}

#[test]
fn regenerate_computes_one_token_and_replaces_the_answer() {
    let (_file, model) = model();
    let config = SamplerConfig { temperature: 2.0, seed: 3, ..SamplerConfig::default() };
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, config);
    assert_eq!(
        talk.with(Control::default(), &mut |_| {}, |c, s| c.regenerate(s)).unwrap_err().kind(),
        ErrorKind::Input
    );
    let first = talk.ask("hello");
    let second = talk.again();
    assert_eq!((second.prefilled, second.reused), (1, first.prefilled - 1));
    assert_ne!(first.answer.text, second.answer.text);
    assert_eq!(talk.contents(), ["hello", second.answer.text.as_str()]);
    let mut greedy = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    assert_eq!(greedy.ask("hello").answer.tokens, greedy.again().answer.tokens);
}

#[test]
fn regenerate_answers_a_question_that_has_no_answer() {
    let (_file, model) = model();
    let mut asked = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    talk.conversation.set_entries(vec![Message::new("user", "hello").into()]);
    assert!(talk.conversation.unanswered());
    assert_eq!(talk.again().answer.tokens, asked.ask("hello").answer.tokens);
    assert_eq!(talk.contents(), asked.contents());
    for alone in ["system", "assistant"] {
        talk.conversation.set_entries(vec![Message::new(alone, "hello").into()]);
        let error = talk.with(Control::default(), &mut |_| {}, |c, s| c.regenerate(s)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        assert_eq!(talk.contents(), ["hello"]);
    }
}

#[test]
fn a_refused_message_is_taken_back() {
    let (_file, model) = model();
    let template = "{% if messages[-1].content == 'no' %}{{ raise_exception('boo') }}{% endif %}".to_owned()
        + vocab::CHAT_TEMPLATE;
    let mut talk = Talk::new(&model, &template, 1024, greedy());
    talk.ask("hello");
    let before = talk.contents();
    let error = talk.try_ask("no").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Input);
    assert_eq!(error.to_string(), "the chat template refuses this conversation: boo");
    assert!(std::error::Error::source(&error).is_some_and(|s| s.is::<minfer::text::TemplateError>()));
    assert_eq!(talk.contents(), before);
    talk.ask("yes");
}

#[test]
fn a_full_context_stops_with_both_numbers_and_loses_nothing() {
    let (_file, model) = model();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 64, greedy());
    talk.ask("hello");
    let before = talk.contents();
    let error = talk.try_ask(&"on and on ".repeat(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Context);
    let text = error.to_string();
    let needed: usize = text.split_whitespace().filter_map(|w| w.parse().ok()).max().unwrap();
    assert!(text.contains("64") && needed > 64, "{text}");
    assert_eq!(talk.contents(), before);
    talk.ask("hi");
    talk.conversation.clear();
    assert_eq!(talk.ask("hi").dropped, 0);
}

#[test]
fn the_oldest_turns_are_dropped_and_the_system_message_stays() {
    let (_file, model) = model();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 160, greedy());
    talk.overflow = Overflow::DropOldest;
    talk.conversation.set_system(Some("be kind"));
    let mut dropped = 0;
    for turn in 0..12 {
        let turn = talk.ask(&format!("question {turn}"));
        assert!(turn.dropped.is_multiple_of(2));
        dropped += turn.dropped;
        assert!(turn.reused + turn.prefilled + turn.answer.tokens.len() <= 161);
        assert_ne!(turn.answer.finish, Finish::ContextFull);
    }
    assert!(dropped > 4);
    let contents = talk.contents();
    assert_eq!(contents.len(), 1 + 24 - dropped);
    assert_eq!(contents[0], "be kind");
    assert_eq!(contents[1], format!("question {}", dropped / 2));
    // What can't be dropped is an error, and nothing is lost.
    let error = talk.try_ask(&"on and on ".repeat(40)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Context);
    assert_eq!(talk.contents(), contents);
}

#[test]
fn a_stopped_answer_stays_and_is_marked() {
    let (_file, model) = model();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    talk.options.ignore_eos = true;
    let (cancel, seen) = (AtomicBool::new(false), Cell::new(0));
    let control = Control { cancel: Some(&cancel), ..Control::default() };
    let mut stop = |_: &Thought| {
        seen.set(seen.get() + 1);
        cancel.store(seen.get() == 4, Ordering::Relaxed);
    };
    let turn = talk.with(control, &mut stop, |c, s| c.ask(Message::new("user", "hello"), s)).unwrap();
    assert_eq!(turn.answer.finish, Finish::Cancelled);
    assert!(!turn.answer.text.is_empty() && turn.answer.tokens.len() < 12);
    let entries = talk.conversation.entries();
    assert!(entries[1].interrupted && !entries[0].interrupted);
    assert_eq!(talk.contents()[1], turn.answer.text);
    let cached = talk.cached();
    let next = talk.ask("go on");
    assert_eq!(next.answer.finish, Finish::MaxTokens);
    assert!(next.reused >= cached - 2, "{} of {cached}", next.reused);
}

#[test]
fn stopping_before_the_first_token_takes_the_question_back() {
    let (_file, model) = model();
    let mut talk = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    talk.ask("hello");
    let before = talk.contents();
    let cancel = AtomicBool::new(true);
    let control = Control { cancel: Some(&cancel), ..Control::default() };
    let turn = talk.with(control, &mut |_| {}, |c, s| c.ask(Message::new("user", "more"), s)).unwrap();
    assert_eq!(turn.answer.finish, Finish::Cancelled);
    assert_eq!(talk.contents(), before);
    let turn = talk.with(control, &mut |_| {}, |c, s| c.regenerate(s)).unwrap();
    assert_eq!(turn.answer.finish, Finish::Cancelled);
    assert_eq!(talk.contents(), before);
    let asked = talk.ask("more");
    let mut other = Talk::new(&model, vocab::CHAT_TEMPLATE, 1024, greedy());
    other.ask("hello");
    assert_eq!(other.ask("more").answer.tokens, asked.answer.tokens);
}

#[test]
fn thoughts_are_told_apart_and_kept_with_the_answer() {
    const THINKING: &str = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n\
{{ m.content.split('</think>')[-1] }}<|im_end|>\n{%- endfor -%}\
{%- if add_generation_prompt -%}<|im_start|>assistant\n<think>\n{% endif -%}";
    let (_file, model) = model();
    let mut talk = Talk::new(&model, THINKING, 1024, greedy());
    let mut heard = String::new();
    let mut hear = |said: &Thought| match said {
        Thought::Reasoning(text) => heard.push_str(text),
        Thought::Answer(text) => panic!("{text:?} is no thought"),
    };
    let turn =
        talk.with(Control::default(), &mut hear, |c, s| c.ask(Message::new("user", "hello"), s)).unwrap();
    assert_eq!((turn.text.as_str(), turn.thoughts.as_str()), ("", heard.as_str()));
    assert!(!heard.is_empty());
    let message = &talk.conversation.entries()[1].message;
    assert_eq!(
        (&message.fields["content"], &message.fields["reasoning_content"]),
        (&"".into(), &heard.into())
    );
    // The template leaves thoughts out of what follows.
    assert!(talk.ask("more").rewritten > 0);
}
