//! The named steps of an item's life in a spool.
//!
//! Promise: every step that touches the file system is announced before it is taken, so that tests can stop or kill a
//! worker at each of them. Non-promise: production never watches.

leasehold_system::words! {
    /// One step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum SpoolStep {
        /// A file is written and synced under a name that nobody looks at.
        Stage = "stage",
        /// A key is taken, by an exclusive link.
        LinkKey = "link key",
        /// The item becomes visible.
        Enter = "enter",
        /// The folder that it appeared in is synced.
        SyncEntered = "sync entered",
        /// The item is taken.
        Claim = "claim",
        /// Both folders are synced.
        SyncClaimed = "sync claimed",
        /// A heartbeat is given.
        Touch = "touch",
        /// What the completion leaves is published under the worker's own epoch.
        Note = "note",
        /// What the completion is to add is laid out.
        LayOut = "lay out",
        /// The one rename that completes, fails or gives back.
        End = "end",
        /// Both folders are synced.
        SyncEnded = "sync ended",
        /// What the completion adds becomes visible, one by one.
        FanOut = "fan out",
        /// What is no longer needed is removed.
        Collect = "collect",
        /// What ran out is put back.
        Requeue = "requeue",
    }
}
