//! The torture: schedulers, workers and shared spools under every fault at once, and a checker of what they did.
//!
//! Promise: the same seed gives the same plan of faults, and every verdict rests on what the commands themselves logged,
//! on what the stores say afterwards and on exit codes. Non-promise: the same seed does not give the same interleaving;
//! which process a kill meets depends on which are alive.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a harness that cannot be set up fails the test")]

mod actors;
mod adder;
mod background;
mod check;
mod command;
mod facts;
mod faults;
mod keep;
mod log;
mod look;
mod options;
mod plan;
mod processes;
mod pulse;
mod random;
mod run;
mod served;
mod site;
mod undo;

use std::path::Path;
use std::process::ExitCode;

/// The word that makes this program the command of a job or an item. Not for people.
const COMMAND: &str = "__command";

/// Runs it, with this `leasehold`; what is to be read after a failure is kept below `kept`.
pub fn main(leasehold: &Path, kept: &Path) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == COMMAND) {
        return command::main();
    }
    match options::Options::parse(&words) {
        Ok(options) => run::main(options.leasehold.as_deref().unwrap_or(leasehold), kept, &options),
        Err(message) => {
            eprintln!("torture: {message}");
            ExitCode::from(64)
        }
    }
}
