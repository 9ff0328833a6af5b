//! Schedules: when a job is due, which of its slots are run and which are dropped, and what became of each.
//!
//! Promise: at most one accepted run per job and nominal slot instant, and a record of every slot that came due.
//! Non-promise: a slot is claimed in the swap of its lease and nowhere else; a machine's own clock decides nothing.

mod cron;
mod due;
mod job;
mod journal;
mod journals;
mod scheduler;
mod slots;

pub use cron::Cron;
pub use due::{
    COUNTED, Candidate, CatchUp, DropReason, Dropped, Due, Interrupted, Last, Owed, Plan, due, has_succeeded,
};
pub use job::{Busy, Job, JobTable, idempotency_key, parse_instant, slot_text};
pub use journal::{ENTRIES_KEPT, Entry, Fate, Journal, Note, RunEnd};
pub use journals::{JobVerbs, Journals, Listed};
pub use scheduler::{Agenda, Decided, Launcher, Scheduler, Settings, Start, Steering, Watcher};
pub use slots::{Fold, Gap, Schedule, Zone};
