//! Throughput of a queue: how many items were completed, and how many attempts failed, in the last minute and hour.
//!
//! No record of the store counts that, so it is read off the histories of items, of a bounded number of them: all of a short
//! queue; of a longer one those where recent ends are likely, which are the items that were added lately, and those just before
//! the oldest that still waits.
//!
//! Promise: what is counted has happened. Where not every item was looked at, it says *at least*. Non-promise: what was purged
//! is not counted, and neither are those of an item's attempts that its history no longer has.

use super::times::{ms, thousands};
use leasehold_core::Timestamp;
use leasehold_core::item::record::What;
use leasehold_core::item::{Item, ItemName, State};
use leasehold_work::queue::Queue;
use std::collections::HashSet;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// Up to here dead letters are counted.
const DEAD: u64 = 100;

/// How often it is looked for recent ends, at most: from an hour ago on, from a minute ago on, and before the oldest.
pub const LOOKS: u64 = 3;

/// Attempts that ended within some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ends {
    completed: u64,
    failed: u64,
}

/// What was found of a queue's ends.
#[derive(Debug, Default)]
pub struct Throughput {
    seen: HashSet<ItemName>,
    minute: Ends,
    hour: Ends,
    /// Items that were given up.
    dead: u64,
    /// Whether every item of the queue was looked at.
    is_all: bool,
}

/// The same in words.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// Items that were completed in the last minute.
    pub completed_minute: String,
    /// In the last hour.
    pub completed_hour: String,
    /// Attempts that failed, or whose claims ran out, in the last minute.
    pub failed_minute: String,
    /// In the last hour.
    pub failed_hour: String,
    /// Items that were given up and are still there, at any time.
    pub dead: String,
    /// Whether there are such.
    pub has_dead: bool,
    /// How many items tell that, if these are not all.
    pub looked_at: Option<String>,
}

impl Throughput {
    /// Counts what happened to an item lately, once.
    pub fn see(&mut self, name: &ItemName, item: &Item, now: Timestamp) {
        if !self.seen.insert(name.clone()) {
            return;
        }
        self.dead += u64::from(matches!(item.state, State::Dead { .. }));
        for event in &item.history {
            let (completed, failed) = match event.what {
                What::Completed => (1, 0),
                What::Failed | What::Expired => (0, 1),
                _ => continue,
            };
            let age = now.saturating_since(event.at);
            for (ends, span) in [(&mut self.minute, MINUTE), (&mut self.hour, HOUR)] {
                if age < span {
                    ends.completed += completed;
                    ends.failed += failed;
                }
            }
        }
    }

    /// Notes that there is no item that was not seen.
    pub fn is_everything(&mut self) {
        self.is_all = true;
    }

    /// Looks at the first items of the queue; these may be all.
    pub async fn look_at_first(&mut self, queue: &Queue, step: usize) -> leasehold_core::Result<()> {
        let page = queue.list(None, step).await?;
        self.see_all(&page.entries, page.now);
        self.is_all |= page.next.is_none();
        Ok(())
    }

    /// Looks where recent ends are likely, unless all was seen: `step` items in each of so many places as [`LOOKS`] says.
    pub async fn look(
        &mut self,
        queue: &Queue,
        now: Timestamp,
        oldest: Option<Timestamp>,
        step: usize,
    ) -> leasehold_core::Result<()> {
        if self.is_all {
            return Ok(());
        }
        let before = |at: Timestamp, span: Duration| Timestamp::from_millis(at.as_millis().saturating_sub(ms(span)));
        let mut starts = vec![before(now, HOUR), before(now, MINUTE)];
        starts.extend(oldest.map(|oldest| before(oldest, MINUTE)));
        starts.sort();
        for start in starts {
            let page = queue.list(Some(&ItemName::added_from(queue.name(), start)?), step).await?;
            self.see_all(&page.entries, page.now);
            if page.next.is_none() {
                // All that was added from there on was seen.
                break;
            }
        }
        Ok(())
    }

    fn see_all(&mut self, entries: &[(ItemName, leasehold_core::Result<Item>)], now: Timestamp) {
        for (name, item) in entries {
            if let Ok(item) = item {
                self.see(name, item, now);
            }
        }
    }

    /// What was found, in words.
    pub fn words(&self) -> Words {
        let words = |count: u64| match (self.is_all, count) {
            (true, count) => thousands(count),
            (false, 0) => "none seen".to_owned(),
            (false, count) => format!("at least {}", thousands(count)),
        };
        let dead = match (self.is_all, self.dead) {
            (_, count) if count > DEAD => format!("{DEAD}+"),
            (true, count) => count.to_string(),
            (false, 0) => "none seen".to_owned(),
            (false, count) => format!("{count}+"),
        };
        Words {
            dead,
            has_dead: self.dead > 0,
            completed_minute: words(self.minute.completed),
            completed_hour: words(self.hour.completed),
            failed_minute: words(self.minute.failed),
            failed_hour: words(self.hour.failed),
            looked_at: (!self.is_all).then(|| thousands(self.seen.len() as u64)),
        }
    }
}
