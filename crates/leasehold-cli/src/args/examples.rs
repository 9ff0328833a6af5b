//! Every example in the help of every command is one that the parser takes.

use super::Cli;
use clap::{Command, CommandFactory, Parser};

/// Where a shell would end a command's words.
const ENDS: [&str; 8] = ["|", "||", "&&", "<", ">", ";", "#", "\\"];

/// The verbs that read standard input, beside `queue add`.
const READ_INPUT: [&str; 4] = ["write", "put", "sql", "mcp"];

/// The words of the first `leasehold` in a line, as a shell would take them apart; none if there is none.
fn words(line: &str) -> Option<Vec<String>> {
    let at = line.find("leasehold ")?;
    let inside = line[..at].ends_with("$(");
    // It is the command there, and not a word of another one.
    let begins = |end: &&str| line[..at].ends_with(*end);
    if at > 0 && !["$(", "| ", "&& ", "exec ", "LEASEHOLD_TOKEN=$token ", "leases "].iter().any(begins) {
        return None;
    }
    let (mut words, mut word, mut quote, mut spaces) = (Vec::new(), None::<String>, None, 0);
    for c in line[at..].chars() {
        spaces = if c == ' ' && quote.is_none() { spaces + 1 } else { 0 };
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ')') if inside => break,
            (None, ' ') => {
                let Some(word) = word.take() else {
                    // What it does stands behind it, a few spaces further on.
                    if spaces >= 2 { break } else { continue }
                };
                if ENDS.contains(&word.as_str()) {
                    return Some(words);
                }
                words.push(word);
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.filter(|word| !ENDS.contains(&word.as_str())));
    Some(words)
}

fn check(command: &Command, path: &str, checked: &mut usize) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for line in help.lines().filter(|line| line.starts_with("  ")) {
        let Some(words) = words(line.trim()) else { continue };
        let fed = line.contains(" < ") || line.contains("| leasehold");
        assert!(
            !fed || READ_INPUT.contains(&words[1].as_str())
                || words[1..3] == ["queue", "add"]
                || words[1..3] == ["schedule", "import"],
            "nothing is read: {line}"
        );
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("an example in the help of `{path}` is refused: {line}\n{words:?}\n{error}");
        }
        *checked += 1;
    }
    for verb in command.get_subcommands() {
        check(verb, &format!("{path} {}", verb.get_name()), checked);
    }
}

#[test]
fn every_example_in_a_help_is_understood() {
    let (mut checked, mut command) = (0, Cli::command());
    // The flags of a verb are made only then.
    command.build();
    check(&command, "leasehold", &mut checked);
    assert!(checked > 60, "only {checked} examples were found");
}
