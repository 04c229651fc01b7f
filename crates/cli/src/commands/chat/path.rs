//! Paths as people type them after a command.

use std::path::{Path, PathBuf};

/// The file that a text names. In quotes it stands as it is; without them `~` is the home folder and, where `\` does
/// not separate folders, `\` takes the next character as it is. Spaces need neither.
///
/// # Errors
/// Quotes that do not enclose all of it, no path between them, or a `~` without a home folder, in words.
pub fn parse(text: &str) -> Result<PathBuf, String> {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    within(text, home.as_deref())
}

fn within(text: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        return match text[1..].strip_suffix(quote) {
            Some("") => Err("there is no path between the quotes".to_owned()),
            Some(inside) if !inside.contains(quote) => Ok(inside.into()),
            _ => Err(format!("the quotes must enclose the whole path: {text}")),
        };
    }
    let Some(rest) = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with(is_separator))
    else {
        return Ok(unescaped(text).into());
    };
    let home = home.ok_or("there is no home folder for ~")?;
    // An absolute rest would take the place of the home folder.
    Ok(home.join(unescaped(rest.trim_start_matches(is_separator))))
}

fn is_separator(c: char) -> bool {
    std::path::is_separator(c)
}

/// Without the `\` that shells and terminals put before spaces and quotes.
fn unescaped(text: &str) -> String {
    if is_separator('\\') {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_a_shell_would() {
        let home = Path::new("/me");
        let read = |text: &str| within(text, Some(home));
        for (text, path) in [
            ("a b.json", "a b.json"),
            ("\"a b.json\"", "a b.json"),
            ("'a \"b\".json'", "a \"b\".json"),
            ("it's.json", "it's.json"),
            ("'~/x'", "~/x"),
            ("~", "/me"),
            ("~/x y", "/me/x y"),
            ("~//etc", "/me/etc"),
            ("~you/x", "~you/x"),
            ("a/~/x", "a/~/x"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(Path::new(path)), "{text}");
        }
        for wrong in ["\"a b", "'", "''", "\"a\" \"b\"", "'a'b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(within("~/x", None).unwrap_err().contains('~'));
    }

    #[cfg(unix)]
    #[test]
    fn a_backslash_takes_a_character_as_it_is() {
        let read = |text: &str| within(text, Some(Path::new("/h"))).unwrap();
        assert_eq!(read("a\\ b\\'\\\\c"), Path::new("a b'\\c"));
        assert_eq!(read("\\~/x\\"), Path::new("~/x\\"));
        assert_eq!(read("~/a\\ b"), Path::new("/h/a b"));
        assert_eq!(read("'a\\ b'"), Path::new("a\\ b"));
    }
}
