//! A backlog: a queue in a store, or a spool, for code that adds to it, works on it or operates on it.
//!
//! Promise: each verb means the same for both, and what a spool cannot do is refused
//! before anything is changed. Non-promise: listings; [`crate::queue::Queue::list`]
//! and [`crate::spool::Spool::survey`] return those in shapes of their own.

use crate::queue::protocol::Order;
use crate::queue::{Chores, Item, ItemId, ItemName, NewItem, Payload, Purged, QueueName, Reason, State};
use crate::spool::{Shown, SpoolFolder, SpoolItem};
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

/// Called with the error of each thing that was skipped.
pub type Warn = fn(&Error);

/// A claim that was found expired: its worker died, or was unreachable for too long.
#[derive(Debug)]
pub struct Expired {
    /// The item that was put back.
    pub id: ItemId,
    /// The epoch of the expired claim.
    pub epoch: Epoch,
    /// The item now: in line again, claimed by another worker, or a dead letter.
    pub seen: ItemView,
}

/// Called for each expired claim that was found, by whoever ended it. Clones share the callback.
#[derive(Clone, Default)]
pub struct OnExpired(Option<Arc<dyn Fn(Expired) + Send + Sync>>);

impl OnExpired {
    /// Calls `callback`, which must not block.
    pub fn new(callback: impl Fn(Expired) + Send + Sync + 'static) -> Self {
        OnExpired(Some(Arc::new(callback)))
    }

    pub(crate) fn call(&self, expired: impl FnOnce() -> Expired) {
        if let Some(callback) = &self.0 {
            callback(expired());
        }
    }
}

impl Debug for OnExpired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "OnExpired" } else { "Nobody" })
    }
}

/// Everything that a worker needs to know about an item that it has claimed.
#[derive(Debug)]
pub struct Attempt {
    /// The id of the claimed item.
    pub id: ItemId,
    /// The proof to show to guards.
    pub token: Token,
    /// Which attempt this is; the first is 1.
    pub number: u32,
    /// The checkpoint that an earlier attempt left.
    pub checkpoint: Option<String>,
    /// What the item carries.
    pub payload: Content,
}

/// A payload, or the file that contains it.
#[derive(Debug)]
pub enum Content {
    /// The payload in memory.
    Bytes(Vec<u8>),
    /// A file of the spool, which may be of any size.
    File(PathBuf),
}

/// A follow-up of a completed item.
#[derive(Debug, Clone)]
pub struct Addition {
    /// The queue to add it to, if not that of the completed item. A spool adds only to itself.
    pub queue: Option<QueueName>,
    /// The item to add.
    pub item: NewItem,
}

/// An item, as it was read.
#[derive(Debug)]
pub enum ItemView {
    /// An item of a queue, with the store's time.
    Item(ItemName, Box<Item>, Timestamp),
    /// An item of a spool.
    File(SpoolItem),
    /// An item of a spool, with its notes. Also its payload, if that is short enough and this user may read it.
    Shown(Shown, Result<Option<Vec<u8>>>),
}

impl ItemView {
    /// An item of a store, as it was just written. Its `since` serves as the store's time.
    pub(crate) fn written(name: ItemName, item: Item) -> Self {
        let now = item.since;
        ItemView::Item(name, Box::new(item), now)
    }

    /// Its epoch when it was read.
    pub fn epoch(&self) -> Epoch {
        match self {
            ItemView::Item(_, item, _) => item.epoch,
            ItemView::File(file) | ItemView::Shown(Shown { item: file, .. }, _) => file.name.epoch,
        }
    }

    /// Whether it is a dead letter.
    pub fn is_dead(&self) -> bool {
        match self {
            ItemView::Item(_, item, _) => matches!(item.state, State::Dead { .. }),
            ItemView::File(file) | ItemView::Shown(Shown { item: file, .. }, _) => file.folder == SpoolFolder::Failed,
        }
    }
}

/// An operator's order.
#[derive(Debug)]
pub struct Ordered {
    /// The operator.
    pub by: Who,
    /// Why, for the item's history.
    pub why: Why,
    /// The item's epoch on which it was decided; the order is refused at any other. None if it does not matter.
    pub if_epoch: Option<Epoch>,
    /// The order itself.
    pub order: Order,
}

/// An operator's request to the worker that has claimed an item, to finish.
#[derive(Debug)]
pub struct Asking {
    /// The operator, as histories name them.
    pub by: Who,
    /// The operator's reason, for the item's history.
    pub why: Why,
    /// The item's epoch on which it was decided; the request is refused at any other. None if it does not matter.
    pub if_epoch: Option<Epoch>,
    /// How long the worker has to finish.
    pub within: Ttl,
}

/// An order that was carried out.
#[derive(Debug)]
pub struct Carried {
    /// The item now. If the answer was lost, others may have claimed it since.
    pub seen: ItemView,
    /// The epoch that the order started.
    pub epoch: Epoch,
    /// The new holder's token, for a hand-off.
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
    /// How many items of each kind, in the order in which they are printed.
    pub counts: Vec<(&'static str, usize)>,
    /// The first error that kept an item from being handled.
    pub trouble: Option<Error>,
}

/// How long a claim waits for an item.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    /// Not at all: a waiting item is claimed, or none.
    Not,
    /// This long at most.
    For(Duration),
    /// Until there is an item.
    Forever,
}

/// A queue or a spool.
#[async_trait]
pub trait Backlog: Clone + Debug + Send + Sync + 'static {
    /// A claimed item.
    type Grant: Debug + Send + Sync + 'static;
    /// Claims items, one after the other.
    type Claimer: Send;
    /// How many lines to add at once. 1 if adding them one by one is as fast,
    /// so that each is an item as soon as it is read.
    const BATCH: usize = 1;

    /// Whether anything was ever added to it. Asks the store, which may connect only now.
    async fn is_known(&self) -> Result<bool> {
        Ok(true)
    }

    /// Adds an item whose payload is read from `payload`, which may take long. Returns its id, and whether it is new.
    async fn add(&self, new: NewItem, payload: Box<dyn Read + Send>) -> Result<(ItemId, bool)>;

    /// Adds an item for each line. If one fails, those before it were added, and `added` has their ids.
    async fn add_lines(&self, like: &NewItem, lines: Vec<String>, added: &mut Vec<(ItemId, bool)>) -> Result<()>;

    /// The same, with a callback for claims that are found expired through it.
    /// Claims that a server ends are not reported.
    #[must_use]
    fn with_expiry_callback(self, on_expired: OnExpired) -> Self;

    /// A claimer whose claims have this TTL and label. `warn` is called once for each thing that is skipped.
    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<Self::Claimer>;

    /// Claims the first item that may be claimed; none if there was none in that time.
    async fn claim(claimer: &mut Self::Claimer, wait: Wait) -> Result<Option<Self::Grant>>;

    /// A claimed item in the form that a keeper renews while it is worked on.
    fn tenancy(&self, grant: Self::Grant) -> KeptItem<Self> {
        KeptItem { backlog: self.clone(), clock: self.clock(), grant }
    }

    /// The worker's own clock, by which it counts its trust windows.
    fn clock(&self) -> Arc<dyn Clock>;

    /// The TTL and the trust window of a claim.
    fn live(grant: &Self::Grant) -> Live;

    /// Hints that a claimed item may have changed; none where they cannot be pushed.
    fn watch(&self, grant: &Self::Grant) -> Opening;

    /// Whether the item shows something new to its worker: that the claim was
    /// lost, or that an operator asks it to finish.
    async fn has_news(&self, grant: &Self::Grant) -> Result<bool>;

    /// The request to finish, as the last renewal found it. A spool's worker is asked only by a signal.
    fn asked_to_finish(_: &Self::Grant) -> Option<&Drain> {
        None
    }

    /// How long ago progress was last reported under this claim, if it ever was.
    async fn progress_age(&self, grant: &Self::Grant) -> Result<Option<Duration>>;

    /// What the worker of a claimed item needs to know.
    fn attempt(&self, grant: &Self::Grant) -> Attempt;

    /// The claim of a token, for ending it.
    async fn by_token(&self, token: &Token) -> Result<Self::Grant>;

    /// Renews each of these claims, and returns an answer for each, in the same
    /// order. One that fails leaves the others renewed.
    async fn renew(&self, grants: &mut [&mut Self::Grant]) -> Vec<Result<()>>;

    /// Renews the claim of a token, and records how far the work has come. Returns an operator's request to finish, if
    /// there is one. A spool keeps only checkpoints.
    async fn report(&self, token: &Token, report: Report) -> Result<Option<Drain>>;

    /// Completes an item. Its result and its follow-ups count if and only if this succeeds.
    async fn complete(&self, grant: &Self::Grant, result: Option<Payload>, add: Vec<Addition>) -> Result<ItemView>;

    /// Gives an attempt up: the item is tried again after a pause, or becomes a dead letter.
    async fn fail(
        &self,
        grant: &Self::Grant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<ItemView>;

    /// Gives an item back untried.
    async fn give_back(&self, grant: &Self::Grant) -> Result<()>;

    /// A claimed item, with everything that can be shown of it.
    async fn claimed(&self, grant: &Self::Grant) -> Result<ItemView>;

    /// An item, with everything that can be shown of it.
    async fn show(&self, id: &ItemId) -> Result<ItemView>;

    /// Carries out an operator's order. If a hand-off was carried out, but its claim was over before the answer
    /// arrived, that is an error of kind [`leasehold_core::Kind::Lost`].
    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<Carried>;

    /// Asks the worker that has claimed the item to finish within a time, in which
    /// nobody else can claim it. Returns the item; none if nobody has claimed it.
    async fn ask_to_finish(&self, _: &ItemId, _: Asking) -> Result<Option<Item>> {
        let message = "a spool cannot ask its workers to finish; nothing was changed. Send the worker SIGTERM, or do it without asking";
        Err(Error::new(Kind::Unsupported, message))
    }

    /// Waits, at most this long, until the worker that had claimed it at this
    /// epoch no longer works on the item. Returns what it saw last.
    async fn drained(&self, id: &ItemId, _: Epoch, _: Duration) -> Result<ItemView> {
        self.show(id).await
    }

    /// Counts the items of each state.
    async fn tally(&self) -> Result<Tally>;

    /// The dead letters, in the order in which they were given up. Errors of
    /// those that cannot be read are added to `troubles`.
    async fn dead_letters(&self, troubles: &mut Vec<Error>) -> Result<Vec<DeadLetter>>;

    /// Whether every item is finished: none waits, none is claimed, and no completion has follow-ups left to add.
    async fn is_finished(&self) -> Result<bool>;

    /// Puts items with expired claims back, and finishes interrupted work.
    async fn clean(&self, warn: Warn) -> Result<JanitorReport>;

    /// Removes items that were finished longer ago than this, dead letters only `with_dead`.
    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport>;
}

/// A claimed item that a keeper renews.
#[derive(Debug)]
pub struct KeptItem<B: Backlog> {
    backlog: B,
    clock: Arc<dyn Clock>,
    grant: B::Grant,
}

#[async_trait]
impl<B: Backlog> Tenancy for KeptItem<B> {
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
    /// Entries that are not items are only reported. Items that could not be handled count as trouble.
    pub(crate) fn cleaned(done: Chores, warn: Warn) -> Self {
        done.foreign.iter().for_each(warn);
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

/// Reads at most one byte more than `most`, so that something far too large is refused before it is all in memory.
pub fn read_bounded(from: impl Read, most: usize, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(Kind::Invalid, format!("cannot read {what}")).with_source(e))?;
    Ok(bytes)
}
