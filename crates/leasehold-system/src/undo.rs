//! Switches that turn a fix off, so that the torture test can show that it finds the bug.
//!
//! Promise: without the feature `undo`, which only the command's own feature `undo` turns
//! on, the variable is not read and every fix is in force. Non-promise: not every fix has
//! a switch; bugs that no fault of the torture test can trigger have tests of their own.

crate::words! {
    /// A fix that can be turned off. Each variant describes the fix; its name and word say what happens without it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fix {
        /// The end of a run is reported until the trust window ends, not once.
        EndToldOnce = "end-told-once",
        /// An item that cannot be claimed is set aside, and the others are claimed.
        ItemErrorLeavesTheClaimer = "item-error-leaves-the-claimer",
        /// An item's oldest events are dropped, so that its record always fits.
        RecordBudgetNotKept = "record-budget-not-kept",
        /// An item without a delay may be claimed whatever the store's clock shows.
        ItemsWaitForTheClock = "items-wait-for-the-clock",
        /// A renewal shortens an item's deadline after the store's clock was set back.
        ItemDeadlineNotShortened = "item-deadline-not-shortened",
        /// A damaged journal stops its own job only.
        JournalErrorStopsTheScheduler = "journal-error-stops-the-scheduler",
        /// A slot whose run died is run again before newer ones.
        InterruptedSlotLeft = "interrupted-slot-left",
        /// A lane that ends unexpectedly is replaced.
        LanesNotReplaced = "lanes-not-replaced",
        /// A lane's folder that a cleaner removed is created again.
        LaneFolderNotMadeAgain = "lane-folder-not-made-again",
        /// An item whose command cannot be started fails that attempt, and the lane continues.
        UnreadyItemEndsTheLane = "unready-item-ends-the-lane",
        /// A file that cannot be read uses up its attempts.
        UnreadableFileLeftUntried = "unreadable-file-left-untried",
        /// A checkpoint that is not text is ignored.
        BadCheckpointEndsTheLane = "bad-checkpoint-ends-the-lane",
        /// A spool's janitor reports the file that it cannot handle, and continues with the others.
        JanitorErrorStopsTheSpool = "janitor-error-stops-the-spool",
        /// A spool's worker can keep a file alive that another user owns.
        SignOfLifeNeedsTheOwner = "sign-of-life-needs-the-owner",
    }
}

/// The variable that names the one fix to turn off.
pub const VARIABLE: &str = "LEASEHOLD_UNDO";

/// Whether this fix is turned off in this process.
#[cfg(feature = "undo")]
pub fn is_disabled(fix: Fix) -> bool {
    std::env::var(VARIABLE).is_ok_and(|names| names == fix.as_str())
}

/// No: in this build every fix is in force.
#[cfg(not(feature = "undo"))]
pub const fn is_disabled(_fix: Fix) -> bool {
    false
}
