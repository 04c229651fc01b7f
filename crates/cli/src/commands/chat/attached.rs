//! Files that wait for the next prompt.

use crate::commands::counted;
use std::fmt;
use std::path::{Path, PathBuf};

/// Texts of files, in the order in which they were read. Shown, it is their names and sizes.
#[derive(Debug, Default)]
pub struct Attached(Vec<(PathBuf, String)>);

impl Attached {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push(&mut self, path: &Path, text: String) {
        self.0.push((path.to_owned(), text));
    }

    /// The prompt with the texts before it, each on lines of its own.
    pub fn before(&self, prompt: &str) -> String {
        let mut all = String::new();
        for (_, text) in &self.0 {
            all.push_str(text);
            if !text.ends_with('\n') {
                all.push('\n');
            }
        }
        all + prompt
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (i, (path, text)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", path.display(), counted(text.len(), "byte"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_before_the_prompt() {
        let mut attached = Attached::default();
        assert_eq!((attached.before("p"), attached.to_string()), ("p".to_owned(), "nothing".to_owned()));
        attached.push(Path::new("a"), "x".to_owned());
        attached.push(Path::new("b"), "né\n".to_owned());
        assert_eq!(attached.before("p"), "x\nné\np");
        assert_eq!(attached.to_string(), "a (1 byte), b (4 bytes)");
        assert!(!attached.is_empty());
    }
}
