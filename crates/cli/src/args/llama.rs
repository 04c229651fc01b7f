//! llama.cpp's options of several letters behind one dash. Left to clap, `-fa` would be `-f a`: so those that minfer has
//! become its own long names, and the others are refused by name.

use super::Cli;
use clap::CommandFactory;
use std::ffi::{OsStr, OsString};

/// Names that minfer has too, as long names.
const TAKEN: [(&str, &str); 4] =
    [("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"), ("-ngl", "--gpu-layers"), ("-sys", "--system")];

/// Names of a model of Hugging Face's.
const REPO: [&str; 2] = ["-hf", "-hfr"];

/// Names that minfer does not have, and what there is in their place.
const OTHERS: [(&str, &str); 20] = [
    ("-cnv", "`minfer chat` holds conversations"),
    ("-no-cnv", "`minfer run` gives one answer; --raw takes the prompt without the chat template"),
    ("-st", "`minfer run` gives one answer"),
    ("-no-mmap", "--load read, which is the default"),
    ("-sysf", "--system takes the text itself"),
    ("-hff", "hf:owner/repo/file.gguf as the model"),
    ("-hft", "HF_TOKEN in the environment"),
    ("-mu", "hf:owner/repo as the model"),
    ("-dev", "--device"),
    ("-mg", "--device names the devices"),
    ("-ts", "--device names the devices; blocks go to them by their free memory"),
    ("-ub", "-b is the size of a step"),
    ("-tb", "-t holds for prompts too"),
    ("-bf", "-f reads text in UTF-8"),
    ("-sm", ""),
    ("-fa", ""),
    ("-co", ""),
    ("-np", ""),
    ("-md", ""),
    ("-nkvo", ""),
];

/// The words of a command line with llama.cpp's names in minfer's form; `-ngl=2` is taken as `-ngl 2`.
///
/// # Errors
/// A name of llama.cpp's that minfer does not have, or `-hf` without a model, in words.
pub fn long_names(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut words: Vec<OsString> = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            words.push(arg);
            words.extend(args);
            break;
        }
        let text = arg.to_str().unwrap_or_default();
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if let Some((_, long)) = TAKEN.iter().find(|(short, _)| *short == name) {
            words.push(value.map_or_else(|| long.into(), |value| format!("{long}={value}").into()));
        } else if REPO.contains(&name) {
            let repo = value.map(OsString::from).or_else(|| args.next());
            let repo = repo.ok_or_else(|| format!("{name} needs owner/repo[:quant]"))?;
            words.push(model(words.get(1), &repo));
        } else if let Some((_, instead)) = OTHERS.iter().find(|(short, _)| *short == name) {
            let instead = if instead.is_empty() { String::new() } else { format!("; instead: {instead}") };
            return Err(format!("{name} is llama.cpp's; minfer has no such option{instead}"));
        } else {
            words.push(arg);
        }
    }
    Ok(words)
}

/// A repository as a command takes its model: by option, or as an argument where there is no such option.
fn model(command: Option<&OsString>, repo: &OsStr) -> OsString {
    let cli = Cli::command();
    let command = command.and_then(|name| cli.find_subcommand(name));
    let by_option = command.is_some_and(|c| c.get_arguments().any(|arg| arg.get_long() == Some("model")));
    let mut word = OsString::from(if by_option { "--model=hf:" } else { "hf:" });
    word.push(repo);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn words(text: &str) -> Result<String, String> {
        let args = long_names(text.split(' ').map(OsString::from))?;
        Ok(args.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn short_names_of_several_letters_become_long() {
        for (given, taken) in [
            ("minfer run -ctk f32 -- -ctk -fa", "minfer run --cache-type-k f32 -- -ctk -fa"),
            ("minfer run m -ngl=2 -ctv=q8_0", "minfer run m --gpu-layers=2 --cache-type-v=q8_0"),
            ("minfer run -hf a/b:Q8_0 hello", "minfer run --model=hf:a/b:Q8_0 hello"),
            ("minfer eval -hf=a/b", "minfer eval --model=hf:a/b"),
            ("minfer pull -hf a/b", "minfer pull hf:a/b"),
            ("minfer tokenize -hf a/b x", "minfer tokenize hf:a/b x"),
            ("minfer run m -n 4 -p a=b", "minfer run m -n 4 -p a=b"),
        ] {
            assert_eq!(words(given).as_deref(), Ok(taken));
            assert!(given.contains(" -- ") || Cli::try_parse_from(taken.split(' ')).is_ok(), "{taken}");
        }
    }

    #[test]
    fn other_names_are_refused_by_name() {
        for (name, _) in OTHERS {
            let error = words(&format!("minfer run m {name}")).unwrap_err();
            assert!(
                error.starts_with(&format!("{name} is llama.cpp's; minfer has no such option")),
                "{error}"
            );
        }
        assert!(words("minfer run -cnv").unwrap_err().contains("minfer chat"));
        assert!(words("minfer run -hf").unwrap_err().contains("-hf needs owner/repo"));
    }
}
