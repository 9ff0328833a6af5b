//! A backlog: a queue in a store, or a spool, for those who add to it, work on it or operate on it.
//!
//! Promise: each verb means the same for both, and what a spool cannot do is refused before anything is changed.
//! Non-promise: listings, which [`Queue::list`] and [`Spool::survey`] give in shapes of their own.

use crate::queue::protocol::Order;
use crate::queue::{
    Added, Attempts, Chores, Claimed, Claimer, FollowUp, Item, ItemGrant, ItemId, ItemName, ItemTenancy, NewItem,
    Payload, Purged, Queue, QueueName, Reason, State,
};
use crate::spool::{Shown, Spool, SpoolClaimer, SpoolGrant, SpoolItem, SpoolTenancy, Where};
use crate::tokens::{as_lost, beside};
use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_core::cell::Start;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{
    Epoch, Error, HolderId, Key, Kind, Label, LeaseName, Result, Shelf, Tenancy, Timestamp, Token, Ttl, Who, Why,
};
use std::fmt::Debug;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

/// Up to how many bytes a spool's payload is shown. It may have any number.
const SHOWN_PAYLOAD: usize = 1 << 20;

/// Who is told of what is passed over.
pub type Warn = fn(&Error);

/// What a worker is to know of an item that it has claimed.
#[derive(Debug)]
pub struct Attempt {
    /// The item's id.
    pub id: ItemId,
    /// The proof to show to guards.
    pub token: Token,
    /// The first attempt is 1.
    pub number: u32,
    /// What an earlier attempt left for this one.
    pub checkpoint: Option<String>,
    /// What the item carries.
    pub payload: Content,
}

/// A payload, or the file that it is in.
#[derive(Debug)]
pub enum Content {
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// A file of the spool, which may be of any size.
    File(PathBuf),
}

/// An item that a completion adds.
#[derive(Debug, Clone)]
pub struct Addition {
    /// The queue that it goes to, if not that of the completed item. A spool adds to itself only.
    pub queue: Option<QueueName>,
    /// The item.
    pub item: NewItem,
}

/// An item as it was seen.
#[derive(Debug)]
pub enum ItemView {
    /// In a queue.
    Item(ItemName, Box<Item>),
    /// In a spool.
    File(SpoolItem),
    /// In a spool, with its notes, and with its payload if that is short enough and this user may read it.
    Shown(Shown, Result<Option<Vec<u8>>>),
}

impl ItemView {
    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        match self {
            ItemView::Item(_, item) => item.epoch,
            ItemView::File(file) | ItemView::Shown(Shown { item: file, .. }, _) => file.name.epoch,
        }
    }

    /// Whether it was given up for good.
    pub fn is_dead(&self) -> bool {
        match self {
            ItemView::Item(_, item) => matches!(item.state, State::Dead { .. }),
            ItemView::File(file) | ItemView::Shown(Shown { item: file, .. }, _) => file.place == Where::Failed,
        }
    }
}

/// An operator's order.
#[derive(Debug)]
pub struct Ordered {
    /// Who gives it.
    pub by: Who,
    /// Why, for the item's history.
    pub why: Why,
    /// The epoch of the item that it was decided on, if it holds for no other.
    pub if_epoch: Option<Epoch>,
    /// What is to be done.
    pub order: Order,
}

/// The refusal of an order that was decided on another epoch.
pub(crate) fn changed_since(what: &str, expected: Epoch, seen: Epoch) -> Error {
    let message = format!(
        "{what} has changed: the order was decided on epoch {expected}, and it is at epoch {seen} now; nothing was changed, look \
         again"
    );
    Error::new(Kind::Fenced, message)
}

/// What a janitor or a purge did.
#[derive(Debug)]
pub struct JanitorReport {
    /// How many items of each kind, in the order in which people are told.
    pub counts: Vec<(&'static str, usize)>,
    /// The first trouble that kept an item from being looked after.
    pub trouble: Option<Error>,
}

/// How long whoever claims waits for an item.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    /// What is there is claimed, or nothing.
    Not,
    /// This long at most.
    For(Duration),
    /// Until there is one.
    Forever,
}

/// A queue or a spool.
#[async_trait]
pub trait Backlog: Clone + Debug + Send + Sync + 'static {
    /// A claimed item.
    type Grant: Send + Sync + 'static;
    /// What a keeper keeps of it.
    type Tenancy: Tenancy<Grant = Self::Grant>;
    /// Who claims items, one after the other.
    type Claimer: Send;
    /// How many lines are best added at once; each is an item as soon as it has come, where one by one is as good.
    const BATCH: usize = 1;

    /// Whether anything was ever added to it. Asks the store, some of which are only connected to when they are asked.
    async fn is_known(&self) -> Result<bool> {
        Ok(true)
    }

    /// Adds an item that carries what comes from `payload`, which may take its time; gives its id, and whether it is new.
    async fn add(&self, new: NewItem, payload: Box<dyn Read + Send>) -> Result<(ItemId, bool)>;

    /// Adds an item for each line. Those before one that fails are added, and `added` has them.
    async fn add_lines(&self, like: &NewItem, lines: Vec<String>, added: &mut Vec<(ItemId, bool)>) -> Result<()>;

    /// Claims for this long at a time, as a holder of this label. `warn` is told, once each, of what is passed over.
    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<Self::Claimer>;

    /// Claims the first item that may be claimed; none if there was none in that time.
    async fn claim(claimer: &mut Self::Claimer, wait: Wait) -> Result<Option<Self::Grant>>;

    /// What is to be kept while a claimed item is worked on.
    fn tenancy(&self, grant: Self::Grant) -> Self::Tenancy;

    /// What the worker of a claimed item is to know.
    fn attempt(&self, grant: &Self::Grant) -> Attempt;

    /// The claim that a token stands for, to be ended.
    async fn by_token(&self, token: &Token) -> Result<Self::Grant>;

    /// Renews each of these claims, and gives an answer for each, in the same order: one that fails leaves the others renewed.
    async fn renew(&self, grants: &mut [&mut Self::Grant]) -> Vec<Result<()>>;

    /// Renews the claim of a token, and notes how far the work has come. A spool keeps checkpoints only.
    async fn report(&self, token: &Token, report: Report) -> Result<()>;

    /// Completes an item. Its result and what it adds count if and only if this succeeds.
    async fn complete(&self, grant: &Self::Grant, result: Option<Payload>, add: Vec<Addition>) -> Result<ItemView>;

    /// Gives an attempt up: the item is tried again after a pause, or is a dead letter.
    async fn fail(
        &self,
        grant: &Self::Grant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<ItemView>;

    /// Gives an item back untried.
    async fn give_back(&self, grant: &Self::Grant) -> Result<()>;

    /// A claimed item, with all there is to see of it.
    async fn claimed(&self, grant: &Self::Grant) -> Result<ItemView>;

    /// An item, with all there is to see of it.
    async fn show(&self, id: &ItemId) -> Result<ItemView>;

    /// Carries out an operator's order; gives the item, and the token for a hand-off.
    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<(ItemView, Option<Token>)>;

    /// Puts back what ran out, and finishes what was cut off.
    async fn clean(&self, warn: Warn) -> Result<JanitorReport>;

    /// Removes what was finished so long ago, dead letters only if they are asked for.
    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport>;
}

impl JanitorReport {
    /// What is no item is told; only what is one, and could not be looked after, is a trouble.
    fn cleaned(done: Chores, warn: Warn) -> Self {
        done.odd.iter().for_each(warn);
        let counts = vec![
            ("requeued", done.requeued),
            ("buried", done.buried),
            ("lined_up", done.lined_up),
            ("settled", done.settled),
        ];
        JanitorReport::telling(counts, done.troubles, warn)
    }

    fn purged(done: Purged, warn: Warn) -> Self {
        JanitorReport::telling(vec![("purged", done.items)], done.troubles, warn)
    }

    fn telling(mut counts: Vec<(&'static str, usize)>, troubles: Vec<Error>, warn: Warn) -> Self {
        counts.push(("set_aside", troubles.len()));
        troubles.iter().for_each(warn);
        JanitorReport { counts, trouble: troubles.into_iter().next() }
    }
}

/// Reads at most one byte more than this, so that what is far too large is refused before it is all in memory.
pub fn read_bounded(from: impl Read, most: usize, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(Kind::Invalid, format!("cannot read {what}")).with_source(e))?;
    Ok(bytes)
}

#[async_trait]
impl Backlog for Queue {
    type Grant = ItemGrant;
    type Tenancy = ItemTenancy;
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

    fn tenancy(&self, grant: ItemGrant) -> ItemTenancy {
        ItemTenancy { queue: self.clone(), grant }
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

    async fn report(&self, token: &Token, report: Report) -> Result<()> {
        let mut grant = self.adopt(token).await?;
        Queue::renew(self, &mut grant).await?;
        self.progress_from(token, report, Start::Remembered(grant.seen())).await
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
        Ok(ItemView::Item(seen.name, Box::new(seen.item)))
    }

    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<(ItemView, Option<Token>)> {
        let Ordered { by, why, if_epoch, order } = order;
        let (item, token) = self.operate_on(id, by, why, |seen| if_epoch.or(Some(seen)), order).await?;
        Ok((ItemView::Item(self.item(id.clone()), Box::new(item)), token))
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
    ItemView::Item(grant.name().clone(), Box::new(item))
}

#[async_trait]
impl Backlog for Spool {
    type Grant = SpoolGrant;
    type Tenancy = SpoolTenancy;
    type Claimer = SpoolClaimer;

    async fn add(&self, new: NewItem, mut payload: Box<dyn Read + Send>) -> Result<(ItemId, bool)> {
        self.add(&new, &mut payload)
    }

    async fn add_lines(&self, like: &NewItem, lines: Vec<String>, added: &mut Vec<(ItemId, bool)>) -> Result<()> {
        lines.iter().try_for_each(|line| {
            added.push(self.add_bytes(like, line.as_bytes())?);
            Ok(())
        })
    }

    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<SpoolClaimer> {
        let label = label.unwrap_or_else(|| HolderId::new(None).label);
        Ok(SpoolClaimer::new(self.clone(), &label, ttl)?.warning(warn))
    }

    async fn claim(claimer: &mut SpoolClaimer, wait: Wait) -> Result<Option<SpoolGrant>> {
        match wait {
            Wait::Forever => claimer.next().await.map(Some),
            Wait::For(limit) => tokio::select! {
                biased;
                grant = claimer.next() => grant.map(Some),
                () = tokio::time::sleep(limit) => Ok(None),
            },
            Wait::Not => claimer.claim(),
        }
    }

    fn tenancy(&self, grant: SpoolGrant) -> SpoolTenancy {
        SpoolTenancy::new(self.clone(), grant)
    }

    fn attempt(&self, grant: &SpoolGrant) -> Attempt {
        let name = grant.name();
        Attempt {
            id: name.id.clone(),
            token: grant.token().clone(),
            number: name.tried + 1,
            checkpoint: self.checkpoint_for(name).map(|checkpoint| checkpoint.as_str().to_owned()),
            payload: Content::File(grant.path().to_owned()),
        }
    }

    async fn by_token(&self, token: &Token) -> Result<SpoolGrant> {
        self.adopt(token)
    }

    async fn renew(&self, grants: &mut [&mut SpoolGrant]) -> Vec<Result<()>> {
        join_all(grants.iter_mut().map(async |grant| {
            let (spool, mut renewed) = (self.clone(), grant.clone());
            **grant = beside(move || spool.renew(&mut renewed).map(|()| renewed)).await?;
            Ok(())
        }))
        .await
    }

    async fn report(&self, token: &Token, report: Report) -> Result<()> {
        let mut grant = self.adopt(token).map_err(as_lost)?;
        self.renew(&mut grant)?;
        report.checkpoint.map_or(Ok(()), |checkpoint| self.checkpoint(&grant, &checkpoint))
    }

    async fn complete(&self, grant: &SpoolGrant, result: Option<Payload>, add: Vec<Addition>) -> Result<ItemView> {
        let of = |Addition { queue, item }: Addition| {
            if queue.is_some() || item.attempts.backoff_ms != Attempts::default().backoff_ms {
                let message =
                    "invalid follow-up: an item of a spool adds to its own spool, without a backoff of its own";
                return Err(Error::new(Kind::Invalid, message));
            }
            Ok(item)
        };
        let add: Vec<_> = add.into_iter().map(of).collect::<Result<_>>()?;
        self.complete(grant, result.as_ref(), &add).map(ItemView::File)
    }

    async fn fail(
        &self,
        grant: &SpoolGrant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<ItemView> {
        self.fail(grant, &why, retry_in, is_final).map(ItemView::File)
    }

    async fn give_back(&self, grant: &SpoolGrant) -> Result<()> {
        self.give_back(grant)
    }

    async fn claimed(&self, grant: &SpoolGrant) -> Result<ItemView> {
        Backlog::show(self, &grant.name().id).await
    }

    async fn show(&self, id: &ItemId) -> Result<ItemView> {
        let shown = self.show(id)?;
        let payload = self.payload(&shown.item, SHOWN_PAYLOAD);
        Ok(ItemView::Shown(shown, payload))
    }

    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<(ItemView, Option<Token>)> {
        let (item, token) = self.operate(id, &order)?;
        Ok((ItemView::File(item), token))
    }

    async fn clean(&self, warn: Warn) -> Result<JanitorReport> {
        Ok(JanitorReport::cleaned(self.clean()?, warn))
    }

    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport> {
        let places = [Where::Done, Where::Cancelled, Where::Failed];
        let done = self.purge(older_than, &places[..if with_dead { 3 } else { 2 }])?;
        Ok(JanitorReport::purged(done, warn))
    }
}
