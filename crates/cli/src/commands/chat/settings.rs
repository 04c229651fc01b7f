//! What `/set` changes. The settings are the options of the command line, so their names, ranges and help stand in
//! one place: `/set KEY VALUE` is read as `--KEY=VALUE`.

use crate::args::ChatSettings;
use crate::sampling;
use clap::{Args, Command, FromArgMatches};
use serde_json::{Map, Value};

/// Changes one setting, or takes it back: to `default`, or to `""`. A list grows, as that of an option that is given
/// again on the command line.
///
/// # Errors
/// As [`change_all`].
pub fn change(settings: &mut ChatSettings, key: &str, value: &str) -> Result<(), String> {
    let value = match value {
        "default" | "\"\"" => Value::Null,
        value => match values(settings).remove(key) {
            Some(Value::Array(mut items)) => {
                items.push(value.into());
                Value::Array(items)
            }
            _ => Value::from(vec![value]),
        },
    };
    change_all(settings, &Map::from_iter([(key.to_owned(), value)]))
}

/// Changes all settings that `changes` names; null takes back what was set. They are judged together, so that their
/// order does not matter.
///
/// # Errors
/// No such setting, a value out of its range, or settings that contradict each other, in words. Nothing has then
/// changed.
pub fn change_all(settings: &mut ChatSettings, changes: &Map<String, Value>) -> Result<(), String> {
    let mut all = values(settings);
    for (key, value) in changes {
        let place =
            all.get_mut(key).ok_or_else(|| format!("there is no setting `{key}`; /set lists them"))?;
        *place = value.clone();
    }
    let arguments = all.iter().flat_map(|(key, value)| {
        let texts = match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items.iter().map(text).collect(),
            value => vec![text(value)],
        };
        texts.into_iter().map(move |text| format!("--{key}={text}"))
    });
    let matches = command().try_get_matches_from(arguments).map_err(|e| first_line(&e))?;
    let next = ChatSettings::from_arg_matches(&matches).map_err(|e| first_line(&e))?;
    sampling::config(&next.sampling).map_err(|e| e.to_string())?;
    *settings = next;
    Ok(())
}

/// The settings by name.
pub fn values(settings: &ChatSettings) -> Map<String, Value> {
    // By way of text, so that an f32 keeps its few digits.
    let text = serde_json::to_string(settings).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// What two states of the settings differ in, in words: `temp 0.5 (was 0.8)`.
pub fn differences(before: &ChatSettings, after: &ChatSettings) -> Vec<String> {
    let before = values(before);
    let was = |key: &String| before.get(key).unwrap_or(&Value::Null);
    values(after)
        .iter()
        .filter(|(key, value)| was(key) != *value)
        .map(|(key, value)| format!("{key} {} (was {})", text(value), text(was(key))))
        .collect()
}

/// A line per setting: name, value, meaning.
pub fn list(settings: &ChatSettings) -> String {
    let (values, command) = (values(settings), command());
    let line = |(key, value): (&String, &Value)| {
        let help = command.get_arguments().find(|a| a.get_long() == Some(key)).and_then(|a| a.get_help());
        let help = help.map_or(String::new(), ToString::to_string);
        format!("{key:20} {:10} {help}", text(value))
    };
    values.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What a setting is now, in words.
pub fn shown(settings: &ChatSettings, key: &str) -> String {
    format!("{key} is now {}", values(settings).get(key).map_or(String::new(), text))
}

fn command() -> Command {
    ChatSettings::augment_args(Command::new("set").no_binary_name(true).disable_help_flag(true))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "default".to_owned(),
        Value::Array(items) if items.is_empty() => "default".to_owned(),
        value => value.to_string(),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn settings(args: &[&str]) -> ChatSettings {
        let parsed = crate::args::Cli::parse_from([&["minfer", "chat"], args].concat());
        match parsed.command {
            crate::args::Command::Chat(args) => args.settings,
            _ => panic!("not a chat"),
        }
    }

    fn set(settings: &mut ChatSettings, key: &str, value: &str) -> Result<(), String> {
        change(settings, key, value)
    }

    #[test]
    fn every_setting_can_be_set_to_what_it_is() {
        let mut changed = settings(&["--temp", "0.3", "--stop", "a", "--stop", "b", "--seed", "7"]);
        let before = values(&changed);
        assert_eq!(before["temp"], 0.3);
        change_all(&mut changed, &before).unwrap();
        assert_eq!(values(&changed), before);
        let mut other = settings(&[]);
        change_all(&mut other, &before).unwrap();
        assert_eq!(values(&other), before);
        assert_eq!(list(&other).lines().count(), before.len());
        let unexplained = list(&other).lines().filter(|l| l.trim_end().split("  ").count() < 3).count();
        assert_eq!(unexplained, 0, "{}", list(&other));
    }

    #[test]
    fn saved_settings_replace_others_whatever_their_order() {
        let mirostat =
            values(&settings(&["--mirostat", "2", "--logit-bias", "3-1", "--dry-sequence-breaker", "x"]));
        let mut changed =
            settings(&["--top-p", "0.9", "--typical", "0.5", "--logit-bias", "7+2", "--stop", "a"]);
        let before = values(&changed);
        assert!(set(&mut changed, "mirostat", "2").unwrap_err().contains("typical"));
        change_all(&mut changed, &mirostat).unwrap();
        assert_eq!(values(&changed), mirostat);
        change_all(&mut changed, &before).unwrap();
        assert_eq!(values(&changed), before);
        assert_eq!(before["logit-bias"], serde_json::json!(["7+2"]));
    }

    #[test]
    fn one_setting_changes_and_no_other() {
        let mut changed = settings(&["--top-k", "7"]);
        let before = values(&changed);
        set(&mut changed, "max-tokens", "-1").unwrap();
        set(&mut changed, "frequency-penalty", "-0.5").unwrap();
        let after = values(&changed);
        let different: Vec<&String> = after.keys().filter(|key| after[*key] != before[*key]).collect();
        assert_eq!(different, ["frequency-penalty"]);
    }

    #[test]
    fn a_setting_can_be_taken_back() {
        let mut changed = settings(&["--top-k", "7", "--stop", "a", "--logit-bias", "3-1"]);
        let unset = values(&settings(&[]));
        for (key, nothing) in [("top-k", "default"), ("stop", "\"\""), ("logit-bias", "default")] {
            set(&mut changed, key, nothing).unwrap();
            assert_eq!(values(&changed)[key], unset[key], "{key}");
        }
        assert_eq!(values(&changed), unset);
    }

    #[test]
    fn lists_grow_as_on_the_command_line() {
        for (key, first, second) in
            [("logit-bias", "3-1", "7+2"), ("stop", "a", "b"), ("dry-sequence-breaker", "x", "y")]
        {
            let mut changed = settings(&[]);
            assert_eq!(shown(&changed, key), format!("{key} is now default"));
            set(&mut changed, key, first).unwrap();
            set(&mut changed, key, second).unwrap();
            let option = format!("--{key}");
            assert_eq!(values(&changed), values(&settings(&[&option, first, &option, second])));
            assert_eq!(shown(&changed, key), format!("{key} is now [\"{first}\",\"{second}\"]"));
            set(&mut changed, key, "default").unwrap();
            assert_eq!(values(&changed), values(&settings(&[])));
        }
        let mut changed = settings(&[]);
        set(&mut changed, "temp", "0.5").unwrap();
        assert_eq!(shown(&changed, "temp"), "temp is now 0.5");
    }

    #[test]
    fn wrong_settings_change_nothing() {
        let mut changed = settings(&[]);
        let before = values(&changed);
        for (key, value) in [
            ("nope", "1"),
            ("top-p", "1.5"),
            ("top-k", "many"),
            ("logit-bias", "x"),
            ("repeat-last-n", "-2"),
            ("mirostat", "3"),
            ("max-tokens", "-2"),
            ("temp", ""),
            ("help", ""),
        ] {
            let error = set(&mut changed, key, value).unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        }
        assert_eq!(values(&changed), before);
    }
}
