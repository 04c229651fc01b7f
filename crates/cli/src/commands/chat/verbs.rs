//! The commands of a chat: lines that begin with `/`.

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Something for the model.
    Prompt(&'a str),
    /// A command and what stands after it, trimmed.
    Command(Verb, &'a str),
}

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Help,
    Exit,
    Clear,
    Regen,
    System,
    Set,
    Save,
    SaveAnyway,
    Load,
    Read,
    Info,
}

/// A command for people: its names, what follows them, what it does.
struct Row {
    verb: Verb,
    names: &'static [&'static str],
    argument: Argument,
    help: &'static str,
}

enum Argument {
    None,
    Optional(&'static str),
    Needed(&'static str),
}

const ROWS: &[Row] = &[
    row(Verb::Help, &["help", "?"], Argument::None, "this list"),
    row(Verb::Exit, &["exit", "quit", "bye"], Argument::None, "ends the chat, as Ctrl-D does"),
    row(Verb::Clear, &["clear"], Argument::None, "forgets the conversation; the system message stays"),
    row(Verb::Regen, &["regen"], Argument::None, "answers the last prompt again, or one without an answer"),
    row(
        Verb::System,
        &["system"],
        Argument::Optional("TEXT"),
        "sets the system message, \"\" removes it; alone shows it",
    ),
    row(
        Verb::Set,
        &["set"],
        Argument::Optional("KEY VALUE"),
        "changes a setting, or adds to a list; `default` takes it back; alone lists them",
    ),
    row(Verb::Save, &["save"], Argument::Needed("FILE"), "writes conversation and settings as JSON"),
    row(
        Verb::SaveAnyway,
        &["save!"],
        Argument::Needed("FILE"),
        "the same in place of a file that is no saved chat",
    ),
    row(
        Verb::Load,
        &["load"],
        Argument::Needed("FILE"),
        "goes on with what /save wrote; its settings replace those of the command line",
    ),
    row(Verb::Read, &["read"], Argument::Needed("FILE"), "puts a text file before the next prompt"),
    row(Verb::Info, &["info"], Argument::None, "model, device, context, waiting files, last answer"),
];

const fn row(verb: Verb, names: &'static [&'static str], argument: Argument, help: &'static str) -> Row {
    Row { verb, names, argument, help }
}

/// Reads what was typed: `/name` is a command, `//` stands for a `/` of a prompt. Of several lines only a command that
/// takes a text is one; any others are a prompt as they are, such as code that begins with a comment.
///
/// # Errors
/// A command that does not exist, or an argument too many or too few, in words.
pub fn parse(text: &str) -> Result<Line<'_>, String> {
    let Some(command) = text.strip_prefix('/') else { return Ok(Line::Prompt(text)) };
    let lines = text.trim_end().contains('\n');
    if command.starts_with('/') {
        return Ok(Line::Prompt(if lines { text } else { command }));
    }
    let end = command.find(char::is_whitespace).unwrap_or(command.len());
    let (name, argument) = (&command[..end], command[end..].trim());
    let row = ROWS.iter().find(|row| row.names.contains(&name));
    if lines && !row.is_some_and(|row| matches!(row.argument, Argument::Optional(_))) {
        return Ok(Line::Prompt(text));
    }
    let Some(row) = row else {
        return Err(format!("there is no command /{name}; /help lists them, //{name} is sent as /{name}"));
    };
    match row.argument {
        Argument::None if !argument.is_empty() => Err(format!("/{name} takes nothing after it")),
        Argument::Needed(what) if argument.is_empty() => Err(format!("/{name} needs {what}")),
        _ => Ok(Line::Command(row.verb, argument)),
    }
}

/// Names that begin with `start`, for completion.
pub fn names(start: &str) -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.names[0]).filter(move |name| name.starts_with(start))
}

/// The text of `/help`.
pub fn help() -> String {
    let mut text = String::new();
    for row in ROWS {
        let names: Vec<String> = row.names.iter().map(|name| format!("/{name}")).collect();
        let argument = match row.argument {
            Argument::None => String::new(),
            Argument::Optional(what) => format!(" [{what}]"),
            Argument::Needed(what) => format!(" {what}"),
        };
        text.push_str(&format!("{:24} {}\n", names.join(" ") + &argument, row.help));
    }
    text.push_str(
        "A line that ends in \\ goes on in the next one, and so does one that begins with \"\"\" up to the next\n\
         \"\"\". Alt-Enter begins a line. Ctrl-C stops an answer.\n\
         A message that begins with / is typed with //: //etc is sent as /etc. A paste is one message, and several\n\
         pasted lines are sent as they are, whatever they begin with; so is a paste that begins with //.\n\
         FILE may stand in quotes: 'a b.json'. Without them ~/ is the home folder, and spaces need nothing.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(parse("hello /x"), Ok(Line::Prompt("hello /x")));
        assert_eq!(parse("//etc"), Ok(Line::Prompt("/etc")));
        assert_eq!(parse("/bye"), Ok(Line::Command(Verb::Exit, "")));
        assert_eq!(parse("/system be\nbrief "), Ok(Line::Command(Verb::System, "be\nbrief")));
        assert_eq!(parse("/set top-k 3"), Ok(Line::Command(Verb::Set, "top-k 3")));
        for wrong in ["/", "/nope", "/help me", "/save", "/load  ", "/Help"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for lines in ["//a\nb", "/usr/bin\nb", "/help\nme", "/\n/", "/load a\nb", "/systems\nb"] {
            assert_eq!(parse(lines), Ok(Line::Prompt(lines)));
        }
        assert_eq!(parse("/help\n"), Ok(Line::Command(Verb::Help, "")));
        assert_eq!(names("re").collect::<Vec<_>>(), ["regen", "read"]);
    }
}
