//! Splitting text into the pieces inside which BPE merges.
//!
//! Each tokenizer family defines its pieces by a regular expression. They are matched here by hand, driven by a table
//! of [`Pass`]es per family, in linear time: every alternative decides by the first one or two characters, and a run is
//! read at most twice. Case-insensitive contractions are ASCII only, as in llama.cpp: `'ſ` is not `'s`.

use unicode_general_category::{GeneralCategory, get_general_category};

/// A family of pre-tokenizers: how a text is cut before BPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every `\p{N}` alone, the rest as [`PreTokenizer::Gpt2`].
    SmolLm,
    /// `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Qwen2,
    /// As [`PreTokenizer::Qwen2`], but numbers are `\p{N}{1,3}`.
    Llama3,
    /// Runs of `[\p{P}$+<=>^~|]` first, then [`PreTokenizer::Gpt2`], then `\p{N}+`, then `[0-9][0-9][0-9]`.
    Default,
}

/// What a value of `tokenizer.ggml.pre` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreSettings {
    /// How to split.
    pub(crate) split: PreTokenizer,
    /// Whether a piece that is a token as a whole is taken without looking at the merges.
    pub(crate) ignore_merges: bool,
    /// Whether BOS is added where the file does not say.
    pub(crate) add_bos: bool,
}

/// Every known value of `tokenizer.ggml.pre`; names in one row mean the same.
const KNOWN: &[(&[&str], PreSettings)] = &[
    (&["default"], PreSettings { split: PreTokenizer::Default, ignore_merges: false, add_bos: false }),
    (
        &["gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "gigachat", "a.x-4.0", "mellum", "trillion"],
        PreSettings { split: PreTokenizer::Gpt2, ignore_merges: false, add_bos: false },
    ),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        PreSettings { split: PreTokenizer::SmolLm, ignore_merges: false, add_bos: false },
    ),
    (
        &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"],
        PreSettings { split: PreTokenizer::Qwen2, ignore_merges: false, add_bos: false },
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        PreSettings { split: PreTokenizer::Llama3, ignore_merges: true, add_bos: true },
    ),
    (
        &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        PreSettings { split: PreTokenizer::Llama3, ignore_merges: false, add_bos: false },
    ),
];

impl PreSettings {
    /// The settings for a value of `tokenizer.ggml.pre`.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        KNOWN.iter().find(|(names, _)| names.contains(&name)).map(|(_, settings)| *settings)
    }

    /// Every known value, in the order of the table.
    pub(crate) fn names() -> Vec<&'static str> {
        KNOWN.iter().flat_map(|(names, _)| names.iter().copied()).collect()
    }
}

impl PreTokenizer {
    /// The family that a value of `tokenizer.ggml.pre` names.
    pub fn by_name(name: &str) -> Option<Self> {
        PreSettings::by_name(name).map(|settings| settings.split)
    }

    /// Cuts `text` into pieces and gives them to `piece` in order. No piece is empty; together they are `text`.
    pub fn split<'t>(self, text: &'t str, piece: &mut dyn FnMut(&'t str)) {
        let passes: &[Pass] = match self {
            PreTokenizer::Gpt2 => &[Pass::Words(GPT2)],
            PreTokenizer::SmolLm => &[Pass::Isolate { what: Set::Number, at_most: 1 }, Pass::Words(GPT2)],
            PreTokenizer::Qwen2 => &[Pass::Words(Rules { max_digits: 1, ..LLAMA3 })],
            PreTokenizer::Llama3 => &[Pass::Words(LLAMA3)],
            PreTokenizer::Default => &[
                Pass::Isolate { what: Set::Punctuation, at_most: usize::MAX },
                Pass::Words(GPT2),
                Pass::Isolate { what: Set::Number, at_most: usize::MAX },
                Pass::DigitTriples,
            ],
        };
        apply(passes, text, piece);
    }
}

/// One cut; the passes of a family run one inside the pieces of the other.
#[derive(Clone, Copy)]
enum Pass {
    /// The big expression: words, numbers, punctuation, white space.
    Words(Rules),
    /// Runs of at most `at_most` characters of `what`, and what is between.
    Isolate { what: Set, at_most: usize },
    /// Three ASCII digits each, and what is between.
    DigitTriples,
}

/// How a family's big expression differs from the others'.
#[derive(Clone, Copy)]
struct Rules {
    /// Whether contractions are recognised in any case.
    contractions_any_case: bool,
    /// Whether any one character but `\r`, `\n` and numbers may begin a word; else only a space.
    word_takes_any_prefix: bool,
    /// Whether a number may begin with a space.
    number_takes_space: bool,
    /// The longest number.
    max_digits: usize,
    /// Whether line ends belong to the punctuation before them, and white space up to a line end is a piece.
    lines: bool,
}

const GPT2: Rules = Rules {
    contractions_any_case: false,
    word_takes_any_prefix: false,
    number_takes_space: true,
    max_digits: usize::MAX,
    lines: false,
};

const LLAMA3: Rules = Rules {
    contractions_any_case: true,
    word_takes_any_prefix: true,
    number_takes_space: false,
    max_digits: 3,
    lines: true,
};

/// The classes that the big expressions tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Sets of characters that are isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// `\p{N}`
    Number,
    /// `[\p{P}$+<=>^~|]`
    Punctuation,
}

fn class(c: char) -> Class {
    use GeneralCategory as G;
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        _ if c.is_whitespace() => Class::Space,
        _ if c.is_ascii() => Class::Other,
        _ => match get_general_category(c) {
            G::UppercaseLetter
            | G::LowercaseLetter
            | G::TitlecaseLetter
            | G::ModifierLetter
            | G::OtherLetter => Class::Letter,
            G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
            _ => Class::Other,
        },
    }
}

impl Set {
    fn contains(self, c: char) -> bool {
        use GeneralCategory as G;
        match self {
            Set::Number => class(c) == Class::Number,
            Set::Punctuation => {
                c.is_ascii_punctuation() && c != '`'
                    || !c.is_ascii()
                        && matches!(
                            get_general_category(c),
                            G::ConnectorPunctuation
                                | G::DashPunctuation
                                | G::OpenPunctuation
                                | G::ClosePunctuation
                                | G::InitialPunctuation
                                | G::FinalPunctuation
                                | G::OtherPunctuation
                        )
            }
        }
    }
}

/// Runs `passes` one inside the other.
fn apply<'t>(passes: &[Pass], text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let Some((pass, rest)) = passes.split_first() else {
        piece(text);
        return;
    };
    let mut left = text;
    while !left.is_empty() {
        let (head, tail) = left.split_at(match pass {
            Pass::Words(rules) => word_len(left, rules),
            Pass::Isolate { what, at_most } => isolated_len(left, *what, *at_most),
            Pass::DigitTriples => triple_len(left),
        });
        apply(rest, head, piece);
        left = tail;
    }
}

/// The length in bytes of the characters at the start of `text` that satisfy `test`, `at_most` of them.
fn run(text: &str, at_most: usize, mut test: impl FnMut(char) -> bool) -> usize {
    let mut indices = text.char_indices();
    let mut seen = 0;
    loop {
        match indices.next() {
            Some((_, c)) if seen < at_most && test(c) => seen += 1,
            Some((at, _)) => return at,
            None => return text.len(),
        }
    }
}

/// The first piece of an isolating pass: a run inside the set, or everything up to the set.
fn isolated_len(text: &str, what: Set, at_most: usize) -> usize {
    let inside = run(text, at_most, |c| what.contains(c));
    if inside > 0 { inside } else { run(text, usize::MAX, |c| !what.contains(c)) }
}

/// The first piece of the digit pass: three ASCII digits, or everything up to the next three.
fn triple_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_triple = |window: &[u8]| window.iter().all(u8::is_ascii_digit);
    match bytes.windows(3).position(is_triple) {
        Some(0) => 3,
        Some(at) => at,
        None => bytes.len(),
    }
}

/// The first piece of the big expression; `text` is not empty.
fn word_len(text: &str, rules: &Rules) -> usize {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return 0 };
    let after_first = chars.as_str();
    let kind = class(first);
    let next_kind = chars.next().map(class);
    if first == '\''
        && let Some(len) = contraction_len(after_first, rules.contractions_any_case)
    {
        return 1 + len;
    }
    let prefix =
        first == ' ' || rules.word_takes_any_prefix && !matches!(first, '\r' | '\n') && kind != Class::Number;
    if kind == Class::Letter || prefix && next_kind == Some(Class::Letter) {
        return first.len_utf8() + run(after_first, usize::MAX, |c| class(c) == Class::Letter);
    }
    if kind == Class::Number {
        return run(text, rules.max_digits, |c| class(c) == Class::Number);
    }
    if first == ' ' && rules.number_takes_space && next_kind == Some(Class::Number) {
        return 1 + run(after_first, rules.max_digits, |c| class(c) == Class::Number);
    }
    if kind == Class::Other || first == ' ' && next_kind == Some(Class::Other) {
        let symbols = first.len_utf8() + run(after_first, usize::MAX, |c| class(c) == Class::Other);
        let line_ends =
            if rules.lines { run(&text[symbols..], usize::MAX, |c| matches!(c, '\r' | '\n')) } else { 0 };
        return symbols + line_ends;
    }
    space_len(text, rules.lines)
}

/// The length of what follows the apostrophe of a contraction at the start of `text`.
fn contraction_len(text: &str, any_case: bool) -> Option<usize> {
    let bytes = text.as_bytes();
    let at = |i: usize| bytes.get(i).map(|b| if any_case { b.to_ascii_lowercase() } else { *b });
    match (at(0)?, at(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(1),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(2),
        _ => None,
    }
}

/// The first piece of a run of white space: up to the last line end if `lines`; else all but the character before a
/// word, which belongs to the word.
fn space_len(text: &str, lines: bool) -> usize {
    let mut last_start = 0;
    let mut line_end = 0;
    let len = run(text, usize::MAX, char::is_whitespace);
    for (at, c) in text[..len].char_indices() {
        last_start = at;
        if matches!(c, '\r' | '\n') {
            line_end = at + 1;
        }
    }
    if lines && line_end > 0 {
        line_end
    } else if len < text.len() && last_start > 0 {
        last_start
    } else {
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pre: PreTokenizer, text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        pre.split(text, &mut |piece| out.push(piece));
        out
    }

    #[test]
    fn families_differ_where_they_should() {
        let text = "I'VE 1234\n\n  x";
        assert_eq!(pieces(PreTokenizer::Gpt2, text), ["I", "'", "VE", " 1234", "\n\n ", " x"]);
        assert_eq!(
            pieces(PreTokenizer::SmolLm, text),
            ["I", "'", "VE", " ", "1", "2", "3", "4", "\n\n ", " x"]
        );
        assert_eq!(
            pieces(PreTokenizer::Qwen2, text),
            ["I", "'VE", " ", "1", "2", "3", "4", "\n\n", " ", " x"]
        );
        assert_eq!(pieces(PreTokenizer::Llama3, text), ["I", "'VE", " ", "123", "4", "\n\n", " ", " x"]);
        assert_eq!(pieces(PreTokenizer::Default, text), ["I", "'", "VE", " ", "123", "4", "\n\n ", " x"]);
    }

    #[test]
    fn names_are_unique() {
        let mut names = PreSettings::names();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(PreTokenizer::by_name("llama3"), Some(PreTokenizer::Llama3));
        assert_eq!(PreTokenizer::by_name("gpt2"), None);
    }
}
