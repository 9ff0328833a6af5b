//! Switches that turn a fix off, so that the torture test can show that it finds the bug.
//!
//! Promise: without the feature `undo`, which only the command's own feature `undo` turns on, nothing is read and every fix is
//! in force. Non-promise: not every fix has a switch; bugs that no fault of the torture test can trigger have tests of their
//! own.

/// A fix that can be turned off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// The end of a run is reported until the trust window ends, not once.
    EndToldOnce,
    /// An item that cannot be claimed is set aside, and the others are claimed.
    ItemErrorLeavesTheClaimer,
    /// An item's oldest events are dropped, so that its record always fits.
    RecordBudgetNotKept,
    /// An item without a delay may be claimed whatever the store's clock shows.
    ItemsWaitForTheClock,
    /// A renewal shortens an item's deadline after the store's clock was set back.
    ItemDeadlineNotShortened,
    /// A damaged journal stops its own job only.
    JournalErrorStopsTheScheduler,
    /// A slot whose run died is run again before newer ones.
    InterruptedSlotLeft,
    /// A lane that ends unexpectedly is replaced.
    LanesNotReplaced,
    /// A lane's folder that a cleaner removed is created again.
    LaneFolderNotMadeAnew,
    /// An item whose command cannot be started fails that attempt, and the lane continues.
    UnreadyItemEndsTheLane,
    /// A file that cannot be read uses up its attempts.
    UnreadableFileLeftUntried,
    /// A checkpoint that is not text is ignored.
    BadCheckpointEndsTheLane,
    /// A spool's janitor reports the file that it cannot handle, and continues with the others.
    JanitorErrorStopsTheSpool,
    /// A spool's worker keeps a file alive that another user owns.
    SignOfLifeNeedsTheOwner,
}

/// The variable that names the fixes to turn off.
pub const VARIABLE: &str = "LEASEHOLD_UNDO";

impl Mend {
    /// All of them.
    pub const ALL: &[Mend] = &[
        Mend::EndToldOnce,
        Mend::ItemErrorLeavesTheClaimer,
        Mend::RecordBudgetNotKept,
        Mend::ItemsWaitForTheClock,
        Mend::ItemDeadlineNotShortened,
        Mend::JournalErrorStopsTheScheduler,
        Mend::InterruptedSlotLeft,
        Mend::LanesNotReplaced,
        Mend::LaneFolderNotMadeAnew,
        Mend::UnreadyItemEndsTheLane,
        Mend::UnreadableFileLeftUntried,
        Mend::BadCheckpointEndsTheLane,
        Mend::JanitorErrorStopsTheSpool,
        Mend::SignOfLifeNeedsTheOwner,
    ];

    /// The word in [`VARIABLE`] and for `cargo xtask torture --undo`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mend::EndToldOnce => "end-told-once",
            Mend::ItemErrorLeavesTheClaimer => "item-error-leaves-the-claimer",
            Mend::RecordBudgetNotKept => "record-budget-not-kept",
            Mend::ItemsWaitForTheClock => "items-wait-for-the-clock",
            Mend::ItemDeadlineNotShortened => "item-deadline-not-shortened",
            Mend::JournalErrorStopsTheScheduler => "journal-error-stops-the-scheduler",
            Mend::InterruptedSlotLeft => "interrupted-slot-left",
            Mend::LanesNotReplaced => "lanes-not-replaced",
            Mend::LaneFolderNotMadeAnew => "lane-folder-not-made-anew",
            Mend::UnreadyItemEndsTheLane => "unready-item-ends-the-lane",
            Mend::UnreadableFileLeftUntried => "unreadable-file-left-untried",
            Mend::BadCheckpointEndsTheLane => "bad-checkpoint-ends-the-lane",
            Mend::JanitorErrorStopsTheSpool => "janitor-error-stops-the-spool",
            Mend::SignOfLifeNeedsTheOwner => "sign-of-life-needs-the-owner",
        }
    }
}

/// Whether this fix is turned off in this process.
#[cfg(feature = "undo")]
pub fn undone(mend: Mend) -> bool {
    std::env::var(VARIABLE).is_ok_and(|names| names == mend.as_str())
}

/// No: in this build every fix is in force.
#[cfg(not(feature = "undo"))]
pub const fn undone(_mend: Mend) -> bool {
    false
}
