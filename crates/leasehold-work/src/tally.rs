//! The number of items in a backlog by state; and its dead letters, by reason.

use crate::queue::{Item, ItemId, Reason, State};
use leasehold_core::{Epoch, Error, Timestamp};

/// How many items of a backlog are in each state, at one time.
#[derive(Debug)]
pub struct Tally {
    /// May be claimed now.
    pub ready: u64,
    /// Claimed by a worker, even if the claim has expired since.
    pub claimed: u64,
    /// May be claimed later.
    pub delayed: u64,
    /// Dead letters: their attempts are used up.
    pub dead: u64,
    /// How many are completed and not yet purged.
    pub done: u64,
    /// Taken out by an operator.
    pub cancelled: u64,
    /// On their way to another store, or already there.
    pub elsewhere: u64,
    /// Since when the oldest ready item waits.
    pub oldest: Option<Timestamp>,
    /// The time of the count, by the clock that the items' times are from.
    pub now: Timestamp,
    /// The errors of items that could not be read, which are not counted.
    pub troubles: Vec<Error>,
}

impl Tally {
    /// A count of zero.
    pub(crate) fn at(now: Timestamp) -> Self {
        let (oldest, troubles) = (None, Vec::new());
        Tally { ready: 0, claimed: 0, delayed: 0, dead: 0, done: 0, cancelled: 0, elsewhere: 0, oldest, now, troubles }
    }

    /// Counts one more waiting item, which waits since `since`, or until `due`.
    pub(crate) fn waits(&mut self, since: Timestamp, due: Option<Timestamp>) {
        if due.is_some_and(|due| due > self.now) {
            self.delayed += 1;
            return;
        }
        self.ready += 1;
        let since = due.unwrap_or(since);
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
    }
}

/// A dead letter, as it was seen. An order that was decided on it applies only to this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The item that failed for good.
    pub id: ItemId,
    /// Its epoch at that time.
    pub epoch: Epoch,
    /// When it was given up.
    pub at: Timestamp,
    /// Why; none if no reason was recorded.
    pub why: Option<Reason>,
    /// The last lines that its last attempt printed, if known.
    pub tail: Option<String>,
}

impl DeadLetter {
    /// The dead letter for an item of a queue, if it is one.
    pub fn of(id: &ItemId, item: &Item) -> Option<Self> {
        let State::Dead { at, why } = &item.state else { return None };
        Some(DeadLetter { id: id.clone(), epoch: item.epoch, at: *at, why: Some(why.clone()), tail: None })
    }
}

/// Dead letters with the same reason.
#[derive(Debug, PartialEq, Eq)]
pub struct SameReason<'a> {
    /// The reason; none for letters without one.
    pub why: Option<&'a Reason>,
    /// How many letters have it.
    pub count: usize,
    /// When the first of them was given up.
    pub oldest: Timestamp,
    /// When the last was given up.
    pub newest: Timestamp,
}

/// Groups dead letters by reason, the most frequent first.
pub fn by_reason(letters: &[DeadLetter]) -> Vec<SameReason<'_>> {
    let mut groups: Vec<SameReason<'_>> = Vec::new();
    let mut sorted: Vec<&DeadLetter> = letters.iter().collect();
    sorted.sort_by(|a, b| a.why.cmp(&b.why));
    for letter in sorted {
        match groups.last_mut().filter(|group| group.why == letter.why.as_ref()) {
            Some(group) => {
                group.count += 1;
                (group.oldest, group.newest) = (group.oldest.min(letter.at), group.newest.max(letter.at));
            }
            None => {
                groups.push(SameReason { why: letter.why.as_ref(), count: 1, oldest: letter.at, newest: letter.at })
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}
