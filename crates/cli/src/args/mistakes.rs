//! What clap says of options and commands that do not exist, without its guesses.

use super::Cli;
use clap::CommandFactory;
use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Takes away the line of usage, which would show an option that is only similar as if it were needed, and the advice to
/// pass an unknown option as a value. An unknown command gets the list of commands.
pub fn without_guesses(mut error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        return error;
    }
    error.remove(ContextKind::Usage);
    error.remove(ContextKind::Suggested);
    if error.kind() == ErrorKind::InvalidSubcommand && error.get(ContextKind::SuggestedSubcommand).is_none() {
        let cli = Cli::command();
        let names: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
        let list = format!("the commands are {}", names.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![list.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(words: &str) -> String {
        let Err(error) = Cli::try_parse_from(words.split(' ')) else { panic!("{words} is taken") };
        without_guesses(error).to_string()
    }

    #[test]
    fn nothing_is_advised_that_does_not_help() {
        for words in
            ["minfer --foo", "minfer run --foo", "minfer run m --ctx 3", "minfer bench --foo=3", "minfer rnu"]
        {
            let text = said(words);
            assert!(text.starts_with("error: un") && text.contains("--help"), "{text}");
            assert!(!text.contains("Usage:") && !text.contains("as a value"), "{text}");
        }
        assert!(said("minfer run m --ctx 3").contains("'--ctx-size'"));
        let text = said("minfer rnu");
        assert!(text.contains("'rnu'") && text.contains("the commands are run, chat"), "{text}");
        // What is missing is still shown.
        assert!(said("minfer tokenize").contains("Usage:"));
    }
}
