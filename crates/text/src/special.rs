//! Which tokens steer a conversation instead of being text, as far as a file's texts tell.
//!
//! Files often fail to say which tokens end a generation, so they are known by their texts, as in llama.cpp. Unlike
//! there, a token that merges produce counts as text whatever it looks like: some vocabularies have an ordinary token
//! `</s>`, HTML's tag, and it must neither end an answer nor be kept from users.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::reasoning;
use crate::vocab::TokenKind;

/// Texts of tokens that end a generation.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of the padding, repository and file marks of fill-in-the-middle, which end a generation too; the first known
/// one of each row counts.
const FIM_ENDS: [&[&str]; 3] = [
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Texts of the other marks of fill-in-the-middle; the first known one of each row counts.
const FIM_MARKS: [&[&str]; 3] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
];

/// Texts of tokens that structure an answer and are shown. So are the marks around thoughts.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The token that `</s>` ends, if that is a tag.
const OPENING: &[&str] = &["<s>"];

/// Ids of special tokens that the file names by key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamedIds {
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
    pub(crate) eom: Option<u32>,
    /// Padding, repository and file marks of fill-in-the-middle, in the order of [`FIM_ENDS`].
    pub(crate) fim_ends: [Option<u32>; 3],
}

/// The ids of tokens that are known by their texts and are not ordinary tokens: made by merges, or the tag `</s>` where
/// `<s>` is no control token.
fn known_ids<'a>(texts: &'a [Arc<str>], merges: &[String], kinds: &[TokenKind]) -> FxHashMap<&'a str, u32> {
    let rows = FIM_ENDS.iter().chain(&FIM_MARKS).chain([&END_OF_GENERATION, &SHOWN, &OPENING]);
    let names = rows.flat_map(|row| row.iter().copied()).chain(reasoning::marks());
    let names: FxHashSet<&str> = names.collect();
    let mut ids: FxHashMap<&str, u32> = (0..)
        .zip(texts)
        .filter(|(_, text)| names.contains(&***text))
        .map(|(id, text)| (&**text, id))
        .collect();
    // A merge is as long as what it makes and the space.
    let lengths: FxHashSet<usize> = ids.keys().map(|text| text.len() + 1).collect();
    let merges = merges.iter().filter(|merge| lengths.contains(&merge.len()));
    for (left, right) in merges.filter_map(|merge| merge.split_once(' ')) {
        ids.retain(|text, _| text.strip_prefix(left) != Some(right));
    }
    let opening = ids.remove("<s>").and_then(|id| kinds.get(id as usize));
    if matches!(opening, Some(TokenKind::Normal | TokenKind::UserDefined)) {
        ids.remove("</s>");
    }
    ids
}

/// Corrects the `kinds` of tokens that are known by their texts and returns the ids that end a generation, ascending.
pub(crate) fn classify(
    texts: &[Arc<str>],
    merges: &[String],
    kinds: &mut [TokenKind],
    named: NamedIds,
) -> Vec<u32> {
    let ids = known_ids(texts, merges, kinds);
    let find = |text: &&str| ids.get(*text).copied();
    let mut set = |id: u32, kind| {
        if let Some(slot) = kinds.get_mut(id as usize) {
            *slot = kind;
        }
    };
    let mut ends: FxHashSet<u32> = [named.eos, named.eot, named.eom].into_iter().flatten().collect();
    for (names, by_key) in FIM_ENDS.iter().zip(named.fim_ends) {
        let by_text = || names.iter().find_map(find).inspect(|id| set(*id, TokenKind::Control));
        ends.extend(by_key.or_else(by_text));
    }
    for id in FIM_MARKS.iter().filter_map(|names| names.iter().find_map(find)) {
        set(id, TokenKind::Control);
    }
    for id in END_OF_GENERATION.iter().filter_map(find) {
        ends.insert(id);
        set(id, TokenKind::Control);
    }
    for id in SHOWN.iter().filter_map(find) {
        set(id, TokenKind::Marker);
    }
    let ends_with = |text: &str, ends: &FxHashSet<u32>| ids.get(text).is_some_and(|id| ends.contains(id));
    // Two families end a message with `<|end|>` in the middle of an answer and the answer with other tokens.
    let calls = ends_with("<|call|>", &ends) || ends_with("<|calls|>", &ends);
    if calls
        && (ends_with("<|return|>", &ends) || ends_with("<|flush|>", &ends))
        && let Some(id) = find(&"<|end|>")
    {
        ends.remove(&id);
        set(id, TokenKind::Marker);
    }
    for id in reasoning::marks().filter_map(|mark| find(&mark)) {
        if let Some(kind @ TokenKind::Control) = kinds.get_mut(id as usize) {
            *kind = TokenKind::Marker;
        }
    }
    let mut ends: Vec<u32> = ends.into_iter().collect();
    ends.sort_unstable();
    ends
}

/// Special tokens that swallow the white space after them: which, no key of a file tells, only the model's name.
pub(crate) fn swallowing(name: Option<&str>, texts: &[Arc<str>], kinds: &[TokenKind]) -> FxHashSet<u32> {
    let name = name.unwrap_or_default().to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return FxHashSet::default();
    }
    let special =
        |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
    let keeps_space = |text: &str| matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
    let tokens = (0..).zip(texts.iter().zip(kinds));
    tokens.filter(|(_, (text, kind))| special(kind) && !keeps_space(text)).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(texts: &[&str], named: NamedIds) -> (Vec<u32>, Vec<TokenKind>) {
        let texts: Vec<Arc<str>> = texts.iter().map(|text| (*text).into()).collect();
        let mut kinds = vec![TokenKind::Normal; texts.len()];
        let ends = classify(&texts, &["< /s>".to_owned()], &mut kinds, named);
        (ends, kinds)
    }

    #[test]
    fn known_texts_end_a_generation_and_become_control_tokens() {
        let named = NamedIds { eos: Some(0), ..NamedIds::default() };
        let (ends, kinds) = run(&["a", "<|im_end|>", "b", "<|repo_name|>", "<|fim_prefix|>"], named);
        assert_eq!(ends, [0, 1, 3]);
        use TokenKind::{Control, Normal};
        assert_eq!(kinds, [Normal, Control, Normal, Control, Control]);
    }

    #[test]
    fn families_with_other_habits() {
        let (ends, kinds) = run(&["<|return|>", "<|call|>", "<|end|>", "<|channel|>"], NamedIds::default());
        assert_eq!(ends, [0, 1]);
        assert_eq!(kinds[2..], [TokenKind::Marker, TokenKind::Marker], "shown, but no user text becomes one");
        assert!(TokenKind::Marker.is_control());
        let (ends, kinds) = run(&["<|tool_response>", "</s>"], NamedIds::default());
        assert_eq!(ends, [0], "what merges make is text");
        assert_eq!(kinds[1], TokenKind::Normal);
        let texts = ["<s>", "</s>", "<eos>"].map(Arc::from);
        let mut kinds = [TokenKind::UserDefined, TokenKind::UserDefined, TokenKind::Control];
        assert_eq!(
            classify(&texts, &[], &mut kinds, NamedIds::default()),
            [2],
            "`</s>` ends what `<s>` begins"
        );
        kinds[0] = TokenKind::Control;
        assert_eq!(classify(&texts, &[], &mut kinds, NamedIds::default()), [1, 2]);
    }
}
