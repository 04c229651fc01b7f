//! What a conversation has in the KV cache, in a form that a new rendering can be compared with.
//!
//! Comparing token ids would not do: a text that is tokenised again need not give the ids that the model wrote. So
//! the comparison is one of texts, control tokens apart. The history is a list of [`Span`]s, and a span stays if the
//! rendering has its text at its place:
//!
//! - A control token stays if the rendering has it there.
//! - A text of a prompt was tokenised as a whole, so it stays as a whole. Half of it might be other tokens.
//! - What the model wrote stays token by token, as far as it comes out as the text of the rendering: those are the
//!   tokens that it saw itself write.
//!
//! So without an answer in it, the kept tokens with those of the rest are what tokenising the whole gives.

use minfer_text::{Part, Tokenizer};

/// A piece of a rendered prompt; neighbouring texts are one piece, and none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A control token.
    Control(u32),
    /// Text between control tokens.
    Text(String),
}

/// Consecutive tokens of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Span {
    /// A control token of a prompt.
    Control(u32),
    /// A text of a prompt and its ids.
    Text { text: String, ids: Vec<u32> },
    /// Ids that the model wrote, control tokens included.
    Written(Vec<u32>),
}

impl Span {
    fn ids(&self) -> &[u32] {
        match self {
            Span::Control(id) => std::slice::from_ref(id),
            Span::Text { ids, .. } | Span::Written(ids) => ids,
        }
    }
}

/// A place in a rendered prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    piece: usize,
    byte: usize,
}

impl Place {
    /// Passes a control token, if one stands here.
    fn pass_control(&mut self, pieces: &[Piece], id: u32) -> bool {
        let here = self.byte == 0 && pieces.get(self.piece) == Some(&Piece::Control(id));
        self.piece += usize::from(here);
        here
    }

    /// Passes text, if it stands here.
    fn pass_text(&mut self, pieces: &[Piece], text: &str) -> bool {
        if text.is_empty() {
            return true;
        }
        let Some(Piece::Text(whole)) = pieces.get(self.piece) else { return false };
        if !whole[self.byte..].starts_with(text) {
            return false;
        }
        self.byte += text.len();
        if self.byte == whole.len() {
            *self = Place { piece: self.piece + 1, byte: 0 };
        }
        true
    }
}

/// Where the history and a rendering part.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    /// Spans that stay whole.
    spans: usize,
    /// Ids that stay of the one after.
    ids: usize,
    /// What the rendering has from here on is new.
    at: Place,
}

/// What a rendering adds to the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// Ids that stay.
    pub kept: usize,
    /// Ids of the rest of the rendering.
    pub rest: Vec<u32>,
    spans: usize,
    ids: usize,
    pieces: Vec<Piece>,
}

/// The tokens of a conversation, in the cache or about to go there.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    spans: Vec<Span>,
}

impl History {
    /// The ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.spans.iter().flat_map(|span| span.ids().iter().copied())
    }

    /// Compares with a rendering.
    pub fn fit(&self, tokenizer: &Tokenizer, parts: &[Part]) -> Fit {
        let pieces = pieces(tokenizer, parts);
        let cut = self.cut(tokenizer, &pieces, true);
        let mut fit = self.with_rest(tokenizer, parts, &pieces, cut);
        if cut.at.byte > 0 && !continues(tokenizer, &fit.rest, &pieces, cut.at) {
            // Some tokenizers begin a text with a blank; then a text can't be continued in its middle.
            fit = self.with_rest(tokenizer, parts, &pieces, self.cut(tokenizer, &pieces, false));
        }
        fit
    }

    /// The last place up to which all agree and where the history may be cut.
    fn cut(&self, tokenizer: &Tokenizer, pieces: &[Piece], inside_texts: bool) -> Cut {
        let (mut cut, mut at) = (Cut::default(), Place::default());
        let mut before: &[u32] = &[];
        for (i, span) in self.spans.iter().enumerate() {
            match span {
                Span::Control(id) if at.pass_control(pieces, *id) => {
                    cut = Cut { spans: i + 1, ids: 0, at };
                }
                Span::Text { text, .. } if at.pass_text(pieces, text) => {
                    // Where the rendering goes on with text, what the model wrote may follow, and else nothing.
                    if at.byte == 0 {
                        cut = Cut { spans: i + 1, ids: 0, at };
                    }
                }
                Span::Written(ids) => {
                    let mut out = tokenizer.detokenizer_after(before, false);
                    for (n, id) in ids.iter().enumerate() {
                        let same = match tokenizer.is_control(*id) {
                            true => at.pass_text(pieces, &out.finish()) && at.pass_control(pieces, *id),
                            false => at.pass_text(pieces, &out.push(*id)),
                        };
                        if !same {
                            return cut;
                        }
                        if !out.holds_back() && (at.byte == 0 || inside_texts) {
                            cut = Cut { spans: i, ids: n + 1, at };
                        }
                    }
                    if !at.pass_text(pieces, &out.finish()) {
                        return cut;
                    }
                    if at.byte == 0 || inside_texts {
                        cut = Cut { spans: i + 1, ids: 0, at };
                    }
                }
                _ => return cut,
            }
            if !span.ids().is_empty() {
                before = span.ids();
            }
        }
        cut
    }

    fn with_rest(&self, tokenizer: &Tokenizer, parts: &[Part], pieces: &[Piece], cut: Cut) -> Fit {
        let kept = self.spans.iter().take(cut.spans).map(|s| s.ids().len()).sum::<usize>() + cut.ids;
        let from_start = cut.at == Place::default();
        let rest = match from_start {
            true => tokenizer.encode_parts(parts, true),
            false => encode_from(tokenizer, pieces, cut.at),
        };
        Fit { kept, rest, spans: cut.spans, ids: cut.ids, pieces: pieces_from(pieces, cut.at) }
    }

    /// Makes a rendering the history.
    pub fn apply(&mut self, fit: &Fit) {
        let part = self.spans.get(fit.spans).filter(|_| fit.ids > 0);
        let part = part.map(|span| span.ids()[..fit.ids].to_vec());
        self.spans.truncate(fit.spans);
        self.spans.extend(part.map(Span::Written));
        let mut ids = &fit.rest[..];
        for (i, piece) in fit.pieces.iter().enumerate() {
            match piece {
                Piece::Control(id) => {
                    self.spans.push(Span::Control(*id));
                    ids = ids.get(1..).unwrap_or_default();
                }
                Piece::Text(text) => {
                    // No text is tokenised to the control token that stands behind it.
                    let end = match fit.pieces.get(i + 1) {
                        Some(Piece::Control(next)) => ids.iter().position(|id| id == next),
                        _ => None,
                    };
                    let (own, rest) = ids.split_at(end.unwrap_or(ids.len()));
                    self.spans.push(Span::Text { text: text.clone(), ids: own.to_vec() });
                    ids = rest;
                }
            }
        }
    }

    /// Appends what the model wrote.
    pub fn write(&mut self, ids: &[u32]) {
        if !ids.is_empty() {
            self.spans.push(Span::Written(ids.to_vec()));
        }
    }
}

/// A rendering as it is tokenised, with the BOS that the tokenizer adds.
fn pieces(tokenizer: &Tokenizer, parts: &[Part]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for part in parts {
        let control = match part {
            Part::Special(text) => tokenizer.control_id(text),
            Part::Plain(_) => None,
        };
        match (control, pieces.last_mut()) {
            (Some(id), _) => pieces.push(Piece::Control(id)),
            (None, Some(Piece::Text(text))) => text.push_str(part.text()),
            (None, _) if part.text().is_empty() => {}
            (None, _) => pieces.push(Piece::Text(part.text().to_owned())),
        }
    }
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
        && pieces.first() != Some(&Piece::Control(bos))
    {
        pieces.insert(0, Piece::Control(bos));
    }
    pieces
}

fn pieces_from(pieces: &[Piece], at: Place) -> Vec<Piece> {
    let mut rest = pieces.get(at.piece..).unwrap_or_default().to_vec();
    if let Some(Piece::Text(text)) = rest.first_mut() {
        text.drain(..at.byte);
    }
    rest
}

/// The ids of a prompt from a place on; a control token before it is what the tokenizer sees before it.
fn encode_from(tokenizer: &Tokenizer, pieces: &[Piece], at: Place) -> Vec<u32> {
    let part = |piece: &Piece| match piece {
        Piece::Control(id) => Part::Special(tokenizer.token_text(*id).unwrap_or_default().to_owned()),
        Piece::Text(text) => Part::Plain(text.clone()),
    };
    let rest: Vec<Part> = pieces_from(pieces, at).iter().map(part).collect();
    let before = at.piece.checked_sub(1).and_then(|i| pieces.get(i));
    if let Some(lead @ Piece::Control(id)) = before.filter(|_| at.byte == 0) {
        let parts: Vec<Part> = [part(lead)].into_iter().chain(rest.iter().cloned()).collect();
        if let Some((_, ids)) =
            tokenizer.encode_parts(&parts, false).split_first().filter(|(first, _)| *first == id)
        {
            return ids.to_vec();
        }
    }
    tokenizer.encode_parts(&rest, false)
}

/// Whether ids begin with exactly the text that stands at a place.
fn continues(tokenizer: &Tokenizer, ids: &[u32], pieces: &[Piece], at: Place) -> bool {
    let Some(Piece::Text(text)) = pieces.get(at.piece) else { return true };
    let own = ids.iter().take_while(|id| !tokenizer.is_control(**id));
    let bytes: Vec<u8> = own.flat_map(|id| tokenizer.token_bytes(*id)).collect();
    bytes == text.as_bytes()[at.byte..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_gguf::Gguf;
    use minfer_testkit::tiny::{TinySpec, vocab};
    use minfer_text::{ChatTemplate, Message, RenderInput, VocabSource};
    use proptest::prelude::*;
    use std::sync::OnceLock;

    fn tokenizer() -> &'static Tokenizer {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        TOKENIZER.get_or_init(|| {
            let bytes = TinySpec::llama().with_vocab().to_bytes().unwrap();
            Tokenizer::from_metadata(&Gguf::read(&bytes[..], bytes.len() as u64).unwrap().metadata).unwrap()
        })
    }

    /// A SentencePiece tokenizer that puts a space in front of texts.
    fn spm() -> &'static Tokenizer {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        TOKENIZER.get_or_init(|| {
            let control = ["<unk>", "<s>", "</s>"].map(str::to_owned);
            let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
            let words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁a", "a", "b"];
            let tokens: Vec<String> =
                control.into_iter().chain(bytes).chain(words.map(str::to_owned)).collect();
            let kinds = |at: usize| match at {
                0 => 2,
                1 | 2 => 3,
                3..259 => 6,
                _ => 1,
            };
            let source = VocabSource {
                model: "llama",
                token_types: Some((0..tokens.len()).map(kinds).collect()),
                scores: Some((0..tokens.len()).map(|at| at as f32).collect()),
                tokens: &tokens,
                bos: Some(1),
                eos: Some(2),
                unknown: Some(0),
                add_bos: Some(true),
                add_space: Some(true),
                ..VocabSource::default()
            };
            Tokenizer::from_source(&source).unwrap()
        })
    }

    /// A template in the manner of Llama 2, with control tokens around turns.
    const TURNS: &str = "{% for m in messages %}{% if m.role == 'user' %}<s>Q: {{ m.content }} A:{% else %} \
{{ m.content }}</s>{% endif %}{% endfor %}";

    fn render(tokenizer: &Tokenizer, messages: &[(&str, &str)], prompt: bool) -> Vec<Part> {
        let source = if std::ptr::eq(tokenizer, spm()) { TURNS } else { vocab::CHAT_TEMPLATE };
        let template = ChatTemplate::for_tokenizer(source, tokenizer).unwrap();
        let messages = messages.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        let input = RenderInput { messages, add_generation_prompt: prompt, ..Default::default() };
        template.render(&input).unwrap().parts
    }

    /// A history of one rendering and what the model wrote after it.
    fn history(tokenizer: &Tokenizer, parts: &[Part], written: &[u32]) -> History {
        let mut history = History::default();
        let fit = history.fit(tokenizer, parts);
        history.apply(&fit);
        history.write(written);
        history
    }

    fn one(text: &str) -> Vec<Part> {
        vec![Part::Plain(text.to_owned())]
    }

    #[test]
    fn ids_that_the_model_wrote_stay_as_they_are() {
        let t = tokenizer();
        let first = render(t, &[("user", "hi")], true);
        // The vocabulary has `hello` in fewer tokens than these.
        let odd: Vec<u32> =
            "hello".chars().map(|c| t.encode(&c.to_string(), Default::default())[0]).collect();
        assert_ne!(odd, t.encode("hello", Default::default()));
        let history = history(t, &first, &[&odd[..], &[vocab::IM_END]].concat());
        let second = render(t, &[("user", "hi"), ("assistant", "hello"), ("user", "more")], true);
        let fit = history.fit(t, &second);
        assert_eq!(fit.kept, history.ids().count());
        let new = [("user", "more")];
        let new = [one("\n"), render(t, &new, true)].concat();
        assert_eq!(fit.rest, t.encode_parts(&new, false));
    }

    #[test]
    fn an_answer_cut_short_stays_up_to_its_end() {
        let t = tokenizer();
        let first = render(t, &[("user", "hi")], true);
        let said = t.encode("well, stop here", Default::default());
        let history = history(t, &first, &said);
        let second = render(t, &[("user", "hi"), ("assistant", "well,"), ("user", "a")], true);
        let fit = history.fit(t, &second);
        let shown = t.encode("well,", Default::default()).len();
        assert_eq!(fit.kept, t.encode_parts(&first, true).len() + shown);
    }

    #[test]
    fn half_a_character_is_never_continued() {
        let t = tokenizer();
        let euro = t.encode("€", Default::default());
        assert_eq!(euro.len(), 3);
        // The model wrote the beginning of one character, and the text has another with the same beginning.
        let half = history(t, &one("Q"), &euro[..2]);
        let fit = half.fit(t, &one("Q₭"));
        assert_eq!((fit.kept, fit.rest), (0, t.encode("Q₭", Default::default())));
        // As shown, it stays.
        let fit = half.fit(t, &one("Q\u{FFFD}!"));
        assert_eq!((fit.kept, fit.rest), (3, t.encode("!", Default::default())));
    }

    #[test]
    fn a_template_without_control_tokens_goes_on_in_the_middle_of_a_text() {
        let t = tokenizer();
        let said = t.encode(" hello", Default::default());
        let history = history(t, &one("Q: hi\nA:"), &said);
        let fit = history.fit(t, &one("Q: hi\nA: hello\nQ: and"));
        assert_eq!(fit.kept, history.ids().count());
        assert_eq!(t.decode(&fit.rest), "\nQ: and");
        // Without an answer in between, half a text is not kept.
        let plain = super::tests::history(t, &one("Q: hi\nA:"), &[]);
        assert_eq!(plain.fit(t, &one("Q: hi\nA: hello")).kept, 0);
    }

    #[test]
    fn a_space_that_the_tokenizer_adds_is_no_text() {
        let t = spm();
        let first = render(t, &[("user", "a b")], true);
        let said = [*t.encode("hello", Default::default()).last().unwrap(), 2];
        assert_eq!(t.token_text(said[0]), Some("▁hello"));
        let history = history(t, &first, &said);
        let second = render(t, &[("user", "a b"), ("assistant", "hello"), ("user", "b")], true);
        let fit = history.fit(t, &second);
        assert_eq!(fit.kept, history.ids().count());
        assert_eq!(fit.rest, t.encode_parts(&render(t, &[("user", "b")], true), true));
    }

    fn texts() -> impl Strategy<Value = Vec<String>> {
        let text = prop_oneof![
            "[a-e ]{0,6}",
            "\\PC{0,4}",
            Just("<|im_end|>".to_owned()),
            Just("hello there".to_owned()),
        ];
        proptest::collection::vec(text, 1..5)
    }

    proptest! {
        /// Whatever was cached, without answers in it the result is what tokenising the whole gives.
        #[test]
        fn kept_and_rest_are_the_whole(mut old in texts(), new in texts(), common in 0..4usize, prompt: bool, sp: bool) {
            let t = if sp { spm() } else { tokenizer() };
            for i in 0..common.min(old.len()).min(new.len()) {
                old[i].clone_from(&new[i]);
            }
            let said = |texts: &[String]| {
                let messages: Vec<_> = texts.iter().map(|text| ("user", text.as_str())).collect();
                render(t, &messages, prompt)
            };
            let (old, new) = (said(&old), said(&new));
            let mut history = history(t, &old, &[]);
            let cached: Vec<u32> = history.ids().collect();
            prop_assert_eq!(&cached, &t.encode_parts(&old, true));
            let fit = history.fit(t, &new);
            let whole = t.encode_parts(&new, true);
            prop_assert_eq!([&cached[..fit.kept], &fit.rest].concat(), whole.clone());
            history.apply(&fit);
            prop_assert_eq!(history.ids().collect::<Vec<_>>(), whole);
        }

        /// With any answer in it, no text is lost or doubled.
        #[test]
        fn no_text_is_lost_or_doubled(written in proptest::collection::vec(0..270u32, 0..12), shown in 0..12usize, sp: bool) {
            let t = if sp { spm() } else { tokenizer() };
            let first = render(t, &[("user", "hi")], true);
            let history = history(t, &first, &written);
            let answer = t.decode(&written[..shown.min(written.len())]);
            let second = render(t, &[("user", "hi"), ("assistant", &answer), ("user", "b")], true);
            let fit = history.fit(t, &second);
            let ids: Vec<u32> = history.ids().take(fit.kept).chain(fit.rest.iter().copied()).collect();
            let texts: Vec<String> = ids.split(|id| t.is_control(*id)).map(|run| t.decode(run)).collect();
            let special = |part: &Part| matches!(part, Part::Special(text) if t.control_id(text).is_some());
            let told = second.split(special).map(|run| run.iter().map(Part::text).collect::<String>());
            prop_assert_eq!(texts, told.collect::<Vec<_>>());
            let controls = |ids: &[u32]| -> Vec<u32> {
                ids.iter().copied().filter(|id| t.is_control(*id)).collect()
            };
            prop_assert_eq!(controls(&ids), controls(&t.encode_parts(&second, true)));
            // All up to the last control token before the answer stays, whatever the answer is.
            let prompt = t.encode_parts(&first, true);
            prop_assert!(prompt[fit.kept.min(prompt.len())..].iter().all(|id| !t.is_control(*id)));
        }
    }
}
