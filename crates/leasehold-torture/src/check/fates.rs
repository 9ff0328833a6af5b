//! Fates: every due slot has one, and every item comes to an end.

use super::{Promise, Verdict};
use crate::facts::History;

pub(super) fn check(history: &History, verdicts: &mut Vec<Verdict>) {
    for work in history.works.iter().filter(|work| work.is_job() && !history.is_damaged(&work.name, "")) {
        let mut complain = |slot: String, what: String| {
            let who = format!("{}/{slot}", work.name);
            verdicts.push(Verdict { promise: Promise::EverySlotHasAFate, who, what });
        };
        let known = history.slots.get(&work.name);
        let Some((known, first)) = known.and_then(|slots| Some((slots, *slots.seen.first_key_value()?.0))) else {
            complain("*".into(), "no slot has a fate".into());
            continue;
        };
        let mut slot = first;
        while slot <= known.due_to {
            match known.seen.get(&slot) {
                None => complain(slot.to_string(), "it was due, and has no fate".into()),
                Some(seen) if known.is_open(slot, seen) => {
                    complain(slot.to_string(), format!("it is still `{}` after {} tries", seen.fate, seen.tries));
                }
                Some(_) => {}
            }
            slot += work.period_ms;
        }
    }
    for added in history.added.iter().filter(|added| !history.is_damaged(&added.work, &added.id)) {
        let item = history.items.iter().find(|item| item.work == added.work && item.id == added.id);
        let state = item.map_or("gone", |item| &item.state);
        if !matches!(state, "done" | "dead" | "failed" | "cancelled") {
            let who = format!("{}/{}", added.work, added.id);
            let what = format!("added at {}, and {state} when all had long been healed", added.at);
            verdicts.push(Verdict { promise: Promise::EveryItemEnds, who, what });
        }
    }
}
