//! The named steps of a guarded write, and who may watch them.
//!
//! Promise: every step that touches the file system is announced before it is taken, so that tests can stop, kill or
//! fail a writer at each of them. Non-promise: production never watches; the default observer does nothing.

use std::fmt;
use std::io;

/// One step of a seal or of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
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

impl Step {
    /// Every step, in the order in which a first write takes them, then those of an adoption.
    pub const ALL: [Step; 22] = [
        Step::MakeFence,
        Step::StageLease,
        Step::LinkLease,
        Step::MakePermit,
        Step::Anchor,
        Step::List,
        Step::SyncFence,
        Step::SetAside,
        Step::Empty,
        Step::Remove,
        Step::MarkSealed,
        Step::Stage,
        Step::SyncPayload,
        Step::MarkWrote,
        Step::SyncMark,
        Step::MoveGeneration,
        Step::Publish,
        Step::SyncParent,
        Step::Collect,
        Step::StageFence,
        Step::ExchangeFence,
        Step::Retire,
    ];

    /// What the step does, for messages: "cannot ...".
    pub const fn as_str(self) -> &'static str {
        match self {
            Step::MakeFence => "create the fence folder",
            Step::StageLease => "write the lease file",
            Step::LinkLease => "link the lease file",
            Step::MakePermit => "create a permit",
            Step::Anchor => "enter the permit",
            Step::List => "list the permits",
            Step::SyncFence => "sync the fence folder",
            Step::SetAside => "set a lower permit aside",
            Step::Empty => "empty a lower permit",
            Step::Remove => "remove a lower permit",
            Step::MarkSealed => "mark the permit as sealed",
            Step::Stage => "stage the payload",
            Step::SyncPayload => "sync the payload",
            Step::MarkWrote => "mark the permit as written",
            Step::SyncMark => "sync the mark of the permit",
            Step::MoveGeneration => "move the tree to the generations",
            Step::Publish => "publish",
            Step::SyncParent => "sync the folder",
            Step::Collect => "remove what was replaced",
            Step::StageFence => "make a fence of the new lease",
            Step::ExchangeFence => "put the fence of the new lease in place",
            Step::Retire => "shut the fence of the former lease",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Watches a guard at work. An error makes the announced step fail with it.
pub trait Steps: fmt::Debug + Send + Sync {
    /// Called before each step is taken.
    fn reach(&self, step: Step) -> io::Result<()>;
}

/// Nobody watches.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl Steps for Unwatched {
    fn reach(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}
