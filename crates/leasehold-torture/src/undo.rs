//! Mends that are taken back: each in a run of its own, which has to give a verdict that belongs to it.

use crate::check::Promise;
use crate::options::Options;
use leasehold_system::undo::{Mend, VARIABLE};
use std::process::{Command, ExitCode, Stdio};

/// The verdicts of which one is to be given when this mend is taken back.
const fn verdicts(mend: Mend) -> &'static [Promise] {
    match mend {
        Mend::EndToldOnce => &[Promise::TheEndIsTold],
        Mend::InterruptedSlotLeft => &[Promise::EverySlotHasAFate],
        Mend::ItemsWaitForTheClock | Mend::ItemDeadlineNotShortened => &[Promise::NothingIsStuck],
        Mend::RecordBudgetNotKept => &[Promise::TheEndIsTold, Promise::EveryItemEnds],
        Mend::LaneFolderNotMadeAnew | Mend::UnreadableFileLeftUntried => {
            &[Promise::EveryItemEnds, Promise::NothingIsStuck]
        }
        Mend::SignOfLifeNeedsTheOwner => &[Promise::NoRunIsStopped],
        Mend::ItemErrorLeavesTheClaimer
        | Mend::JournalErrorStopsTheScheduler
        | Mend::LanesNotReplaced
        | Mend::UnreadyItemEndsTheLane
        | Mend::BadCheckpointEndsTheLane
        | Mend::JanitorErrorStopsTheSpool => &[Promise::NobodyElseStops],
    }
}

/// Takes each of them back in turn, and fails if one of them is not found.
pub(crate) fn each(options: &Options) -> ExitCode {
    let mut missed = Vec::new();
    for mend in options.undo.iter().copied() {
        println!("torture: taking `{}` back", mend.as_str());
        // In a process of its own: the variable is for everybody that it starts.
        let mut one = Command::new(std::env::current_exe().unwrap());
        one.env(VARIABLE, mend.as_str()).args(["--seed", &options.seed.to_string()]);
        one.args(["--minutes", &(options.storm_ms as f64 / 60_000.0).to_string()]);
        one.args(options.is_served.then_some("--served"));
        if let Some(leasehold) = &options.leasehold {
            one.arg("--leasehold").arg(leasehold);
        }
        let output = one.stderr(Stdio::inherit()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        print!("{said}");
        match verdicts(mend).iter().find(|promise| said.contains(&format!("torture: {promise:?}: "))) {
            Some(promise) => println!("torture: `{}` was found by {promise:?}", mend.as_str()),
            None => missed.push(mend.as_str()),
        }
    }
    if missed.is_empty() {
        println!("torture: each mend that was taken back was found");
        return ExitCode::SUCCESS;
    }
    println!("torture: NOT FOUND: with these taken back the run had no verdict about it: {}", missed.join(", "));
    ExitCode::FAILURE
}
