//! SentencePiece, WordPiece and the unigram model on small vocabularies made here: spaces, control tokens, errors.

use minfer_text::{EncodeOptions, Part, Tokenizer, TokenizerError, TokenizerErrorKind, VocabSource};
use proptest::prelude::*;

const BOS: u32 = 1;
const EOS: u32 = 2;
const END: u32 = 259;
const TOOL: u32 = 260;
const WORD: u32 = 267;

struct Vocab {
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
}

impl Vocab {
    /// The unknown token, BOS, EOS, every byte (id = byte + 3), special tokens, and the parts of `▁hello`.
    fn new() -> Self {
        let mut vocab = Vocab { tokens: Vec::new(), types: Vec::new(), scores: Vec::new() };
        let special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(text, kind)| (text.to_owned(), kind));
        let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6));
        let others = [("<|end|>", 3), ("<tool>", 4), ("▁", 1), ("h", 1), ("e", 1), ("l", 1), ("o", 1)];
        let words = [("▁hell", 1), ("▁hello", 1), ("▁h", 1), ("el", 1), ("▁hel", 1), ("  ", 4)];
        let rest = others.into_iter().chain(words).map(|(text, kind)| (text.to_owned(), kind));
        for (at, (text, kind)) in special.into_iter().chain(bytes).chain(rest).enumerate() {
            vocab.tokens.push(text);
            vocab.types.push(kind);
            vocab.scores.push(-(at as f32));
        }
        vocab
    }

    fn source(&self) -> VocabSource<'_> {
        VocabSource {
            model: "llama",
            tokens: &self.tokens,
            token_types: Some(self.types.clone()),
            scores: Some(self.scores.clone()),
            ..VocabSource::default()
        }
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| u32::from(byte) + 3).collect()
}

const PLAIN: EncodeOptions = EncodeOptions { add_bos: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_bos: true, parse_special: true };

#[test]
fn a_space_stands_before_a_text_and_behind_special_tokens() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(BOS), Some(EOS)), "the defaults of this kind");
    assert_eq!(tokenizer.encode("hello", SPECIAL), [BOS, WORD]);
    assert_eq!(tokenizer.encode("", SPECIAL), [BOS]);
    assert_eq!(tokenizer.encode("hello<|end|>hello hello", SPECIAL), [BOS, WORD, END, WORD, WORD]);
    assert_eq!(tokenizer.encode("<tool>hello", PLAIN), [TOOL, WORD]);
    let parts = [Part::Special("<|end|>".to_owned()), Part::Plain("hello".to_owned())];
    assert_eq!(tokenizer.encode_parts(&parts, true), [BOS, END, WORD]);
    let source = VocabSource { add_space: Some(false), ..vocab.source() };
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode("hello hello", PLAIN).len(), 4 + 1, "h el l o, and a word");
    assert_eq!(tokenizer.encode("  hello", PLAIN)[0], 271, "user-defined tokens have their spaces");
    assert_eq!(tokenizer.encode("▁▁hello", PLAIN)[0], 271, "`▁` is a space, for what it is worth");
}

#[test]
fn texts_come_back_without_the_space() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    assert_eq!(tokenizer.decode(&[WORD, WORD]), "hello hello");
    assert_eq!(tokenizer.decode(&[BOS, WORD]), "hello");
    assert_eq!(tokenizer.token_bytes(WORD), b" hello");
    let stream = |prompt: &[u32], show: bool, ids: &[u32]| {
        let mut stream = tokenizer.detokenizer_after(prompt, show);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    };
    assert_eq!(stream(&[], false, &[WORD]), "hello");
    assert_eq!(stream(&[BOS, WORD, END], false, &[WORD, WORD]), "hello hello");
    assert_eq!(stream(&[BOS, WORD], false, &[WORD]), " hello", "the text goes on");
    assert_eq!(stream(&[], true, &[BOS, WORD]), "<s> hello", "text stands before it");
    assert_eq!(stream(&[], false, &[0xE2 + 3, 0x82 + 3, 0xAC + 3, 0xE2 + 3]), "€\u{FFFD}");
}

/// SentencePiece decodes these pieces so, and so do `tokenizers` (with the decoders of the Llama models) and llama.cpp.
#[test]
fn the_space_behind_a_user_defined_token_stays() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    assert_eq!(tokenizer.encode("<tool>hello", PLAIN), [TOOL, WORD]);
    assert_eq!(tokenizer.decode(&[TOOL, WORD]), "<tool> hello");
    assert_eq!(tokenizer.decode(&[WORD, TOOL, WORD]), "hello<tool> hello");
    let mut stream = tokenizer.detokenizer(false);
    assert_eq!([TOOL, WORD].map(|id| stream.push(id)), ["<tool>", " hello"]);
}

#[test]
fn no_text_becomes_a_control_token() {
    let mut vocab = Vocab::new();
    // Parts that would merge to `</s>`, of the highest score.
    for text in ["<", "/", "s", ">", "</", "s>"] {
        vocab.tokens.push(text.to_owned());
        vocab.types.push(1);
        vocab.scores.push(-1000.0);
    }
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    for text in ["</s>", "a</s>", "<|end|>", "<unk>", "<0x41>"] {
        let ids = tokenizer.encode(text, PLAIN);
        assert!(ids.iter().all(|id| !tokenizer.is_control(*id)), "{text}: {ids:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    }
    assert_eq!(tokenizer.encode("</s>", SPECIAL), [BOS, EOS]);
    assert_eq!(tokenizer.encode("A", PLAIN)[1..], bytes("A"));
}

#[test]
fn some_models_swallow_white_space_behind_special_tokens() {
    let vocab = Vocab::new();
    let source = VocabSource { name: Some("Phi-3-mini"), ..vocab.source() };
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode("<|end|> \n\thello", SPECIAL), [BOS, END, WORD]);
    assert_eq!(tokenizer.encode("<|end|>\n<|end|>\n", SPECIAL), [BOS, END, END]);
    assert_eq!(tokenizer.encode("<s>\nhello", SPECIAL).len(), 7, "BOS does not: ▁ \\n h el l o");
    let parts = [Part::Special("<|end|>".to_owned()), Part::Plain("\nhello".to_owned())];
    assert_eq!(tokenizer.encode_parts(&parts, false), [END, WORD]);
}

#[test]
fn wordpiece_frames_texts() {
    let tokens = ["[UNK]", "[CLS]", "[SEP]", "▁hello", "▁world", "s", "▁,"].map(str::to_owned);
    let source = VocabSource {
        model: "bert",
        tokens: &tokens,
        token_types: Some(vec![2, 3, 3, 1, 1, 1, 1]),
        unknown: Some(0),
        cls: Some(1),
        separator: Some(2),
        ..VocabSource::default()
    };
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode("Hello,  worlds x", EncodeOptions::default()), [1, 3, 6, 4, 5, 0, 2]);
    assert_eq!(tokenizer.encode("[SEP]", PLAIN), [0, 0, 0]);
    assert_eq!(tokenizer.decode(&[1, 3, 6, 4, 5, 2]), "hello , worlds");
    let source = VocabSource { separator: None, ..source };
    let wrong = Tokenizer::from_source(&source).unwrap_err();
    assert_eq!(wrong.kind(), TokenizerErrorKind::Invalid, "the default is outside the vocabulary: {wrong}");
}

#[test]
fn unigram_adds_eos() {
    let tokens = ["<pad>", "</s>", "<unk>", "▁hello", "▁hel", "lo"].map(str::to_owned);
    let source = VocabSource {
        model: "t5",
        tokens: &tokens,
        token_types: Some(vec![3, 3, 2, 1, 1, 1]),
        scores: Some(vec![0.0, 0.0, 0.0, -9.0, -2.0, -2.0]),
        add_space: Some(true),
        merge_spaces: Some(true),
        ..VocabSource::default()
    };
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode(" hello  hello漢字", EncodeOptions::default()), [4, 5, 4, 5, 2, 1]);
    assert_eq!(tokenizer.decode(&[4, 5, 3]), "hello hello");
    let source = VocabSource { charsmap: Some(vec![1, 2, 3]), ..source };
    assert!(Tokenizer::from_source(&source).unwrap_err().to_string().contains("precompiled_charsmap"));
}

#[test]
fn bad_files_are_errors_that_name_the_key() {
    let vocab = Vocab::new();
    let error = |source: VocabSource<'_>| Tokenizer::from_source(&source).unwrap_err();
    let names = |error: TokenizerError, key: &str| {
        assert_eq!(error.kind(), TokenizerErrorKind::Invalid);
        assert!(error.to_string().contains(key), "{error}");
    };
    for model in ["llama", "t5"] {
        let source = || VocabSource { model, ..vocab.source() };
        let with = |score: f32| {
            let mut scores = vocab.scores.clone();
            scores[7] = score;
            Some(scores)
        };
        names(error(VocabSource { scores: None, ..source() }), "tokenizer.ggml.scores");
        names(error(VocabSource { scores: Some(vec![0.0]), ..source() }), "tokenizer.ggml.scores");
        names(error(VocabSource { scores: with(f32::NAN), ..source() }), "token 7");
        Tokenizer::from_source(&VocabSource { scores: with(f32::INFINITY), ..source() }).unwrap();
        names(error(VocabSource { token_types: Some(vec![1]), ..source() }), "tokenizer.ggml.token_type");
        names(error(VocabSource { unknown: Some(9999), ..source() }), "tokenizer.ggml.unknown_token_id");
        let mut doubled = Vocab::new();
        doubled.tokens[270] = "h".to_owned();
        names(error(VocabSource { model, ..doubled.source() }), "\"h\"");
        let mut empty = Vocab::new();
        empty.tokens[262] = String::new();
        empty.tokens[263] = String::new();
        let tokenizer = Tokenizer::from_source(&VocabSource { model, ..empty.source() }).unwrap();
        assert!(tokenizer.token_bytes(262).is_empty());
    }
    let none = VocabSource { model: "llama", scores: Some(Vec::new()), ..VocabSource::default() };
    names(error(none.clone()), "tokenizer.ggml.bos_token_id");
    let nothing = Tokenizer::from_source(&VocabSource { add_bos: Some(false), ..none }).unwrap();
    assert!(nothing.encode("hello", EncodeOptions::default()).is_empty());
    assert_eq!(nothing.missing_bytes().len(), 256);
}

proptest! {
    #[test]
    fn every_text_comes_back(text in "[^▁]*", add_space in any::<bool>()) {
        // The space that stands behind a user-defined token, as the makers' library puts it, stays.
        prop_assume!(!add_space || !["  ", "<tool>"].iter().any(|token| text.contains(token)));
        let vocab = Vocab::new();
        let source = VocabSource { add_space: Some(add_space), ..vocab.source() };
        let tokenizer = Tokenizer::from_source(&source).unwrap();
        let ids = tokenizer.encode(&text, EncodeOptions::default());
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }

    #[test]
    fn no_vocabulary_panics(
        tokens in prop::collection::vec("[ab▁ <0xA>é]{0,4}", 0..12),
        types in prop::collection::vec(0..8, 12),
        scores in prop::collection::vec(any::<f32>(), 12),
        model in prop::sample::select(vec!["gpt2", "gemma4", "llama", "bert", "t5"]),
        charsmap in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
        ids in prop::array::uniform4(prop::option::of(0..14u32)),
        texts in prop::collection::vec("[ab▁ <0xA>éf\n]{0,12}", 4),
    ) {
        let source = VocabSource {
            model,
            pre: Some("gpt-2"),
            token_types: Some(types[..tokens.len()].to_vec()),
            scores: Some(scores[..tokens.len()].to_vec()),
            merges: &["a b".to_owned(), "ab a".to_owned()],
            charsmap,
            bos: ids[0],
            eos: ids[1],
            unknown: ids[2],
            separator: ids[3],
            tokens: &tokens,
            ..VocabSource::default()
        };
        if let Ok(tokenizer) = Tokenizer::from_source(&source) {
            for text in texts {
                tokenizer.decode(&tokenizer.encode(&text, EncodeOptions::default()));
                tokenizer.encode(&text, SPECIAL);
            }
        }
    }
}
