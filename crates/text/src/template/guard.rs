//! The trust border of a rendering: stand-ins for control tokens, and strings that can't be mistaken for them.
//!
//! See the parent module for the design.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use serde_json::Value as Json;

use super::{Message, RenderInput};
use crate::Part;
use crate::partition::{Fragment, SpecialSet};

/// Roles of which a template may assemble a control token.
const ROLES: [&str; 9] =
    ["system", "user", "assistant", "tool", "developer", "function", "ipython", "observation", "model"];

/// Private-use characters: stand-ins and substitutes come from here.
const PRIVATE: [std::ops::RangeInclusive<u32>; 2] = [0xF_0000..=0xF_FFFD, 0x10_0000..=0x10_FFFD];

/// A template's control tokens and their stand-ins.
#[derive(Debug)]
pub(super) struct Border {
    /// Texts of control tokens.
    texts: Vec<Box<str>>,
    /// The stand-in of each.
    stand_ins: Vec<char>,
    /// Text index by stand-in.
    by_stand_in: BTreeMap<char, usize>,
    /// Finds the texts.
    set: SpecialSet,
    /// Texts that the template may assemble from a role.
    assembled: Vec<usize>,
    /// Finds those.
    assembled_set: SpecialSet,
    /// Private-use characters that the template itself contains.
    used: BTreeSet<char>,
}

impl Border {
    /// A border for a template; `None` if there are not enough private-use characters that it does not use itself.
    pub(super) fn new<'a>(source: &str, control: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let texts: BTreeSet<&str> = control.into_iter().filter(|text| is_markup(text)).collect();
        let texts: Vec<Box<str>> = texts.into_iter().map(Into::into).collect();
        let used: BTreeSet<char> = source.chars().filter(|c| is_private(*c)).collect();
        let stand_ins: Vec<char> = private().filter(|c| !used.contains(c)).take(texts.len()).collect();
        if stand_ins.len() < texts.len() {
            return None;
        }
        let numbered = || texts.iter().map(|text| &**text).zip(0u32..);
        let mut border = Border {
            set: SpecialSet::new(numbered()),
            by_stand_in: stand_ins.iter().copied().zip(0..).collect(),
            assembled: Vec::new(),
            assembled_set: SpecialSet::default(),
            stand_ins,
            used,
            texts: texts.clone(),
        };
        // What stands around a role must be there apart from control tokens that are spelt out.
        let rest = border.hide(source);
        let assembled = |text: &str| !source.contains(text) && may_assemble(&rest, text);
        border.assembled = (0..texts.len()).filter(|at| assembled(&texts[*at])).collect();
        let is_assembled = |id: u32| border.assembled.binary_search(&(id as usize)).is_ok();
        border.assembled_set = SpecialSet::new(numbered().filter(|(_, id)| is_assembled(*id)));
        Some(border)
    }

    /// `text` with every control token's text replaced by its stand-in.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for fragment in self.set.partition(text) {
            match fragment {
                Fragment::Text(text) => out.push_str(text),
                Fragment::Token(id) => out.extend(self.stand_ins.get(id as usize)),
            }
        }
        out
    }

    /// The control token that `c` stands for.
    fn text_of(&self, c: char) -> Option<&str> {
        Some(&self.texts[*self.by_stand_in.get(&c)?])
    }

    /// `text` with every stand-in replaced by its control token's text.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.text_of(c) {
                Some(text) => out.push_str(text),
                None => out.push(c),
            }
        }
        out
    }
}

/// Whether a control token's text can be told from names and layout in a template.
fn is_markup(text: &str) -> bool {
    text.chars().any(|c| !c.is_alphanumeric() && c != '_' && !c.is_whitespace())
}

/// Whether a template with this text may put `token` together around a role: it has what stands around the role.
fn may_assemble(source: &str, token: &str) -> bool {
    ROLES.iter().any(|role| {
        token.split_once(role).is_some_and(|(before, after)| {
            !before.is_empty() && !after.is_empty() && source.contains(before) && source.contains(after)
        })
    })
}

fn private() -> impl Iterator<Item = char> {
    PRIVATE.into_iter().flatten().filter_map(char::from_u32)
}

fn is_private(c: char) -> bool {
    PRIVATE.iter().any(|range| range.contains(&u32::from(c)))
}

/// The border during one rendering.
#[derive(Debug)]
pub(super) struct Guard<'b> {
    border: &'b Border,
    /// Private-use characters of the template and the conversation; no substitute may be one of them.
    used: BTreeSet<char>,
    /// The substitute of each exchanged character, and back.
    substitutes: BTreeMap<char, char>,
    originals: BTreeMap<char, char>,
}

impl<'b> Guard<'b> {
    /// A guard for the strings of `input`.
    pub(super) fn new(border: &'b Border, input: &RenderInput) -> Self {
        let mut used = border.used.clone();
        for message in &input.messages {
            message.fields.iter().for_each(|(key, value)| {
                collect_text(key, &mut used);
                collect(value, &mut used);
            });
        }
        input.tools.iter().chain(input.extra.values()).for_each(|value| collect(value, &mut used));
        input.bos_token.iter().chain(&input.eos_token).for_each(|text| collect_text(text, &mut used));
        Guard { border, used, substitutes: BTreeMap::new(), originals: BTreeMap::new() }
    }

    /// A text from the model's file: control tokens in it are control tokens.
    pub(super) fn trusted(&mut self, text: &str) -> String {
        let text = self.exchange_stand_ins(text);
        self.border.hide(&text)
    }

    /// A message as the template sees it. A known role is the template's to use; everything else is data.
    pub(super) fn message(&mut self, message: &Message) -> Value {
        let known = ROLES.contains(&message.role());
        let mut fields = Vec::with_capacity(message.fields.len());
        for (key, value) in &message.fields {
            let value = if known && key == "role" { message.role().into() } else { self.data(value) };
            fields.push((self.text(key), value));
        }
        Value::from_pairs(fields)
    }

    /// A value whose strings are data: no control token is in them.
    pub(super) fn data(&mut self, value: &Json) -> Value {
        match value {
            Json::String(text) => self.text(text).into(),
            Json::Array(items) => items.iter().map(|item| self.data(item)).collect::<Vec<_>>().into(),
            Json::Object(fields) => {
                let pairs: Vec<_> =
                    fields.iter().map(|(key, value)| (self.text(key), self.data(value))).collect();
                Value::from_pairs(pairs)
            }
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::from(value),
                (None, Some(value)) => Value::from(value),
                (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
        }
    }

    /// A text that is data.
    fn text(&mut self, text: &str) -> String {
        let mut text = self.exchange_stand_ins(text);
        if self.border.assembled.is_empty() {
            return text;
        }
        let mut starts: BTreeSet<usize> = BTreeSet::new();
        for at in &self.border.assembled {
            exposed(&text, &self.border.texts[*at], &mut starts);
        }
        // From the right, because a substitute may be longer than its original.
        for start in starts.into_iter().rev() {
            if let Some(c) = text[start..].chars().next() {
                let substitute = self.substitute(c);
                text.replace_range(start..start + c.len_utf8(), substitute.encode_utf8(&mut [0; 4]));
            }
        }
        text
    }

    fn exchange_stand_ins(&mut self, text: &str) -> String {
        if !text.chars().any(|c| self.border.by_stand_in.contains_key(&c)) {
            return text.to_owned();
        }
        let is_stand_in = |c: char| self.border.by_stand_in.contains_key(&c);
        text.chars().map(|c| if is_stand_in(c) { self.substitute(c) } else { c }).collect()
    }

    /// A character that nobody uses, to stand for `c`.
    fn substitute(&mut self, c: char) -> char {
        if let Some(substitute) = self.substitutes.get(&c) {
            return *substitute;
        }
        let free = |c: &char| {
            !self.border.by_stand_in.contains_key(c)
                && !self.used.contains(c)
                && !self.originals.contains_key(c)
        };
        // With every private character in use there is none left to lose: the text then loses `c`.
        let substitute = private().find(free).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.substitutes.insert(c, substitute);
        self.originals.insert(substitute, c);
        substitute
    }

    /// A rendered text without stand-ins and substitutes.
    pub(super) fn reveal(&self, text: &str) -> String {
        self.border.reveal(&self.original(text))
    }

    fn original(&self, text: &str) -> String {
        text.chars().map(|c| self.originals.get(&c).copied().unwrap_or(c)).collect()
    }

    /// A rendered text in parts.
    pub(super) fn parts(&self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut plain_from = 0;
        for (at, c) in text.char_indices() {
            if let Some(token) = self.border.text_of(c) {
                self.plain(&text[plain_from..at], &mut parts);
                parts.push(Part::Special(token.to_owned()));
                plain_from = at + c.len_utf8();
            }
        }
        self.plain(&text[plain_from..], &mut parts);
        parts
    }

    /// Appends text without stand-ins, in which the template may have assembled control tokens.
    fn plain(&self, text: &str, parts: &mut Vec<Part>) {
        for fragment in self.border.assembled_set.partition(text) {
            parts.push(match fragment {
                Fragment::Text(text) => Part::Plain(self.original(text)),
                Fragment::Token(id) => Part::Special(self.border.texts[id as usize].to_string()),
            });
        }
    }
}

/// Where `text` must be changed so that it is, and helps to form, no `token`: the first character of each occurrence,
/// and the inner character of each beginning or end of `token` that stands at the end or beginning of `text`.
fn exposed(text: &str, token: &str, starts: &mut BTreeSet<usize>) {
    starts.extend(text.match_indices(token).map(|(start, _)| start));
    if !text.is_empty() && token.contains(text) {
        starts.insert(0);
    }
    for (at, _) in token.char_indices().skip(1) {
        let (head, tail) = token.split_at(at);
        if text.ends_with(head) {
            starts.insert(text.len() - head.len());
        }
        if text.starts_with(tail) {
            starts.insert(0);
        }
    }
}

fn collect_text(text: &str, used: &mut BTreeSet<char>) {
    used.extend(text.chars().filter(|c| is_private(*c)));
}

fn collect(value: &Json, used: &mut BTreeSet<char>) {
    match value {
        Json::String(text) => collect_text(text, used),
        Json::Array(items) => items.iter().for_each(|item| collect(item, used)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            collect_text(key, used);
            collect(value, used);
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
