//! Help pages: verbs in groups, flags under headings, `-h` short and `--help` long, examples exactly as written.
//!
//! Promise: nothing is hidden, and every verb is in one group. Non-promise: none of this is done for a command that is carried
//! out; arranging costs a millisecond that only readers pay.

use super::Cli;
use super::meant::{Tip, meant};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// The verbs by what people come for.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["run", "acquire", "renew", "release", "progress"]),
    ("Look", &["ls", "show", "history", "runs", "logs", "stats", "check", "advise"]),
    ("Operate", &["revoke", "hand-off", "pause", "resume", "advance", "rewind", "forget", "adopt", "migrate"]),
    ("Fenced writes", &["write", "publish", "push", "git-hook", "sql", "put", "gate", "proxy"]),
    ("Agents", &["agents", "hook", "mcp-gate", "mcp"]),
    ("Schedules and queues", &["schedule", "queue", "work"]),
    ("Server", &["serve", "key"]),
    ("Set up", &["init", "config", "notify", "doctor", "drill", "completions", "man", "help"]),
];

/// Flags by heading, for the verbs that have many.
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "When the lease is held",
        &["wait", "retry_after", "or", "limit", "held_exit_code", "quiet", "min_interval", "dry_run"],
    ),
    ("The lease", &["ttl", "label", "token"]),
    (
        "The command",
        &[
            "grace",
            "max_runtime",
            "progress_timeout",
            "progress_output",
            "progress_file",
            "retries",
            "backoff",
            "keep_output",
            "prefix_output",
            "ping",
        ],
    ),
    ("Guards", &["guard", "fence_namespace", "also_flock"]),
    ("TLS", &["tls_cert", "tls_key", "insecure_listen"]),
    (
        "Limits",
        &[
            "max_body",
            "max_head",
            "max_connections",
            "max_requests",
            "max_holder_requests",
            "max_rate",
            "max_waiters",
            "client_timeout",
            "write_timeout",
            "idle_timeout",
        ],
    ),
    ("Slots of a schedule", &["slot", "tz", "dst", "dst_fold", "slot_max_age"]),
    ("Runs of a scheduler", &["slot_at", "as_slot", "unless_succeeded", "unrecorded", "adopt"]),
];

/// What `-h` leaves to `--help`.
const ADVANCED: &[&str] = &[
    "retry_after",
    "held_exit_code",
    "progress_output",
    "progress_file",
    "prefix_output",
    "fence_namespace",
    "also_flock",
    "dst",
    "dst_fold",
    "slot_max_age",
    "slot_at",
    "as_slot",
    "unless_succeeded",
    "unrecorded",
    "adopt",
];

const EVERYWHERE: &str = "Options of every command";
/// More flags than this are put under headings.
const MANY: usize = 12;

/// The page that these words ask for.
pub fn page(words: &[OsString]) -> String {
    let words: Vec<&str> = words.iter().skip(1).map_while(|word| word.to_str()).collect();
    let is_short = words.contains(&"-h");
    let mut found = arranged();
    let mut path = vec!["leasehold"];
    for word in words.iter().filter(|word| !word.starts_with('-') && **word != "help") {
        if let Some(verb) = found.find_subcommand(word).cloned() {
            (found, path) = (verb, [&path[..], &[word]].concat());
        }
    }
    let examples = found.get_after_help().map(ToString::to_string);
    let mut found = found.after_help("").bin_name(path.join(" "));
    let (page, end) = match (is_short, examples) {
        (true, Some(_)) => (found.render_help(), Some(format!("`{} --help` says more.", path.join(" ")))),
        (true, None) => (found.render_help(), None),
        (false, examples) => (found.render_long_help(), examples),
    };
    let page = everywhere_last(&page.to_string());
    format!("{}\n", [Some(page.trim_end()), end.as_deref()].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

/// A page with what every command has behind what only this one has.
fn everywhere_last(page: &str) -> String {
    let heading = format!("{EVERYWHERE}:\n");
    let sections = || page.trim_end().split_inclusive("\n\n");
    let Some(first) = sections().position(|section| section.starts_with(&heading)) else { return page.to_owned() };
    // Blank lines are also between flags, which are indented, as headings are not.
    let length = 1 + sections().skip(first + 1).take_while(|section| section.starts_with(' ')).count();
    let is_moved = |at: &usize| (first..first + length).contains(at);
    let part = |moved: bool| {
        let chosen = sections().enumerate().filter(|(at, _)| is_moved(at) == moved);
        chosen.map(|(_, section)| section).collect::<String>().trim_end().to_owned()
    };
    format!("{}\n\n{}\n", part(false), part(true))
}

/// The whole command line, with every flag, as readers see it.
pub fn arranged() -> Command {
    let mut command = Cli::command();
    // Only then do the verbs have their flags.
    command.build();
    let groups = groups(&command);
    arrange(command).help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{EVERYWHERE}:\n{{options}}{{after-help}}"
    ))
}

fn arrange(command: Command) -> Command {
    let own = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_positional()).count();
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str().to_owned();
        let is_everywhere = arg.is_global_set() && id != "file" || ["help", "version"].contains(&id.as_str());
        let heading = HEADINGS.iter().find(|(_, ids)| own > MANY && ids.contains(&id.as_str()));
        let arg = match heading {
            _ if arg.is_positional() => arg,
            _ if is_everywhere => arg.help_heading(EVERYWHERE),
            Some((heading, _)) => arg.help_heading(*heading),
            None => arg,
        };
        let is_advanced = own > MANY && ADVANCED.contains(&id.as_str());
        arg.hide_short_help(is_advanced)
    });
    command.mut_subcommands(arrange)
}

/// The list of verbs, in groups.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, verbs) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for verb in verbs.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            for (number, line) in wrapped(&about, WIDTH).into_iter().enumerate() {
                let name = if number == 0 { verb.get_name() } else { "" };
                text.push_str(&format!("  {name:<12} {line}\n"));
            }
        }
        text.push('\n');
    }
    text
}

/// What is left of 80 columns beside a verb's name.
const WIDTH: usize = 80 - 15;

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line > 0 && line + 1 + word.chars().count() <= width => last.extend([" ", word]),
            Some(last) if line == 0 => last.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Adds to an error what was most likely meant.
pub fn with_hint(mut error: clap::Error, words: &[OsString]) -> (clap::Error, Option<String>) {
    if let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) {
        let tip = meant(wrong, words);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
        match tip {
            Some(Tip::Spelling(near)) => {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
            }
            Some(Tip::Words(tip)) => return (error, Some(tip.to_owned())),
            None => {}
        }
    }
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(wrong))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
        && wrong.starts_with('-')
    {
        let hint = missing_duration(words).or_else(|| separator(words)).unwrap_or_else(|| unknown_flag(wrong, words));
        // To pass it on to a command is hardly ever what was meant.
        error.remove(ContextKind::Suggested);
        let is_answered = error.get(ContextKind::SuggestedArg).is_some();
        return (error, Some(hint).filter(|_| !is_answered));
    }
    let is_unplaced = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if let Some(hint) = missing_duration(words).filter(|_| is_unplaced) {
        return (error, Some(hint));
    }
    let hint = separator(words).filter(|_| is_unplaced && error.get(ContextKind::SuggestedArg).is_none());
    (error, hint)
}

fn unknown_flag(wrong: &str, words: &[OsString]) -> String {
    let (mut found, mut path) = (arranged(), vec!["leasehold"]);
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        match found.find_subcommand(word).cloned() {
            Some(verb) => {
                found = verb;
                path.push(word);
            }
            // The value of a flag before the verb.
            None if path.len() == 1 || word.starts_with('-') => {}
            None => break,
        }
    }
    let path = path.join(" ");
    format!("`{path}` has no flag `{wrong}`; `{path} --help` lists those it has")
}

/// For a command without `--` before it. The verb is the first word that is no flag: `run` is a verb of `schedule` too.
fn separator(words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let (verb, what) = VERBS_WITH_COMMAND.iter().find(|(verb, _)| first_verb(&words) == Some(*verb))?;
    let is_there = words.contains(&"--");
    (!is_there).then(|| format!("put `--` before the command, as in `leasehold {verb} {what} -- COMMAND`"))
}

/// The verb of these words; they may begin with flags of every command, and their values.
fn first_verb<'a>(words: &[&'a str]) -> Option<&'a str> {
    let command = Cli::command();
    words.iter().copied().find(|word| command.find_subcommand(word).is_some())
}

/// The flags that are most often given without their duration, which then takes the `--` before the command for it.
const FLAGS_WITH_DURATION: &[&str] = &[
    "--wait",
    "--retry-after",
    "--ttl",
    "--grace",
    "--max-runtime",
    "--progress-timeout",
    "--min-interval",
    "--backoff",
    "--slot-max-age",
];

/// For a flag whose value is missing, right before the command.
fn missing_duration(words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let end = words.iter().position(|word| *word == "--")?;
    let flag = words[..end].last().filter(|word| FLAGS_WITH_DURATION.contains(word))?;
    Some(format!("{flag} needs a duration: {flag} 10m"))
}

/// The verbs that run a command, and what they take before it.
const VERBS_WITH_COMMAND: &[(&str, &str)] = &[("run", "NAME"), ("work", "QUEUE"), ("gate", "RESOURCE")];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn names(command: &Command) -> Vec<&str> {
        command.get_subcommands().map(Command::get_name).collect()
    }

    fn every(command: &Command, look: &mut dyn FnMut(&Command, &Arg)) {
        command.get_arguments().for_each(|arg| look(command, arg));
        command.get_subcommands().for_each(|verb| every(verb, look));
    }

    #[test]
    fn every_verb_is_in_one_group() {
        let command = arranged();
        for name in names(&command) {
            let count = GROUPS.iter().flat_map(|(_, verbs)| *verbs).filter(|verb| **verb == name).count();
            assert_eq!(count, 1, "{name}");
        }
    }

    #[test]
    fn no_flag_is_hidden() {
        every(&arranged(), &mut |verb, arg| {
            assert!(!arg.is_hide_set(), "{} {}", verb.get_name(), arg.get_id());
        });
    }

    #[test]
    fn every_flag_of_run_is_under_a_heading() {
        let command = arranged();
        let run = command.find_subcommand("run").expect("there is `run`");
        for arg in run.get_arguments().filter(|arg| !arg.is_positional()) {
            assert!(arg.get_help_heading().is_some(), "--{}", arg.get_id());
        }
    }

    #[test]
    fn what_every_command_has_comes_last() {
        let page = format!("Runs\n\n{EVERYWHERE}:\n  --a\n\n  --b\n\nThe lease:\n  --c\n");
        assert_eq!(everywhere_last(&page), format!("Runs\n\nThe lease:\n  --c\n\n{EVERYWHERE}:\n  --a\n\n  --b\n"));
        assert_eq!(everywhere_last("Runs\n\nThe lease:\n  --c\n"), "Runs\n\nThe lease:\n  --c\n");
    }

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable x", 4), ["unbreakable", "x"]);
    }
}
