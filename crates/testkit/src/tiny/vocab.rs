//! A small byte-level BPE vocabulary in GPT-2's manner: three control tokens, the 256 bytes, and a few
//! merges. Any text can be written with it.

use minfer_gguf::Value;

/// Control tokens; their ids are 0, 1 and 2.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Id of `<|endoftext|>`.
pub const END_OF_TEXT: u32 = 0;
/// Id of `<|im_start|>`, the beginning-of-sequence token.
pub const IM_START: u32 = 1;
/// Id of `<|im_end|>`, the end-of-sequence token.
pub const IM_END: u32 = 2;

/// Merges in order of rank; a space is written `Ġ`. Each pair is made of bytes or earlier merges.
pub const MERGES: [(&str, &str); 26] = [
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("Ġ", "w"),
    ("o", "u"),
    ("n", "d"),
    ("i", "s"),
    ("l", "l"),
    ("in", "g"),
    ("Ġa", "nd"),
    ("h", "i"),
    ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"),
    ("e", "ll"),
    ("ell", "o"),
    ("H", "ello"),
    ("Ġw", "or"),
    ("o", "r"),
    ("1", "2"),
];

/// Messages between `<|im_start|>ROLE` and `<|im_end|>`.
pub const CHAT_TEMPLATE: &str = "{%- for m in messages -%}\
{{ '<|im_start|>' ~ m['role'] ~ '\\n' ~ m['content'] ~ '<|im_end|>\\n' }}\
{%- endfor -%}\
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// The character that stands for a byte: itself where it is printable and no space, else one of the
/// characters from U+0100 on, in order.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let nth = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + nth).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// All tokens in the order of their ids.
pub fn tokens() -> Vec<String> {
    let control = CONTROL.iter().map(|t| t.to_string());
    let bytes = (0..=255).map(|b| byte_char(b).to_string());
    let merged = MERGES.iter().map(|(a, b)| format!("{a}{b}"));
    control.chain(bytes).chain(merged).collect()
}

/// The tokenizer's metadata entries; `pre` names the pre-tokenizer.
pub fn metadata(pre: &str) -> Vec<(String, Value)> {
    let tokens = tokens();
    let types: Vec<i32> = (0..tokens.len()).map(|i| if i < CONTROL.len() { 3 } else { 1 }).collect();
    let merges: Vec<String> = MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let entries: [(&str, Value); 9] = [
        ("model", "gpt2".into()),
        ("pre", pre.into()),
        ("tokens", tokens.into()),
        ("token_type", types.into()),
        ("merges", merges.into()),
        ("bos_token_id", IM_START.into()),
        ("eos_token_id", IM_END.into()),
        ("add_bos_token", false.into()),
        ("chat_template", CHAT_TEMPLATE.into()),
    ];
    entries
        .into_iter()
        .map(|(key, value)| match key {
            "chat_template" => ("tokenizer.chat_template".to_string(), value),
            _ => (format!("tokenizer.ggml.{key}"), value),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn byte_characters() {
        assert_eq!(byte_char(b'A'), 'A');
        assert_eq!(byte_char(b' '), 'Ġ');
        assert_eq!(byte_char(b'\n'), 'Ċ');
        assert_eq!(byte_char(0), 'Ā');
        assert_eq!(byte_char(0xad), 'Ń');
        let all: HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn merges_are_made_of_tokens() {
        let tokens = tokens();
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len());
        for (a, b) in MERGES {
            assert!(tokens.contains(&a.to_string()) && tokens.contains(&b.to_string()), "{a} {b}");
        }
    }
}
