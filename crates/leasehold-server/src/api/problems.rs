//! Refusals by the rules, as problems: outcomes that clients decide by, not errors of the server.

use super::values::{Holder, Time};
use crate::serve::Problem;
use axum::http::StatusCode;
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{Epoch, LeaseName, OperatorMark};
use serde_json::Value;

/// A refusal that another time, another name or another holder might not get.
pub fn conflict(kind: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, kind, detail)
}

/// The request may have been carried out: it was not completed here.
pub fn unknown(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "unknown", detail)
}

/// The request may have been carried out before, and the record no longer remembers. Asking again gives the same answer, so it is
/// neither `unknown` nor an error of the server, which clients and proxies would retry.
pub fn no_longer_known(detail: impl Into<String>) -> Problem {
    conflict("no_longer_known", detail)
}

/// An order was decided on another epoch.
pub fn changed(what: &str, expected: Epoch, seen: Epoch) -> Problem {
    let detail = format!(
        "{what} has changed: the order was decided on epoch {expected}, and it is at epoch {seen} now; nothing was changed, look \
         again"
    );
    conflict("changed", detail).with("expected_epoch", expected.get()).with("seen_epoch", seen.get())
}

/// Why a request on a lease was refused.
pub fn refused(lease: &LeaseName, refusal: &Refusal) -> Problem {
    let detail = format!("lease `{lease}`: {refusal}");
    match refusal {
        Refusal::Held { tenure, epoch } => conflict("held", detail)
            .with("holder", value(Holder::from(&tenure.holder)))
            .with("epoch", epoch.get())
            .with("until", value(Time::from(tenure.deadline))),
        Refusal::Paused(mark) => by(conflict("paused", detail), mark),
        Refusal::OtherPause(mark) => by(conflict("changed", detail), mark),
        Refusal::Forgotten(mark) => by(conflict("forgotten", detail), mark),
        Refusal::Draining(drain) => {
            by(conflict("draining", detail), drain.asked()).with("until", value(Time::from(drain.until())))
        }
        Refusal::TooSoon { until, .. } => conflict("too_soon", detail).with("until", value(Time::from(*until))),
        Refusal::AlreadyRun(mark) => conflict("already_run", detail).with("epoch", mark.epoch.get()),
        Refusal::Interrupted(mark) => {
            conflict("interrupted", detail).with("slot", value(Time::from(mark.slot))).with("epoch", mark.epoch.get())
        }
        Refusal::Lost { seen, holder, last } => {
            let problem = conflict("lost", detail).with("seen_epoch", seen.get());
            let problem = match last {
                Some(last) => problem.with("reason", last.reason.as_str()),
                None => problem,
            };
            match holder {
                Some(holder) => problem.with("holder", value(Holder::from(holder))),
                None => problem,
            }
        }
        Refusal::Changed { expected, seen } => changed(&format!("lease `{lease}`"), *expected, *seen),
        Refusal::NotHeld | Refusal::NeverHeld => conflict("not_held", detail),
        Refusal::NotPaused => conflict("not_paused", detail),
        Refusal::AlreadyReleased { .. } => conflict("lost", detail),
        Refusal::TooFar { .. } => Problem::invalid(detail).with("field", "past"),
        Refusal::Exhausted => conflict("exhausted", detail),
        Refusal::LineageFixed { .. } => conflict("lineage_fixed", detail),
        _ => conflict("refused", detail),
    }
}

fn by(problem: Problem, mark: &OperatorMark) -> Problem {
    problem.with("by", mark.by.as_str()).with("why", mark.why.as_str())
}

fn value(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
