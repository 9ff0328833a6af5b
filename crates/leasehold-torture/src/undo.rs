//! Fixes that are turned off: each in a run of its own, which has to give a verdict that belongs to it.

use crate::check::Promise;
use crate::options::Options;
use leasehold_system::undo::{Fix, VARIABLE};
use std::process::{Command, ExitCode, Stdio};

/// The verdicts of which one is to be given when this fix is turned off.
const fn verdicts(fix: Fix) -> &'static [Promise] {
    match fix {
        Fix::EndToldOnce => &[Promise::TheEndIsTold],
        Fix::InterruptedSlotLeft => &[Promise::EverySlotHasAFate],
        Fix::ItemsWaitForTheClock | Fix::ItemDeadlineNotShortened => &[Promise::NothingIsStuck],
        Fix::RecordBudgetNotKept => &[Promise::TheEndIsTold, Promise::EveryItemEnds],
        Fix::LaneFolderNotMadeAgain | Fix::UnreadableFileLeftUntried => {
            &[Promise::EveryItemEnds, Promise::NothingIsStuck]
        }
        Fix::SignOfLifeNeedsTheOwner => &[Promise::NoRunIsStopped],
        Fix::ItemErrorLeavesTheClaimer
        | Fix::JournalErrorStopsTheScheduler
        | Fix::LanesNotReplaced
        | Fix::UnreadyItemEndsTheLane
        | Fix::BadCheckpointEndsTheLane
        | Fix::JanitorErrorStopsTheSpool => &[Promise::NobodyElseStops],
    }
}

/// Turns each of them off in turn, and fails if one of them is not found.
pub(crate) fn each(options: &Options) -> ExitCode {
    let mut missed = Vec::new();
    for fix in options.undo.iter().copied() {
        println!("torture: turning off `{}`", fix.as_str());
        // In a process of its own: the variable is for everybody that it starts.
        let mut one = Command::new(std::env::current_exe().unwrap());
        one.env(VARIABLE, fix.as_str()).args(["--seed", &options.seed.to_string()]);
        one.args(["--minutes", &(options.storm_ms as f64 / 60_000.0).to_string()]);
        one.args(options.is_served.then_some("--served"));
        if let Some(leasehold) = &options.leasehold {
            one.arg("--leasehold").arg(leasehold);
        }
        let output = one.stderr(Stdio::inherit()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        print!("{said}");
        match verdicts(fix).iter().find(|promise| said.contains(&format!("torture: {promise:?}: "))) {
            Some(promise) => println!("torture: `{}` was found by {promise:?}", fix.as_str()),
            None => missed.push(fix.as_str()),
        }
    }
    if missed.is_empty() {
        println!("torture: each fix that was turned off was found");
        return ExitCode::SUCCESS;
    }
    println!("torture: NOT FOUND: with these turned off the run had no verdict about it: {}", missed.join(", "));
    ExitCode::FAILURE
}
