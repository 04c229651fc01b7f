//! Rewriting a template before it is compiled: its literal text, and tags that Jinja itself does not have.
//!
//! A small lexer tells literal text, string constants, code and comments apart; it does not check the syntax.

use std::ops::Range;

use super::filters::{HELD, KEPT, LOOPED};

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
    let Some(checked) = checked(tag) else { return strings(tag, text, out) };
    strings(&tag[..checked.value.start], text, out);
    if let Some(filter) = checked.filter {
        out.push_str(" (");
        strings(&tag[checked.value.clone()], text, out);
        out.push_str(&format!(")|{filter} "));
    }
    strings(&tag[checked.value.end..], text, out);
    for name in checked.names {
        let end = if tag.ends_with("-%}") { "-%}" } else { "%}" };
        out.push_str(&format!("{{% set {name} = {name}|{KEPT} {end}"));
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

/// What of a tag has to be looked at before it gets a name: a template must not build what has no end.
struct Checked<'t> {
    /// The expression that gets a name, and the filter that it is to go through.
    value: Range<usize>,
    filter: Option<&'static str>,
    /// Names that get their values elsewhere.
    names: Vec<&'t str>,
}

/// What gets names in a tag: by `set`, in a loop, as a macro's arguments.
fn checked(tag: &str) -> Option<Checked<'_>> {
    let tokens = tokens(tag);
    let find = |wanted: &[&str]| {
        tokens.iter().position(|(depth, at)| *depth == 0 && wanted.contains(&&tag[at.clone()]))
    };
    let end = tag.strip_suffix("%}")?.trim_end_matches(['-', '+']).len();
    let words = |from: usize, to: usize| {
        let names = tokens[from..to].iter().map(|(_, at)| &tag[at.clone()]);
        names.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_')).collect()
    };
    match block_word(tag)? {
        "for" => {
            let start = find(&["in"])?;
            let last = find(&["if", "recursive"]).filter(|last| *last > start);
            let end = last.map_or(end, |last| tokens[last].1.start);
            // A recursive loop gets values by calls, too.
            let is_recursive = find(&["recursive"]).is_some();
            let names = if is_recursive { words(1, start) } else { Vec::new() };
            Some(Checked { value: tokens[start].1.end..end, filter: Some(LOOPED), names })
        }
        "set" => {
            let start = tokens[find(&["="])?].1.end;
            let filter = if find(&["."]).is_some_and(|dot| tokens[dot].1.end < start) { HELD } else { KEPT };
            Some(Checked { value: start..end, filter: Some(filter), names: Vec::new() })
        }
        "macro" => {
            // The names of arguments follow the opening bracket and commas.
            let follows = |at: usize| {
                let (depth, before) = &tokens[at - 1];
                *depth == 1 && &tag[before.clone()] == "," || *depth == 0 && &tag[before.clone()] == "("
            };
            let names =
                (3..tokens.len()).filter(|at| follows(*at)).flat_map(|at| words(at, at + 1)).collect();
            Some(Checked { value: tag.len()..tag.len(), filter: None, names })
        }
        _ => None,
    }
}

/// The words and other characters of a tag outside strings, each with the number of brackets around it.
fn tokens(tag: &str) -> Vec<(usize, Range<usize>)> {
    let bytes = tag.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (2, 0usize);
    while at < bytes.len() {
        let len = match bytes[at] {
            quote @ (b'\'' | b'"') => string_len(&bytes[at..], quote),
            byte if is_word(&byte) => bytes[at..].iter().take_while(|byte| is_word(byte)).count(),
            b'=' | b'!' | b'<' | b'>' if bytes.get(at + 1) == Some(&b'=') => 2,
            _ => 1,
        };
        let len = len.min(bytes.len() - at);
        if matches!(bytes[at], b')' | b']' | b'}') {
            depth = depth.saturating_sub(1);
        }
        if !matches!(bytes[at], b' ' | b'\n' | b'\r' | b'\t' | b'-' | b'+') {
            tokens.push((depth, at..at + len));
        }
        depth += usize::from(matches!(bytes[at], b'(' | b'[' | b'{'));
        at += len;
    }
    tokens
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
            "{% for a, b in ( c(' if Y')[1:] )|__looped if a in b recursive %}{% set a = a|__kept %}{% set b = b|__kept %}"
        );
        assert_eq!(
            upper("{% for a, b in c(' if x')[1:] if a in b %}"),
            "{% for a, b in ( c(' if Y')[1:] )|__looped if a in b %}"
        );
        assert_eq!(upper("{% for %}{% for a in %}"), "{% for %}{% for a in ( )|__looped %}");
    }

    #[test]
    fn what_gets_a_name_goes_through_a_filter() {
        assert_eq!(upper("{%- set a = b == 'x' -%}"), "{%- set a = ( b == 'Y' )|__kept -%}");
        assert_eq!(upper("{% set n.a, b = f(c=1), 2 %}"), "{% set n.a, b = ( f(c=1), 2 )|__held %}");
        assert_eq!(upper("{% set a %}x{% endset %}"), "{% set a %}Y{% endset %}");
        assert_eq!(
            upper("{%- macro m(a, b=['x', c], d={}) -%}"),
            "{%- macro m(a, b=['Y', c], d={}) -%}{% set a = a|__kept -%}{% set b = b|__kept -%}{% set d = d|__kept -%}"
        );
        assert_eq!(upper("{% macro m() %}{% macro %}"), "{% macro m() %}{% macro %}");
    }

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(upper("{%- generation -%}x{% endgeneration %}"), "{%- with -%}Y{% endwith %}");
        assert_eq!(upper("{{ generation }}"), "{{ generation }}");
    }
}
