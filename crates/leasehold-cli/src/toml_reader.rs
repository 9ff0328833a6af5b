//! Reads TOML, and says what is wrong with it in words that help: the field, its value, and what to write instead.
//!
//! Promise: a value is repeated only of a field that is ours and never a secret; of what a table `env` says, nothing but the names.
//! Non-promise: errors of TOML's own grammar are in its parser's words, with their line.

use leasehold_core::{Error, Kind, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::path::Path;

/// Tables as they are in a file. Nothing of them is checked before somebody needs them: a job is not kept from running because
/// a table about something else is wrong.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct RawTables(Option<toml::Value>);

impl RawTables {
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// As they are written.
    pub const fn value(&self) -> Option<&toml::Value> {
        self.0.as_ref()
    }
}

impl std::fmt::Debug for RawTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A webhook's URL is a secret as often as not.
        f.write_str("RawTables")
    }
}

/// What is written as a list of tables, each under its name in double brackets.
const TABLES: [&str; 3] = ["job", "notify", "oidc"];
/// Fields with a number and its unit.
const DURATIONS: [&str; 12] = [
    "ttl",
    "grace",
    "history_age",
    "every",
    "jitter",
    "backoff",
    "timeout",
    "progress_timeout",
    "catch_up_max_age",
    "late_after",
    "remind",
    "lasts",
];

/// Fields whose values messages may repeat. Other names are not ours, as in `env`, or have values that may be secrets.
const REPEATED: [&str; 44] = [
    "after",
    "allow",
    "argv",
    "audience",
    "backoff",
    "busy",
    "catch_up",
    "catch_up_max_age",
    "cron",
    "cwd",
    "dst",
    "dst_fold",
    "every",
    "grace",
    "held_exit_code",
    "history_age",
    "history_transfers",
    "issuer",
    "jitter",
    "jobs",
    "label",
    "lasts",
    "late_after",
    "log",
    "log_format",
    "metrics",
    "metrics_leases",
    "name",
    "names",
    "namespace",
    "on",
    "output_runs",
    "output_size",
    "owner",
    "progress_timeout",
    "queues",
    "recovered_after",
    "remind",
    "retries",
    "revision",
    "state",
    "timeout",
    "ttl",
    "tz",
];

/// Reads TOML, and says in which line it is wrong.
pub fn parse_toml<T: DeserializeOwned>(text: &str, what: &str, path: &Path) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let before = span.start.min(text.len());
        let line = 1 + text.bytes().take(before).filter(|byte| *byte == b'\n').count();
        let wrong = told(Field::at(text, span), error.message());
        Error::new(Kind::Invalid, format!("invalid {what} `{}`, line {line}: {wrong}", path.display()))
    })
}

/// Reads one of the tables of [`RawTables`].
pub fn read_table<T: DeserializeOwned>(table: &toml::Value) -> Result<T> {
    table.clone().try_into().map_err(|error: toml::de::Error| {
        Error::new(Kind::Invalid, told(Field::within(table, &error), error.message()))
    })
}

/// What is wrong with a field, in words that help, and otherwise in the parser's.
fn told(field: Option<Field>, message: &str) -> String {
    let may_repeat = field.as_ref().is_some_and(|field| field.value.is_some());
    let explained = field.and_then(|field| field.explained(message));
    let parsers = || if may_repeat { message.to_owned() } else { without_value(message) };
    explained.unwrap_or_else(parsers).replace('\n', " ")
}

/// The parser's words without the value in them: ``invalid type: integer `5`, expected a string``.
fn without_value(message: &str) -> String {
    let parts = || {
        let (what, rest) = message.split_once(": ").filter(|(what, _)| what.starts_with("invalid "))?;
        let (found, wanted) = rest.rsplit_once(", expected ")?;
        let found = found.split(['`', '"']).next()?.trim_end();
        Some(format!("{what}: {found}, expected {wanted}"))
    };
    parts().unwrap_or_else(|| message.to_owned())
}

/// A field with a wrong value, or one that nobody knows.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    /// As it is written, if it is short and has nothing in it that may be a secret.
    value: Option<String>,
    /// Whether the value is one of a list.
    is_element: bool,
    /// Whether it is a variable of a command, and the name not ours.
    is_variable: bool,
}

impl Field {
    /// The one at this place of a text.
    fn at(text: &str, span: Range<usize>) -> Option<Field> {
        let (before, value) = (text.get(..span.start)?, text.get(span)?);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let rest = text[before.len()..].lines().next().unwrap_or_default();
        let whole = format!("{line}{rest}");
        if let Some(header) = whole.trim_start().strip_prefix('[').filter(|_| !line.contains('=')) {
            let name = header.trim_start_matches('[').split([']', '.']).next()?.trim().to_owned();
            return Some(Field { name, value: None, is_element: false, is_variable: false });
        }
        let (value, is_variable) = (harmless(value), is_in_env(before));
        let repeated = |name: &str| value.clone().filter(|_| !is_variable && REPEATED.contains(&name));
        if let Some(key) = before.trim_end().strip_suffix('=') {
            let name = key.rsplit(['\n', ',', '{']).next()?.trim().to_owned();
            return Some(Field { value: repeated(&name), name, is_element: false, is_variable });
        }
        // The name of a field that nobody knows, or a value in a list, which may have begun some lines above.
        if rest.split_once('=').is_some_and(|(key, _)| Some(key.trim()) == value.as_deref()) {
            return Some(Field { name: value?, value: None, is_element: false, is_variable });
        }
        let name = before.lines().rev().find_map(|line| line.split_once('='))?.0.trim().to_owned();
        Some(Field { value: repeated(&name), name, is_element: true, is_variable })
    }

    /// The one of this table that the error is about.
    fn within(table: &toml::Value, error: &toml::de::Error) -> Option<Field> {
        let shown = error.to_string();
        let name = shown.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
        let Some(name) = name else {
            return Some(Field { name: String::new(), value: None, is_element: false, is_variable: false });
        };
        let value = table.get(name)?;
        let is_element = value.is_array() && !error.message().contains("sequence, expected");
        let value = match value {
            toml::Value::String(text) => harmless(&format!("\"{text}\"")),
            toml::Value::Integer(number) => Some(number.to_string()),
            toml::Value::Float(number) => Some(number.to_string()),
            toml::Value::Boolean(value) => Some(value.to_string()),
            _ => None,
        };
        let value = value.filter(|_| REPEATED.contains(&name));
        Some(Field { name: name.to_owned(), value, is_element, is_variable: false })
    }

    /// The parser's message in words that help, if it is one of those that are known.
    fn explained(&self, message: &str) -> Option<String> {
        if let Some(rest) = message.strip_prefix("unknown field `") {
            let (wrong, known) = rest.split_once('`')?;
            return suggested(wrong, known);
        }
        let name = &self.name;
        if message.starts_with("data did not match any variant") {
            return Some(format!("`{name}` is a text in quotes, or a list of such: {name} = [\"...\", \"...\"]"));
        }
        let (found, wanted) = message.strip_prefix("invalid ")?.split_once(", expected ")?;
        let is_text = found.starts_with("type: string");
        match wanted {
            "a string" | "path string" => Some(self.as_text(found)),
            "a sequence" if TABLES.contains(&name.as_str()) => Some(as_tables(name)),
            _ if wanted.starts_with("struct ") && TABLES.contains(&name.as_str()) => Some(as_tables(name)),
            "a sequence" => {
                let one = self.value.as_deref().filter(|_| is_text).unwrap_or("\"...\"");
                Some(format!("`{name}` is a list; write it in square brackets: {name} = [{one}]"))
            }
            "a map" => Some(format!("`{name}` is a table; write it in braces: {name} = {{ NAME = \"value\" }}")),
            "u8" | "u32" | "u64" | "i64" => Some(self.as_number(found, wanted)),
            _ => None,
        }
    }

    fn as_text(&self, found: &str) -> String {
        let (name, value) = (&self.name, self.value.as_deref().unwrap_or("..."));
        let is_number = found.starts_with("type: integer") || found.starts_with("type: floating");
        let is_whole = value.bytes().all(|b| b.is_ascii_digit());
        match DURATIONS.contains(&name.as_str()) && !self.is_variable {
            true if is_number && is_whole => {
                // Nobody gives a key for a few seconds.
                let unit = if name == "lasts" { 'm' } else { 's' };
                format!("`{name}` has no unit; write it with a unit, in quotes: {name} = \"{value}{unit}\"")
            }
            true => format!("`{name}` is a time; write it with a unit, in quotes, such as {name} = \"90s\""),
            false if self.is_element => format!("`{name}` is a list of texts; write each in quotes: \"{value}\""),
            false if is_number || found.starts_with("type: boolean") => {
                format!("`{name}` is a text; write it in quotes: {name} = \"{value}\"")
            }
            // Of a job; that of a notification is a list.
            false if name == "command" && found.starts_with("type: sequence") => {
                "`command` is one line for a shell, in quotes; a list of words is argv = [\"...\", \"...\"]".to_owned()
            }
            false => format!("`{name}` is one text; write it in quotes: {name} = \"...\""),
        }
    }

    fn as_number(&self, found: &str, wanted: &str) -> String {
        let name = &self.name;
        let range = match wanted {
            "u8" => " from 0 to 255",
            "i64" => "",
            _ => " from 0 on",
        };
        let value = self.value.as_deref().unwrap_or("...");
        let bare = value.trim_matches(['"', '\'']);
        if found.starts_with("value: ") {
            return format!("`{name}` is {value}; use a whole number{range}");
        }
        match bare.trim().parse::<i64>() {
            Ok(number) if bare != value => {
                format!("`{name}` is the text {value}; write the number without quotes: {name} = {number}")
            }
            _ => format!("`{name}` is {value}; write a whole number{range}, without quotes, such as {name} = 3"),
        }
    }
}

/// Whether what comes behind this text is in a table of variables. It may say so too often, which hides more.
fn is_in_env(before: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let names_it = |text: &str| text.split(|c| !is_part(c)).any(|word| word == "env");
    let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let header = above.lines().rev().find(|line| line.trim_start().starts_with('[')).unwrap_or_default();
    // Of a table in braces over several lines.
    let is_open = |text: &str| text.matches('{').count() > text.matches('}').count();
    names_it(line) || names_it(header) || before.match_indices("env").any(|(at, _)| is_open(&before[at..]))
}

fn as_tables(name: &str) -> String {
    format!("`{name}` is a list of tables; write [[{name}]], in double brackets, before each")
}

/// A value that a message may repeat.
fn harmless(value: &str) -> Option<String> {
    /// Longer ones do not help.
    const MOST: usize = 60;
    let is_simple = !value.contains(['\n', '@']) && !value.contains("://");
    (value.len() <= MOST && is_simple).then(|| value.trim().to_owned())
}

/// For a field that nobody knows: the known one that is a slip of the finger away, or its plural.
fn suggested(wrong: &str, known: &str) -> Option<String> {
    let names = known.split('`').skip(1).step_by(2);
    let distance = |name: &&str| strsim::osa_distance(wrong, name);
    let is_near = |name: &&str| {
        let most = if name.get(..4).is_some_and(|begin| wrong.starts_with(begin)) { 3 } else { 2 };
        distance(name) <= most && distance(name) < name.len()
    };
    let near = names.filter(is_near).min_by_key(distance)?;
    Some(match TABLES.contains(&near) {
        true => format!("unknown field `{wrong}`; write [[{near}]], in double brackets, before each such table"),
        false => format!("unknown field `{wrong}`; did you mean `{near}`?"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        _name: Option<String>,
        ttl: Option<String>,
        retries: Option<i64>,
        held_exit_code: Option<u8>,
        argv: Vec<String>,
        #[serde(rename = "command")]
        _command: Option<String>,
        env: BTreeMap<String, String>,
        on: Option<OneOrMany>,
        job: Vec<Table>,
        notify: Vec<Table>,
        secret: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    struct Table {
        #[serde(rename = "name")]
        _name: String,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(#[allow(dead_code)] String),
        Many(#[allow(dead_code)] Vec<String>),
    }

    /// What is said of a file, and of the same as one table.
    fn said(text: &str) -> [String; 2] {
        let of_file = parse_toml::<Sample>(text, "jobs", Path::new("f")).unwrap_err().to_string();
        let of_file = of_file.split_once(": ").unwrap().1.to_owned();
        [of_file, read_table::<Sample>(&toml::from_str(text).unwrap()).unwrap_err().to_string()]
    }

    #[test]
    fn a_wrong_value_is_reported_with_its_field_and_what_to_write() {
        for (text, expected) in [
            ("retries = \"3\"", "`retries` is the text \"3\"; write the number without quotes: retries = 3"),
            ("retries = 'three'", "three'; write a whole number, without quotes, such as retries = 3"),
            ("retries = 1.5", "`retries` is 1.5; write a whole number, without quotes, such as retries = 3"),
            ("held_exit_code = 300", "`held_exit_code` is 300; use a whole number from 0 to 255"),
            ("ttl = 90 # seconds", "`ttl` has no unit; write it with a unit, in quotes: ttl = \"90s\""),
            ("argv = \"ls\"", "`argv` is a list; write it in square brackets: argv = [\"ls\"]"),
            ("argv = [\n  \"ls\",\n  3,\n]", "`argv` is a list of texts; write each in quotes"),
            ("on = 3", "`on` is a text in quotes, or a list of such"),
            ("env = \"A=1\"", "`env` is a table; write it in braces: env = { NAME = \"value\" }"),
            ("retrys = 3", "unknown field `retrys`; did you mean `retries`?"),
            ("command = [\"ls\"]", "a list of words is argv = [\"...\", \"...\"]"),
        ] {
            for said in said(text) {
                assert!(said.replace('"', "'").contains(&expected.replace('"', "'")), "{text}: {said}");
            }
        }
    }

    #[test]
    fn what_a_table_of_variables_says_is_never_repeated() {
        let hidden = "12345678";
        for (text, name) in [
            ("env = { DB_PASSWORD = 12345678 }", "DB_PASSWORD"),
            ("env = { A = 'x', DB_PASSWORD = 12345678 }", "DB_PASSWORD"),
            ("env = { A = '}', ttl = 12345678 }", "ttl"),
            ("\"env\" = { ttl = 12345678 }", "ttl"),
            ("[env]\nDB_PASSWORD = 12345678", "DB_PASSWORD"),
            ("ttl = '90s'\n[env]\nA = 'x'\nttl = 12345678", "ttl"),
            ("[ 'env' ]\nname = 12345678.5", "name"),
            ("env.DB_PASSWORD = 12345678", "env.DB_PASSWORD"),
            ("env.ttl = 12345678", "env.ttl"),
        ] {
            let expected = format!("`{name}` is a text; write it in quotes: {name} = \"...\"");
            let [of_file, of_table] = said(text);
            assert_eq!(of_file, expected, "{text}");
            assert!(!of_table.contains(hidden), "{text}: {of_table}");
        }
        for text in [
            "env = { A = 12345678.5 }",
            "env = { A = [12345678] }",
            "env = { A = { B = 12345678 } }",
            "[env]\nA = [\n12345678]",
            "env = 12345678",
            "env = [\"12345678\"]",
            "secret = 12345678",
            "secret = \"12345678\"",
        ] {
            for said in said(text) {
                assert!(!said.contains(hidden), "{text}: {said}");
            }
        }
        // Behind it there are fields of ours again.
        let [of_file, _] = said("env = { A = 'x' }\nretries = 1.5");
        assert!(of_file.contains("`retries` is 1.5"), "{of_file}");
    }

    #[test]
    fn the_parsers_own_words_come_without_the_value() {
        for (message, expected) in [
            ("invalid type: integer `5`, expected a boolean", "invalid type: integer, expected a boolean"),
            ("invalid type: string \"a, expected b\", expected a boolean", "invalid type: string, expected a boolean"),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(without_value(message), expected);
        }
    }

    #[test]
    fn a_misused_table_is_reported_with_how_it_is_written() {
        for text in ["[job]\nname = 'x'", "[job.nightly]\nname = 'x'", "job = 'x'", "[[jobs]]\nname = 'x'"] {
            let [of_file, _] = said(text);
            assert!(of_file.contains("write [[job]], in double brackets"), "{text}: {of_file}");
        }
        for text in ["[notify]\nname = 'x'", "[[notifies]]\nname = 'x'", "[[notifys]]", "[[notification]]"] {
            let [of_file, _] = said(text);
            assert_eq!(of_file.contains("write [[notify]]"), text != "[[notification]]", "{text}: {of_file}");
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        for text in ["argv = \"https://chat.example/T0/key\"", "argv = \"ann:pw@db\""] {
            for said in said(text) {
                assert!(said.ends_with("argv = [\"...\"]"), "{said}");
            }
        }
    }

    #[test]
    fn an_unforeseen_error_is_reported_in_the_parsers_words() {
        let [of_file, of_table] = said("[[job]]\nfoo = 3");
        assert!(of_file.contains("missing field `name`") && of_table.contains("missing field `name`"), "{of_file}");
    }
}
