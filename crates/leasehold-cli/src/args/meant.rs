//! What was most likely meant by a verb that does not exist: a slip of the finger, or another tool's word for it.
//!
//! Promise: it names verbs that exist, of the same command, and nothing is carried out.

use super::Cli;
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// A tip about a wrong verb.
#[derive(Debug, PartialEq, Eq)]
pub enum Tip {
    /// This verb is spelled almost like it.
    Spelling(String),
    /// What other words are called here.
    Words(&'static str),
}

const LIST: &str = "`leasehold ls` lists the leases, and `leasehold show NAME` tells all about one";
const LOCK: &str = "`leasehold run NAME -- COMMAND` runs a command under a lease; `leasehold acquire NAME` takes one for a \
                    script, which renews and releases it itself";
const UNLOCK: &str = "`leasehold release --token TOKEN` gives a lease back that a script has acquired; `leasehold revoke NAME --why TEXT` \
                      takes one from its holder";
const REMOVE: &str = "`leasehold forget NAME --why TEXT` drops a lease that nobody uses any more; `leasehold revoke NAME --why TEXT` takes \
                      one from its holder";
const QUEUE_LIST: &str =
    "`leasehold queue ls` counts what is in each queue, and `leasehold queue ls QUEUE` lists its items";
const QUEUE_ADD: &str = "`leasehold queue add QUEUE` adds an item";
const QUEUE_CLAIM: &str = "`leasehold work QUEUE -- COMMAND` runs a command for each item; `leasehold queue claim QUEUE` claims one for a \
                           script";
const QUEUE_REMOVE: &str = "`leasehold queue cancel QUEUE ID --why TEXT` takes an item out of the line; `leasehold queue purge QUEUE \
                            --older-than 30d` erases those that were finished long ago";
const SCHEDULE_LIST: &str =
    "`leasehold schedule check` lists the jobs of the file with their next runs, and `leasehold stats` how they fare";
const SCHEDULE_RUNS: &str =
    "`leasehold runs JOB` shows what became of a job's slots, and `leasehold logs JOB` what its run printed";
const SCHEDULE_REMOVE: &str = "take the job out of the file; `leasehold schedule retire JOB` removes its published definition where no \
                               scheduler does so by itself";
#[cfg(feature = "server")]
const KEY_LIST: &str = "`leasehold key ls` lists the keys";

/// Words of other tools: of which command, which they are, and what is said.
const OTHER_WORDS: &[(&str, &[&str], &str)] = &[
    ("leasehold", &["list", "leases", "locks", "status", "info", "get", "describe", "ps"], LIST),
    ("leasehold", &["lock", "exec", "start", "hold", "take", "flock"], LOCK),
    ("leasehold", &["unlock", "free", "drop", "steal", "kill", "break"], UNLOCK),
    ("leasehold", &["rm", "remove", "delete", "del"], REMOVE),
    ("leasehold", &["jobs", "cron", "crontab"], SCHEDULE_LIST),
    ("queue", &["list", "status", "size", "count"], QUEUE_LIST),
    ("queue", &["push", "put", "enqueue", "send", "publish", "new"], QUEUE_ADD),
    ("queue", &["pop", "pull", "take", "next", "receive", "dequeue", "work", "run"], QUEUE_CLAIM),
    ("queue", &["rm", "remove", "delete", "del", "drop", "clear"], QUEUE_REMOVE),
    ("schedule", &["ls", "list", "status", "show", "jobs"], SCHEDULE_LIST),
    ("schedule", &["runs", "logs", "history"], SCHEDULE_RUNS),
    ("schedule", &["rm", "remove", "delete", "del"], SCHEDULE_REMOVE),
    #[cfg(feature = "server")]
    ("key", &["list", "status", "show"], KEY_LIST),
];

/// The command with the verbs of its verbs, which are left out until they are needed.
fn whole() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// What was most likely meant by this verb, in these words.
pub fn meant(wrong: &str, words: &[OsString]) -> Option<Tip> {
    let command = whole();
    let mut of = &command;
    for word in words.iter().skip(1).take_while(|word| *word != wrong) {
        of = word.to_str().and_then(|word| of.find_subcommand(word)).unwrap_or(of);
    }
    let is_meant = |(verb, others, _): &&(&str, &[&str], &str)| {
        *verb == of.get_name() && others.contains(&wrong.to_lowercase().as_str())
    };
    match OTHER_WORDS.iter().find(is_meant) {
        Some((_, _, tip)) => Some(Tip::Words(tip)),
        None => nearest(wrong, of).map(Tip::Spelling),
    }
}

/// The verb that is at most two slips of the finger away: letters added, left out, replaced or swapped.
fn nearest(wrong: &str, of: &Command) -> Option<String> {
    let verbs = of.get_subcommands().map(Command::get_name);
    let distances = verbs.map(|verb| (strsim::osa_distance(wrong, verb), verb));
    distances
        .filter(|(distance, verb)| *distance <= 2 && *distance < verb.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, verb)| verb.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(line: &str) -> Option<Tip> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        meant(line.split(' ').next_back().unwrap(), &words)
    }

    #[test]
    fn the_nearest_verb_of_the_same_command_is_found() {
        let spelled = |verb: &str| Some(Tip::Spelling(verb.to_owned()));
        assert_eq!(tip("leasehold rnu"), spelled("run"));
        assert_eq!(tip("leasehold --store memory: histroy"), spelled("history"));
        assert_eq!(tip("leasehold queue cancle"), spelled("cancel"));
        assert_eq!(tip("leasehold schedule paln"), spelled("plan"));
        assert_eq!(tip("leasehold frobnicate"), None);
    }

    #[test]
    fn words_of_other_tools_are_known() {
        for (line, says) in [
            ("leasehold list", "`leasehold ls`"),
            ("leasehold locks", "`leasehold ls`"),
            ("leasehold status", "`leasehold show NAME`"),
            ("leasehold lock", "`leasehold acquire NAME`"),
            ("leasehold unlock", "`leasehold release"),
            ("leasehold queue rm", "`leasehold queue cancel"),
            ("leasehold queue list", "`leasehold queue ls`"),
            ("leasehold schedule list", "`leasehold schedule check`"),
        ] {
            assert!(matches!(tip(line), Some(Tip::Words(tip)) if tip.contains(says)), "{line}: {:?}", tip(line));
        }
    }

    /// Neither a word that is a verb, nor a tip that names none.
    #[test]
    fn every_tip_names_verbs_that_exist() {
        let command = whole();
        for (of, others, tip) in OTHER_WORDS {
            let of = command.find_subcommand(of).unwrap_or(&command);
            for word in *others {
                assert!(of.find_subcommand(word).is_none(), "{} {word}", of.get_name());
            }
            for line in tip.split('`').skip(1).step_by(2) {
                let mut of = &command;
                for word in line.split(' ').skip(1).take_while(|word| word.chars().all(char::is_lowercase)) {
                    of = of.find_subcommand(word).unwrap_or_else(|| panic!("{line}"));
                }
            }
        }
    }
}
