//! What happened in a run, as the checker reads it: no process, no clock, no file.
//!
//! All times are milliseconds since boot, except slots, which are in store time.

use crate::log::{Line, Step};
use std::collections::BTreeMap;

/// Where a job or a queue lives, and so which faults can reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the server: it is killed, cut off, and its clock steps.
    Server,
    /// In the embedded store.
    Embedded,
    /// In a folder.
    Spool,
}

/// What a job or a queue is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Work {
    pub name: String,
    pub location: Location,
    pub ttl_ms: u64,
    /// Of a job: what lies between two slots. Of a queue: 0.
    pub period_ms: u64,
    /// How many of its commands may run at once.
    pub lanes: usize,
    /// The pause after a first failure; it doubles with each.
    pub backoff_ms: u64,
}

impl Work {
    /// Whether a scheduler, worker or lane of this owner is to run it.
    pub(crate) fn is_of(&self, owner: &str) -> bool {
        if self.is_job() { owner == format!("{:?}", self.location) } else { owner == self.name }
    }

    pub(crate) const fn is_job(&self) -> bool {
        self.period_ms > 0
    }
}

/// A fault, or what it did to the harness's own view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The server could not be reached.
    Away,
    /// The server's clock was set back by so much.
    Back(u64),
    /// The server's clock was set forward by so much.
    Forward(u64),
    /// This process was killed, and whose it was: a queue's, or all jobs' of a place. And how many lanes it was worth.
    Killed(i32, String, usize),
    /// This process was stopped.
    Stopped(i32, String, usize),
    /// This machine did not get to do what was due.
    Stall,
}

/// Something that happened, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Happened {
    pub from: u64,
    pub to: u64,
    pub what: What,
}

/// The latest that `runs` said of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub fate: String,
    pub epoch: Option<u64>,
    pub tries: u64,
}

/// How often a slot is begun before it may be given up as died.
const TRIES: u64 = 3;

/// What is known of a job's slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// By their time in milliseconds.
    pub seen: BTreeMap<u64, Seen>,
    /// The last slot that must have a fate.
    pub due_to: u64,
    /// Every end that the lease's history tells: slot, epoch, outcome.
    pub ends: BTreeMap<(u64, u64), String>,
}

impl Slots {
    /// Whether something more has to become of this slot.
    pub(crate) fn is_open(&self, slot: u64, seen: &Seen) -> bool {
        // A run that was killed before it could write itself down has used up an epoch all the same.
        let epochs = self.ends.range((slot, 0)..=(slot, u64::MAX)).count() as u64;
        match seen.fate.as_str() {
            "running" | "lost" | "not_started" | "drained" => true,
            "died" => seen.tries.max(epochs) < TRIES,
            _ => false,
        }
    }
}

/// An item as `queue ls` shows it when all is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub work: String,
    pub id: String,
    pub state: String,
    pub epoch: u64,
}

/// An item that `queue add` has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    pub work: String,
    pub id: String,
    pub at: u64,
    /// Its completion adds one more.
    pub has_child: bool,
}

/// A scheduler or a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Actor {
    pub name: String,
    /// It ended by itself at this time with this code.
    pub ended: Option<(u64, i32)>,
    /// Told to end, it did so with this code; none if it had to be killed.
    pub told: Option<i32>,
    /// Of a worker: how many lanes it was to have, and had at the end.
    pub lanes: Option<(usize, usize)>,
    /// The codes of lanes that ended by themselves, though their store was there.
    pub lost_lanes: Vec<i32>,
}

/// Everything that the run left to be checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    pub works: Vec<Work>,
    pub lines: Vec<Line>,
    pub happened: Vec<Happened>,
    pub slots: BTreeMap<String, Slots>,
    pub items: Vec<Item>,
    pub added: Vec<Added>,
    pub actors: Vec<Actor>,
    /// Jobs, and items as `queue/id`, whose record was overwritten: what becomes of them is open.
    pub damaged: Vec<String>,
    /// When everything was healed, and when it was last looked at.
    pub healed: u64,
    pub looked: u64,
}

/// One run of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run<'a> {
    pub work: &'a Work,
    pub id: &'a str,
    pub epoch: u64,
    pub attempt: u32,
    pub pids: [i32; 4],
    pub start: u64,
    /// The last sign of life.
    pub last: u64,
    /// The code with which it ended, if it got so far.
    pub code: Option<i32>,
    /// When it began to write under its fence; when and what the fence answered.
    pub writing: Option<u64>,
    pub wrote: Option<(u64, i32)>,
    pub payload: &'a str,
}

impl History {
    pub(crate) fn is_damaged(&self, work: &str, id: &str) -> bool {
        self.damaged.iter().any(|name| name == work || *name == format!("{work}/{id}"))
    }

    /// The runs of everything, by work, id and epoch.
    pub(crate) fn runs(&self) -> Vec<Run<'_>> {
        let mut runs: BTreeMap<(&str, &str, u64, i32), Run<'_>> = BTreeMap::new();
        for line in &self.lines {
            let Some(work) = self.works.iter().find(|work| work.name == line.work) else { continue };
            let key = (line.work.as_str(), line.id.as_str(), line.epoch, line.pids[0]);
            let run = runs.entry(key).or_insert_with(|| Run {
                work,
                id: &line.id,
                epoch: line.epoch,
                attempt: line.attempt,
                pids: line.pids,
                start: line.at,
                last: line.at,
                code: None,
                writing: None,
                wrote: None,
                payload: "",
            });
            run.last = run.last.max(line.at);
            match line.step {
                Step::Start => run.payload = &line.payload,
                Step::Tick => {}
                Step::Writing => run.writing = Some(line.at),
                Step::Wrote => run.wrote = line.code.map(|code| (line.at, code)),
                Step::End => run.code = line.code,
            }
        }
        runs.into_values().collect()
    }

    /// How much of this span something like that was going on.
    pub(crate) fn time_of(&self, from: u64, to: u64, is_meant: impl Fn(&What) -> bool) -> u64 {
        let meant = self.happened.iter().filter(|happened| is_meant(&happened.what));
        meant.map(|happened| happened.to.min(to).saturating_sub(happened.from.max(from))).sum()
    }

    /// Whether something like that touched this span.
    pub(crate) fn touched(&self, from: u64, to: u64, is_meant: impl Fn(&What) -> bool) -> bool {
        self.happened.iter().any(|happened| is_meant(&happened.what) && happened.from <= to && happened.to >= from)
    }

    /// What a busy machine may add to this span: a multiple of the time for which the harness itself was stalled.
    pub(crate) fn stalls(&self, from: u64, to: u64) -> u64 {
        4 * self.time_of(from, to, |what| *what == What::Stall)
    }
}
