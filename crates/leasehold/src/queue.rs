//! Queues: items that wait in a store, and are completed once each.
//!
//! Promise: at most one completion of an item is accepted, and what a completion adds is added if and only if it counts.
//! Non-promise: work may be done more than once, if a worker dies or stalls. The item's token tells guards which attempt
//! counts, and its [idempotency key](Attempt::idempotency_key) is the same for each.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # let leases = leasehold::Leases::on(leasehold::store::memory());
//! let emails = leases.queue("emails")?;
//! emails.add("to: ada").await?;
//!
//! let mut worker = emails.worker()?;
//! let _ran = worker.run(async |item| -> leasehold::Result<()> {
//!     println!("sending {}", String::from_utf8_lossy(item.payload()));
//!     Ok(())
//! }).await?;
//! # Ok(()) }
//! ```

use crate::held::{Patience, lost};
use crate::lease::{Run, TTL, duration, lifetime};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{
    Checkpoint, Coordinator, Drain, Error, Keeper, KeeperState, Kind, Label, Line, Loss, Result, Token, Ttl,
};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Addition, KeptItem};
use leasehold_work::queue::{self as work, Claimer, ItemGrant, Payload, Reason};
use std::ops::Deref;
use std::pin::pin;
use tokio::sync::watch;

/// A queue in one store. Clones share the store.
#[derive(Debug, Clone)]
pub struct Queue {
    queue: work::Queue,
    ttl: Ttl,
    label: Option<Label>,
}

/// The result of [`Queue::add`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    id: String,
    is_new: bool,
}

impl Added {
    /// The item's id; if there was already an item with this key, that one's.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// False if there was already an item with this key; then nothing was added.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }
}

impl Queue {
    pub(crate) fn new(coordinator: &Coordinator, name: &str) -> Result<Self> {
        let (store, clock) = (coordinator.store().clone(), coordinator.clock().clone());
        let queue = work::Queue::with_clock(store, name.parse()?, clock);
        Ok(Queue { queue, ttl: TTL.parse()?, label: None })
    }

    /// The same queue, with this TTL for claims, by default `90s`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it is not from `1s` to `24h`.
    pub fn with_ttl(self, ttl: &str) -> Result<Self> {
        Ok(Queue { ttl: lifetime(ttl)?, ..self })
    }

    /// The same queue, claiming under this label, by default the machine's name.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it is not one line of at most 64 bytes.
    pub fn with_label(self, label: &str) -> Result<Self> {
        Ok(Queue { label: Some(Label::named("label", label)?), ..self })
    }

    /// Adds an item: a payload of at most 48 KiB, or a [`NewItem`].
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a wrong item; otherwise the store's error.
    pub async fn add(&self, item: impl Into<NewItem>) -> Result<Added> {
        let added = self.queue.add(item.into().item?).await?;
        Ok(Added { id: added.name().id.to_string(), is_new: matches!(added, work::Added::New(_)) })
    }

    /// A worker, which claims items one after the other.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the TTL is too short for the store's clock.
    pub fn worker(&self) -> Result<Worker> {
        let claimer = Claimer::new(self.queue.clone(), self.label.clone(), self.ttl)?;
        Ok(Worker { claimer })
    }

    /// Claims the next item, if one can be claimed now. A [`Worker`] costs less, and can wait.
    ///
    /// # Errors
    /// The store's error.
    pub async fn claim(&self) -> Result<Option<Claimed>> {
        self.worker()?.claim_within("0s").await
    }
}

/// An item to be added. An error in its values is returned when it is added.
#[derive(Debug)]
pub struct NewItem {
    item: Result<work::NewItem>,
}

impl NewItem {
    /// An item with this payload: at most 48 KiB.
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        let item = Payload::new(payload).map(|payload| work::NewItem { payload, ..Default::default() });
        NewItem { item }
    }

    /// How long it waits before it can be claimed, such as `10m`.
    #[must_use]
    pub fn delay(self, delay: &str) -> Self {
        self.set(duration("delay", delay), |item, value| item.delay = value)
    }

    /// How urgent it is: 0 to 9, higher first; 5 by default.
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        self.set(priority.try_into(), |item, value| item.priority = value)
    }

    /// How often it is tried at most: 5 times by default.
    #[must_use]
    pub fn attempts(self, most: u32) -> Self {
        self.set(Ok(most), |item, value| item.attempts.most = value)
    }

    /// Adds it only if no item of the queue has this key.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.set(key.parse(), |item, value| item.key = Some(value))
    }

    /// Keeps the first error.
    fn set<T>(self, value: Result<T>, set: impl FnOnce(&mut work::NewItem, T)) -> Self {
        let item = self.item.and_then(|mut item| {
            set(&mut item, value?);
            Ok(item)
        });
        NewItem { item }
    }
}

impl From<&str> for NewItem {
    fn from(payload: &str) -> Self {
        NewItem::new(payload)
    }
}

impl From<String> for NewItem {
    fn from(payload: String) -> Self {
        NewItem::new(payload)
    }
}

impl From<Vec<u8>> for NewItem {
    fn from(payload: Vec<u8>) -> Self {
        NewItem::new(payload)
    }
}

/// Claims items, one after the other. Keep it: it remembers what it has seen of the queue's line.
#[derive(Debug)]
pub struct Worker {
    claimer: Claimer,
}

impl Worker {
    /// Waits for the next item. A dropped future has claimed nothing, or an item whose claim expires after its TTL.
    ///
    /// # Errors
    /// The store's error.
    pub async fn claim(&mut self) -> Result<Claimed> {
        let grant = self.claimer.next().await?;
        Ok(self.keep(grant))
    }

    /// The same, at most for this long, such as `10s`; `0s` does not wait.
    ///
    /// # Errors
    /// The store's error.
    pub async fn claim_within(&mut self, limit: &str) -> Result<Option<Claimed>> {
        let limit = duration("limit", limit)?;
        let grant = self.claimer.next_within(limit).await?;
        Ok(grant.map(|grant| self.keep(grant)))
    }

    /// Waits for the next item, does this work for it, and completes it. If the work returns an error, the attempt has failed.
    ///
    /// If the item is lost, the work is dropped at its next await. It is never [`Run::Skipped`].
    ///
    /// # Errors
    /// The work's own errors, and ours converted to that type. If the completion could not be stored, the item is tried again.
    pub async fn run<T, E, F>(&mut self, work: impl FnOnce(Attempt) -> F) -> Result<Run<T>, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error> + std::fmt::Display,
    {
        let item = self.claim().await?;
        let ended = {
            // Dropped with this block: before the item is completed or, if this future is dropped, before renewing stops.
            let mut work = pin!(work(item.attempt.clone()));
            tokio::select! {
                biased;
                loss = item.lost() => return Ok(Run::Lost(loss)),
                ended = &mut work => ended,
            }
        };
        let (settled, given) = match ended {
            Ok(value) => (item.complete().await, Ok(value)),
            Err(error) => (item.fail(&error.to_string()).await, Err(error)),
        };
        match settled {
            Err(refused) if matches!(refused.kind(), Kind::Fenced | Kind::Lost) => {
                Ok(Run::Lost(Loss::Moved(refused.to_string())))
            }
            Err(untold) if given.is_ok() => Err(untold.into()),
            _ => given.map(Run::Ran),
        }
    }

    fn keep(&self, grant: ItemGrant) -> Claimed {
        let queue = self.claimer.queue().clone();
        let keeper = Keeper::keep(queue.tenancy(grant.clone()), None);
        let (state, asked) = (keeper.state(), keeper.asked());
        Claimed { attempt: Attempt { queue, grant, state, asked }, keeper }
    }
}

/// A claimed item, whose claim is renewed in the background. When it is dropped, the claim is no longer renewed, and the item
/// goes back to the queue after the TTL.
///
/// A guard takes `&item` where it expects a token.
#[derive(Debug)]
#[must_use = "dropped, it is no longer renewed, and goes back to the queue after its TTL"]
pub struct Claimed {
    attempt: Attempt,
    keeper: Keeper<KeptItem<work::Queue>>,
}

/// One attempt at an item, as the work sees it. It can be cloned and passed on. A clone does not keep the claim: the [`Claimed`]
/// or the worker that it came from does.
///
/// A guard takes `&attempt` where it expects a token.
#[derive(Debug, Clone)]
pub struct Attempt {
    queue: work::Queue,
    grant: ItemGrant,
    state: watch::Receiver<KeeperState>,
    asked: watch::Receiver<Option<Drain>>,
}

impl Attempt {
    /// The item's id.
    pub fn id(&self) -> String {
        self.grant.name().id.to_string()
    }

    /// The bytes that were added.
    pub fn payload(&self) -> &[u8] {
        self.grant.item().payload.bytes()
    }

    /// The proof to show to guards.
    pub fn token(&self) -> &Token {
        self.grant.token()
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.grant.item().tried
    }

    /// A key that is the same for each attempt.
    pub fn idempotency_key(&self) -> String {
        self.token().lease.to_string()
    }

    /// What an earlier attempt left for this one.
    pub fn previous_checkpoint(&self) -> Option<&str> {
        self.grant.item().progress.as_ref()?.checkpoint.as_ref().map(Checkpoint::as_str)
    }

    /// Reports how far the work has come: one line of at most 200 bytes.
    ///
    /// # Errors
    /// [`Kind::Lost`] if the item was already lost.
    pub async fn progress(&self, marker: &str) -> Result<()> {
        let report = Report { marker: Some(Line::named("progress", marker)?), checkpoint: None };
        self.queue.progress(self.token(), report).await
    }

    /// Stores what the next attempt needs to continue: any text of at most 4096 bytes.
    ///
    /// # Errors
    /// [`Kind::Lost`] if the item was already lost.
    pub async fn checkpoint(&self, text: &str) -> Result<()> {
        let report = Report { marker: None, checkpoint: Some(Checkpoint::new(text)?) };
        self.queue.progress(self.token(), report).await
    }

    /// Resolves when an operator asks the worker to finish (`leasehold queue cancel --drain`). Finish the work, or give the item
    /// back, by the time in the request: then the item is taken away. Until then the claim is renewed. Never resolves if nobody
    /// asks.
    pub async fn asked_to_finish(&self) -> Drain {
        leasehold_core::asked_to_finish(&self.asked).await
    }

    /// Resolves when the item is lost: stop the work then.
    pub async fn lost(&self) -> Loss {
        lost(&self.state).await
    }
}

impl Claimed {
    /// Completes it.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if it was already lost; then it is not completed. Otherwise the store's last error; the item is tried
    /// again after its TTL.
    pub async fn complete(self) -> Result<()> {
        self.complete_with(None::<Vec<u8>>, Vec::new()).await
    }

    /// Completes it with a result of at most 16 KiB, and adds these items to the queue in the same step.
    ///
    /// # Errors
    /// Those of [`complete`](Claimed::complete), and [`Kind::Invalid`] for a wrong result or item.
    pub async fn complete_with(self, result: Option<impl Into<Vec<u8>>>, follow_ups: Vec<NewItem>) -> Result<()> {
        let result = result.map(Payload::result).transpose()?;
        let items: Vec<work::NewItem> = follow_ups.into_iter().map(|new| new.item).collect::<Result<_>>()?;
        self.end(Ending::Completed(result, items)).await
    }

    /// Ends the attempt as failed, with a reason. The item is tried again after a pause, or becomes a dead letter.
    ///
    /// # Errors
    /// Those of [`complete`](Claimed::complete).
    pub async fn fail(self, why: &str) -> Result<()> {
        self.end(Ending::Failed(Reason::lossy(why, "failed"), false)).await
    }

    /// Makes the item a dead letter, with a reason: it is not tried again.
    ///
    /// # Errors
    /// Those of [`complete`](Claimed::complete).
    pub async fn bury(self, why: &str) -> Result<()> {
        self.end(Ending::Failed(Reason::lossy(why, "failed"), true)).await
    }

    /// Gives the item back untried, for another worker to claim.
    ///
    /// # Errors
    /// Those of [`complete`](Claimed::complete).
    pub async fn give_back(self) -> Result<()> {
        self.end(Ending::GivenBack).await
    }

    /// Stops renewing, and records the end. Retries for as long as the claim is trusted.
    async fn end(self, ending: Ending) -> Result<()> {
        let Claimed { attempt: Attempt { queue, .. }, keeper } = self;
        let grant = keeper.stop().await;
        let mut patience = Patience::new(queue.clock(), grant.trust_until());
        loop {
            if let Some(answer) = patience.attempt(ending.tell(&queue, &grant)).await {
                return answer;
            }
        }
    }
}

/// How an attempt ends.
enum Ending {
    /// Completed, with a result and follow-up items.
    Completed(Option<Payload>, Vec<work::NewItem>),
    /// Failed: the reason, and whether it is final.
    Failed(Reason, bool),
    GivenBack,
}

impl Ending {
    async fn tell(&self, queue: &work::Queue, grant: &ItemGrant) -> Result<()> {
        match self {
            Ending::Completed(result, items) => {
                let add = items.iter().map(|item| Addition { queue: None, item: item.clone() }).collect();
                Backlog::complete(queue, grant, result.clone(), add).await.map(drop)
            }
            Ending::Failed(why, is_final) => queue.fail(grant, why.clone(), None, *is_final).await.map(drop),
            Ending::GivenBack => queue.give_back(grant).await.map(drop),
        }
    }
}

impl Deref for Claimed {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.attempt
    }
}

impl AsRef<Token> for Claimed {
    fn as_ref(&self) -> &Token {
        self.token()
    }
}

impl AsRef<Token> for Attempt {
    fn as_ref(&self) -> &Token {
        self.token()
    }
}
