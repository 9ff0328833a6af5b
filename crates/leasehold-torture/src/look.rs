//! Looks at what the stores say of jobs and queues, again and again: a journal forgets.

use crate::background::Background;
use crate::command::slot_ms;
use crate::facts::{Item, Location, Seen, Slots, Work};
use crate::site::Site;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(4);

/// Who looks, past the proxy.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub site: Site,
    pub server: String,
}

/// Looks until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    client: Client,
    works: Vec<Work>,
    slots: Arc<Mutex<BTreeMap<String, Slots>>>,
    _looking: Background,
}

impl Watcher {
    pub(crate) fn start(client: Client, works: Vec<Work>) -> Self {
        let slots = Arc::new(Mutex::new(BTreeMap::new()));
        let (found, asker, jobs) = (slots.clone(), client.clone(), works.clone());
        let looking = Background::start(move |stop| {
            while !stop.is_told() {
                jobs.iter().filter(|work| work.is_job()).for_each(|work| asker.slots(work, &found));
                stop.pause(PAUSE);
            }
        });
        Watcher { client, works, slots, _looking: looking }
    }

    /// All slots as they were last seen, after one more look.
    pub(crate) fn slots(&self) -> BTreeMap<String, Slots> {
        self.works.iter().filter(|work| work.is_job()).for_each(|work| self.client.slots(work, &self.slots));
        self.slots.lock().unwrap().clone()
    }

    /// All items, and when the last of those that wait may be run, in store time.
    pub(crate) fn items(&self) -> (Vec<Item>, u64) {
        let (mut items, mut due) = (Vec::new(), 0);
        for work in self.works.iter().filter(|work| !work.is_job()) {
            let listed =
                self.client.ask(work.location, &["queue", "ls", &self.client.site.queue(&work.name), "--json"]);
            for value in listed.as_ref().and_then(Value::as_array).into_iter().flatten() {
                let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
                let (state, epoch) = (text("state"), value["epoch"].as_u64().unwrap_or(0));
                if matches!(state.as_str(), "ready" | "later") {
                    due = due.max(slot_ms(&text("due")).unwrap_or(0));
                }
                items.push(Item { work: work.name.clone(), id: text("id"), state, epoch });
            }
        }
        (items, due)
    }
}

impl Client {
    fn ask(&self, location: Location, words: &[&str]) -> Option<Value> {
        let store = if location == Location::Server { self.server.clone() } else { self.site.embedded() };
        let output = self.site.verb(words, &store, None).output().unwrap();
        // `queue ls` says by its code that something is damaged, and shows the rest.
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Adds what the job's journal and its lease's history say now.
    fn slots(&self, work: &Work, found: &Mutex<BTreeMap<String, Slots>>) {
        let runs = self.ask(work.location, &["runs", &work.name, "--json"]);
        let history = self.ask(work.location, &["history", &work.name, "--json"]);
        let mut found = found.lock().unwrap();
        let slots = found.entry(work.name.clone()).or_default();
        for run in runs.as_ref().and_then(Value::as_array).into_iter().flatten() {
            note_run(slots, run, work.period_ms);
        }
        for transfer in history.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let slot = transfer["slot"].as_str().and_then(slot_ms);
            let (Some(slot), Some(epoch), Some(outcome)) =
                (slot, transfer["epoch"].as_u64(), transfer["outcome"].as_str())
            else {
                continue;
            };
            slots.ends.insert((slot, epoch), outcome.to_owned());
        }
    }
}

fn note_run(slots: &mut Slots, run: &Value, period_ms: u64) {
    let Some(first) = run["slot"].as_str().and_then(slot_ms) else { return };
    let last = run["last"].as_str().and_then(slot_ms).unwrap_or(first);
    let seen = Seen {
        fate: run["fate"].as_str().unwrap_or_default().to_owned(),
        epoch: run["epoch"].as_u64(),
        tries: run["tries"].as_u64().unwrap_or(0),
    };
    let mut slot = first;
    while slot <= last {
        // A slot of its own says more than a span that it lies in.
        let is_span = last > first;
        let known = slots.seen.get(&slot).is_some_and(|known| known.epoch.is_some());
        if !(is_span && known) {
            slots.seen.insert(slot, seen.clone());
        }
        slot += period_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_all_its_slots_and_a_slot_of_its_own_says_more() {
        let mut slots = Slots::default();
        let run = serde_json::json!({ "slot": "1970-01-01T00:00:04Z", "fate": "succeeded", "epoch": 3, "tries": 1 });
        note_run(&mut slots, &run, 2_000);
        let span = serde_json::json!({
            "slot": "1970-01-01T00:00:02Z", "last": "1970-01-01T00:00:06Z", "count": 3, "fate": "dropped_too_old",
        });
        note_run(&mut slots, &span, 2_000);
        let fates: Vec<_> = slots.seen.iter().map(|(slot, seen)| (*slot, seen.fate.as_str())).collect();
        assert_eq!(fates, [(2_000, "dropped_too_old"), (4_000, "succeeded"), (6_000, "dropped_too_old")]);
    }
}
