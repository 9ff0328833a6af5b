//! Every test, in lanes beside each other: most tests wait for deadlines, so one processor is idle without.
//!
//! Promise: each test program runs once, whatever is added; what a lane beside the first prints comes in one piece when it
//! has ended. Non-promise: lanes are as long as they are.

use crate::{nfs, run, with_signals};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What runs beside the rest: those that take longest and mind least how busy the machine is.
const ASIDE: [&str; 4] = ["data", "git", "model", "torture"];

pub(crate) fn test(root: &Path) -> Result<(), String> {
    let all = names(root)?;
    let (aside, rest): (Vec<&str>, Vec<&str>) = all.iter().map(String::as_str).partition(|name| ASIDE.contains(name));
    std::thread::scope(|scope| {
        let nfs = scope.spawn(|| nfs::test(root));
        let aside = scope.spawn(|| in_one_piece(root, tests(&[], &aside)));
        let rest = run("every test passes", tests(&["--lib", "--bins"], &rest));
        let panicked = |_| Err("a lane panicked".to_owned());
        let (aside, nfs) = (aside.join().unwrap_or_else(panicked), nfs.join().unwrap_or_else(panicked));
        rest.and(aside).and(nfs)
    })
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
    match ASIDE.iter().find(|name| !names.contains(**name)) {
        Some(missing) => Err(format!("there is no test program `{missing}` to run aside")),
        None => Ok(names),
    }
}
