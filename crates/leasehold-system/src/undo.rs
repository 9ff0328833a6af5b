//! Switches that take a mend back, so that the torture can be seen to find what was mended.
//!
//! Promise: without the feature `undo`, which no other feature turns on but the command's own `undo`, nothing is read and
//! every mend holds. Non-promise: not every mend has a switch; those that no fault of the torture can trigger have tests
//! of their own.

/// A mend that can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// The end of a run is told until the trust window ends, not once.
    EndToldOnce,
    /// An item that cannot be claimed is set aside, and the others are claimed.
    ItemErrorLeavesTheClaimer,
    /// An item's oldest events give way, so that its record always fits.
    RecordBudgetNotKept,
    /// An item without a delay may be claimed whatever the store's clock shows.
    ItemsWaitForTheClock,
    /// A renewal shortens an item's deadline after the store's clock was set back.
    ItemDeadlineNotShortened,
    /// A damaged journal stops its own job only.
    JournalErrorStopsTheScheduler,
    /// A slot whose run died is run again before newer ones.
    InterruptedSlotLeft,
    /// A lane that ends untold is replaced.
    LanesNotReplaced,
    /// A lane's folder that a cleaner removed is made anew.
    LaneFolderNotMadeAnew,
    /// An item whose command cannot be begun fails that attempt, and the lane goes on.
    UnreadyItemEndsTheLane,
    /// A file that cannot be read uses up its attempts.
    UnreadableFileLeftUntried,
    /// A checkpoint that is not text is passed over.
    BadCheckpointEndsTheLane,
    /// What a spool's janitor cannot do for one file is told, and everything else is done.
    JanitorErrorStopsTheSpool,
    /// A spool's worker keeps a file alive that another user owns.
    SignOfLifeNeedsTheOwner,
}

/// The variable that names what is taken back.
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

/// Whether this mend is taken back in this process.
#[cfg(feature = "undo")]
pub fn undone(mend: Mend) -> bool {
    std::env::var(VARIABLE).is_ok_and(|names| names == mend.as_str())
}

/// No: this build keeps every mend.
#[cfg(not(feature = "undo"))]
pub const fn undone(_mend: Mend) -> bool {
    false
}
