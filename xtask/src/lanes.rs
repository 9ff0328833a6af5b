//! Every test, in lanes beside each other: most tests wait for deadlines, so one processor is idle without.
//!
//! Promise: each test program runs once, whatever is added; what a lane beside the first prints comes in one piece when it
//! has ended. Non-promise: lanes are as long as they are.

use crate::{nfs, run, with_signals};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What runs beside the rest, a lane each: those that take longest and mind least how busy the machine is. Those of the second
/// lane mostly wait.
const ASIDE: [&[&str]; 2] = [&["data", "git", "model", "openapi", "torture"], &["fleet", "situations"]];

/// The command's tests that also run with a server in front of their store: whoever holds, works and writes through guards.
const SERVED: [&str; 11] =
    ["data", "disaster", "http", "mcp_gate", "processes", "proxy", "push", "queue", "queue_operators", "run", "tokens"];
/// Of these, what needs the store's own file or URL, or names who gave an order, which a server signs with the key's label.
const NOT_SERVED: [&str; 11] = [
    "a_gate_remembers_though_its_store_was_restored",
    "a_rolled_back_store_is_distinguished_and_healed",
    "a_rolled_back_store_is_told_apart",
    "a_store_that_was_lost_is_distinguished_from_a_stale_token_and_can_be_healed_once",
    "a_store_that_goes_away_kills_the_command_before_the_deadline_by_the_local_clock",
    "a_store_that_went_back_is_distinguished",
    "an_item_of_a_restored_store_is_healed_by_the_line_in_the_message",
    "every_verb_knows_every_state_of_a_spools_item",
    "the_evicted_are_told_who_and_why",
    "the_example_of_the_page_works",
    "the_example_of_the_sql_page_runs_as_it_stands",
];

pub(crate) fn test(root: &Path) -> Result<(), String> {
    let all = names(root)?;
    let is_aside = |name: &&str| ASIDE.iter().any(|lane| lane.contains(name));
    let rest: Vec<&str> = all.iter().map(String::as_str).filter(|name| !is_aside(name)).collect();
    std::thread::scope(|scope| {
        let nfs = scope.spawn(|| nfs::test(root));
        let busy = scope
            .spawn(|| in_one_piece(root, tests(&[], ASIDE[0])).and_then(|()| in_one_piece(root, served_torture())));
        let waiting = scope.spawn(|| in_one_piece(root, tests(&[], ASIDE[1])));
        let rest = run("every test passes", tests(&["--lib", "--bins"], &rest)).and_then(|()| served());
        let panicked = |_| Err("a lane panicked".to_owned());
        [busy, waiting, nfs].into_iter().fold(rest, |all, lane| all.and(lane.join().unwrap_or_else(panicked)))
    })
}

fn served() -> Result<(), String> {
    let mut command = tests(&[], &SERVED);
    command.env("LEASEHOLD_TEST_ON", "served").arg("--");
    for name in NOT_SERVED {
        command.args(["--skip", name]);
    }
    run("the command's tests pass through a server", command)
}

/// The torture once more, with a server between the fleet and its store.
fn served_torture() -> Command {
    let mut command = tests(&[], &["torture"]);
    command.args(["--", "--served"]);
    command
}

fn tests(kinds: &[&str], names: &[&str]) -> Command {
    let mut command = with_signals(env!("CARGO"));
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast"]).args(kinds);
    for name in names {
        command.args(["--test", name]);
    }
    command
}

/// Runs it, and prints what it said when it is over.
fn in_one_piece(root: &Path, mut command: Command) -> Result<(), String> {
    let output = command.current_dir(root).output().map_err(|error| format!("every test passes: {error}"))?;
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(format!("every test passes (run it again with: {command:?})")) }
}

/// The names of all test programs: `tests/name.rs` or `tests/name/main.rs` of a package.
fn names(root: &Path) -> Result<BTreeSet<String>, String> {
    let list = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let packages = list(&root.join("crates")).chain(list(root));
    let mut names = BTreeSet::new();
    for path in packages.flat_map(|package| list(&package.join("tests")).collect::<Vec<_>>()) {
        let is_test = path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").is_file();
        let name = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_test);
        names.extend(name.map(ToOwned::to_owned));
    }
    match ASIDE.iter().copied().flatten().find(|name| !names.contains(**name)) {
        Some(missing) => Err(format!("there is no test program `{missing}` to run aside")),
        None => Ok(names),
    }
}
