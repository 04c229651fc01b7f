//! Sets of characters that the expressions of tokenizers speak of.
//!
//! Every character belongs to exactly one of a few atoms, and most sets are unions of atoms: a set is a bit mask, and its
//! complement is the mask's. Sets that are spelt out as ranges are functions.

use unicode_general_category::{GeneralCategory, get_general_category};

use super::ranges::{self, HAN};

/// A set of characters.
#[derive(Clone, Copy)]
pub(super) enum Set {
    /// A union of atoms.
    Of(u16),
    /// What the function accepts.
    By(fn(char) -> bool),
}

impl Set {
    /// The empty set.
    pub(super) const NONE: Set = Set::Of(0);

    /// Whether `c` is in the set.
    pub(super) fn contains(self, c: char) -> bool {
        match self {
            Set::Of(mask) => atom(c) & mask != 0,
            Set::By(test) => test(c),
        }
    }
}

/// `\r` and `\n`.
pub(super) const LINE_END: u16 = 1;
/// The space.
pub(super) const BLANK: u16 = 1 << 1;
/// The rest of `\p{White_Space}`.
const OTHER_SPACE: u16 = 1 << 2;
/// `\p{Lu}` and `\p{Lt}`.
const UPPER: u16 = 1 << 3;
/// `\p{Ll}`.
const LOWER: u16 = 1 << 4;
/// `\p{Lm}` and `\p{Lo}` that are not Han.
const CASELESS: u16 = 1 << 5;
/// Letters that are Han.
const HAN_LETTER: u16 = 1 << 6;
/// `\p{M}`.
pub(super) const MARK: u16 = 1 << 7;
/// `\p{N}` that is not Han.
const OTHER_NUMBER: u16 = 1 << 8;
/// `\p{N}` that is Han.
const HAN_NUMBER: u16 = 1 << 9;
/// The slash.
pub(super) const SLASH: u16 = 1 << 10;
/// The rest of `\p{P}`.
const OTHER_PUNCTUATION: u16 = 1 << 11;
/// `\p{S}` that is not Han.
const OTHER_SYMBOL: u16 = 1 << 12;
/// `\p{S}` that is Han.
const HAN_SYMBOL: u16 = 1 << 13;
/// Control characters, format characters, private use, unassigned.
const REST: u16 = 1 << 14;

/// `\p{White_Space}`
pub(super) const SPACE: u16 = LINE_END | BLANK | OTHER_SPACE;
/// `\p{L}`
pub(super) const LETTER: u16 = UPPER | LOWER | CASELESS | HAN_LETTER;
/// `\p{N}`
pub(super) const NUMBER: u16 = OTHER_NUMBER | HAN_NUMBER;
/// `\p{P}`
pub(super) const PUNCTUATION: u16 = SLASH | OTHER_PUNCTUATION;
/// `\p{S}`
pub(super) const SYMBOL: u16 = OTHER_SYMBOL | HAN_SYMBOL;
/// `\p{Script=Han}` without its marks
pub(super) const HAN_CHARACTER: u16 = HAN_LETTER | HAN_NUMBER | HAN_SYMBOL;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: what a word's beginning is made of where words end at a change of case
pub(super) const UPPERISH: u16 = UPPER | CASELESS | HAN_LETTER | MARK;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: what the rest of such a word is made of
pub(super) const LOWERISH: u16 = LOWER | CASELESS | HAN_LETTER | MARK;

/// The atom of every ASCII character.
const ASCII: [u16; 128] = {
    let mut atoms = [0; 128];
    let mut byte = 0u8;
    while byte < 128 {
        atoms[byte as usize] = match byte {
            b'\r' | b'\n' => LINE_END,
            b' ' => BLANK,
            b'\t' | 0x0B | 0x0C => OTHER_SPACE,
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' => LOWER,
            b'0'..=b'9' => OTHER_NUMBER,
            b'/' => SLASH,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => OTHER_SYMBOL,
            b'!'..=b'~' => OTHER_PUNCTUATION,
            _ => REST,
        };
        byte += 1;
    }
    atoms
};

/// The one atom that `c` belongs to.
pub(super) fn atom(c: char) -> u16 {
    use GeneralCategory as G;
    if c.is_ascii() {
        return ASCII[c as usize];
    }
    if c.is_whitespace() {
        return OTHER_SPACE;
    }
    let han = |yes, no| if ranges::contains(HAN, c) { yes } else { no };
    match get_general_category(c) {
        G::UppercaseLetter | G::TitlecaseLetter => UPPER,
        G::LowercaseLetter => LOWER,
        G::ModifierLetter | G::OtherLetter => han(HAN_LETTER, CASELESS),
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark => MARK,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => han(HAN_NUMBER, OTHER_NUMBER),
        category if is_punctuation(category) => OTHER_PUNCTUATION,
        G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => {
            han(HAN_SYMBOL, OTHER_SYMBOL)
        }
        _ => REST,
    }
}

/// `\d`: `\p{Nd}`.
pub(super) fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || !c.is_ascii() && get_general_category(c) == GeneralCategory::DecimalNumber
}

/// `\w`: letters and what else is alphabetic, marks, numbers and connectors.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphabetic()
        || atom(c) & (MARK | NUMBER) != 0
        || get_general_category(c) == GeneralCategory::ConnectorPunctuation
}

/// `\p{P}`.
pub(crate) fn is_punctuation(category: GeneralCategory) -> bool {
    use GeneralCategory as G;
    matches!(
        category,
        G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation
    )
}
