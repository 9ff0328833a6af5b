//! All leases: who holds what, what stalls, what is paused, what was lately lost.

use super::budget::{self, BEGIN_STEPS, LEASES, SEARCH_STEP, SEARCH_STEPS};
use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::times::{When, brief, ms, thousands};
use super::visit::Visit;
use crate::api::cursor;
use crate::api::walk::Walk;
use crate::serve::Problem;
use askama::Template;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::Response;
use leasehold_core::{Inspection, LeaseName, NamePattern, Outcome, Ownership, Reason, Timestamp};
use std::time::Duration;

/// A holder that has reported progress and then not for so long counts as stalled.
const STALLED: Duration = Duration::from_secs(600);
/// What was lost within this time counts as lately lost.
const LATELY: Duration = Duration::from_secs(24 * 3600);

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Somebody has it, and its deadline has not passed.
    Held,
    /// Somebody has it, reported progress, and has been silent since.
    Stalled,
    /// Somebody has it and was asked to finish.
    Draining,
    /// Nobody new gets it.
    Paused,
    /// Lately, a holder ran out of time or gave up, and nobody has it since.
    Lost,
    /// Lately, an operator took it away, and nobody has it since.
    Revoked,
    /// Nobody has it: it was released, or never held.
    Free,
    /// It is in another store, or on its way there.
    Moved,
    /// Only its epoch is left.
    Forgotten,
}

impl LeaseState {
    /// As the record says at this time.
    pub fn of(record: &Ownership, now: Timestamp) -> Self {
        if record.relocation.is_some() {
            return LeaseState::Moved;
        }
        if record.paused.is_some() {
            return LeaseState::Paused;
        }
        if record.live_tenure(now).is_some() {
            let progress = record.progress.as_ref().filter(|progress| progress.epoch == record.epoch);
            return match progress {
                _ if record.live_drain(now).is_some() => LeaseState::Draining,
                Some(progress) if now.saturating_since(progress.at) >= STALLED => LeaseState::Stalled,
                _ => LeaseState::Held,
            };
        }
        let last = record.transfers.last();
        let outcome = last.and_then(|transfer| transfer.outcome);
        let was_lost = record.tenure.is_some() || matches!(outcome, Some(Outcome::Expired | Outcome::Lost));
        let was_revoked = last.is_some_and(|transfer| transfer.to.is_none() && transfer.reason == Reason::Revoked);
        let was_revoked = was_revoked || outcome == Some(Outcome::Evicted);
        let is_late = record.idle_since().is_some_and(|since| now.saturating_since(since) < LATELY);
        match () {
            () if record.forgotten.is_some() => LeaseState::Forgotten,
            () if was_lost && is_late => LeaseState::Lost,
            () if was_revoked && is_late => LeaseState::Revoked,
            () => LeaseState::Free,
        }
    }

    /// The word on the page, which is also its style.
    pub const fn word(self) -> &'static str {
        match self {
            LeaseState::Held => "held",
            LeaseState::Stalled => "stalled",
            LeaseState::Draining => "draining",
            LeaseState::Paused => "paused",
            LeaseState::Lost => "lost",
            LeaseState::Revoked => "revoked",
            LeaseState::Free => "free",
            LeaseState::Moved => "moved",
            LeaseState::Forgotten => "forgotten",
        }
    }
}

/// What the listing is narrowed to.
const FILTERS: [(&str, &str); 5] =
    [("", "All"), ("held", "Held"), ("stalled", "Stalled"), ("paused", "Paused"), ("lost", "Lately lost")];

fn is_shown(filter: &str, Inspection { record, now, .. }: &Inspection) -> bool {
    match filter {
        "" => LeaseState::of(record, *now) != LeaseState::Forgotten,
        // Also one that is paused meanwhile.
        "held" => record.relocation.is_none() && record.live_tenure(*now).is_some(),
        "lost" => matches!(LeaseState::of(record, *now), LeaseState::Lost | LeaseState::Revoked),
        other => LeaseState::of(record, *now).word() == other,
    }
}

/// A lease whose record can be read, as a row.
struct Row {
    name: String,
    address: String,
    standing: &'static str,
    holder: String,
    /// Since when somebody has it, or nobody.
    since: Option<When>,
    expires: Option<When>,
    epoch: u64,
    note: String,
}

/// A choice among filters.
struct Choice {
    label: &'static str,
    address: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "leases.html")]
struct LeasesPage {
    frame: Frame,
    now_ms: u64,
    query: String,
    filter: String,
    choices: Vec<Choice>,
    rows: Vec<Row>,
    troubles: Vec<String>,
    /// Whether it begins behind other leases.
    is_later: bool,
    /// What was not looked at, in words.
    bounded: Option<String>,
    next: Option<String>,
}

/// What was found, and how far it was looked.
#[derive(Default)]
struct LeaseMatches {
    leases: Vec<Inspection>,
    troubles: Vec<String>,
    now: Option<Timestamp>,
    /// How many that the visitor may see were looked at.
    looked_at: usize,
    /// Where to continue, if there may be more.
    next: Option<LeaseName>,
}

/// What is looked for.
struct Wanted<'a> {
    text: &'a str,
    pattern: Option<NamePattern>,
    filter: &'a str,
}

impl<'a> Wanted<'a> {
    fn new(text: &'a str, filter: &'a str) -> Self {
        let pattern = text.contains(['*', '?']).then(|| text.parse().ok()).flatten();
        Wanted { text, pattern, filter }
    }

    fn is_narrow(&self) -> bool {
        !self.text.is_empty() || !self.filter.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.pattern.as_ref().map_or(name.contains(self.text), |pattern| pattern.matches(name))
    }
}

/// Answers with a page of leases: those that the visitor may see and looks for.
pub async fn page(visit: Visit, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let fields = Fields::of_query(query.as_deref());
    let (text, filter) = (fields.get("q").unwrap_or_default(), fields.get("state").unwrap_or_default());
    let filter = FILTERS.iter().find(|(word, _)| *word == filter).map_or("", |(word, _)| word);
    let after = visit.after(&fields).await?;
    let wanted = Wanted::new(text, filter);
    let found = search(&visit, &wanted, after.as_ref()).await?;
    let now = found.now.unwrap_or(Timestamp::from_millis(leasehold_system::clock::wall_ms()));
    let next = visit.cursor(found.next.as_ref()).await?;
    let address = |state: &str, after: &str| {
        let mut parts = Vec::new();
        for (name, value) in [("q", text), ("state", state), ("after", after)] {
            if !value.is_empty() {
                parts.push(format!("{name}={}", in_query(value)));
            }
        }
        let query = if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) };
        format!("{}{query}", visit.frame.to("leases"))
    };
    let choices =
        FILTERS.iter().map(|(word, label)| Choice { label, address: address(word, ""), is_chosen: *word == filter });
    let page = LeasesPage {
        now_ms: now.as_millis(),
        query: text.to_owned(),
        filter: filter.to_owned(),
        choices: choices.collect(),
        rows: found.leases.iter().map(|lease| row(&visit, lease)).collect(),
        bounded: bounded(&visit, &wanted, &found),
        troubles: found.troubles,
        is_later: after.is_some(),
        next: next.map(|next| address(filter, &next)),
        frame: visit.frame.clone(),
    };
    Ok(frame::send(StatusCode::OK, &page))
}

/// How far it was looked, if that is not to the end.
fn bounded(visit: &Visit, wanted: &Wanted<'_>, found: &LeaseMatches) -> Option<String> {
    let next = found.next.as_ref().filter(|_| wanted.is_narrow() || found.leases.is_empty())?;
    let looked_at = thousands(found.looked_at as u64);
    let until = if visit.sees(next.as_str()) { format!(", up to {next}") } else { String::new() };
    let begins = match wanted.text {
        "" => "",
        _ if wanted.pattern.is_some() => "",
        _ => " Names that begin with what you typed come first, wherever they are.",
    };
    Some(format!("Looked at {looked_at} leases{until}.{begins}"))
}

/// Looks through the leases, a bounded number of steps.
async fn search(visit: &Visit, wanted: &Wanted<'_>, after: Option<&LeaseName>) -> Result<LeaseMatches, Problem> {
    let (mut found, reach) = (LeaseMatches::default(), visit.reach());
    let reach = match &wanted.pattern {
        Some(_) => reach.within(cursor::prefix(wanted.text)),
        None if wanted.text.is_empty() || after.is_some() => reach,
        None => {
            let beginning = Walk::new(reach.within(wanted.text), None, budget::search(SEARCH_STEP, BEGIN_STEPS));
            let is_wanted = |name: &str| name.starts_with(wanted.text);
            look(visit, wanted, beginning, is_wanted, &mut found).await?;
            found.looked_at = 0;
            reach
        }
    };
    let first = if wanted.is_narrow() { SEARCH_STEP } else { LEASES };
    let walk = Walk::new(reach, after, budget::search(first, SEARCH_STEPS));
    found.next = look(visit, wanted, walk, |name| wanted.has(name), &mut found).await?;
    Ok(found)
}

/// Walks until the page is full or the walk is over; where to go on.
async fn look(
    visit: &Visit,
    wanted: &Wanted<'_>,
    mut walk: Walk,
    is_wanted: impl Fn(&str) -> bool,
    found: &mut LeaseMatches,
) -> Result<Option<LeaseName>, Problem> {
    while let Some((at, step)) = walk.step() {
        let page = visit.coordinator.list(at.as_ref(), step).await?;
        let mut left = page.entries.len();
        for (name, inspected) in page.entries {
            walk.pass(&name);
            left -= 1;
            if !visit.sees(name.as_str()) {
                continue;
            }
            found.looked_at += 1;
            if is_wanted(name.as_str()) && !found.leases.iter().any(|lease| lease.lease == name) {
                take(found, inspected, wanted.filter);
            }
            if found.leases.len() >= LEASES {
                break;
            }
        }
        walk.end(page.more || left > 0);
        if found.leases.len() >= LEASES {
            break;
        }
    }
    Ok(walk.next())
}

fn take(found: &mut LeaseMatches, inspected: leasehold_core::Result<Inspection>, filter: &str) {
    match inspected {
        Ok(lease) => {
            found.now = Some(found.now.map_or(lease.now, |now| now.max(lease.now)));
            if is_shown(filter, &lease) {
                found.leases.push(lease);
            }
        }
        Err(error) => found.troubles.push(error.to_string()),
    }
}

fn row(visit: &Visit, lease: &Inspection) -> Row {
    let (record, now) = (&lease.record, lease.now);
    let tenure = record.live_tenure(now);
    let last = record.transfers.iter().rev().find_map(|transfer| transfer.to.as_ref());
    let holder = match (tenure, last) {
        (Some(tenure), _) => tenure.holder.to_string(),
        (None, Some(last)) => format!("last {last}"),
        (None, None) => String::new(),
    };
    Row {
        name: lease.lease.to_string(),
        address: visit.frame.to(format!("lease/{}", lease.lease)),
        standing: LeaseState::of(record, now).word(),
        holder,
        since: tenure.map(|t| t.granted_at).or_else(|| record.idle_since()).map(|at| When::new(at, now)),
        expires: tenure.map(|tenure| When::new(tenure.deadline, now)),
        epoch: record.epoch.get(),
        note: note(record, now),
    }
}

/// What there is to say beside the state.
fn note(record: &Ownership, now: Timestamp) -> String {
    let standing = LeaseState::of(record, now);
    let progress = record.progress.as_ref().filter(|progress| progress.epoch == record.epoch);
    match (standing, progress, &record.paused, record.live_drain(now)) {
        (LeaseState::Moved, ..) => record.relocation.as_ref().map(ToString::to_string).unwrap_or_default(),
        (LeaseState::Paused, _, Some(paused), _) => format!("{}: {}", paused.by, paused.why),
        (LeaseState::Draining, _, _, Some(drain)) => drain.to_string(),
        (LeaseState::Stalled, Some(progress), ..) => {
            format!("no progress for {}", brief(ms(now.saturating_since(progress.at))))
        }
        (LeaseState::Held, Some(progress), ..) => progress.marker.as_ref().map(ToString::to_string).unwrap_or_default(),
        (LeaseState::Lost | LeaseState::Revoked, ..) => lost(record),
        (LeaseState::Free, ..) if last_outcome(record) == Some(Outcome::Failed) => "failed last time".to_owned(),
        _ => String::new(),
    }
}

fn last_outcome(record: &Ownership) -> Option<Outcome> {
    record.transfers.last().and_then(|last| last.outcome)
}

fn lost(record: &Ownership) -> String {
    if record.tenure.is_some() {
        return "ran out of time".to_owned();
    }
    let Some(last) = record.transfers.last() else { return String::new() };
    match (&last.by, &last.why) {
        (Some(by), Some(why)) => format!("{} by {by}: {why}", last.reason.as_str().replace('_', " ")),
        _ => last.outcome.map(|outcome| outcome.as_str().replace('_', " ")).unwrap_or_default(),
    }
}
