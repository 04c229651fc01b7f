//! Just enough of Rust's lexical rules to look at code without its comments and literals.

/// Replaces comments, strings and character literals by spaces; lines and columns stay.
pub fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !after_word(bytes, at) => raw_string_end(bytes, at).unwrap_or(at),
            b'b' if !after_word(bytes, at) && bytes.get(at + 1) == Some(&b'r') => {
                raw_string_end(bytes, at + 1).unwrap_or(at)
            }
            b'\'' => char_end(text, at).unwrap_or(at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // What is left outside literals and comments is whole characters; a stray one would be replaced.
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the trailing `#[cfg(test)] mod ... {` starts in blanked code, else its end.
pub fn start_of_tests(code: &str) -> usize {
    code.match_indices("#[cfg(test)]")
        .find(|(at, mark)| {
            let rest = code[at + mark.len()..].trim_start();
            rest.starts_with("mod ") && rest.find(['{', ';']).is_some_and(|i| rest.as_bytes()[i] == b'{')
        })
        .map_or(code.len(), |(at, _)| at)
}

/// Lines (from 1) in which `word` stands in `code`, not as a part of a longer word.
pub fn lines_with<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> {
    code.lines().enumerate().filter(|(_, line)| has_word(line, word)).map(|(i, _)| i + 1)
}

/// Whether `word` stands in `line`, not as a part of a longer word. Ends that are no letters bound themselves.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().filter(|_| word.starts_with(is_word));
        let after = line[at + word.len()..].chars().next().filter(|_| word.ends_with(is_word));
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// A character of an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn after_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < bytes.len() {
        match &bytes[i..i + 2] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut i = at + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// The end of a raw string whose `r` is at `at`, if it is one.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let found = bytes[open + 1..].windows(close.len()).position(|w| w == close);
    Some(found.map_or(bytes.len(), |n| open + 1 + n + close.len()))
}

/// The end of a character literal, if it is one and not a lifetime.
fn char_end(text: &str, at: usize) -> Option<usize> {
    let mut chars = text[at + 1..].char_indices();
    let (_, first) = chars.next()?;
    let (i, second) = chars.next()?;
    if first == '\\' {
        // The escaped character may itself be a quote.
        let from = at + 1 + i + second.len_utf8();
        return text[from..].find('\'').map(|n| from + n + 1);
    }
    (second == '\'').then_some(at + 1 + i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "a // x\nb /* y /* z */ */ c \"s\\\"t\" r#\"u\"v\"# br\"w\" '\\'' 'q' '\u{e9}' <'l> for";
        let code = blank(text);
        assert_eq!(code.lines().count(), 2);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "c", "<'l>", "for"]);
        assert_eq!(code.lines().next().map(str::len), text.lines().next().map(str::len));
    }

    #[test]
    fn inner_tests_are_found() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(&code[..start_of_tests(code)], "fn a() {}\n");
        let declared = "#[cfg(test)]\nmod tests;\nfn b() {}\n";
        assert_eq!(start_of_tests(declared), declared.len());
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(has_word("std::env::var_os(x)", "env::var_os"));
        assert!(!has_word("println!(x)", "print!"));
        assert!(has_word("x; print!(y)", "print!"));
        assert_eq!(lines_with("a\nb a\nab", "a").collect::<Vec<_>>(), [1, 2]);
    }
}
