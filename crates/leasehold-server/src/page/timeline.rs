//! The ownership of a lease over time, drawn: a bar for each tenure, its colour the outcome.
//!
//! Promise: nothing is told by colour alone; each bar says in words what it is, and leads to its row in the table under it. Non-promise: it
//! is a drawing of the newest epochs, to scale from the first of them on.

use super::times::{Spelled, When, brief, exact, ms};
use askama::Template;
use askama::filters::HtmlSafe;
use leasehold_core::{FencedMark, Ownership, Timestamp, Transfer};
use std::sync::Arc;

/// The width of the drawing, in its own units.
const WIDTH: u64 = 10_000;
/// The narrowest bar, and the gap after it.
const NARROWEST: u64 = 40;
/// How wide an order is drawn.
const MARK: u64 = 16;

/// A tenure, or an operator's order that gave the lease to nobody.
struct Bar {
    epoch: u64,
    x: u64,
    width: u64,
    outcome: &'static str,
    words: String,
    at_ms: u64,
    exact: String,
}

/// Half the width of the mark of a refused write.
const HALF: u64 = 75;

/// The drawing.
#[derive(Template)]
#[template(path = "timeline.html")]
pub struct Timeline {
    bars: Vec<Bar>,
    marks: Vec<Bar>,
    /// Where stale writes were refused.
    refused: Vec<Bar>,
    summary: String,
    /// From the beginning to the end, evenly.
    ticks: Vec<Spelled>,
    /// Styles that are in the drawing, with what they stand for.
    legend: Vec<(&'static str, &'static str)>,
}

/// What each style stands for, and the bars that have it.
const LEGEND: [(&str, &str, &[&str]); 6] = [
    ("succeeded", "succeeded", &["succeeded"]),
    ("held", "held now", &["held"]),
    ("failed", "failed", &["failed"]),
    ("expired", "ran out, lost", &["expired", "lost"]),
    ("evicted", "taken away by an operator", &["evicted"]),
    ("unknown", "not started, or not known", &["not_started", "unknown"]),
];

/// Into how many parts the ticks divide it.
const PARTS: u64 = 4;

/// Below this length ticks have seconds: to the minute they would be the same.
const TO_THE_SECOND: u64 = 10 * 60_000;

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
            let length = brief(ms(end.saturating_since(*begin)));
            Bar {
                epoch: transfer.epoch.get(),
                x: x_of(*begin),
                width: (x_of(*end).saturating_sub(x_of(*begin))).max(NARROWEST),
                outcome,
                words: format!(
                    "epoch {}: {who}, {length}, {}; why: {}",
                    transfer.epoch,
                    outcome.replace('_', " "),
                    told(transfer)
                ),
                at_ms: begin.as_millis(),
                exact: exact(*begin),
            }
        });
        let marks = orders.map(|order| Bar {
            epoch: order.epoch.get(),
            x: x_of(order.at),
            width: MARK,
            outcome: "mark",
            words: format!("epoch {}: {}", order.epoch, told(order)),
            at_ms: order.at.as_millis(),
            exact: exact(order.at),
        });
        let refused = fenced.iter().map(|mark| Bar {
            epoch: mark.write.seen.get(),
            x: x_of(mark.at).clamp(HALF, WIDTH - HALF),
            width: 2 * HALF,
            outcome: "refused",
            words: refused(mark),
            at_ms: mark.at.as_millis(),
            exact: exact(mark.at),
        });
        let refused: Vec<Bar> = refused.collect();
        let (bars, marks): (Vec<Bar>, Vec<Bar>) = (bars.collect(), marks.collect());
        let is_there = |styles: &[&str]| bars.iter().any(|bar| styles.contains(&bar.outcome));
        let legend = LEGEND.iter().filter(|(.., styles)| is_there(styles)).map(|(style, words, _)| (*style, *words));
        let marked = [("mark", "an operator's order: nobody has it")];
        let legend = legend.chain(marked.into_iter().filter(|_| !marks.is_empty()));
        let stopped = [("refused", "a stale write was refused")];
        let legend = legend.chain(stopped.into_iter().filter(|_| !refused.is_empty())).collect();
        let part = |n: u64| Timestamp::from_millis(from.as_millis() + length / PARTS * n + length % PARTS * n / PARTS);
        let tick = |at| match (When::new(at, now), length < TO_THE_SECOND) {
            (at, true) => at.clock(),
            (at, false) => at.tick(),
        };
        let ticks = (0..=PARTS).map(|n| tick(part(n))).collect();
        let also = if refused.is_empty() { String::new() } else { format!(", {} refused writes", refused.len()) };
        let summary = format!("{} tenures{also}, from {} to {}", bars.len(), exact(*from), exact(until));
        Some(Timeline { bars, marks, refused, summary, ticks, legend })
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
