//! A spool: a queue as a plain folder, claimed by rename, so that shell workers with `mv` can join.
//!
//! The layout is a contract, described with examples in docs/queues.md. An item
//! is one file, which is in exactly one place and whose content is the payload:
//!
//! | folder | contents |
//! |---|---|
//! | `ready/` | items that may be claimed; their names sort in the order of claiming |
//! | `later/` | items that may be claimed from the time in their names |
//! | `claimed/WORKER.TTL/` | items that a worker has claimed; the TTL is how long it may give no heartbeat |
//! | `done/`, `failed/`, `cancelled/` | finished items |
//! | `notes/` | results, checkpoints, reasons: one file per item, epoch and kind |
//! | `outbox/` | the follow-ups of completions, until they are added |
//! | `keys/` | the keys that are in use |
//! | `epochs/` | the first epoch of items with a key |
//!
//! Promise: an item is never copied, only renamed, so at most one worker has it. A worker that lost it finds that the
//! source of its completion is gone. A heartbeat is a change time, set by the file server's own clock. It needs only
//! the rights of the worker's folder, so several users can share a spool. An entry that causes an error is reported and
//! skipped; the others are handled. Non-promise: the folder must be on one volume with atomic rename (not a synced
//! folder); listing it takes time in proportion to its contents.

mod backlog;
mod claiming;
mod counting;
mod ending;
mod examine;
mod first_epoch;
mod folder;
mod heartbeat;
mod janitor;
mod listing;
mod name;
mod operating;
mod purging;
mod resolving;
mod rights;
mod steps;
mod temporary;

pub use claiming::{SpoolClaimer, SpoolGrant};
pub use examine::{Fitness, Presence, SpoolCheck, examine_empty};
pub use folder::{Spool, SpoolFolder, SpoolItem};
pub use listing::{PlainFile, SpoolSurvey};
pub use name::FileName;
pub use operating::{Note, Shown};
pub use steps::SpoolStep;
