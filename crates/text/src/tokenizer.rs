//! The tokenizer: text to ids, and what the ids mean.

use std::sync::Arc;

use minfer_gguf::Metadata;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Part;
use crate::bpe::Bpe;
use crate::charsmap::CharsMap;
use crate::detokenize::Detokenizer;
use crate::error::TokenizerError;
use crate::model::Model;
use crate::partition::{Fragment, SpecialSet};
use crate::special::{self, NamedIds};
use crate::split::PreSettings;
use crate::spm::Spm;
use crate::ugm::Ugm;
use crate::vocab::{self, Defaults, ModelKind, TokenKind, VocabSource};
use crate::wpm::Wpm;

/// A tokenizer.
///
/// Texts that a vocabulary covers come back exactly: `decode(encode(text)) == text`, with exceptions that the reference
/// implementations make too:
///
/// - Some vocabularies lack rare bytes ([`missing_bytes`](Self::missing_bytes)); those are dropped, or become the
///   unknown token.
/// - WordPiece and `whitespace` keep words, not what was between them.
/// - Where texts get a space in front (`add_space_prefix`), so does the text behind a user-defined token, and there
///   decoding leaves it: the same ids stand for a space that was written. Only at the start of a text it is taken away.
#[derive(Debug)]
pub struct Tokenizer {
    model: Box<dyn Model>,
    texts: Vec<Arc<str>>,
    kinds: Vec<TokenKind>,
    /// User-defined tokens: they are tokens wherever they stand.
    always: SpecialSet,
    /// Those, and control and unknown tokens.
    all_special: SpecialSet,
    /// Control and unknown tokens by text.
    control: FxHashMap<Arc<str>, u32>,
    /// Special tokens that swallow the white space after them.
    swallowing: FxHashSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
}

/// How a text is tokenised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS before the text, and EOS after it, if the file says so, unless it stands there already as a special
    /// token. With `false` neither is added.
    pub add_bos: bool,
    /// Read texts of control tokens as control tokens. Never for text that a user wrote.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// What the file says about BOS; control tokens are not parsed.
    fn default() -> Self {
        EncodeOptions { add_bos: true, parse_special: false }
    }
}

/// Where in a prompt the encoder stands.
struct Place {
    /// At the start, or after a special token.
    begins: bool,
    /// After a special token that swallows white space.
    swallow: bool,
}

impl Default for Place {
    /// The start of a prompt.
    fn default() -> Self {
        Place { begins: true, swallow: false }
    }
}

impl Tokenizer {
    /// Every value of `tokenizer.ggml.model` that is supported, and what it stands for.
    pub fn known_models() -> impl Iterator<Item = (&'static str, &'static str)> {
        vocab::MODELS.iter().map(|(name, what, ..)| (*name, *what))
    }

    /// Builds the tokenizer that a file describes.
    ///
    /// # Errors
    ///
    /// [`TokenizerError`]: no tokenizer, one of another kind, a way of splitting text that is not known, or tables that
    /// contradict each other. Nothing is guessed.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::from_source(&VocabSource::from_metadata(metadata)?)
    }

    /// Builds a tokenizer from its parts.
    ///
    /// # Errors
    ///
    /// As [`from_metadata`](Self::from_metadata).
    pub fn from_source(source: &VocabSource<'_>) -> Result<Self, TokenizerError> {
        let (kind, defaults) = ModelKind::by_name(source.model)?;
        let source = &with_defaults(source, kind, defaults)?;
        check_ids(source)?;
        let texts: Vec<Arc<str>> = source.tokens.iter().map(|text| text.as_str().into()).collect();
        let mut kinds = read_kinds(source)?;
        let named = NamedIds { eos: source.eos, eot: source.eot, eom: source.eom, fim_ends: source.fim_ends };
        let ends = special::classify(&texts, source.merges, &mut kinds, named);
        let is_control = |id: usize| kinds[id].is_control();
        let model = build(kind, source, &texts, &kinds)?;
        let special = |also_control: bool| {
            let taken = |id: usize| kinds[id] == TokenKind::UserDefined || also_control && is_control(id);
            let tokens = texts.iter().zip(0u32..).enumerate();
            let set =
                SpecialSet::new(tokens.filter(|(id, _)| taken(*id)).map(|(_, (text, id))| (&**text, id)));
            if kind == ModelKind::Spm { set.with_spaces_alike() } else { set }
        };
        let (always, all_special) = (special(false), special(true));
        let numbered = texts.iter().zip(0u32..).enumerate();
        let control = numbered
            .filter(|(at, _)| is_control(*at))
            .map(|(_, (text, id))| (Arc::clone(text), id))
            .collect();
        Ok(Tokenizer {
            model,
            swallowing: special::swallowing(source.name, &texts, &kinds),
            always,
            all_special,
            control,
            texts,
            kinds,
            bos: source.bos,
            eos: source.eos,
            ends,
            add_bos: source.add_bos == Some(true),
            add_eos: source.add_eos == Some(true),
        })
    }

    /// The ids of `text`.
    ///
    /// User-defined tokens are always found in the text; control tokens only with
    /// [`parse_special`](EncodeOptions::parse_special). BOS and EOS that the text begins and ends with as special tokens
    /// are not doubled; where both are one token, it counts once.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let specials = if options.parse_special { &self.all_special } else { &self.always };
        self.encode_text(text, specials, &mut Place::default(), &mut ids);
        if options.add_bos {
            self.prepend_bos(&mut ids);
            let inner = &ids[usize::from(self.add_bos).min(ids.len())..];
            if let Some(eos) = self.eos.filter(|_| self.add_eos)
                && !(inner.last() == Some(&eos) && self.is_special(eos))
            {
                ids.push(eos);
            }
        }
        ids
    }

    /// The ids of a prompt in parts, as a chat template gives them: control tokens come from [`Part::Special`] only.
    /// With `add_bos`, BOS is added if the file says so and the first part is not already BOS.
    pub fn encode_parts(&self, parts: &[Part], add_bos: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        // Neighbouring plain parts are one text; a cut between them would forbid merges across it.
        let mut plain = String::new();
        let mut place = Place::default();
        for part in parts {
            match part {
                Part::Special(text) if let Some(id) = self.control_id(text) => {
                    self.encode_text(&plain, &self.always, &mut place, &mut ids);
                    plain.clear();
                    ids.push(id);
                    place = self.after(id);
                }
                part => plain.push_str(part.text()),
            }
        }
        self.encode_text(&plain, &self.always, &mut place, &mut ids);
        if add_bos {
            self.prepend_bos(&mut ids);
        }
        ids
    }

    /// The text of `ids`; control tokens are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        let mut begins = true;
        for id in ids {
            self.next_piece_into(*id, false, &mut begins, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A detokeniser for a stream of ids that begins a text, see [`Detokenizer::new`].
    pub fn detokenizer(&self, show_special: bool) -> Detokenizer<'_> {
        Detokenizer::new(self, show_special)
    }

    /// A detokeniser for the ids that follow `prompt`. It begins a text if the prompt is empty or ends with a special
    /// token; else the text goes on, and a space that it begins with is shown.
    pub fn detokenizer_after(&self, prompt: &[u32], show_special: bool) -> Detokenizer<'_> {
        Detokenizer::after(self, show_special, prompt.last().is_none_or(|id| self.is_special(*id)))
    }

    /// Number of tokens in the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.texts.len()
    }

    /// The token that begins a text, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the file asks for BOS before a text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the file asks for EOS after a text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Every token that ends a generation, ascending: EOS, and those known by key or text.
    pub fn eog_set(&self) -> &[u32] {
        &self.ends
    }

    /// Whether `id` ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The text of a token as the vocabulary spells it (`Ġthe` in the byte alphabet of BPE, `▁the` in SentencePiece).
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(|text| &**text)
    }

    /// The bytes a token stands for; empty for tokens that stand for no text, and for ids outside the vocabulary.
    /// Control tokens stand for their texts.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.kind(id).is_some() {
            self.piece_into(id, true, &mut bytes);
        }
        bytes
    }

    /// How many of the file's merges name a text, or make one, that is no token. Real files have none; such merges work
    /// as llama.cpp has them, but the text that they leave falls apart into bytes.
    pub fn unknown_merges(&self) -> usize {
        self.model.unknown_merges()
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Whether `id` is a control token (or the unknown token): shown to nobody, written by no user.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id).is_some_and(TokenKind::is_control)
    }

    /// The id of the control token with this text.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.control.get(text).copied()
    }

    /// The texts of all control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.control.keys().map(|text| &**text)
    }

    /// Bytes that the vocabulary can't express, ascending; mostly none. They vanish from encoded texts, or become the
    /// unknown token.
    pub fn missing_bytes(&self) -> Vec<u8> {
        self.model.missing_bytes()
    }

    /// As [`piece_into`](Self::piece_into), without the space that encoding put in front of the text: `begins` tells
    /// that no byte has come yet, and is kept up to date.
    pub(crate) fn next_piece_into(&self, id: u32, show_special: bool, begins: &mut bool, out: &mut Vec<u8>) {
        let start = out.len();
        self.piece_into(id, show_special, out);
        if *begins && start < out.len() {
            *begins = false;
            if self.model.adds_space() && out[start] == b' ' {
                out.remove(start);
            }
        }
    }

    /// Appends the bytes of a token: nothing for a control token unless `show_special`.
    pub(crate) fn piece_into(&self, id: u32, show_special: bool, out: &mut Vec<u8>) {
        let (Some(text), Some(kind)) = (self.token_text(id), self.kind(id)) else {
            out.extend_from_slice("\u{FFFD}".as_bytes());
            return;
        };
        match kind {
            TokenKind::Normal | TokenKind::Byte => self.model.decode(text, kind, out),
            TokenKind::UserDefined | TokenKind::Marker => out.extend_from_slice(text.as_bytes()),
            TokenKind::Control | TokenKind::Unknown if show_special => out.extend_from_slice(text.as_bytes()),
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => {}
        }
    }

    /// Whether a token is found in a text as a whole, and not made of its parts.
    fn is_special(&self, id: u32) -> bool {
        self.is_control(id) || self.kind(id) == Some(TokenKind::UserDefined)
    }

    fn prepend_bos(&self, ids: &mut Vec<u32>) {
        if let Some(bos) = self.bos.filter(|_| self.add_bos)
            && !(ids.first() == Some(&bos) && self.is_special(bos))
        {
            ids.insert(0, bos);
        }
    }

    /// The place behind the special token `id`.
    fn after(&self, id: u32) -> Place {
        Place { begins: true, swallow: self.swallowing.contains(&id) }
    }

    fn encode_text(&self, text: &str, specials: &SpecialSet, place: &mut Place, ids: &mut Vec<u32>) {
        for fragment in specials.partition(&specials.prepare(text)) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    *place = self.after(id);
                }
                Fragment::Text(text) => {
                    let text = if place.swallow { text.trim_start_matches(SWALLOWED) } else { text };
                    if !text.is_empty() {
                        self.model.encode(text, place.begins, ids);
                        *place = Place { begins: false, swallow: false };
                    }
                }
            }
        }
    }
}

/// What a token that swallows white space swallows.
const SWALLOWED: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

/// The tables of a kind of tokenizer.
fn build(
    kind: ModelKind,
    source: &VocabSource<'_>,
    texts: &[Arc<str>],
    kinds: &[TokenKind],
) -> Result<Box<dyn Model>, TokenizerError> {
    let scores = || {
        let key = "tokenizer.ggml.scores";
        source.scores.as_deref().ok_or(TokenizerError::MissingKey { key })
    };
    let add_space = source.add_space == Some(true);
    Ok(match kind {
        ModelKind::Bpe => {
            let of_text = |id: usize| !kinds[id].is_control();
            let lowercase = source.lowercase == Some(true);
            Box::new(Bpe::new(settings(source)?, texts, of_text, source.merges)?.with_lowercase(lowercase))
        }
        ModelKind::Spm => Box::new(Spm::new(texts, kinds, scores()?, source.unknown, add_space)?),
        ModelKind::Wpm => {
            let lowercase = source.lowercase.unwrap_or(true);
            let strip_accents = source.strip_accents.unwrap_or(lowercase);
            Box::new(Wpm::new(texts, kinds, source.unknown, lowercase, strip_accents)?)
        }
        ModelKind::Ugm => {
            let key = "tokenizer.ggml.unknown_token_id";
            let unknown = source.unknown.ok_or(TokenizerError::MissingKey { key })?;
            let charsmap = source.charsmap.as_deref().map(CharsMap::new).transpose()?.unwrap_or_default();
            let options = [add_space, source.merge_spaces == Some(true)];
            Box::new(Ugm::new(texts, kinds, scores()?, unknown, charsmap, options)?)
        }
    })
}

/// How the file's BPE splits text.
fn settings(source: &VocabSource<'_>) -> Result<PreSettings, TokenizerError> {
    // Some kinds of tokenizers say by their names alone how they split.
    let pre = if matches!(source.model, "gemma4" | "whitespace") { Some(source.model) } else { source.pre };
    let pre = pre.ok_or(TokenizerError::MissingPre)?;
    PreSettings::by_name(pre)
        .ok_or_else(|| TokenizerError::UnknownPre { pre: pre.to_owned(), known: PreSettings::names() })
}

/// The source with the defaults where it is silent; default ids outside the vocabulary are left out.
fn with_defaults<'a>(
    source: &VocabSource<'a>,
    kind: ModelKind,
    defaults: Defaults,
) -> Result<VocabSource<'a>, TokenizerError> {
    let id = |own: Option<u32>, default: Option<u32>| {
        own.or(default.filter(|id| (*id as usize) < source.tokens.len()))
    };
    let mut full = VocabSource {
        bos: id(source.bos, defaults.bos),
        eos: id(source.eos, defaults.eos),
        unknown: id(source.unknown, defaults.unknown),
        add_bos: source.add_bos.or(Some(defaults.add_bos)),
        add_eos: source.add_eos.or(Some(defaults.add_eos)),
        add_space: source.add_space.or(Some(defaults.add_space)),
        ..source.clone()
    };
    match kind {
        ModelKind::Bpe => {
            let settings = settings(source)?;
            let own = source.add_bos.filter(|_| !settings.force_bos);
            full.add_bos = Some(own.unwrap_or(settings.add_bos));
        }
        // WordPiece frames every text, whatever the file says, with tokens of its own.
        ModelKind::Wpm => {
            full.bos = id(source.bos.or(source.cls), defaults.bos);
            full.eos = id(source.separator, defaults.eos);
            full.add_bos = Some(defaults.add_bos);
            full.add_eos = Some(defaults.add_eos);
        }
        ModelKind::Spm | ModelKind::Ugm => {}
    }
    Ok(full)
}

/// Fails if a named id is outside the vocabulary, or if BOS or EOS is to be added but not named.
fn check_ids(source: &VocabSource<'_>) -> Result<(), TokenizerError> {
    let [pad, rep, sep] = source.fim_ends;
    let named = [
        ("tokenizer.ggml.bos_token_id", source.bos),
        ("tokenizer.ggml.eos_token_id", source.eos),
        ("tokenizer.ggml.eot_token_id", source.eot),
        ("tokenizer.ggml.eom_token_id", source.eom),
        ("tokenizer.ggml.unknown_token_id", source.unknown),
        ("tokenizer.ggml.cls_token_id", source.cls),
        ("tokenizer.ggml.seperator_token_id", source.separator),
        ("tokenizer.ggml.fim_pad_token_id", pad),
        ("tokenizer.ggml.fim_rep_token_id", rep),
        ("tokenizer.ggml.fim_sep_token_id", sep),
    ];
    let size = source.tokens.len();
    for (key, id) in named {
        if let Some(id) = id.filter(|id| *id as usize >= size) {
            let problem = format!("id {id} is outside the vocabulary of {size}");
            return Err(TokenizerError::Invalid { key, problem });
        }
    }
    if source.add_bos == Some(true) && source.bos.is_none() {
        return Err(TokenizerError::MissingKey { key: "tokenizer.ggml.bos_token_id" });
    }
    if source.add_eos == Some(true) && source.eos.is_none() {
        return Err(TokenizerError::MissingKey { key: "tokenizer.ggml.eos_token_id" });
    }
    Ok(())
}

/// The kind of every token.
fn read_kinds(source: &VocabSource<'_>) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = &source.token_types else { return Ok(vec![TokenKind::Normal; source.tokens.len()]) };
    if types.len() != source.tokens.len() {
        return Err(TokenizerError::Invalid {
            key: "tokenizer.ggml.token_type",
            problem: format!("{} entries for {} tokens", types.len(), source.tokens.len()),
        });
    }
    let kind = |(id, number): (usize, &i32)| {
        TokenKind::from_number(*number).ok_or_else(|| TokenizerError::Invalid {
            key: "tokenizer.ggml.token_type",
            problem: format!("token {id} is of type {number}; 0 to 6 are known"),
        })
    };
    types.iter().enumerate().map(kind).collect()
}
