//! A run that is skipped: one quiet line and a count. A skip is not an error.

use super::plan::Plan;
use super::slot::{self, SlotPlan};
use super::take::{Busy, Taken};
use crate::exit::Exit;
use crate::supervise::settlement::PATIENCE;
use crate::{output, view};
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{Coordinator, Event, Slot};

/// Skipped: one quiet line and a count.
pub async fn skip(coordinator: &Coordinator, plan: &Plan<'_>, slot: Option<Slot>, busy: Taken) -> Exit {
    let (why, event) = match &busy {
        Taken::Refused(lease, refusal, now) => {
            let event = match slot.filter(|_| !matches!(plan.slot, SlotPlan::Named(_))) {
                Some(slot) => slot::pass_over(coordinator, &plan.slot, lease, slot, refusal).await,
                None => Some(skip_event(refusal)),
            };
            (view::refusal_line(lease, refusal, *now), event)
        }
        Taken::FlockHeld(path) => {
            (format!("`{}` is flocked by another process", path.display()), Some(Event::SkippedOverlap))
        }
        Taken::Granted(..) => return Exit::Done,
    };
    report_skipped(coordinator, plan, &why, event).await
}

/// Says why nothing was run, and counts it.
pub async fn report_skipped(coordinator: &Coordinator, plan: &Plan<'_>, why: &str, event: Option<Event>) -> Exit {
    if !plan.quiet {
        let waited = match plan.busy {
            Busy::Wait(limit) => format!(" after waiting for {}", leasehold_core::format_duration(limit)),
            Busy::Skip | Busy::RetryAfter(_) => String::new(),
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
