//! Rewriting a template before it is compiled: its literal text, and tags that Jinja itself does not have.
//!
//! A small lexer tells literal text, string constants, code and comments apart; it does not check the syntax.

use std::ops::Range;

use super::filters::LOOPED;

/// Applies `text` to literal text and string constants of a template, and turns `generation` blocks, which mark the
/// answer for training, into plain scopes.
pub(super) fn rewrite(source: &str, text: &dyn Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = tag_start(rest) {
        out.push_str(&text(&rest[..start]));
        let tag = &rest[start..];
        let len = if tag.starts_with("{#") {
            let len = tag.find("#}").map_or(tag.len(), |end| end + 2);
            out.push_str(&tag[..len]);
            len
        } else {
            let len = code_len(tag);
            code(&tag[..len], text, &mut out);
            len
        };
        rest = &rest[start + len..];
        if block_word(&tag[..len]) == Some("raw") {
            let end = raw_len(rest);
            // The engine leaves out a line break after `raw` as after any tag; Jinja2 does not.
            if !tag[..len].ends_with("-%}") && rest.starts_with('\n') {
                out.push('\n');
            }
            out.push_str(&text(&rest[..end]));
            rest = &rest[end..];
        }
    }
    out.push_str(&text(rest));
    out
}

/// Where the next tag begins.
fn tag_start(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// The length of a `{{ }}` or `{% %}` tag at the start of `tag`: its end counts only outside strings and brackets.
fn code_len(tag: &str) -> usize {
    let bytes = tag.as_bytes();
    let end: &[u8] = if tag.starts_with("{{") { b"}}" } else { b"%}" };
    let mut depth = 0usize;
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"') => at += string_len(&bytes[at..], quote),
            _ if depth == 0 && bytes[at..].starts_with(end) => return at + 2,
            byte => {
                match byte {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
    }
    bytes.len()
}

/// The length of the string constant at the start of `bytes`, quotes included.
fn string_len(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Copies a tag with its string constants rewritten.
fn code(tag: &str, text: &dyn Fn(&str) -> String, out: &mut String) {
    if let Some(word @ ("generation" | "endgeneration")) = block_word(tag) {
        out.push_str(&tag.replacen(word, if word == "generation" { "with" } else { "endwith" }, 1));
        return;
    }
    match looped(tag) {
        Some(looped) => {
            strings(&tag[..looped.start], text, out);
            out.push_str(" (");
            strings(&tag[looped.clone()], text, out);
            out.push_str(&format!(")|{LOOPED} "));
            strings(&tag[looped.end..], text, out);
        }
        None => strings(tag, text, out),
    }
}

/// Copies code with its string constants rewritten.
fn strings(code: &str, text: &dyn Fn(&str) -> String, out: &mut String) {
    let mut rest = code;
    while let Some(start) = rest.find(['\'', '"']) {
        let len = string_len(&rest.as_bytes()[start..], rest.as_bytes()[start]);
        out.push_str(&rest[..start]);
        out.push_str(&text(&rest[start..start + len]));
        rest = &rest[start + len..];
    }
    out.push_str(rest);
}

/// The expression that a `for` tag loops through: from `in` to `if`, `recursive` or the tag's end.
fn looped(tag: &str) -> Option<Range<usize>> {
    if block_word(tag) != Some("for") {
        return None;
    }
    let bytes = tag.as_bytes();
    let last = tag.strip_suffix("%}")?.trim_end_matches(['-', '+']).len();
    let mut start = None;
    let (mut at, mut depth) = (2, 0usize);
    while at < last {
        match bytes[at] {
            quote @ (b'\'' | b'"') => at += string_len(&bytes[at..], quote),
            b'(' | b'[' | b'{' => (at, depth) = (at + 1, depth + 1),
            b')' | b']' | b'}' => (at, depth) = (at + 1, depth.saturating_sub(1)),
            byte if byte.is_ascii_alphanumeric() || byte == b'_' => {
                let word = &bytes[at..last];
                let len = word.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
                match (&word[..len], start) {
                    (b"in", None) if depth == 0 => start = Some(at + len),
                    (b"if" | b"recursive", Some(start)) if depth == 0 => return Some(start..at),
                    _ => {}
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    start.filter(|start| *start < last).map(|start| start..last)
}

/// The first word of a `{% %}` tag.
fn block_word(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inside.len());
    Some(&inside[..end])
}

/// The length of the text before the tag that ends a `raw` block.
fn raw_len(text: &str) -> usize {
    let mut at = 0;
    while let Some(found) = text[at..].find("{%") {
        if block_word(&text[at + found..]) == Some("endraw") {
            return at + found;
        }
        at += found + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    fn upper(source: &str) -> String {
        rewrite(source, &|text| text.replace('x', "Y"))
    }

    #[test]
    fn only_text_and_strings_are_rewritten() {
        assert_eq!(upper("x{{ x + 'x' + \"x\\\"x\" }}x{# x #}"), "Y{{ x + 'Y' + \"Y\\\"Y\" }}Y{# x #}");
        assert_eq!(upper("{{ {'x': {'a': x}} }}x"), "{{ {'Y': {'a': x}} }}Y");
        assert_eq!(upper("{% if x == '%}x' %}x{% endif %}"), "{% if x == '%}Y' %}Y{% endif %}");
        assert_eq!(
            upper("{%- raw -%}x{{ x }}{%- endraw %}{{ x }}"),
            "{%- raw -%}Y{{ Y }}{%- endraw %}{{ x }}"
        );
        assert_eq!(upper("{% raw %}\n{% endraw %}"), "{% raw %}\n\n{% endraw %}");
        assert_eq!(upper("x{{ x"), "Y{{ x");
        assert_eq!(upper("{{ 'x"), "{{ 'Y");
        assert_eq!(upper("{{ 'x\\"), "{{ 'Y\\");
    }

    #[test]
    fn loops_go_through_a_filter() {
        assert_eq!(upper("{%- for a in x.b -%}"), "{%- for a in ( x.b )|__looped -%}");
        assert_eq!(
            upper("{% for a, b in c(' if x')[1:] if a in b recursive %}"),
            "{% for a, b in ( c(' if Y')[1:] )|__looped if a in b recursive %}"
        );
        assert_eq!(upper("{% for %}{% for a in %}"), "{% for %}{% for a in ( )|__looped %}");
    }

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(upper("{%- generation -%}x{% endgeneration %}"), "{%- with -%}Y{% endwith %}");
        assert_eq!(upper("{{ generation }}"), "{{ generation }}");
    }
}
