//! Jobs: when each is due next, in words, and what became of its last slots.

use super::budget::{self, JOBS, SEARCH_STEPS};
use super::form::Fields;
use super::frame::{self, Frame};
use super::leases::LeaseState;
use super::times::{When, exact, thousands};
use super::visit::Visit;
use crate::api::walk::Walk;
use crate::serve::Problem;
use askama::Template;
use askama::filters::HtmlSafe;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::try_join_all;
use leasehold_core::{Error, Inspection, Kind, LeaseName, Timestamp};
use leasehold_work::notify::overdue;
use leasehold_work::schedule::{Definition, Definitions, Entry, Fate, JobVerbs, Journal};

/// How many slots a strip shows.
const STRIP: usize = 30;
/// How wide each is drawn, with the gap after it.
const STEP: usize = 8;

/// A slot, or several, in a strip.
struct Cell {
    x: usize,
    fate: &'static str,
    at_ms: u64,
    exact: String,
    words: String,
}

/// The last fates of a job, drawn.
#[derive(Template)]
#[template(path = "strip.html")]
pub struct Strip {
    cells: Vec<Cell>,
    width: usize,
    summary: String,
}

// Its template escapes what is in it.
impl HtmlSafe for Strip {}

/// How well a fate is, as a style.
pub const fn style(fate: Fate) -> &'static str {
    match fate {
        Fate::Succeeded => "succeeded",
        Fate::Failed | Fate::Died => "failed",
        Fate::Lost => "lost",
        Fate::Running => "held",
        Fate::NotStarted => "expired",
        Fate::SkippedOverlap | Fate::Paused | Fate::Drained => "skipped",
        Fate::DroppedTooOld | Fate::DroppedCoalesced | Fate::DroppedClockAhead => "dropped",
    }
}

/// A fate in words.
pub fn words(fate: Fate) -> String {
    match fate {
        Fate::SkippedOverlap => "skipped: an earlier run was still running".to_owned(),
        Fate::DroppedTooOld => "dropped: too old to catch up on".to_owned(),
        Fate::DroppedCoalesced => "dropped: a newer slot was run instead".to_owned(),
        Fate::DroppedClockAhead => "dropped: the store's clock had been ahead".to_owned(),
        Fate::Paused => "skipped: the job was paused".to_owned(),
        other => other.as_str().replace('_', " "),
    }
}

impl Strip {
    /// The newest entries of a journal, the newest last.
    pub fn of(journal: &Journal) -> Self {
        let from = journal.entries.len().saturating_sub(STRIP);
        let newest = &journal.entries[from..];
        let cells = newest.iter().enumerate().map(|(at, entry)| Cell {
            x: at * STEP,
            fate: style(entry.fate),
            at_ms: entry.slot.0.as_millis(),
            exact: exact(entry.slot.0),
            words: words(entry.fate),
        });
        let count = |good: &dyn Fn(Fate) -> bool| newest.iter().filter(|entry| good(entry.fate)).count();
        let (good, bad) = (count(&|f| f == Fate::Succeeded), count(&|f| matches!(style(f), "failed" | "lost")));
        let summary = match newest.len() {
            0 => "no slot yet".to_owned(),
            all => format!("{all} slots: {good} succeeded, {bad} failed, {} other", all - good - bad),
        };
        Strip { cells: cells.collect(), width: (STRIP * STEP).max(1), summary }
    }
}

/// A job whose definition or lease cannot be read.
struct Damaged {
    name: String,
    address: String,
    why: String,
}

/// A job whose records can be read, as a row.
struct Row {
    name: String,
    address: String,
    when: String,
    line: String,
    next: Option<When>,
    state: &'static str,
    /// What was not run that should have been, in words.
    overdue: Option<String>,
    last: Option<(String, &'static str, When)>,
    /// Whether its last slot failed.
    has_failed: bool,
    strip: Strip,
    host: String,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    now_ms: u64,
    rows: Vec<Row>,
    damaged: Vec<Damaged>,
    /// Whether it begins behind other jobs.
    is_later: bool,
    next: Option<String>,
}

/// The newest slot of a journal that has come due.
pub fn newest(journal: &Journal) -> Option<&Entry> {
    journal.entries.last()
}

/// The fate of the newest slot in words, and how often in a row, as far as the journal goes back.
fn in_a_row(journal: &Journal, newest: &Entry) -> String {
    match journal.entries.iter().rev().take_while(|entry| entry.fate == newest.fate).count() {
        0 | 1 => words(newest.fate),
        many => format!("{} {many}x", words(newest.fate)),
    }
}

/// Answers with a page of jobs: those that the visitor may see.
pub async fn page(visit: Visit, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let fields = Fields::of_query(query.as_deref());
    let after = visit.after(&fields).await?;
    let (jobs, next) = search(&visit, after.as_ref()).await?;
    let read = jobs.into_iter().map(|(name, definition)| row(&visit, name, definition));
    let mut now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
    let (mut rows, mut damaged) = (Vec::new(), Vec::new());
    for read in try_join_all(read).await? {
        match read {
            Ok((seen, row)) => {
                now = if rows.is_empty() { seen } else { now.max(seen) };
                rows.push(row);
            }
            Err(one) => damaged.push(one),
        }
    }
    let next = visit.cursor(next.as_ref()).await?;
    let page = JobsPage {
        now_ms: now.as_millis(),
        rows,
        damaged,
        is_later: after.is_some(),
        next: next.map(|next| format!("{}?after={next}", visit.frame.to("jobs"))),
        frame: visit.frame,
    };
    Ok(frame::send(StatusCode::OK, &page))
}

/// A job with its definition, or why that cannot be read.
type NamedDefinition = (LeaseName, leasehold_core::Result<Definition>);

/// The published jobs that the visitor may see, and where to go on.
async fn search(
    visit: &Visit,
    after: Option<&LeaseName>,
) -> Result<(Vec<NamedDefinition>, Option<LeaseName>), Problem> {
    let definitions = Definitions::new(visit.coordinator.clone());
    let mut walk = Walk::new(visit.reach(), after, budget::search(JOBS, SEARCH_STEPS));
    let mut jobs: Vec<NamedDefinition> = Vec::new();
    while let Some((at, step)) = walk.step() {
        let (page, next) = definitions.page(at.as_ref(), step).await?;
        let mut seen = page.into_iter().filter(|(name, _)| visit.sees(name.as_str())).peekable();
        while jobs.len() < JOBS
            && let Some((name, definition)) = seen.next()
        {
            walk.pass(&name);
            jobs.push((name, definition));
        }
        let is_full = jobs.len() >= JOBS;
        if let Some(next) = next.as_ref().filter(|_| !is_full) {
            walk.pass(next);
        }
        walk.end(next.is_some() || seen.peek().is_some());
        if is_full {
            break;
        }
    }
    Ok((jobs, walk.next()))
}

/// One job: its row, or why it cannot be read.
async fn row(
    visit: &Visit,
    name: LeaseName,
    definition: leasehold_core::Result<Definition>,
) -> Result<Result<(Timestamp, Row), Damaged>, Problem> {
    let lease = match &definition {
        Ok(_) => visit.coordinator.inspect(&name).await,
        Err(error) => return Ok(Err(damaged(visit, &name, error))),
    };
    match (definition, lease) {
        (Ok(definition), Ok(lease)) => Ok(Ok(row_of(visit, &name, &definition, &lease).await)),
        // The others are shown all the same.
        (_, Err(error)) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {
            Ok(Err(damaged(visit, &name, &error)))
        }
        (Err(error), _) | (_, Err(error)) => Err(error.into()),
    }
}

fn damaged(visit: &Visit, name: &LeaseName, why: &Error) -> Damaged {
    Damaged { address: visit.frame.to(format!("job/{name}")), name: name.to_string(), why: why.to_string() }
}

async fn row_of(visit: &Visit, name: &LeaseName, definition: &Definition, lease: &Inspection) -> (Timestamp, Row) {
    // A damaged journal hides no job, and says nothing of what was missed.
    let journal = visit.coordinator.journal(name).await.map(|(journal, _)| journal);
    let overdue = journal.as_ref().ok().and_then(|journal| overdue_words(definition, lease, journal));
    let journal = journal.unwrap_or_default();
    let now = lease.now;
    let schedule = definition.schedule();
    let state = LeaseState::of(&lease.record, now);
    let last =
        newest(&journal).map(|entry| (in_a_row(&journal, entry), style(entry.fate), When::new(entry.slot.0, now)));
    let next = schedule.as_ref().ok().and_then(|schedule| schedule.next_after(now));
    let row = Row {
        address: visit.frame.to(format!("job/{name}")),
        name: name.to_string(),
        when: schedule.as_ref().map_or_else(|error| error.to_string(), |schedule| schedule.words()),
        line: definition.timing.to_string(),
        next: next.map(|slot| When::new(slot.0, now)),
        state: job_word(state),
        overdue,
        has_failed: last.as_ref().is_some_and(|(_, style, _)| matches!(*style, "failed" | "lost")),
        last,
        strip: Strip::of(&journal),
        host: definition.host.clone(),
    };
    (now, row)
}

/// What the state of its lease means for a job, as a word that is also its style.
pub const fn job_word(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Held => "running",
        LeaseState::Stalled | LeaseState::Draining | LeaseState::Paused | LeaseState::Moved => state.word(),
        // How its last run ended is told by the last slot.
        LeaseState::Lost | LeaseState::Revoked | LeaseState::Free | LeaseState::Forgotten => "waiting",
    }
}

/// What of a job is late or was missed, as `leasehold check --missed` says it: nobody may be there to run it.
pub fn overdue_words(definition: &Definition, lease: &Inspection, journal: &Journal) -> Option<String> {
    let (overdue, _) = overdue(definition, &lease.record, journal, lease.now).ok()?;
    let missed = overdue.missed.map(|(count, ..)| format!("missed {}", thousands(count)));
    let late = overdue.late.map(|_| "late".to_owned());
    let words: Vec<String> = late.into_iter().chain(missed).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
