//! A run that is skipped: one quiet line and a count. A skip is not an error.

use super::plan::Plan;
use super::slot::{self, SlotPlan};
use super::take::{Busy, Taken};
use crate::exit::Exit;
use crate::supervise::settlement::PATIENCE;
use crate::{output, view};
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{Coordinator, Event, LeaseName, Slot};

/// Why nothing was run.
struct Skipped {
    why: String,
    /// How it counts; none if it has been counted.
    event: Option<Event>,
    /// Whether it was waited for what was in the way.
    has_waited: bool,
}

/// Skipped: one quiet line and a count.
pub async fn skip(coordinator: &Coordinator, plan: &Plan<'_>, slot: Option<Slot>, busy: Taken) -> Exit {
    let skipped = match &busy {
        Taken::Refused(lease, refusal, now) => {
            let event = match slot.filter(|_| !matches!(plan.slot, SlotPlan::Named(_))) {
                Some(slot) => slot::skip(coordinator, &plan.slot, lease, slot, refusal).await,
                None => Some(skip_event(refusal)),
            };
            let mut why = view::refusal_line(lease, refusal, *now);
            if let (Refusal::TooSoon { .. }, Busy::Wait(_)) = (&**refusal, plan.busy) {
                why.push_str("; --wait waits for whoever holds it, not for that");
            }
            if !plan.quiet {
                why.push_str(&more(coordinator, lease, refusal).await);
            }
            let has_waited = matches!(**refusal, Refusal::Held { .. } | Refusal::Paused(_) | Refusal::Draining(_));
            Skipped { why, event, has_waited }
        }
        Taken::FlockHeld(path) => {
            let why = format!("`{}` is flocked by another process", path.display());
            Skipped { why, event: Some(Event::SkippedOverlap), has_waited: true }
        }
        Taken::Granted(..) => return Exit::Done,
    };
    report_skipped(coordinator, plan, skipped).await
}

/// What an operator has to do with it: who asked the holder to finish, or what lets runs in again.
async fn more(coordinator: &Coordinator, lease: &LeaseName, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Held { epoch, .. } => {
            let Ok(Ok(seen)) = tokio::time::timeout(PATIENCE, coordinator.inspect(lease)).await else {
                return String::new();
            };
            // Of that holder, and not of one that came since.
            let drain = seen.record.live_drain(seen.now).filter(|_| seen.record.epoch == *epoch);
            drain.map_or_else(String::new, |drain| {
                format!("; asked to finish by {}: {}", drain.asked().by, drain.asked().why)
            })
        }
        Refusal::Paused(_) => format!("; `leasehold resume {lease} --why '...'` lets it in"),
        _ => String::new(),
    }
}

/// The same when nothing is due.
pub async fn skip_nothing(coordinator: &Coordinator, plan: &Plan<'_>, why: String, event: Event) -> Exit {
    report_skipped(coordinator, plan, Skipped { why, event: Some(event), has_waited: false }).await
}

/// Says why nothing was run, and counts it.
async fn report_skipped(coordinator: &Coordinator, plan: &Plan<'_>, skipped: Skipped) -> Exit {
    let Skipped { why, event, has_waited } = skipped;
    if !plan.quiet {
        let waited = match plan.busy {
            Busy::Wait(limit) if has_waited => format!(" after waiting for {}", leasehold_core::format_duration(limit)),
            _ => String::new(),
        };
        let seats =
            if plan.leases.len() > 1 { format!(" all {} are taken;", plan.leases.len()) } else { String::new() };
        output::say(&format!("skipped{waited}:{seats} {why}"));
    }
    if let Some(event) = event {
        let _ = tokio::time::timeout(PATIENCE, coordinator.count(&plan.leases[0], event)).await;
    }
    Exit::Code(plan.settings.held_exit_code.value)
}

/// The counter for a refusal.
pub fn skip_event(refusal: &Refusal) -> Event {
    match refusal {
        Refusal::Paused(_) => Event::Paused,
        Refusal::AlreadyRun(_) | Refusal::TooSoon { .. } => Event::AlreadyRun,
        _ => Event::SkippedOverlap,
    }
}
