//! A queue in a store, as a [`Backlog`].

use super::claimer::{Claimed, Claimer};
use super::grant::{ItemGrant, watch_item};
use super::queue::{Added, NewItem, Queue};
use crate::backlog::{
    Addition, Asking, Attempt, Backlog, Carried, Content, ItemView, JanitorReport, OnExpired, Ordered, Wait, Warn,
    read_bounded,
};
use crate::tally::{DeadLetter, Tally};
use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_core::cell::Start;
use leasehold_core::clock::Clock;
use leasehold_core::hints::Opening;
use leasehold_core::holding;
use leasehold_core::item::protocol::Order;
use leasehold_core::item::{FollowUp, Item, ItemId, ItemName, Payload, Reason, State};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{
    Drain, Epoch, Error, Key, Label, LeaseName, Live, Result, Shelf, Timestamp, Token, Ttl, progress_age,
};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
impl Backlog for Queue {
    type Grant = ItemGrant;
    type Claimer = (Claimer, Warn);
    const BATCH: usize = 500;

    async fn is_known(&self) -> Result<bool> {
        let name = LeaseName::new(self.name().as_str())?;
        Ok(self.store().read(&Key::new(Shelf::Queue, &name)).await?.value.is_some())
    }

    async fn add(&self, new: NewItem, payload: Box<dyn Read + Send>) -> Result<(ItemId, bool)> {
        let payload = Payload::new(read_bounded(payload, Payload::MAX_BYTES, "the payload")?)?;
        Ok(id_of(self.add(NewItem { payload, ..new }).await?))
    }

    async fn add_lines(&self, like: &NewItem, lines: Vec<String>, added: &mut Vec<(ItemId, bool)>) -> Result<()> {
        let of = |line| Ok(NewItem { payload: Payload::new(line)?, ..like.clone() });
        let (items, mut done) = (lines.into_iter().map(of).collect::<Result<_>>()?, Vec::new());
        let outcome = self.add_each(items, &mut done).await;
        added.extend(done.into_iter().map(id_of));
        outcome
    }

    fn with_expiry_callback(mut self, on_expired: OnExpired) -> Self {
        self.on_expired = on_expired;
        self
    }

    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<Self::Claimer> {
        Ok((Claimer::new(self.clone(), label, ttl)?, warn))
    }

    async fn claim((claimer, warn): &mut Self::Claimer, wait: Wait) -> Result<Option<ItemGrant>> {
        let claimed = match wait {
            Wait::Forever => claimer.next().await.map(Some),
            Wait::For(limit) => claimer.next_within(limit).await,
            Wait::Not => claimer.claim().await.and_then(|claimed| match claimed {
                Claimed::Item(grant) => Ok(Some(*grant)),
                // Something waits: the line is not as empty as it looks.
                Claimed::Nothing { held_up, .. } => held_up.map_or(Ok(None), Err),
            }),
        };
        claimer.troubles().iter().for_each(*warn);
        claimed
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock().clone()
    }

    fn live(grant: &ItemGrant) -> Live {
        grant.live()
    }

    fn watch(&self, grant: &ItemGrant) -> Opening {
        watch_item(self.store(), &grant.name)
    }

    async fn has_news(&self, grant: &ItemGrant) -> Result<bool> {
        let seen = holding::reading_for(Some(grant.token().claim()), self.read(&grant.name)).await?;
        let asked = seen.record.live_drain(seen.anchor.now);
        let is_news = asked.is_some_and(|drain| Self::asked_to_finish(grant) != Some(drain));
        Ok(is_news || !seen.record.is_held_by(grant.token().claim()))
    }

    fn asked_to_finish(grant: &ItemGrant) -> Option<&Drain> {
        let seen = grant.seen();
        seen.record.live_drain(seen.anchor.now)
    }

    async fn progress_age(&self, grant: &ItemGrant) -> Result<Option<Duration>> {
        let seen = holding::reading_for(Some(grant.token().claim()), self.read(&grant.name)).await?;
        Ok(progress_age(seen.record.progress.as_ref(), grant.token().claim(), seen.anchor.now, self.grain()))
    }

    fn attempt(&self, grant: &ItemGrant) -> Attempt {
        let item = grant.item();
        let checkpoint = item.progress.as_ref().and_then(|progress| progress.checkpoint.as_ref());
        Attempt {
            id: grant.name().id.clone(),
            token: grant.token().clone(),
            number: item.tried,
            checkpoint: checkpoint.map(|checkpoint| checkpoint.as_str().to_owned()),
            payload: Content::Bytes(item.payload.bytes().to_vec()),
        }
    }

    async fn by_token(&self, token: &Token) -> Result<ItemGrant> {
        self.by_token(token).await
    }

    async fn renew(&self, grants: &mut [&mut ItemGrant]) -> Vec<Result<()>> {
        join_all(grants.iter_mut().map(|grant| Queue::renew(self, grant))).await
    }

    async fn report(&self, token: &Token, report: Report) -> Result<Option<Drain>> {
        let mut grant = self.adopt(token).await?;
        Queue::renew(self, &mut grant).await?;
        self.progress_from(token, report, Start::Remembered(grant.seen())).await?;
        Ok(Self::asked_to_finish(&grant).cloned())
    }

    async fn complete(&self, grant: &ItemGrant, result: Option<Payload>, add: Vec<Addition>) -> Result<ItemView> {
        let now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
        let of = |Addition { queue, item }: Addition| FollowUp {
            name: ItemName {
                queue: queue.unwrap_or_else(|| self.name().clone()),
                id: item.key.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed),
            },
            priority: item.priority,
            delay_ms: u64::try_from(item.delay.as_millis()).unwrap_or(u64::MAX),
            attempts: item.attempts,
            payload: item.payload,
        };
        Ok(seen(grant, self.complete(grant, result, add.into_iter().map(of).collect()).await?))
    }

    async fn fail(
        &self,
        grant: &ItemGrant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<ItemView> {
        Ok(seen(grant, self.fail(grant, why, retry_in, is_final).await?))
    }

    async fn give_back(&self, grant: &ItemGrant) -> Result<()> {
        self.give_back(grant).await.map(|_| ())
    }

    async fn claimed(&self, grant: &ItemGrant) -> Result<ItemView> {
        Ok(seen(grant, grant.item().clone()))
    }

    async fn show(&self, id: &ItemId) -> Result<ItemView> {
        let seen = self.inspect(id).await?;
        Ok(ItemView::Item(seen.name, Box::new(seen.item), seen.now))
    }

    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<Carried> {
        let Ordered { by, why, if_epoch, order } = order;
        let past = if let Order::Retry { past } = &order { *past } else { None };
        // An item with another epoch refuses the order, so this is the epoch on which it was carried out.
        let decided_on = if_epoch.unwrap_or(self.read(&self.item(id.clone())).await?.record.epoch);
        let (item, token) = self.operate(id, by, why, Some(decided_on), order).await?;
        let epoch = past.map_or(decided_on, |past| decided_on.max(past)).next().unwrap_or(item.epoch);
        Ok(Carried { seen: ItemView::written(self.item(id.clone()), item), epoch, token })
    }

    async fn ask_to_finish(&self, id: &ItemId, asking: Asking) -> Result<Option<Item>> {
        self.ask_to_finish(id, asking).await
    }

    async fn drained(&self, id: &ItemId, epoch: Epoch, limit: Duration) -> Result<ItemView> {
        let item = self.drained(id, epoch, limit).await?;
        Ok(ItemView::written(self.item(id.clone()), item))
    }

    async fn tally(&self) -> Result<Tally> {
        self.tally().await
    }

    async fn dead_letters(&self, troubles: &mut Vec<Error>) -> Result<Vec<DeadLetter>> {
        self.dead_letters(troubles).await
    }

    async fn is_finished(&self) -> Result<bool> {
        self.is_finished().await
    }

    async fn clean(&self, warn: Warn) -> Result<JanitorReport> {
        let done = self.clean().await?;
        let redated = done.redated;
        let mut tended = JanitorReport::cleaned(done, warn);
        tended.counts.insert(4, ("redated", redated));
        Ok(tended)
    }

    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport> {
        let done = self.purge(older_than, |state| with_dead || !matches!(state, State::Dead { .. })).await?;
        Ok(JanitorReport::purged(done, warn))
    }
}

fn id_of(added: Added) -> (ItemId, bool) {
    let is_new = matches!(added, Added::New(_));
    let (Added::New(name) | Added::Duplicate(name)) = added;
    (name.id, is_new)
}

fn seen(grant: &ItemGrant, item: Item) -> ItemView {
    ItemView::written(grant.name().clone(), item)
}
