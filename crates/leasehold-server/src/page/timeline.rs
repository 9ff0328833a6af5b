//! The ownership of a lease over time, drawn: a bar for each tenure, its colour the outcome.
//!
//! Promise: nothing is told by colour alone; each bar says in words what it is, and so does the table under it. Non-promise: it
//! is a drawing of the newest epochs, to scale from the first of them on.

use super::times::{brief, exact, ms};
use askama::Template;
use askama::filters::HtmlSafe;
use leasehold_core::{FencedMark, Ownership, Timestamp, Transfer};
use std::sync::Arc;

/// The width of the drawing, in its own units.
const WIDTH: u64 = 10_000;
/// The narrowest bar, and the gap after it.
const NARROWEST: u64 = 40;

/// A tenure.
struct Bar {
    x: u64,
    width: u64,
    outcome: &'static str,
    words: String,
}

/// An operator's order that gave the lease to nobody, or a refused write.
struct Mark {
    x: u64,
    words: String,
}

/// Half the width of the mark of a refused write.
const HALF: u64 = 75;

/// The drawing.
#[derive(Template)]
#[template(path = "timeline.html")]
pub struct Timeline {
    bars: Vec<Bar>,
    marks: Vec<Mark>,
    /// Where stale writes were refused.
    fenced: Vec<Mark>,
    summary: String,
    from: String,
    until: String,
    from_ms: u64,
    until_ms: u64,
}

// Its template escapes what is in it.
impl HtmlSafe for Timeline {}

/// How a tenure ended, or that it has not, in a word that is also its style.
pub fn outcome(transfer: &Transfer, record: &Ownership, now: Timestamp) -> &'static str {
    let is_last = transfer.epoch == record.epoch;
    match transfer.outcome {
        Some(outcome) => outcome.as_str(),
        None if is_last && record.live_tenure(now).is_some() => "held",
        None if is_last && record.tenure.is_some() => "expired",
        None => "unknown",
    }
}

/// From when to when a transfer's tenure was, as far as that is known.
pub fn span(transfer: &Transfer, record: &Ownership, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    transfer.to.as_ref()?;
    let end = match (transfer.held_for_ms, &record.tenure) {
        (Some(held), _) => Timestamp::from_millis(transfer.at.as_millis().saturating_add(held)),
        (None, Some(tenure)) if transfer.epoch == record.epoch => tenure.deadline.min(now),
        _ => transfer.at,
    };
    Some((transfer.at, end.max(transfer.at)))
}

impl Timeline {
    /// Draws these transfers, and the refused writes since the first of them; none if there is nothing to draw.
    pub fn draw(
        transfers: &[Arc<Transfer>],
        fenced: &[FencedMark],
        record: &Ownership,
        now: Timestamp,
    ) -> Option<Self> {
        let spans: Vec<_> = transfers.iter().filter_map(|t| Some((t, span(t, record, now)?))).collect();
        let (_, (from, _)) = spans.first()?;
        let orders = transfers.iter().filter(|transfer| transfer.to.is_none());
        let ends = spans.iter().map(|(_, (_, end))| *end).chain(orders.clone().map(|order| order.at));
        let fenced: Vec<_> = fenced.iter().filter(|mark| mark.at >= *from).collect();
        let ends = ends.chain(fenced.iter().map(|mark| mark.at));
        let until = ends.max()?.max(from.plus(std::time::Duration::from_secs(1)));
        let length = ms(until.saturating_since(*from)).max(1);
        let x_of = |at: Timestamp| {
            let along = u128::from(ms(at.saturating_since(*from))) * u128::from(WIDTH - NARROWEST) / u128::from(length);
            u64::try_from(along).unwrap_or(WIDTH).min(WIDTH - NARROWEST)
        };
        let bars = spans.iter().map(|(transfer, (begin, end))| {
            let outcome = outcome(transfer, record, now);
            let who = transfer.to.as_ref().map(ToString::to_string).unwrap_or_default();
            let (length, at) = (brief(ms(end.saturating_since(*begin))), exact(*begin));
            Bar {
                x: x_of(*begin),
                width: (x_of(*end).saturating_sub(x_of(*begin))).max(NARROWEST),
                outcome,
                words: format!("epoch {}: {who}, {length}, {} ({at})", transfer.epoch, outcome.replace('_', " ")),
            }
        });
        let marks = orders.map(|order| Mark {
            x: x_of(order.at),
            words: format!("epoch {}: {} ({})", order.epoch, told(order), exact(order.at)),
        });
        let (bars, marks): (Vec<Bar>, Vec<Mark>) = (bars.collect(), marks.collect());
        let is_fenced = fenced.iter().map(|mark| Mark {
            x: x_of(mark.at).clamp(HALF, WIDTH - HALF),
            words: format!("{} ({})", refused(mark), exact(mark.at)),
        });
        let fenced: Vec<Mark> = is_fenced.collect();
        let also = if fenced.is_empty() { String::new() } else { format!(", {} refused writes", fenced.len()) };
        let summary = format!("{} tenures{also}, from {} to {}", bars.len(), exact(*from), exact(until));
        let (from_ms, until_ms) = (from.as_millis(), until.as_millis());
        Some(Timeline { bars, marks, fenced, summary, from: exact(*from), until: exact(until), from_ms, until_ms })
    }
}

/// A refused write, in words.
fn refused(mark: &FencedMark) -> String {
    let write = &mark.write;
    let by = write.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let times = if mark.times > 1 { format!(", {} times", mark.times) } else { String::new() };
    format!("write of epoch {} to {}{by} refused{times}: epoch {} was there", write.held, write.resource, write.seen)
}

/// Why a transfer happened, in words.
pub fn told(transfer: &Transfer) -> String {
    let reason = transfer.reason.as_str().replace('_', " ");
    match (&transfer.by, &transfer.why) {
        (Some(by), Some(why)) => format!("{reason} by {by}: {why}"),
        (Some(by), None) => format!("{reason} by {by}"),
        _ => match reason.as_str() {
            "first" => "first holder".to_owned(),
            "released" => "free after a release".to_owned(),
            "expired" => "the holder before ran out of time".to_owned(),
            "revoked" => "free after it was revoked".to_owned(),
            "recovered" => "a slot whose run had died".to_owned(),
            _ => reason,
        },
    }
}
