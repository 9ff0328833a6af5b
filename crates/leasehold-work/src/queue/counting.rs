//! Counting what is in a queue, and whether anything is left to do.
//!
//! Promise: it counts records, which are the truth; the line only shows early that something is left. Non-promise:
//! items that are added or changed meanwhile may be counted in either state.

use super::queue::Queue;
use crate::tally::{DeadLetter, Tally};
use leasehold_core::item::name::{ItemName, Section};
use leasehold_core::item::record::{Item, State};
use leasehold_core::{Error, Kind, Result, Timestamp};

const PAGE: usize = 500;
/// How many positions in line are read before all records are.
const MAX_CHECKED: usize = 16;

impl Queue {
    /// Reads every item, once.
    async fn each(&self, mut see: impl FnMut(ItemName, Result<Item>, Timestamp)) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.list(after.as_ref(), PAGE).await?;
            let now = page.now;
            page.entries.into_iter().for_each(|(name, item)| see(name, item, now));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Counts the items of each state.
    pub async fn tally(&self) -> Result<Tally> {
        let mut tally = Tally::at(Timestamp::from_millis(0));
        self.each(|_, item, now| {
            tally.now = now;
            match item {
                Err(error) => tally.troubles.push(error),
                Ok(item) if item.relocation.is_some() => tally.elsewhere += 1,
                Ok(item) => match item.state {
                    State::Ready => tally.waits(item.since, item.due),
                    State::Claimed(_) => tally.claimed += 1,
                    State::Dead { .. } => tally.dead += 1,
                    State::Done { .. } => tally.done += 1,
                    State::Cancelled { .. } => tally.cancelled += 1,
                    State::Purged { .. } => {}
                },
            }
        })
        .await?;
        Ok(tally)
    }

    /// The dead letters, in the order in which they were given up. Errors of
    /// those that cannot be read are added to `troubles`.
    pub async fn dead_letters(&self, troubles: &mut Vec<Error>) -> Result<Vec<DeadLetter>> {
        let mut letters = Vec::new();
        self.each(|name, item, _| match item {
            Err(error) => troubles.push(error),
            Ok(item) if item.relocation.is_some() => {}
            Ok(item) => letters.extend(DeadLetter::of(&name.id, &item)),
        })
        .await?;
        letters.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        Ok(letters)
    }

    /// Whether every item is finished: none waits, none is claimed, and no completion has follow-ups left to add.
    /// [`Kind::Corrupt`] if only items that cannot be read are left.
    pub async fn is_finished(&self) -> Result<bool> {
        for listed in self.line.front(Section::Aside, None, 0, MAX_CHECKED).await?.line {
            if self.look(&listed.position.item).await.is_ok_and(|seen| seen.is_some_and(|seen| is_left(&seen.record))) {
                return Ok(false);
            }
        }
        let (mut left, mut trouble) = (false, None);
        self.each(|_, item, _| match item {
            Ok(item) => left |= is_left(&item),
            Err(error) => trouble = Some(error),
        })
        .await?;
        match trouble {
            Some(error) if !left => {
                let message = format!("nothing is left in queue `{}` but an item that cannot be read", self.name());
                Err(Error::new(Kind::Corrupt, message).with_source(error))
            }
            _ => Ok(!left),
        }
    }
}

fn is_left(item: &Item) -> bool {
    item.is_open() || (item.relocation.is_none() && !item.outbox.is_empty())
}
