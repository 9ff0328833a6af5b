//! A backlog: a queue in a store, or a spool, for those who add to it, work on it or operate on it.
//!
//! Promise: each verb means the same for both, and what a spool cannot do is refused before anything is changed.
//! Non-promise: listings, which [`crate::queue::Queue::list`] and [`crate::spool::Spool::survey`] give in shapes of their own.

use crate::queue::protocol::Order;
use crate::queue::{Chores, Item, ItemId, ItemName, NewItem, Payload, Purged, QueueName, Reason, State};
use crate::spool::{Shown, SpoolItem, Where};
use crate::tally::{DeadLetter, Tally};
use async_trait::async_trait;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::hints::Opening;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Drain, Epoch, Error, Kind, Label, Live, Result, Tenancy, Timestamp, Token, Ttl, Who, Why};
use std::fmt::Debug;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Who is told of what is passed over.
pub type Warn = fn(&Error);

/// A claim that was found to have run out: its worker died, or was away for too long.
#[derive(Debug)]
pub struct Expired {
    /// The item.
    pub id: ItemId,
    /// The epoch of that claim.
    pub epoch: Epoch,
    /// What became of the item: it is in line again, claimed by another worker, or a dead letter.
    pub seen: ItemView,
}

/// Who hears of claims that were found to have run out, from whoever ended them. Clones share it.
#[derive(Clone, Default)]
pub struct OnExpired(Option<Arc<dyn Fn(Expired) + Send + Sync>>);

impl OnExpired {
    /// Calls this, which must not block.
    pub fn new(hear: impl Fn(Expired) + Send + Sync + 'static) -> Self {
        OnExpired(Some(Arc::new(hear)))
    }

    pub(crate) fn tell(&self, expired: impl FnOnce() -> Expired) {
        if let Some(hear) = &self.0 {
            hear(expired());
        }
    }
}

impl Debug for OnExpired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "OnExpired" } else { "Nobody" })
    }
}

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
    /// In a queue, with the store's time.
    Item(ItemName, Box<Item>, Timestamp),
    /// In a spool.
    File(SpoolItem),
    /// In a spool, with its notes, and with its payload if that is short enough and this user may read it.
    Shown(Shown, Result<Option<Vec<u8>>>),
}

impl ItemView {
    /// An item of a store, as it was just written: what waits has waited since then.
    pub(crate) fn written(name: ItemName, item: Item) -> Self {
        let now = item.since;
        ItemView::Item(name, Box::new(item), now)
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        match self {
            ItemView::Item(_, item, _) => item.epoch,
            ItemView::File(file) | ItemView::Shown(Shown { item: file, .. }, _) => file.name.epoch,
        }
    }

    /// Whether it was given up for good.
    pub fn is_dead(&self) -> bool {
        match self {
            ItemView::Item(_, item, _) => matches!(item.state, State::Dead { .. }),
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

/// An operator's request to whoever has claimed an item to finish.
#[derive(Debug)]
pub struct Asking {
    /// Who asks.
    pub by: Who,
    /// Why.
    pub why: Why,
    /// The epoch of the item that it was decided on, if it holds for no other.
    pub if_epoch: Option<Epoch>,
    /// How long there is to finish.
    pub within: Ttl,
}

/// An order that was carried out.
#[derive(Debug)]
pub struct Carried {
    /// The item now. After an answer that was lost, others may have claimed it since.
    pub seen: ItemView,
    /// The epoch that the order began.
    pub epoch: Epoch,
    /// The new holder's, for a hand-off.
    pub token: Option<Token>,
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
    type Grant: Debug + Send + Sync + 'static;
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

    /// The same, and whatever ends a claim that has run out through it tells this one. A server that ends one tells nobody.
    #[must_use]
    fn hearing(self, heard: OnExpired) -> Self;

    /// Claims for this long at a time, as a holder of this label. `warn` is told, once each, of what is passed over.
    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<Self::Claimer>;

    /// Claims the first item that may be claimed; none if there was none in that time.
    async fn claim(claimer: &mut Self::Claimer, wait: Wait) -> Result<Option<Self::Grant>>;

    /// What a keeper keeps while a claimed item is worked on.
    fn tenancy(&self, grant: Self::Grant) -> Kept<Self> {
        Kept { backlog: self.clone(), clock: self.clock(), grant }
    }

    /// The worker's own clock, by which it counts its trust windows.
    fn clock(&self) -> Arc<dyn Clock>;

    /// What a claim allows while it is in force.
    fn live(grant: &Self::Grant) -> Live;

    /// Hints that a claimed item may have changed; none where nobody can push them.
    fn watch(&self, grant: &Self::Grant) -> Opening;

    /// Whether the item shows what its worker has not heard: that it is no longer claimed by it, or that it is to finish.
    async fn has_news(&self, grant: &Self::Grant) -> Result<bool>;

    /// Who asks the worker to finish, as the last renewal found it. A spool's worker is asked by a signal only.
    fn asked_to_finish(_: &Self::Grant) -> Option<&Drain> {
        None
    }

    /// How long ago progress was last reported under this claim, if it ever was.
    async fn progress_age(&self, grant: &Self::Grant) -> Result<Option<Duration>>;

    /// What the worker of a claimed item is to know.
    fn attempt(&self, grant: &Self::Grant) -> Attempt;

    /// The claim that a token stands for, to be ended.
    async fn by_token(&self, token: &Token) -> Result<Self::Grant>;

    /// Renews each of these claims, and gives an answer for each, in the same order: one that fails leaves the others renewed.
    async fn renew(&self, grants: &mut [&mut Self::Grant]) -> Vec<Result<()>>;

    /// Renews the claim of a token, and notes how far the work has come; gives who asks to finish, if anybody does. A spool
    /// keeps checkpoints only.
    async fn report(&self, token: &Token, report: Report) -> Result<Option<Drain>>;

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

    /// Carries out an operator's order. A hand-off that was carried out, and was over by the time that this was known, is an
    /// error of kind [`leasehold_core::Kind::Lost`].
    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<Carried>;

    /// Asks whoever has claimed the item to finish within this time, and nobody new claims it meanwhile. Gives the item; none if
    /// nobody has claimed it.
    async fn ask_to_finish(&self, _: &ItemId, _: Asking) -> Result<Option<Item>> {
        let message = "a spool cannot ask its workers to finish; nothing was changed. Send the worker SIGTERM, or leave --drain out";
        Err(Error::new(Kind::Unsupported, message))
    }

    /// Waits until whoever was asked at this epoch works on the item no more, and at most this long; gives what was seen last.
    async fn drained(&self, id: &ItemId, _: Epoch, _: Duration) -> Result<ItemView> {
        self.show(id).await
    }

    /// Counts the items of each state.
    async fn tally(&self) -> Result<Tally>;

    /// The dead letters, in the order in which they were given up. What cannot be read goes to `troubles`.
    async fn dead_letters(&self, troubles: &mut Vec<Error>) -> Result<Vec<DeadLetter>>;

    /// Whether every item is finished: none waits, none is claimed, and no completion has anything left to add.
    async fn is_finished(&self) -> Result<bool>;

    /// Puts back what ran out, and finishes what was cut off.
    async fn clean(&self, warn: Warn) -> Result<JanitorReport>;

    /// Removes what was finished so long ago, dead letters only if they are asked for.
    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport>;
}

/// A claimed item that a keeper keeps.
#[derive(Debug)]
pub struct Kept<B: Backlog> {
    backlog: B,
    clock: Arc<dyn Clock>,
    grant: B::Grant,
}

#[async_trait]
impl<B: Backlog> Tenancy for Kept<B> {
    type Grant = B::Grant;

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn watch(&self) -> Opening {
        self.backlog.watch(&self.grant)
    }

    fn ttl(&self) -> Ttl {
        B::live(&self.grant).ttl
    }

    fn trust_until(&self) -> Moment {
        B::live(&self.grant).trust_until
    }

    async fn renew(&mut self) -> Result<()> {
        self.backlog.renew(&mut [&mut self.grant]).await.into_iter().collect()
    }

    async fn has_news(&self) -> Result<bool> {
        self.backlog.has_news(&self.grant).await
    }

    fn asked_to_finish(&self) -> Option<&Drain> {
        B::asked_to_finish(&self.grant)
    }

    async fn progress_age(&self) -> Result<Option<Duration>> {
        self.backlog.progress_age(&self.grant).await
    }

    fn into_grant(self) -> B::Grant {
        self.grant
    }
}

impl JanitorReport {
    /// What is no item is told; only what is one, and could not be looked after, is a trouble.
    pub(crate) fn cleaned(done: Chores, warn: Warn) -> Self {
        done.odd.iter().for_each(warn);
        let counts = vec![
            ("requeued", done.requeued),
            ("buried", done.buried),
            ("lined_up", done.lined_up),
            ("settled", done.settled),
        ];
        JanitorReport::telling(counts, done.troubles, warn)
    }

    pub(crate) fn purged(done: Purged, warn: Warn) -> Self {
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
