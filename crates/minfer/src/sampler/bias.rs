//! Logit bias: a constant for a token, or its ban.

use super::candidates::Candidates;
use crate::error::Error;
use std::fmt;
use std::str::FromStr;

/// What is added to the logit of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub id: u32,
    /// Added to its logit; minus infinity bans it.
    pub bias: f32,
}

impl LogitBias {
    /// A ban.
    pub fn ban(id: u32) -> Self {
        LogitBias { id, bias: f32::NEG_INFINITY }
    }
}

/// `15043+1.5`, `15043-2`, `15043=-inf`.
impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not of the form ID+VALUE, ID-VALUE or ID=-inf");
        let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(form)?;
        let (id, value) = text.split_at(end);
        let value = value.strip_prefix('=').unwrap_or(value);
        let id = id.parse().map_err(|_| form())?;
        let bias: f32 = value.parse().map_err(|_| form())?;
        match bias {
            b if b.is_finite() || b == f32::NEG_INFINITY => Ok(LogitBias { id, bias }),
            b => Err(format!("a bias of {b} means nothing")),
        }
    }
}

impl fmt::Display for LogitBias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:+}", self.id, self.bias)
    }
}

/// Adds the biases.
///
/// # Errors
/// A token outside the vocabulary, a bias that is no number, or a ban of every token.
pub(super) fn apply(biases: &[LogitBias], candidates: &mut Candidates) -> Result<(), Error> {
    let n = candidates.len();
    for &LogitBias { id, bias } in biases {
        if id as usize >= n {
            return Err(Error::input(format!("logit-bias: there is no token {id} among {n}")));
        }
        match bias {
            f32::NEG_INFINITY => candidates.ban(id),
            bias if bias.is_finite() => candidates.change(id, |logit| logit + bias),
            bias => return Err(Error::input(format!("logit-bias: {bias} for token {id}"))),
        }
    }
    match candidates.all_banned() {
        true => Err(Error::input("logit-bias bans every token")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for (text, id, bias) in [("15043+1.5", 15043, 1.5), ("7-2", 7, -2.0), ("0-inf", 0, f32::NEG_INFINITY)]
        {
            let parsed: LogitBias = text.parse().unwrap();
            assert_eq!(parsed, LogitBias { id, bias });
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!("5=-inf".parse(), Ok(LogitBias::ban(5)));
        assert_eq!("5=2".parse(), Ok(LogitBias { id: 5, bias: 2.0 }));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "5", "+1", "5+", "5+x", "5+inf", "5+nan", "5=", "99999999999+1", "-5+1", "5++1", "5 +1"]
        {
            assert!(text.parse::<LogitBias>().is_err(), "{text}");
        }
    }
}
