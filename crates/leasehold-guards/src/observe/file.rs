//! The named steps of a guarded write to a file or a folder.
//!
//! Promise: every step that touches the file system is announced before it is taken. Non-promise: in production nobody
//! listens.

leasehold_system::words! {
    /// One step of a seal or of a write of a file or a folder.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum FileStep {
        /// The fence folder is created.
        MakeFence = "create the fence folder",
        /// The name of the lease is written to a staging file and synced.
        StageLease = "write the lease file",
        /// The staging file becomes the lease file, by an exclusive link.
        LinkLease = "link the lease file",
        /// Our own permit is created.
        MakePermit = "create a permit",
        /// A file with a name of its own is created in our permit: it exists for as long as this very permit does.
        Anchor = "enter the permit",
        /// The permits are listed.
        List = "list the permits",
        /// The fence folder is synced: the high water is durable.
        SyncFence = "sync the fence folder",
        /// A lower epoch's permit is renamed aside.
        SetAside = "set a lower permit aside",
        /// A lower permit is emptied.
        Empty = "empty a lower permit",
        /// A lower permit is removed.
        Remove = "remove a lower permit",
        /// Our permit is marked: every lower epoch was torn down.
        MarkSealed = "mark the permit as sealed",
        /// The payload is written into our own permit.
        Stage = "stage the payload",
        /// The payload is synced.
        SyncPayload = "sync the payload",
        /// Our permit is marked: this tenure has written.
        MarkWrote = "mark the permit as written",
        /// That mark is synced, where a tenure may write once.
        SyncMark = "sync the mark of the permit",
        /// The staged tree joins the generations beside the folder.
        MoveGeneration = "move the tree to the generations",
        /// The one rename that publishes.
        Publish = "publish",
        /// The folder around the artifact is synced.
        SyncParent = "sync the folder",
        /// What was published before, or was left behind by others, is removed.
        Collect = "remove what was replaced",
        /// A fence of another lease is made, to take the place of the one that is there.
        StageFence = "make a fence of the new lease",
        /// The two change places.
        ExchangeFence = "put the fence of the new lease in place",
        /// The former fence is shut for good.
        Retire = "shut the fence of the former lease",
    }
}
