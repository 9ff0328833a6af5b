//! The named steps of an item's life in a spool.
//!
//! Promise: every step that touches the file system is announced before it is taken, so that tests can stop or kill a
//! worker at each of them. Non-promise: in production nothing observes them.

leasehold_system::words! {
    /// A named step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum SpoolStep {
        /// A file is written and synced under a name that nobody reads.
        Stage = "stage",
        /// A key is taken, by an exclusive link.
        LinkKey = "link key",
        /// The item becomes visible in its folder.
        Enter = "enter",
        /// The folder that it appeared in is synced.
        SyncEntered = "sync entered",
        /// The item is claimed, by a rename.
        Claim = "claim",
        /// Both folders of the claim are synced.
        SyncClaimed = "sync claimed",
        /// A heartbeat is given.
        Touch = "touch",
        /// A note of the completion is published under the worker's own epoch.
        Note = "note",
        /// The follow-ups of the completion are written to its outbox.
        LayOut = "lay out",
        /// The one rename that completes, fails or gives back.
        End = "end",
        /// Both folders of that rename are synced.
        SyncEnded = "sync ended",
        /// The follow-ups become visible, one by one.
        FanOut = "fan out",
        /// Something that is no longer needed is removed.
        Collect = "collect",
        /// An expired item is put back.
        Requeue = "requeue",
    }
}
