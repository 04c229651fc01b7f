//! The expressions of the families, as tables.

use super::PreTokenizer;
use super::alternatives::{Alt, LINE_ENDS, enclosed, prefixed, run, run_of, starts_with};
use super::digits;
use super::ranges;
use super::sets::{
    self, BLANK, HAN_CHARACTER, LETTER, LINE_END, LOWERISH, MARK, NUMBER, PUNCTUATION, SLASH, SPACE, SYMBOL,
    Set, UPPERISH,
};

/// One cut of a text; the passes of a family run one inside the pieces of the other.
#[derive(Clone, Copy)]
pub(super) enum Pass {
    /// The matches of alternatives, and what is between them.
    Matches(&'static [Alt]),
    /// What the function cuts.
    Cuts(for<'t> fn(&'t str, &mut dyn FnMut(&'t str))),
}

/// What a family cuts with.
pub(super) fn passes(family: PreTokenizer) -> &'static [Pass] {
    match family {
        PreTokenizer::Gpt2 => &[GPT2],
        PreTokenizer::SmolLm => &[EACH_NUMBER, GPT2],
        PreTokenizer::Qwen2 => &[QWEN2],
        PreTokenizer::Qwen35 => &[QWEN35],
        PreTokenizer::Llama3 => &[LLAMA3],
        PreTokenizer::MiniCpm5 => &[THREE_NUMBERS, LLAMA_ALL_NUMBERS],
        PreTokenizer::Jais2 => &[JAIS2],
        PreTokenizer::Ufakzeka => &[UFAKZEKA],
        PreTokenizer::SeedCoder => &[SEED_CODER],
        PreTokenizer::Laguna => &[LINES, QWEN2],
        PreTokenizer::ExaoneMoe => &[EXAONE_MOE],
        PreTokenizer::Gpt4o => &[GPT4O],
        PreTokenizer::Tekken => &[TEKKEN],
        PreTokenizer::TinyAya => &[TINY_AYA_NUMBERS, GPT4O],
        PreTokenizer::Youtu => &[YOUTU_EAST, YOUTU],
        PreTokenizer::KimiK2 => &[KIMI_K2],
        PreTokenizer::DeepSeekLlm => {
            &[EACH_LINE_END, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, LAST_SPACES, DEEPSEEK_EAST, ALL_NUMBERS]
        }
        PreTokenizer::DeepSeekCoder => {
            &[EACH_LINE_END, SPACED_LETTERS, SPACED_PUNCTUATION, DEEPSEEK_EAST, EACH_NUMBER]
        }
        PreTokenizer::DeepSeek3 => &[THREE_NUMBERS, CHINESE_AND_KANA, DEEPSEEK3],
        PreTokenizer::Spark => &[THREE_NUMBERS, CHINESE_AND_KANA, SPARK, EACH_NUMBER],
        PreTokenizer::Afmoe => &[AFMOE_NUMBERS, AFMOE_ASIAN, DEEPSEEK3],
        PreTokenizer::Falcon => &[PUNCTUATION_AND_GRAVE_RUNS, GPT2, DIGIT_TRIPLES],
        PreTokenizer::Bloom => &[BLOOM],
        PreTokenizer::Viking => &[BLOOM, EACH_NUMBER],
        PreTokenizer::SuperBpe => &[ALL_NUMBERS, SUPERBPE_NUMBERS],
        PreTokenizer::Chameleon => {
            const {
                let [sentinels, images, indentation, numbers, punctuation] = CHAMELEON;
                &[sentinels, images, indentation, numbers, punctuation, GPT2]
            }
        }
        PreTokenizer::Lines => &[LINES],
        PreTokenizer::Words => &[WORDS],
        PreTokenizer::Default => &[PUNCTUATION_RUNS, GPT2, ALL_NUMBERS, DIGIT_TRIPLES],
    }
}

const SPACE_SET: Set = Set::Of(SPACE);
const BLANK_SET: Set = Set::Of(BLANK);
const LETTERS: Set = Set::Of(LETTER);
const NUMBERS: Set = Set::Of(NUMBER);
/// `[^\r\n\p{L}\p{N}]`
const BEFORE_WORD: Set = Set::Of(!(LINE_END | LETTER | NUMBER));
/// `[^\s\p{L}\p{N}]`
const OTHERS: Set = Set::Of(!(SPACE | LETTER | NUMBER));
/// `[\r\n/]`
const LINE_ENDS_AND_SLASH: Set = Set::Of(LINE_END | SLASH);
const ANY_CASE: Alt = Alt::Contraction { any_case: true };

/// `\S+`
const WORDS: Pass = Pass::Matches(&[run(Set::Of(!SPACE))]);
/// `\p{N}`, each alone
const EACH_NUMBER: Pass = Pass::Matches(&[run_of(NUMBERS, 1)]);
/// `\p{N}{1,3}`
const THREE_NUMBERS: Pass = Pass::Matches(&[run_of(NUMBERS, 3)]);
/// `\p{N}+`
const ALL_NUMBERS: Pass = Pass::Matches(&[run(NUMBERS)]);

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
const GPT2: Pass = Pass::Matches(&[
    Alt::Contraction { any_case: false },
    prefixed(BLANK_SET, LETTERS),
    prefixed(BLANK_SET, NUMBERS),
    prefixed(BLANK_SET, OTHERS),
    Alt::SpacesBeforeSpace,
    Alt::Spaces,
]);

/// `(?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
const fn llama(numbers: usize) -> [Alt; 7] {
    [
        ANY_CASE,
        prefixed(BEFORE_WORD, LETTERS),
        run_of(NUMBERS, numbers),
        enclosed(BLANK_SET, OTHERS, LINE_ENDS),
        Alt::Lines,
        Alt::SpacesBeforeSpace,
        Alt::Spaces,
    ]
}
const LLAMA3: Pass = Pass::Matches(&llama(3));
const QWEN2: Pass = Pass::Matches(&llama(1));
const LLAMA_ALL_NUMBERS: Pass = Pass::Matches(&llama(usize::MAX));

/// [`QWEN2`] without contractions
const UFAKZEKA: Pass = Pass::Matches(&{
    let [_, words, numbers, others, lines, before_space, spaces] = llama(1);
    [words, numbers, others, lines, before_space, spaces]
});

/// [`QWEN2`], but line ends do not belong to the punctuation before them
const SEED_CODER: Pass = Pass::Matches(&{
    let [contraction, words, numbers, _, lines, before_space, spaces] = llama(1);
    [contraction, words, numbers, prefixed(BLANK_SET, OTHERS), lines, before_space, spaces]
});

/// [`LLAMA3`], but white space falls into steps of fixed lengths
const JAIS2: Pass = Pass::Matches(&{
    let [contraction, words, numbers, others, lines, _, _] = llama(3);
    [contraction, words, numbers, others, lines, Alt::By(space_steps)]
});

/// `...|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|...`
const QWEN35: Pass = Pass::Matches(&[
    ANY_CASE,
    prefixed(BEFORE_WORD, Set::Of(LETTER | MARK)),
    run_of(NUMBERS, 1),
    enclosed(BLANK_SET, Set::Of(!(SPACE | LETTER | MARK | NUMBER)), LINE_ENDS),
    Alt::Lines,
    Alt::SpacesBeforeSpace,
    Alt::Spaces,
]);

/// `...|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|...`
const EXAONE_MOE: Pass = Pass::Matches(&[
    ANY_CASE,
    Alt::By(phrase),
    run_of(NUMBERS, 1),
    Alt::Run {
        before: BLANK_SET,
        what: OTHERS,
        at_most: usize::MAX,
        after: LINE_ENDS_AND_SLASH,
        after_at_most: 1,
    },
    Alt::Lines,
    Alt::SpacesBeforeSpace,
    Alt::Spaces,
]);

/// Words that end where their case rises: `upper* lower+ contraction?|upper+ lower* contraction?|\p{N}{1,N}|
/// ?[^\s\p{L}\p{N}]+after*|\s*[\r\n]+|\s+(?!\S)|\s+`
const fn cased(contraction: bool, numbers: usize, without: u16, after: Set) -> [Alt; 6] {
    [
        Alt::Cased {
            before: BEFORE_WORD,
            upper: UPPERISH & !without,
            lower: LOWERISH & !without,
            contraction,
        },
        run_of(NUMBERS, numbers),
        enclosed(BLANK_SET, OTHERS, after),
        Alt::Lines,
        Alt::SpacesBeforeSpace,
        Alt::Spaces,
    ]
}
const GPT4O: Pass = Pass::Matches(&cased(true, 3, 0, LINE_ENDS_AND_SLASH));
const TEKKEN: Pass = Pass::Matches(&cased(false, 1, 0, LINE_ENDS_AND_SLASH));
const YOUTU: Pass = Pass::Matches(&cased(true, 1, 0, LINE_ENDS_AND_SLASH));

/// `\p{Han}+`, then [`GPT4O`] with words that have nothing Han in them
const KIMI_K2: Pass = Pass::Matches(&{
    let [words, numbers, others, lines, before_space, spaces] = cased(true, 3, HAN_CHARACTER, LINE_ENDS);
    [run(Set::By(is_han)), words, numbers, others, lines, before_space, spaces]
});

const ASCII_WORD: Alt = Alt::By(punctuated_word);
const MARKED_WORD: Alt =
    prefixed(Set::Of(!(LINE_END | LETTER | PUNCTUATION | SYMBOL)), Set::Of(LETTER | MARK));
const PUNCTUATION_AND_SYMBOLS: Set = Set::Of(PUNCTUATION | SYMBOL);

/// `[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
const DEEPSEEK3: Pass = Pass::Matches(&[
    ASCII_WORD,
    MARKED_WORD,
    enclosed(BLANK_SET, PUNCTUATION_AND_SYMBOLS, LINE_ENDS),
    Alt::Lines,
    Alt::SpacesBeforeSpace,
    Alt::Spaces,
]);

/// [`DEEPSEEK3`] with every line end alone
const SPARK: Pass = Pass::Matches(&[
    ASCII_WORD,
    MARKED_WORD,
    prefixed(BLANK_SET, PUNCTUATION_AND_SYMBOLS),
    run_of(LINE_ENDS, 1),
    Alt::SpacesBeforeSpace,
    Alt::Spaces,
]);

/// `[\r\n]`
const EACH_LINE_END: Pass = Pass::Matches(&[run_of(LINE_ENDS, 1)]);
/// `[^\n]+|\n+`
const LINES: Pass = Pass::Matches(&[run(Set::By(|c| c != '\n')), run(Set::By(|c| c == '\n'))]);
/// `\s?\p{L}+`
const SPACED_LETTERS: Pass = Pass::Matches(&[prefixed(SPACE_SET, LETTERS)]);
/// `\s?\p{P}+`
const SPACED_PUNCTUATION: Pass = Pass::Matches(&[prefixed(SPACE_SET, Set::Of(PUNCTUATION))]);
/// `\s?` and letters of [`ranges::DEEPSEEK_LETTERS`]
const DEEPSEEK_LETTERS: Pass =
    Pass::Matches(&[prefixed(SPACE_SET, Set::By(|c| ranges::contains(ranges::DEEPSEEK_LETTERS, c)))]);
/// `\s?` and characters of [`ranges::DEEPSEEK_PUNCTUATION`]
const DEEPSEEK_PUNCTUATION: Pass =
    Pass::Matches(&[prefixed(SPACE_SET, Set::By(|c| ranges::contains(ranges::DEEPSEEK_PUNCTUATION, c)))]);
/// `\s+$`
const LAST_SPACES: Pass = Pass::Cuts(last_spaces);
/// Runs of [`ranges::DEEPSEEK_EAST`]
const DEEPSEEK_EAST: Pass = Pass::Matches(&[run(Set::By(|c| ranges::contains(ranges::DEEPSEEK_EAST, c)))]);
/// Runs of [`ranges::CHINESE_AND_KANA`]
const CHINESE_AND_KANA: Pass = Pass::Matches(&[in_ranges_of_the_east()]);
/// Runs of [`ranges::AFMOE_ASIAN`]
const AFMOE_ASIAN: Pass = Pass::Matches(&[run(Set::By(|c| ranges::contains(ranges::AFMOE_ASIAN, c)))]);
/// Runs of Hangul, of eastern punctuation, of Bopomofo, of Chinese and kana
const YOUTU_EAST: Pass = Pass::Matches(&[
    run(Set::By(|c| ranges::contains(ranges::YOUTU_HANGUL, c))),
    run(Set::By(|c| ranges::contains(ranges::YOUTU_PUNCTUATION, c))),
    run(Set::By(|c| ranges::contains(ranges::YOUTU_BOPOMOFO, c))),
    in_ranges_of_the_east(),
]);

const fn in_ranges_of_the_east() -> Alt {
    run(Set::By(|c| ranges::contains(ranges::CHINESE_AND_KANA, c)))
}

/// `[\p{P}$+<=>^~|]+`
const PUNCTUATION_RUNS: Pass = Pass::Matches(&[run(Set::By(is_punctuation))]);
/// The same with the grave accent
const PUNCTUATION_AND_GRAVE_RUNS: Pass = Pass::Matches(&[run(Set::By(|c| c == '`' || is_punctuation(c)))]);
/// `[0-9][0-9][0-9]`
const DIGIT_TRIPLES: Pass = Pass::Matches(&[Alt::By(digit_triple)]);
/// ` ?[^(\s|.,!?…。，、।۔،)]+`
const BLOOM: Pass = Pass::Matches(&[prefixed(BLANK_SET, Set::By(is_bloom_word))]);

/// `<sentinel:[0-9]+>`, `IMGIMG[A-I]{1,4}Z`, `[\t\n]|    |  `, `\p{N}` and punctuation, each a pass of its own
const CHAMELEON: [Pass; 5] = [
    Pass::Matches(&[Alt::By(sentinel)]),
    Pass::Matches(&[Alt::By(image)]),
    Pass::Matches(&[Alt::By(indentation)]),
    EACH_NUMBER,
    Pass::Matches(&[run_of(Set::By(|c| c.is_ascii_punctuation() || is_punctuation(c)), 1)]),
];

/// Threes from the right, before the end of a word
const TINY_AYA_NUMBERS: Pass = Pass::Cuts(digits::threes_before_a_word_end);
/// Threes from the right
const AFMOE_NUMBERS: Pass = Pass::Cuts(digits::threes);
/// Cuts before threes from the right
const SUPERBPE_NUMBERS: Pass = Pass::Cuts(digits::cuts_before_threes);

fn is_han(c: char) -> bool {
    !c.is_ascii() && ranges::contains(ranges::HAN, c)
}

/// `[\p{P}$+<=>^~|]`
fn is_punctuation(c: char) -> bool {
    matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|') || sets::atom(c) & PUNCTUATION != 0
}

/// `[^(\s|.,!?…。，、।۔،)]`
fn is_bloom_word(c: char) -> bool {
    const ENDS: [char; 15] = ['(', '|', '.', ',', '!', '?', '…', '。', '，', '、', '।', '۔', '،', ')', ' '];
    !c.is_whitespace() && !ENDS.contains(&c)
}

/// A mark of ASCII and the ASCII letters after it.
fn punctuated_word(text: &str) -> Option<usize> {
    let letters = text.strip_prefix(|c: char| c.is_ascii_punctuation())?;
    let length = letters.bytes().take_while(u8::is_ascii_alphabetic).count();
    (length > 0).then_some(1 + length)
}

/// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: words with single spaces between them.
fn phrase(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let after = &text[first.len_utf8()..];
    let begins = LETTERS.contains(first) || BEFORE_WORD.contains(first) && starts_with(after, LETTERS);
    if !begins {
        return None;
    }
    let mut length = first.len_utf8();
    while let Some(c) = text[length..].chars().next() {
        let after = &text[length + c.len_utf8()..];
        let goes_on = Set::Of(LETTER | MARK).contains(c) || c == ' ' && starts_with(after, LETTERS);
        if !goes_on {
            break;
        }
        length += c.len_utf8();
    }
    Some(length)
}

/// `\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s`
fn space_steps(text: &str) -> Option<usize> {
    // The end of each of the first 512 characters of white space, and whether white space or nothing follows.
    let ends: Vec<usize> = text
        .char_indices()
        .take_while(|(_, c)| c.is_whitespace())
        .take(512)
        .map(|(at, c)| at + c.len_utf8())
        .collect();
    let may_end = |count: usize| {
        let end = *ends.get(count - 1)?;
        text[end..].chars().next().is_none_or(char::is_whitespace).then_some(end)
    };
    let steps = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
    steps.into_iter().find_map(may_end).or_else(|| ends.first().copied())
}

fn last_spaces<'t>(text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let (head, tail) = text.split_at(text.trim_end().len());
    [head, tail].into_iter().filter(|part| !part.is_empty()).for_each(piece);
}

fn digit_triple(text: &str) -> Option<usize> {
    let digits = text.as_bytes().get(..3)?;
    digits.iter().all(u8::is_ascii_digit).then_some(3)
}

fn sentinel(text: &str) -> Option<usize> {
    let number = text.strip_prefix("<sentinel:")?;
    let after = number.trim_start_matches(|c: char| c.is_ascii_digit());
    let closed = after.starts_with('>') && after.len() < number.len();
    closed.then(|| text.len() - after.len() + 1)
}

fn image(text: &str) -> Option<usize> {
    let code = text.strip_prefix("IMGIMG")?.as_bytes();
    let letters = code.iter().take(4).take_while(|letter| matches!(letter, b'A'..=b'I')).count();
    (letters > 0 && code.get(letters) == Some(&b'Z')).then_some(6 + letters + 1)
}

fn indentation(text: &str) -> Option<usize> {
    match text.as_bytes() {
        [b'\t' | b'\n', ..] => Some(1),
        [b' ', b' ', b' ', b' ', ..] => Some(4),
        [b' ', b' ', ..] => Some(2),
        _ => None,
    }
}
