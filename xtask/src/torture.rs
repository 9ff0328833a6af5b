//! The torture for longer than the test command has: the same test program, with other arguments.

use crate::{cargo, watch, with_signals};

/// How long, where nobody says.
const MINUTES: [&str; 2] = ["--minutes", "10"];
const PROGRAM: [&str; 5] = ["test", "--workspace", "--all-features", "--test", "torture"];

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    cargo("the torture builds", &[&PROGRAM[..], &["--no-run"]].concat())?;
    let mut command = with_signals(env!("CARGO"));
    command.args(PROGRAM).arg("--");
    if !args.contains(&MINUTES[0]) {
        command.args(MINUTES);
    }
    command.args(args);
    watch::run(command)
}
