//! The named steps of an item's life in a spool.
//!
//! Promise: every step that touches the file system is announced before it is taken, so that tests can stop or kill a
//! worker at each of them. Non-promise: production never watches.

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpoolStep {
    /// A file is written and synced under a name that nobody looks at.
    Stage,
    /// A key is taken, by an exclusive link.
    LinkKey,
    /// The item becomes visible.
    Enter,
    /// The folder that it appeared in is synced.
    SyncEntered,
    /// The item is taken.
    Claim,
    /// Both folders are synced.
    SyncClaimed,
    /// A heartbeat is given.
    Touch,
    /// What the completion leaves is published under the worker's own epoch.
    Note,
    /// What the completion is to add is laid out.
    LayOut,
    /// The one rename that completes, fails or gives back.
    End,
    /// Both folders are synced.
    SyncEnded,
    /// What the completion adds becomes visible, one by one.
    FanOut,
    /// What is no longer needed is removed.
    Collect,
    /// What ran out is put back.
    Requeue,
}

impl SpoolStep {
    /// Every step.
    pub const ALL: [SpoolStep; 14] = [
        SpoolStep::Stage,
        SpoolStep::LinkKey,
        SpoolStep::Enter,
        SpoolStep::SyncEntered,
        SpoolStep::Claim,
        SpoolStep::SyncClaimed,
        SpoolStep::Touch,
        SpoolStep::Note,
        SpoolStep::LayOut,
        SpoolStep::End,
        SpoolStep::SyncEnded,
        SpoolStep::FanOut,
        SpoolStep::Collect,
        SpoolStep::Requeue,
    ];
}
