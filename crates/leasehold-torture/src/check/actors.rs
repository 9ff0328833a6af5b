//! Schedulers and workers: who had no fault is still there, has all its lanes, and ends with 0 when told.

use super::{Promise, Verdict};
use crate::facts::History;

pub(super) fn check(history: &History, verdicts: &mut Vec<Verdict>) {
    for actor in &history.actors {
        let mut complain = |what: String| {
            verdicts.push(Verdict { promise: Promise::NobodyElseStops, who: actor.name.clone(), what });
        };
        match (actor.ended, actor.told) {
            (Some((at, code)), _) => complain(format!("nobody had touched it, and at {at} it ended with {code}")),
            (None, None) => complain("told to end, it did not".into()),
            (None, Some(0)) => {}
            (None, Some(code)) => complain(format!("told to end, it did so with {code}")),
        }
        if let Some(code) = actor.lost_lanes.first() {
            let count = actor.lost_lanes.len();
            complain(format!("{count} of its lanes ended by themselves, the first with {code}"));
        }
        if let Some((wanted, had)) = actor.lanes.filter(|(wanted, had)| had < wanted && actor.ended.is_none()) {
            complain(format!("it was to have {wanted} lanes, and had {had} when all had long been healed"));
        }
    }
}
