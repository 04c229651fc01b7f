//! The alphabet of byte-level BPE: every byte has a printable character that stands for it in the vocabulary.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68, in ascending order, are U+0100 and up.

/// Whether `byte` stands for itself.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for each byte.
pub(crate) const BYTE_TO_CHAR: [char; 256] = byte_to_char();

const fn byte_to_char() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut byte = 0;
    let mut shifted = 0x100;
    while byte < 256 {
        let printable = matches!(byte as u8, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { byte as u32 } else { shifted };
        if !printable {
            shifted += 1;
        }
        if let Some(c) = char::from_u32(code) {
            table[byte] = c;
        }
        byte += 1;
    }
    table
}

/// The byte that `c` stands for; `None` for a character outside the alphabet.
pub(crate) fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    if let Ok(byte) = u8::try_from(code) {
        return is_printable(byte).then_some(byte);
    }
    SHIFTED.get(usize::try_from(code.checked_sub(0x100)?).ok()?).copied()
}

/// The bytes behind U+0100, U+0101, ...
const SHIFTED: [u8; 68] = shifted();

const fn shifted() -> [u8; 68] {
    let mut bytes = [0; 68];
    let mut byte = 0u16;
    while byte < 256 {
        let code = BYTE_TO_CHAR[byte as usize] as u32;
        if code >= 0x100 {
            bytes[(code - 0x100) as usize] = byte as u8;
        }
        byte += 1;
    }
    bytes
}

/// Appends the bytes that a token's text stands for; characters outside the alphabet stand for their own UTF-8.
pub(crate) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        for byte in 0..=255u8 {
            let c = BYTE_TO_CHAR[usize::from(byte)];
            assert_eq!(char_to_byte(c), Some(byte));
            assert!(!c.is_whitespace() && !c.is_control());
        }
        assert_eq!(BYTE_TO_CHAR[usize::from(b' ')], 'Ġ');
        assert_eq!(BYTE_TO_CHAR[usize::from(b'\n')], 'Ċ');
        assert_eq!(char_to_byte('漢'), None);
        assert_eq!(char_to_byte(' '), None);
    }
}
