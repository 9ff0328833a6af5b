//! Work on top of leases: schedules, whose slots run once each, and queues, whose items are completed once each.
//!
//! Promise: at most one accepted run per job and nominal slot instant, and at most one accepted completion per item and
//! attempt, whatever clocks, crashes or pauses do. Non-promise: a command that was started twice is not undone; what it
//! writes is decided by guards.

mod catch_up;
mod cron;
mod slots;
mod standing;

pub use catch_up::{COUNTED, CatchUp, Drop, Dropped, Due, Last, due};
pub use cron::Cron;
pub use slots::{Fold, Gap, Schedule, Zone};
pub use standing::{Interrupted, Standing, has_succeeded};
mod job;
mod journal;
mod scheduler;
pub use job::{Busy, Job, JobTable, idempotency_key, parse_instant, slot_text};
pub use journal::{ENTRIES_KEPT, Entry, Fate, Journal, Journals, RunEnd};
pub use scheduler::{Agenda, Decided, Launcher, Scheduler, Settings, Start, Steering, Watcher};
pub mod queue;
pub mod spool;
mod tokens;
pub use tokens::Tokens;
