//! Schedules: when a job is due, which of its slots are run and which are dropped, and what became of each.
//!
//! Promise: at most one accepted run per job and nominal slot instant, and a record of every slot that came due.
//! Non-promise: it makes no decision by a machine's own clock, and claims a slot only in the swap of its lease.

mod cron;
pub(crate) mod definition;
mod due;
pub mod env_file;
mod job;
pub(crate) mod journal;
pub mod requests;
mod scheduler;
mod slots;

pub use cron::Cron;
pub use definition::{Definition, Definitions, FileRevision, PublishReport, Publisher, RunDefinition};
pub use due::{
    BackfillNeed, COUNTED, Candidate, CatchUp, DropReason, Dropped, Due, Interrupted, Known, Last, Plan, due,
};
pub use job::{Busy, Job, JobTable, Timing, backfill_lease, idempotency_key, is_backfill, parse_instant, slot_text};
pub use journal::{ENTRIES_KEPT, EndReason, Entry, Fate, JobVerbs, Journal, Journals, Listed, Note, RunEnd};
pub use scheduler::{Agenda, Decided, Launcher, Origin, Pulse, Scheduler, Settings, Start, Steering, Watcher};
pub use slots::{Fold, Gap, Schedule, Zone};
