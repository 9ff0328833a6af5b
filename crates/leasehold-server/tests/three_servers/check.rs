//! What the clients saw, and what of it must not be. Pure.
//!
//! Promise: each verdict rests on what clients were told and on the records at the end, by one clock: all clients are in one
//! process. Non-promise: how a holder was treated by guards is not looked at.

use leasehold_core::clock::Moment;
use std::collections::{BTreeMap, BTreeSet};

/// A grant, and for how long its holder believed in it.
#[derive(Debug, Clone)]
pub struct Tenure {
    pub lease: String,
    pub epoch: u64,
    pub nonce: String,
    /// When the grant was told.
    pub from: Moment,
    /// The end of its trust window, or when it was released, or when it was told lost, whichever was first.
    pub until: Moment,
}

/// How a completion was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// Refused: the claim is not the one in force.
    Fenced,
    /// An error that says: surely not applied, as far as the server knows that gave it.
    NotApplied,
    /// No answer.
    Unknown,
    Accepted,
}

/// One attempt to complete an item.
#[derive(Debug, Clone)]
pub struct Completion {
    pub item: String,
    /// The grant's own, which is also the result that it leaves in the item.
    pub nonce: String,
    pub answer: Answer,
}

/// What the clients saw.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub tenures: Vec<Tenure>,
    /// What was told to those who believed in their grants, by rights.
    pub lost_early: Vec<String>,
    /// Errors that no fault excuses.
    pub odd: Vec<String>,
    /// Items whose addition was answered, and what each adds when it is completed.
    pub added: Vec<String>,
    pub completions: Vec<Completion>,
}

/// What is in the store at the end.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// Items that are done, with their results.
    pub done: BTreeMap<String, String>,
    /// The epoch of each lease.
    pub epochs: BTreeMap<String, u64>,
}

/// What must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Two holders believed in grants of one lease at the same time.
    DoubleGrant,
    /// Two grants have the same epoch.
    EpochReused,
    /// A later grant has a lower epoch, or the record has.
    EpochFell,
    /// A holder was told that its lease was lost within its trust window.
    LostEarly,
    /// An item that was added is not done at the end.
    ItemLost,
    /// Two completions of one item were accepted.
    CompletedTwice,
    /// What counts in the store is not what was told to the one who did it.
    FalseAnswer,
    /// An error that no fault excuses.
    Odd,
}

/// Every verdict, with what it rests on.
pub fn verdicts(log: &Log, stored: &Stored) -> Vec<(Verdict, String)> {
    let mut found = Vec::new();
    leases(log, stored, &mut found);
    items(log, stored, &mut found);
    found.extend(log.lost_early.iter().map(|what| (Verdict::LostEarly, what.clone())));
    found.extend(log.odd.iter().map(|what| (Verdict::Odd, what.clone())));
    found
}

fn leases(log: &Log, stored: &Stored, found: &mut Vec<(Verdict, String)>) {
    let mut by_lease: BTreeMap<&str, Vec<&Tenure>> = BTreeMap::new();
    log.tenures.iter().for_each(|tenure| by_lease.entry(&tenure.lease).or_default().push(tenure));
    for (lease, mut tenures) in by_lease {
        tenures.sort_by_key(|tenure| tenure.from);
        let mut nonces: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
        for tenure in &tenures {
            nonces.entry(tenure.epoch).or_default().insert(&tenure.nonce);
        }
        for (epoch, nonces) in nonces.iter().filter(|(_, nonces)| nonces.len() > 1) {
            found.push((Verdict::EpochReused, format!("{lease}: epoch {epoch} was granted to {nonces:?}")));
        }
        let (mut longest, mut highest) = (None::<&Tenure>, 0);
        for tenure in tenures {
            if let Some(other) = longest.filter(|other| other.until > tenure.from && other.nonce != tenure.nonce) {
                found.push((Verdict::DoubleGrant, format!("{lease}: {other:?} and {tenure:?}")));
            }
            if tenure.epoch < highest {
                found.push((Verdict::EpochFell, format!("{lease}: {tenure:?} after epoch {highest}")));
            }
            highest = highest.max(tenure.epoch);
            if longest.is_none_or(|longest| longest.until < tenure.until) {
                longest = Some(tenure);
            }
        }
        let last = stored.epochs.get(lease).copied().unwrap_or(0);
        if last < highest {
            found
                .push((Verdict::EpochFell, format!("{lease}: its record has epoch {last}, and {highest} was granted")));
        }
    }
}

fn items(log: &Log, stored: &Stored, found: &mut Vec<(Verdict, String)>) {
    for item in &log.added {
        if !stored.done.contains_key(item) {
            found.push((Verdict::ItemLost, format!("{item} was added, and is not done")));
        }
    }
    // The most that was told to each claim of each item.
    let mut told: BTreeMap<(&str, &str), Answer> = BTreeMap::new();
    for Completion { item, nonce, answer } in &log.completions {
        let most = told.entry((item, nonce)).or_insert(*answer);
        *most = (*most).max(*answer);
    }
    for (item, result) in &stored.done {
        let of_item: Vec<_> = told.iter().filter(|((of, _), _)| of == item).collect();
        let accepted: Vec<_> = of_item.iter().filter(|(_, answer)| **answer == Answer::Accepted).collect();
        if accepted.len() > 1 {
            found.push((Verdict::CompletedTwice, format!("{item}: {of_item:?}")));
        }
        // What a server did surely not apply, the network may deliver once more, later than the answer.
        let is_own = |nonce: &str, least: Answer| nonce == result && least >= Answer::NotApplied;
        let counted = of_item.iter().any(|((_, nonce), answer)| is_own(nonce, **answer));
        let other = accepted.iter().any(|((_, nonce), _)| nonce != result);
        if !counted || other {
            found.push((Verdict::FalseAnswer, format!("{item} was completed by {result}; told was {of_item:?}")));
        }
    }
}

mod tests {
    use super::*;
    use leasehold_core::clock::{Clock, SystemClock};
    use std::time::Duration;

    fn tenure(epoch: u64, nonce: &str, start: Moment, seconds: [u64; 2]) -> Tenure {
        let [from, until] = seconds.map(|at| start + Duration::from_secs(at));
        Tenure { lease: "x".into(), epoch, nonce: nonce.into(), from, until }
    }

    fn completion(nonce: &str, answer: Answer) -> Completion {
        Completion { item: "i".into(), nonce: nonce.into(), answer }
    }

    fn stored(done: &[(&str, &str)]) -> Stored {
        let done = done.iter().map(|(item, result)| ((*item).to_owned(), (*result).to_owned())).collect();
        Stored { done, epochs: [("x".to_owned(), 2)].into() }
    }

    #[test]
    fn every_bad_history_has_its_verdict() {
        let start = SystemClock.now();
        let grants = |second: Tenure| Log { tenures: vec![tenure(1, "a", start, [0, 5]), second], ..Log::default() };
        let ends = |completions: &[(&str, Answer)]| Log {
            added: vec!["i".into()],
            completions: completions.iter().map(|(nonce, answer)| completion(nonce, *answer)).collect(),
            ..Log::default()
        };
        let good = stored(&[("i", "b")]);
        let cases = [
            (grants(tenure(2, "b", start, [4, 9])), Stored::clone(&good), Verdict::DoubleGrant),
            (grants(tenure(1, "b", start, [6, 9])), good.clone(), Verdict::EpochReused),
            (grants(tenure(0, "b", start, [6, 9])), good.clone(), Verdict::EpochFell),
            (grants(tenure(3, "b", start, [6, 9])), good.clone(), Verdict::EpochFell),
            (Log { lost_early: vec!["x".into()], ..Log::default() }, Stored::default(), Verdict::LostEarly),
            (Log { odd: vec!["x".into()], ..Log::default() }, Stored::default(), Verdict::Odd),
            (ends(&[("b", Answer::Accepted)]), Stored::default(), Verdict::ItemLost),
            (ends(&[("a", Answer::Accepted), ("b", Answer::Accepted)]), good.clone(), Verdict::CompletedTwice),
            (ends(&[("a", Answer::Accepted), ("b", Answer::Unknown)]), good.clone(), Verdict::FalseAnswer),
            (ends(&[("b", Answer::Fenced)]), good.clone(), Verdict::FalseAnswer),
            (ends(&[("a", Answer::Unknown)]), good.clone(), Verdict::FalseAnswer),
        ];
        for (log, stored, expected) in cases {
            let found = verdicts(&log, &stored);
            assert!(found.iter().any(|(verdict, _)| *verdict == expected), "{expected:?}: {found:?}");
        }
        for (log, stored) in [
            (grants(tenure(2, "b", start, [5, 9])), Stored { done: BTreeMap::new(), ..good.clone() }),
            // Renewed after a pause in which it believed in nothing.
            (grants(tenure(1, "a", start, [3, 9])), Stored { done: BTreeMap::new(), ..good.clone() }),
            (ends(&[("a", Answer::Fenced), ("b", Answer::NotApplied), ("b", Answer::Unknown)]), good.clone()),
        ] {
            assert_eq!(verdicts(&log, &stored), []);
        }
    }
}
