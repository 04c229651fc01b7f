//! Splitting text into the pieces inside which BPE merges.
//!
//! Each tokenizer family defines its pieces by regular expressions. They are matched here by hand, driven by the tables of
//! [`families`], in linear time. Case-insensitive contractions are ASCII only, as in llama.cpp: `'ſ` is not `'s`.
//!
//! The expressions are those that the models were published with. Where llama.cpp has to approximate one (`gpt-4o`,
//! `tekken`, `tiny_aya`, `kimi-k2`), rare texts are cut as the model's authors cut them, and not as llama.cpp does.

mod alternatives;
mod digits;
mod families;
mod ranges;
pub(crate) mod sets;

use families::Pass;

/// A family of pre-tokenizers: how a text is cut before BPE. Several expressions cut one inside the pieces of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every `\p{N}` alone, the rest as [`PreTokenizer::Gpt2`].
    SmolLm,
    /// `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Qwen2,
    /// As [`PreTokenizer::Qwen2`], but marks belong to words.
    Qwen35,
    /// As [`PreTokenizer::Qwen2`], but numbers are `\p{N}{1,3}`.
    Llama3,
    /// `\p{N}{1,3}`, then as [`PreTokenizer::Llama3`] with numbers of any length.
    MiniCpm5,
    /// As [`PreTokenizer::Llama3`], but white space falls into steps of 512, 256, ... 4 and at most 2 characters.
    Jais2,
    /// As [`PreTokenizer::Qwen2`] without contractions.
    Ufakzeka,
    /// As [`PreTokenizer::Qwen2`], but line ends do not belong to the punctuation before them.
    SeedCoder,
    /// Lines and runs of line feeds, then [`PreTokenizer::Qwen2`].
    Laguna,
    /// As [`PreTokenizer::Qwen2`], but words with single spaces between them are one piece.
    ExaoneMoe,
    /// Words that end where their case rises, with a contraction; numbers of at most three.
    Gpt4o,
    /// As [`PreTokenizer::Gpt4o`] without contractions, and every number alone.
    Tekken,
    /// Digits in threes from the right, then [`PreTokenizer::Gpt4o`].
    TinyAya,
    /// Runs of eastern scripts and punctuation, then as [`PreTokenizer::Gpt4o`] with every number alone.
    Youtu,
    /// `\p{Han}+`, the rest as [`PreTokenizer::Gpt4o`].
    KimiK2,
    /// `[\r\n]`, letters, punctuation, white space at the end, eastern scripts, `\p{N}+`.
    DeepSeekLlm,
    /// `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, eastern scripts, `\p{N}`.
    DeepSeekCoder,
    /// `\p{N}{1,3}`, Chinese and kana, then words with their marks, punctuation with symbols, white space.
    DeepSeek3,
    /// As [`PreTokenizer::DeepSeek3`] with every line end alone.
    Spark,
    /// Numbers in threes from the right, Asian scripts, then as [`PreTokenizer::DeepSeek3`].
    Afmoe,
    /// ``[\p{P}$+<=>^~|`]+``, then [`PreTokenizer::Gpt2`], then `[0-9][0-9][0-9]`.
    Falcon,
    /// ` ?[^(\s|.,!?…。，、।۔،)]+`
    Bloom,
    /// [`PreTokenizer::Bloom`], then `\p{N}`.
    Viking,
    /// `\p{N}+`, cut before threes from the right.
    SuperBpe,
    /// Image and sentinel marks, indentation, every number and punctuation mark alone, then [`PreTokenizer::Gpt2`].
    Chameleon,
    /// Lines and runs of line feeds.
    Lines,
    /// `\S+`
    Words,
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
    /// Whether BOS is added even where the file says no, because files are known to be wrong.
    pub(crate) force_bos: bool,
    /// How the vocabulary spells text.
    pub(crate) spelling: Spelling,
}

/// How a vocabulary of BPE spells text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// A character for each byte, see [`crate::alphabet`].
    Bytes,
    /// As it is, but `▁` for a space; `<0x0A>` for a byte that is in no token.
    Characters,
    /// As it is; white space is not spelt at all.
    Words,
}

/// Neither merges ignored nor BOS added.
const fn plain(split: PreTokenizer) -> PreSettings {
    PreSettings { split, ignore_merges: false, add_bos: false, force_bos: false, spelling: Spelling::Bytes }
}

/// Merges ignored for pieces that are tokens.
const fn whole(split: PreTokenizer) -> PreSettings {
    PreSettings { ignore_merges: true, ..plain(split) }
}

/// Merges ignored for pieces that are tokens, and BOS added.
const fn whole_with_bos(split: PreTokenizer) -> PreSettings {
    PreSettings { add_bos: true, ..whole(split) }
}

/// Text spelt in characters.
const fn characters(split: PreTokenizer) -> PreSettings {
    PreSettings { spelling: Spelling::Characters, ..plain(split) }
}

/// Every known value of `tokenizer.ggml.pre`; names in one row mean the same.
const KNOWN: &[(PreSettings, &[&str])] = &[
    (plain(PreTokenizer::Default), &["default"]),
    (
        plain(PreTokenizer::Gpt2),
        &[
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "granite-docling",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
    ),
    (
        plain(PreTokenizer::SmolLm),
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
    ),
    (
        plain(PreTokenizer::Qwen2),
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "kormo",
            "f2llmv2",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
    ),
    (plain(PreTokenizer::Qwen35), &["qwen35"]),
    (
        whole_with_bos(PreTokenizer::Llama3),
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
    ),
    (plain(PreTokenizer::Llama3), &["dbrx", "smaug-bpe", "chatglm-bpe"]),
    (whole(PreTokenizer::Llama3), &["glm4", "glm5"]),
    (whole(PreTokenizer::MiniCpm5), &["minicpm5"]),
    (plain(PreTokenizer::Jais2), &["jais-2"]),
    (plain(PreTokenizer::Ufakzeka), &["ufakzeka"]),
    (plain(PreTokenizer::SeedCoder), &["seed-coder"]),
    (plain(PreTokenizer::Laguna), &["laguna"]),
    (plain(PreTokenizer::ExaoneMoe), &["exaone-moe"]),
    (plain(PreTokenizer::Gpt4o), &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"]),
    (whole(PreTokenizer::Gpt4o), &["granite-embed-multi-97m"]),
    (whole_with_bos(PreTokenizer::Tekken), &["tekken"]),
    (plain(PreTokenizer::TinyAya), &["tiny_aya", "cohere2moe"]),
    (whole(PreTokenizer::Youtu), &["youtu"]),
    (plain(PreTokenizer::KimiK2), &["kimi-k2"]),
    (plain(PreTokenizer::DeepSeekLlm), &["deepseek-llm"]),
    (plain(PreTokenizer::DeepSeekCoder), &["deepseek-coder"]),
    (plain(PreTokenizer::DeepSeek3), &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"]),
    (plain(PreTokenizer::Spark), &["spark2_5"]),
    (plain(PreTokenizer::Afmoe), &["afmoe"]),
    (plain(PreTokenizer::Falcon), &["falcon"]),
    (plain(PreTokenizer::Bloom), &["bloom", "poro-chat", "gpt3-finnish"]),
    (plain(PreTokenizer::Viking), &["viking"]),
    (plain(PreTokenizer::SuperBpe), &["superbpe"]),
    (PreSettings { add_bos: true, ..plain(PreTokenizer::Chameleon) }, &["chameleon"]),
    (
        PreSettings { add_bos: true, force_bos: true, ..characters(PreTokenizer::Lines) },
        &["gemma4", "granite-embed-multi-311m"],
    ),
    (characters(PreTokenizer::Lines), &["sarvam-moe"]),
    (PreSettings { spelling: Spelling::Words, ..plain(PreTokenizer::Words) }, &["whitespace"]),
];

impl PreSettings {
    /// The settings for a value of `tokenizer.ggml.pre`.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        KNOWN.iter().find(|(_, names)| names.contains(&name)).map(|(settings, _)| *settings)
    }

    /// Every known value, in the order of the table.
    pub(crate) fn names() -> Vec<&'static str> {
        KNOWN.iter().flat_map(|(_, names)| names.iter().copied()).collect()
    }
}

impl PreTokenizer {
    /// The family that a value of `tokenizer.ggml.pre` names.
    pub fn by_name(name: &str) -> Option<Self> {
        PreSettings::by_name(name).map(|settings| settings.split)
    }

    /// Every value of `tokenizer.ggml.pre` that is known; those in one list are cut alike.
    pub fn known_names() -> Vec<Vec<&'static str>> {
        let mut rows: Vec<(PreTokenizer, Vec<&'static str>)> = Vec::new();
        for (settings, names) in KNOWN {
            match rows.iter_mut().find(|(split, _)| *split == settings.split) {
                Some((_, row)) => row.extend(*names),
                None => rows.push((settings.split, names.to_vec())),
            }
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Cuts `text` into pieces and gives them to `piece` in order. No piece is empty; together they are `text`.
    pub fn split<'t>(self, text: &'t str, piece: &mut dyn FnMut(&'t str)) {
        apply(families::passes(self), text, piece);
    }
}

/// Runs `passes` one inside the pieces of the other.
fn apply<'t>(passes: &[Pass], text: &'t str, piece: &mut dyn FnMut(&'t str)) {
    let Some((pass, rest)) = passes.split_first() else {
        piece(text);
        return;
    };
    let mut inner = |part: &'t str| apply(rest, part, piece);
    match pass {
        Pass::Matches(list) => alternatives::cut(list, text, &mut inner),
        Pass::Cuts(cut) => cut(text, &mut inner),
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
