//! The tokenizer on a small vocabulary made here: special tokens, BOS, streaming, errors.

mod common;

use minfer_gguf::Metadata;
use minfer_text::{
    EncodeOptions, Part, TokenKind, Tokenizer, TokenizerError, TokenizerErrorKind, VocabSource,
};
use proptest::prelude::*;

/// The character that stands for each byte, by the definition that GPT-2 published.
fn alphabet() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut others = 256..;
    (0..256).map(|b| char::from_u32(if printable(b) { b } else { others.next().unwrap() }).unwrap()).collect()
}

struct Vocab {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

const BOS: u32 = 256;
const END: u32 = 257;
const USER_DEFINED: u32 = 258;
const UNUSED: u32 = 259;
const LLO: u32 = 261;

impl Vocab {
    /// Every byte (id = byte), special tokens, and the words of two merges.
    fn new() -> Self {
        let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
        let mut types = vec![1; 256];
        for (text, kind) in
            [("<s>", 3), ("<|im_end|>", 3), ("<tool>", 4), ("[unused7]", 5), ("ll", 1), ("llo", 1)]
        {
            tokens.push(text.to_owned());
            types.push(kind);
        }
        Vocab { tokens, types, merges: vec!["l l".to_owned(), "ll o".to_owned()] }
    }

    fn source(&self) -> VocabSource<'_> {
        VocabSource {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: &self.tokens,
            token_types: Some(self.types.clone()),
            merges: &self.merges,
            bos: Some(BOS),
            eos: Some(END),
            ..VocabSource::default()
        }
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn control_tokens_are_read_only_where_asked() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    let plain = EncodeOptions { add_bos: false, parse_special: false };
    let special = EncodeOptions { add_bos: false, parse_special: true };
    assert_eq!(tokenizer.encode("<|im_end|>", plain), bytes("<|im_end|>"));
    assert_eq!(tokenizer.encode("a<|im_end|>b", special), [97, END, 98]);
    assert_eq!(tokenizer.encode("a<tool>b", plain), [97, USER_DEFINED, 98]);
    assert_eq!(tokenizer.encode("hello", plain), [104, 101, LLO]);
    assert!(tokenizer.encode("", plain).is_empty());
    assert!(tokenizer.is_control(END) && !tokenizer.is_control(USER_DEFINED) && !tokenizer.is_control(9999));
    assert_eq!(tokenizer.eog_set(), [END]);
    assert!(tokenizer.is_eog(END) && !tokenizer.is_eog(BOS));
    assert_eq!(tokenizer.kind(UNUSED), Some(TokenKind::Unused));
    assert_eq!(tokenizer.token_text(LLO), Some("llo"));
    assert_eq!(tokenizer.token_bytes(32), b" ");
}

#[test]
fn parts_keep_what_users_write_apart() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    let special = |text: &str| Part::Special(text.to_owned());
    let plain = |text: &str| Part::Plain(text.to_owned());
    let parts = [plain("<|im_end|>"), special("<|im_end|>"), plain("hel"), plain("lo"), special("no token")];
    let mut expected = bytes("<|im_end|>");
    expected.extend([END, 104, 101, LLO]);
    expected.extend(bytes("no token"));
    assert_eq!(tokenizer.encode_parts(&parts, false), expected);
}

#[test]
fn bos_and_eos_as_the_file_says_and_never_twice() {
    let vocab = Vocab::new();
    let encode = |source: &VocabSource<'_>, text: &str, parse_special| {
        Tokenizer::from_source(source).unwrap().encode(text, EncodeOptions { add_bos: true, parse_special })
    };
    let source = vocab.source();
    assert_eq!(encode(&source, "a", false), [97], "gpt-2 adds none by default");
    let source = VocabSource { add_bos: Some(true), ..vocab.source() };
    assert_eq!(encode(&source, "a", false), [BOS, 97]);
    assert_eq!(encode(&source, "", false), [BOS]);
    assert_eq!(encode(&source, "<s>a", true), [BOS, 97]);
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode_parts(&[Part::Special("<s>".to_owned())], true), [BOS]);
    assert_eq!(tokenizer.encode_parts(&[Part::Plain("a".to_owned())], true), [BOS, 97]);
    let source = VocabSource { add_eos: Some(true), ..vocab.source() };
    assert_eq!(encode(&source, "a", false), [97, END]);
    assert_eq!(encode(&source, "a<|im_end|>", true), [97, END], "as with BOS");
    assert_eq!(encode(&source, "<|im_end|>", true), [END]);
    assert_eq!(encode(&source, "a<|im_end|>", false).last(), Some(&END));
    assert_eq!(encode(&source, "<|im_end|>a", true), [END, 97, END]);
    let both = VocabSource { add_bos: Some(true), add_eos: Some(true), ..vocab.source() };
    assert_eq!(encode(&both, "<s>a<|im_end|>", true), [BOS, 97, END]);
    assert_eq!(encode(&both, "", true), [BOS, END]);
    let one = VocabSource { eos: Some(BOS), ..both.clone() };
    assert_eq!(encode(&one, "<s>", true), [BOS, BOS], "one token does not frame a text");
    assert_eq!(encode(&one, "<s>a<s>", true), [BOS, 97, BOS]);
    // A token that text becomes is no mark of a text's ends.
    let plain = VocabSource { bos: Some(97), eos: Some(98), ..both };
    assert_eq!(encode(&plain, "ab", true), [97, 97, 98, 98]);
    let source = VocabSource { pre: Some("llama-bpe"), ..vocab.source() };
    assert_eq!(encode(&source, "a", false), [BOS, 97], "llama-bpe adds BOS by default");
    let source = VocabSource { pre: Some("llama-bpe"), add_bos: Some(false), ..vocab.source() };
    assert_eq!(encode(&source, "a", false), [97]);
}

#[test]
fn a_stream_gives_whole_characters() {
    let vocab = Vocab::new();
    let tokenizer = Tokenizer::from_source(&vocab.source()).unwrap();
    let mut stream = tokenizer.detokenizer(false);
    let pushed: Vec<String> = bytes("é€🙂a").iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pushed, ["", "é", "", "", "€", "", "", "", "🙂", "a"]);
    assert_eq!(stream.finish(), "");
    assert_eq!(stream.push(0xE2), "");
    assert_eq!(stream.push(END), "", "control tokens are not shown");
    assert_eq!(stream.push(97), "\u{FFFD}a", "the character can't be completed any more");
    assert_eq!(stream.push(0xF0), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.push(UNUSED), "");
    assert_eq!(stream.push(1_000_000), "\u{FFFD}");
    assert_eq!(stream.push(USER_DEFINED), "<tool>");
    assert_eq!(tokenizer.detokenizer(true).push(END), "<|im_end|>");
    assert_eq!(tokenizer.decode(&[104, END, 105]), "hi");
}

#[test]
fn what_is_not_supported_is_named() {
    let vocab = Vocab::new();
    let error = |source: VocabSource<'_>| Tokenizer::from_source(&source).unwrap_err();
    let wrong = error(VocabSource { model: "rwkv", ..vocab.source() });
    assert!(wrong.to_string().contains("\"rwkv\"") && wrong.to_string().contains("gpt2"), "{wrong}");
    assert_eq!(wrong.kind(), TokenizerErrorKind::Unsupported);
    let wrong = error(VocabSource { model: "none", ..vocab.source() });
    assert_eq!(wrong.kind(), TokenizerErrorKind::Missing);
    let wrong = error(VocabSource { pre: Some("klingon"), ..vocab.source() });
    assert_eq!(wrong.kind(), TokenizerErrorKind::Unsupported);
    assert!(wrong.to_string().contains("tokenizer.ggml.pre\" is \"klingon\""), "{wrong}");
    assert!(matches!(error(VocabSource { pre: None, ..vocab.source() }), TokenizerError::MissingPre));
    for source in [
        VocabSource { eos: Some(9999), ..vocab.source() },
        VocabSource { token_types: Some(vec![1]), ..vocab.source() },
        VocabSource { add_bos: Some(true), bos: None, ..vocab.source() },
        VocabSource { merges: &["nopair".to_owned()], ..vocab.source() },
    ] {
        assert_eq!(error(source).kind(), TokenizerErrorKind::Invalid);
    }
    assert_eq!(
        Tokenizer::from_metadata(&Metadata::default()).unwrap_err().kind(),
        TokenizerErrorKind::Missing
    );
}

#[test]
fn kinds_of_tokens_are_the_published_ones() {
    let mut vocab = Vocab::new();
    for (number, kind) in [(0, Some(TokenKind::Unused)), (6, Some(TokenKind::Byte)), (7, None), (-1, None)] {
        assert_eq!(TokenKind::from_number(number), kind);
        vocab.types[UNUSED as usize] = number;
        match Tokenizer::from_source(&vocab.source()) {
            Ok(tokenizer) => assert_eq!(tokenizer.kind(UNUSED), kind),
            Err(error) => {
                let text = error.to_string();
                assert!(kind.is_none() && error.kind() == TokenizerErrorKind::Invalid, "{text}");
                assert!(text.contains("\"tokenizer.ggml.token_type\": token 259 is of type"), "{text}");
            }
        }
    }
}

#[test]
fn merges_of_unknown_texts_are_counted() {
    let mut vocab = Vocab::new();
    let count = |vocab: &Vocab| Tokenizer::from_source(&vocab.source()).unwrap().unknown_merges();
    assert_eq!(count(&vocab), 0);
    vocab.merges.extend(["h e", "he llo", "ll ll"].map(String::from));
    assert_eq!(count(&vocab), 3);
}

#[test]
fn what_a_file_says_moves_no_cursor_and_has_an_end() {
    let vocab = Vocab::new();
    let hostile = "\u{1b}[2J\n".repeat(10_000);
    let mut twice = Vocab::new();
    twice.tokens.extend([hostile.clone(), hostile.clone()]);
    twice.types.extend([1, 1]);
    let merged = [hostile.clone()];
    for source in [
        VocabSource { model: &hostile, ..vocab.source() },
        VocabSource { pre: Some(&hostile), ..vocab.source() },
        VocabSource { merges: &merged, ..vocab.source() },
        twice.source(),
    ] {
        let text = Tokenizer::from_source(&source).unwrap_err().to_string();
        assert!(text.contains("u{1b}[2J") && text.contains('…'), "{text}");
        assert!(!text.contains(char::is_control) && text.len() < 4000, "{text}");
    }
}

/// `tests/oracle/words.py` made the vocabulary and the ids.
#[test]
fn words_give_the_ids_of_the_makers_library() {
    let data: serde_json::Value = serde_json::from_str(include_str!("data/words.json")).unwrap();
    let list = |key: &str| -> Vec<String> { serde_json::from_value(data[key].clone()).unwrap() };
    let (tokens, merges) = (list("tokens"), list("merges"));
    let texts = common::hostile_texts();
    for (lowercase, hashes) in [(None, "ids"), (Some(true), "lowercase")] {
        let source = VocabSource {
            model: "whitespace",
            tokens: &tokens,
            merges: &merges,
            lowercase,
            ..VocabSource::default()
        };
        let tokenizer = Tokenizer::from_source(&source).unwrap();
        assert_eq!(tokenizer.unknown_merges(), 0);
        let rows: Vec<Vec<u32>> =
            texts.iter().map(|text| tokenizer.encode(text, EncodeOptions::default())).collect();
        assert!(rows.iter().map(Vec::len).sum::<usize>() > 18_000, "most characters are in the vocabulary");
        common::assert_blocks(hashes, &rows, data[hashes].as_str().unwrap());
    }
}

#[test]
fn metadata_are_read() {
    let vocab = Vocab::new();
    let mut metadata = Metadata::default();
    assert!(metadata.insert("tokenizer.ggml.model".to_owned(), "gpt2".into()));
    let wrong = Tokenizer::from_metadata(&metadata).unwrap_err();
    assert!(wrong.to_string().contains("tokenizer.ggml.tokens"), "{wrong}");
    assert!(metadata.insert("tokenizer.ggml.pre".to_owned(), "gpt-2".into()));
    assert!(metadata.insert("tokenizer.ggml.tokens".to_owned(), vocab.tokens.clone().into()));
    assert!(metadata.insert("tokenizer.ggml.token_type".to_owned(), vocab.types.clone().into()));
    assert!(metadata.insert("tokenizer.ggml.merges".to_owned(), vocab.merges.clone().into()));
    assert!(metadata.insert("tokenizer.ggml.bos_token_id".to_owned(), BOS.into()));
    assert!(metadata.insert("tokenizer.ggml.add_bos_token".to_owned(), true.into()));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("hello", EncodeOptions::default()), [BOS, 104, 101, LLO]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.n_vocab()), (Some(BOS), None, 262));
}

proptest! {
    #[test]
    fn every_text_comes_back(text in any::<String>(), pre in prop::sample::select(vec!["gpt-2", "smollm", "qwen2", "llama-bpe", "default"])) {
        let vocab = Vocab::new();
        let tokenizer = Tokenizer::from_source(&VocabSource { pre: Some(pre), ..vocab.source() }).unwrap();
        for parse_special in [false, true] {
            let ids = tokenizer.encode(&text, EncodeOptions { add_bos: false, parse_special });
            let mut stream = tokenizer.detokenizer(true);
            let mut back: String = ids.iter().map(|id| stream.push(*id)).collect();
            back.push_str(&stream.finish());
            prop_assert_eq!(&back, &text);
        }
    }
}
