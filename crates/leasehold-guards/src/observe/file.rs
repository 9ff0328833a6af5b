//! The named steps of a guarded write to a file or a folder.
//!
//! Promise: every step that touches the file system is announced before it is taken. Non-promise: in production nobody
//! listens.

use std::fmt;

/// One step of a seal or of a write of a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileStep {
    /// The fence folder is created.
    MakeFence,
    /// The name of the lease is written to a staging file and synced.
    StageLease,
    /// The staging file becomes the lease file, by an exclusive link.
    LinkLease,
    /// Our own permit is created.
    MakePermit,
    /// A file with a name of its own is created in our permit: it exists for as long as this very permit does.
    Anchor,
    /// The permits are listed.
    List,
    /// The fence folder is synced: the high water is durable.
    SyncFence,
    /// A lower epoch's permit is renamed aside.
    SetAside,
    /// It is emptied.
    Empty,
    /// It is removed.
    Remove,
    /// Our permit is marked: every lower epoch was torn down.
    MarkSealed,
    /// The payload is written into our own permit.
    Stage,
    /// The payload is synced.
    SyncPayload,
    /// Our permit is marked: this tenure has written.
    MarkWrote,
    /// That mark is synced, where a tenure may write once.
    SyncMark,
    /// The staged tree joins the generations beside the folder.
    MoveGeneration,
    /// The one rename that publishes.
    Publish,
    /// The folder around the artifact is synced.
    SyncParent,
    /// What was published before, or was left behind by others, is removed.
    Collect,
    /// A fence of another lease is made, to take the place of the one that is there.
    StageFence,
    /// The two change places.
    ExchangeFence,
    /// The former fence is shut for good.
    Retire,
}

impl FileStep {
    /// Every step, in the order in which a first write takes them, then those of an adoption.
    pub const ALL: [FileStep; 22] = [
        FileStep::MakeFence,
        FileStep::StageLease,
        FileStep::LinkLease,
        FileStep::MakePermit,
        FileStep::Anchor,
        FileStep::List,
        FileStep::SyncFence,
        FileStep::SetAside,
        FileStep::Empty,
        FileStep::Remove,
        FileStep::MarkSealed,
        FileStep::Stage,
        FileStep::SyncPayload,
        FileStep::MarkWrote,
        FileStep::SyncMark,
        FileStep::MoveGeneration,
        FileStep::Publish,
        FileStep::SyncParent,
        FileStep::Collect,
        FileStep::StageFence,
        FileStep::ExchangeFence,
        FileStep::Retire,
    ];

    /// What the step does, for messages: "cannot ...".
    pub const fn as_str(self) -> &'static str {
        match self {
            FileStep::MakeFence => "create the fence folder",
            FileStep::StageLease => "write the lease file",
            FileStep::LinkLease => "link the lease file",
            FileStep::MakePermit => "create a permit",
            FileStep::Anchor => "enter the permit",
            FileStep::List => "list the permits",
            FileStep::SyncFence => "sync the fence folder",
            FileStep::SetAside => "set a lower permit aside",
            FileStep::Empty => "empty a lower permit",
            FileStep::Remove => "remove a lower permit",
            FileStep::MarkSealed => "mark the permit as sealed",
            FileStep::Stage => "stage the payload",
            FileStep::SyncPayload => "sync the payload",
            FileStep::MarkWrote => "mark the permit as written",
            FileStep::SyncMark => "sync the mark of the permit",
            FileStep::MoveGeneration => "move the tree to the generations",
            FileStep::Publish => "publish",
            FileStep::SyncParent => "sync the folder",
            FileStep::Collect => "remove what was replaced",
            FileStep::StageFence => "make a fence of the new lease",
            FileStep::ExchangeFence => "put the fence of the new lease in place",
            FileStep::Retire => "shut the fence of the former lease",
        }
    }
}

impl fmt::Display for FileStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
