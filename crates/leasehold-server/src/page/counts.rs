//! How long the line of a queue is, by its parts.
//!
//! Promise: a long line is not counted one by one: from a thousand on, only a bound is shown that the number exceeds. All rows of
//! a page share one time for finding these bounds. A search that would take longer than what remains is not begun, and the bound
//! that is proven by then is shown. Non-promise: a bound is shown again for [`KEPT`], so it may be that old, and the numbers of
//! one page are not of one instant.

use super::budget::{COUNTED, COUNTED_LATE, COUNTING, MORE_THAN};
use super::times::thousands;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::item::{LinePosition, Priority, QueueName, Section};
use leasehold_core::store::Range;
use leasehold_core::{LeaseName, Shelf, Store, Timestamp};
use leasehold_stores::Namespace;
use leasehold_system::sync::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// For how long a proven bound is shown without being proven again.
const KEPT: Duration = Duration::from_secs(30);
/// How many bounds are kept.
const MAX_KEPT: usize = 4_096;
/// What a store takes to pass a name, as long as it was not measured. Databases take less.
const PER_NAME: Duration = Duration::from_micros(1);

/// A number of entries, as far as it was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    least: usize,
    is_more: bool,
}

impl Count {
    pub fn words(self) -> String {
        format!("{}{}", thousands(self.least as u64), if self.is_more { "+" } else { "" })
    }
}

/// What was proven of one part of a line.
#[derive(Debug, Clone, Copy)]
struct Proven {
    least: usize,
    at: Moment,
    /// Whether looking further would prove no more: the next bound was not exceeded, or there is none.
    is_settled: bool,
}

/// What was proven lately, of the parts of all lines.
#[derive(Debug, Default)]
pub struct Bounds {
    parts: Mutex<HashMap<(Namespace, LeaseName), Proven>>,
    /// What it last took to pass a name, and when.
    pace: Mutex<Option<(Duration, Moment)>>,
}

/// The time that one page has for counting, and what it learns on the way.
#[derive(Debug)]
pub struct Counting<'a> {
    namespace: &'a Namespace,
    bounds: &'a Bounds,
    clock: &'a dyn Clock,
    until: Moment,
    per_name: Duration,
}

impl<'a> Counting<'a> {
    /// From now on.
    pub fn begin(namespace: &'a Namespace, bounds: &'a Bounds, clock: &'a dyn Clock) -> Self {
        let now = clock.now();
        // One that is old does not count: after a slow moment, no search would ever seem to fit.
        let pace = bounds.pace.lock().filter(|(_, at)| now.saturating_since(*at) < KEPT);
        let per_name = pace.map_or(PER_NAME, |(pace, _)| pace);
        Counting { namespace, bounds, clock, until: now + COUNTING, per_name }
    }

    /// Whether the page's time for counting is over.
    pub fn is_over(&self) -> bool {
        self.clock.now() >= self.until
    }

    /// Whether so many names can probably be passed in what remains, as fast as the last ones were.
    fn has_time_for(&self, names: usize) -> bool {
        let takes = self.per_name.saturating_mul(u32::try_from(names).unwrap_or(u32::MAX));
        takes <= self.until.saturating_since(self.clock.now())
    }

    fn passed(&mut self, names: usize, began: Moment) {
        let now = self.clock.now();
        self.per_name = now.saturating_since(began) / u32::try_from(names.max(1)).unwrap_or(u32::MAX);
        *self.bounds.pace.lock() = Some((self.per_name, now));
    }

    fn proven(&self, part: &LeaseName) -> Option<Proven> {
        let proven = *self.bounds.parts.lock().get(&(self.namespace.clone(), part.clone()))?;
        Some(proven).filter(|proven| self.clock.now().saturating_since(proven.at) < KEPT)
    }

    fn keep(&self, part: LeaseName, proven: Proven) {
        let (mut bounds, now) = (self.bounds.parts.lock(), self.clock.now());
        if bounds.len() >= MAX_KEPT {
            bounds.retain(|_, proven| now.saturating_since(proven.at) < KEPT);
        }
        if bounds.len() < MAX_KEPT {
            bounds.insert((self.namespace.clone(), part), proven);
        }
    }
}

/// The line of a queue, counted by its parts.
#[derive(Debug)]
pub struct Counts {
    pub waiting: Count,
    pub claimed: Count,
    pub later: Count,
    /// Since when the oldest waits, of those that were looked at.
    pub oldest: Option<Timestamp>,
    pub now: Timestamp,
}

impl Counts {
    pub async fn of(store: &dyn Store, queue: &QueueName, counting: &mut Counting<'_>) -> leasehold_core::Result<Self> {
        let begins = |section| LinePosition::before(queue, section);
        let (aside, later) = (begins(Section::Aside)?, begins(Section::Later(Priority::default()))?);
        let (waiting, end) = (begins(Section::Waiting(Priority::HIGHEST))?, LinePosition::behind_all(queue)?);
        let mut part = Part { store, queue, counting };
        let (claimed, _, now) = part.count(&aside, &later).await?;
        let (later, ..) = part.count(&later, &waiting).await?;
        let (waiting, oldest, _) = part.count(&waiting, &end).await?;
        Ok(Counts { waiting, claimed, later, oldest, now })
    }
}

struct Part<'a, 'b> {
    store: &'a dyn Store,
    queue: &'a QueueName,
    counting: &'a mut Counting<'b>,
}

impl Part<'_, '_> {
    /// Counts what lies between two names; also the least time in what was looked at, and the store's time.
    async fn count(
        &mut self,
        begin: &LeaseName,
        end: &LeaseName,
    ) -> leasehold_core::Result<(Count, Option<Timestamp>, Timestamp)> {
        let most = if self.counting.is_over() { COUNTED_LATE } else { COUNTED };
        let range = Range { until: Some(end), ..Range::new(Some(begin), most) };
        let page = self.store.list(Shelf::Line, range).await?;
        let positions = page.entries.iter().filter_map(|(name, _)| LinePosition::parse(self.queue, name));
        let oldest = positions.map(|position| position.at).min();
        let listed = page.entries.len();
        let mut count = Count { least: listed, is_more: page.more && listed > 0 };
        if let Some((last, _)) = page.entries.last().filter(|_| count.is_more) {
            count.least = self.probe(begin, end, last, listed).await?;
        }
        Ok((count, oldest, page.now))
    }

    /// The highest bound that is proven of a part of which so many were listed.
    async fn probe(
        &mut self,
        begin: &LeaseName,
        end: &LeaseName,
        last: &LeaseName,
        listed: usize,
    ) -> leasehold_core::Result<usize> {
        let counting = &mut *self.counting;
        let before = counting.proven(begin);
        if let Some(proven) = before.filter(|proven| proven.is_settled) {
            return Ok(proven.least.max(listed));
        }
        let known = before.map_or(listed, |proven| proven.least.max(listed));
        let (mut last, mut passed, mut least, mut is_settled) = (last.clone(), listed, known, true);
        // Each probe continues from the one before it: a store walks past what it skips.
        for bound in MORE_THAN.into_iter().filter(|bound| *bound > known) {
            let skip = bound - passed;
            if !counting.has_time_for(skip) {
                is_settled = false;
                break;
            }
            let range = Range { skip, until: Some(end), ..Range::new(Some(&last), 1) };
            let began = counting.clock.now();
            let probe = self.store.list(Shelf::Line, range).await?;
            let Some((name, _)) = probe.entries.into_iter().next() else { break };
            // Only where all were passed is it known how many they were.
            counting.passed(skip, began);
            (last, passed, least) = (name, bound + 1, bound);
        }
        let at = before.filter(|_| least == known).map_or_else(|| counting.clock.now(), |proven| proven.at);
        counting.keep(begin.clone(), Proven { least, at, is_settled });
        Ok(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use leasehold_core::clock::ManualClock;
    use leasehold_core::store::{Capabilities, Change, Page, Reading, Survey, Swap, Watch};
    use leasehold_core::{Key, MemoryStore, Result};
    use std::sync::Arc;

    /// A store that needs so long to pass a name.
    #[derive(Debug)]
    struct Slow {
        inner: Arc<MemoryStore>,
        clock: ManualClock,
        per_name: Duration,
        passed: Mutex<usize>,
    }

    #[async_trait]
    impl Store for Slow {
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }

        async fn read(&self, key: &Key) -> Result<Reading> {
            self.inner.read(key).await
        }

        async fn write(&self, change: &Change<'_>) -> Result<Swap> {
            self.inner.write(change).await
        }

        async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
            // A database stops at the end of the range.
            let all = self.inner.list(shelf, Range { skip: 0, limit: range.skip, ..range }).await?.entries.len();
            self.clock.advance(self.per_name.saturating_mul(u32::try_from(all).unwrap()));
            *self.passed.lock() += all;
            self.inner.list(shelf, range).await
        }

        async fn watch(&self, key: &Key) -> Result<Watch> {
            self.inner.watch(key).await
        }

        async fn survey(&self) -> Result<Survey> {
            self.inner.survey().await
        }
    }

    async fn lines(per_name: Duration, queues: &[(&str, u64)]) -> Slow {
        let clock = ManualClock::default();
        let inner = Arc::new(MemoryStore::default());
        let store: Arc<dyn Store> = inner.clone();
        for (queue, length) in queues {
            for number in 0..*length {
                let name: LeaseName = format!("{queue}/4/{number:015}/k.a/1").parse().unwrap();
                store.swap(&Key::new(Shelf::Line, &name), None, b"x").await.unwrap();
            }
        }
        Slow { inner, clock, per_name, passed: Mutex::default() }
    }

    async fn waiting(slow: &Slow, bounds: &Bounds, queues: &[(&str, u64)]) -> Vec<String> {
        let namespace = Namespace::default();
        let mut counting = Counting::begin(&namespace, bounds, &slow.clock);
        let mut all = Vec::new();
        for (queue, _) in queues {
            all.push(Counts::of(slow, &queue.parse().unwrap(), &mut counting).await.unwrap().waiting.words());
        }
        all
    }

    #[tokio::test]
    async fn a_search_for_a_bound_ends_with_its_part_of_the_line() {
        let queues = [("a", 12_000), ("b", 12_000), ("c", 100)];
        let slow = lines(Duration::ZERO, &queues).await;
        assert_eq!(waiting(&slow, &Bounds::default(), &queues).await, ["10,000+", "10,000+", "100"]);
        // It does not go on through the next queue's names.
        assert!(*slow.passed.lock() <= 2 * 12_000, "{}", slow.passed.lock());
    }

    #[tokio::test]
    async fn what_does_not_fit_into_the_time_of_the_page_is_not_begun() {
        let queues = [("a", 12_000), ("b", 12_000), ("c", 12_000), ("d", 12_000), ("e", 99)];
        // The search for the first bound takes 36 ms.
        let slow = lines(Duration::from_micros(4), &queues).await;
        let (bounds, began) = (Bounds::default(), slow.clock.now());
        assert_eq!(waiting(&slow, &bounds, &queues).await, ["10,000+", "10,000+", "1,000+", "1,000+", "99"]);
        assert!(slow.clock.now().saturating_since(began) <= COUNTING);
        // What is proven is kept for a while, so the next page has the time for others.
        assert_eq!(waiting(&slow, &bounds, &queues).await, ["10,000+", "10,000+", "10,000+", "10,000+", "99"]);
        slow.clock.advance(KEPT);
        assert_eq!(waiting(&slow, &bounds, &queues).await, ["10,000+", "10,000+", "1,000+", "1,000+", "99"]);
    }

    #[tokio::test]
    async fn when_the_time_is_over_less_is_listed() {
        let queues = [("a", 1_200)];
        let slow = lines(Duration::ZERO, &queues).await;
        let (namespace, bounds) = (Namespace::default(), Bounds::default());
        let mut counting = Counting::begin(&namespace, &bounds, &slow.clock);
        slow.clock.advance(COUNTING);
        let counts = Counts::of(&slow, &"a".parse().unwrap(), &mut counting).await.unwrap();
        assert_eq!((counts.waiting.words(), counts.claimed.words()), ("100+".to_owned(), "0".to_owned()));
    }
}
