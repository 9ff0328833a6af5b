//! Claiming the next item: "acquire any of these", from the front of the line.
//!
//! Promise: a lone worker claims strictly in order: an item that was acknowledged before a claim began,
//! and precedes the others, is claimed first. Several workers spread out over the front of the line when
//! they collide, and each does its share of the janitor's work: items with expired claims are claimed
//! again, stale entries are removed, and the unfinished work of dead workers is finished. An item that
//! causes errors is set aside for a while and reported once; the others are claimed. Claiming costs one
//! swap and a short listing, however long the line is. Non-promise: with several workers the order is
//! approximate, and a delayed item may come up to a second later than others that were due after it.

use super::apply::Applied;
use super::grant::{ItemGrant, ItemSnapshot};
use super::janitor::Sweep;
use super::line::Listed;
use super::queue::{Queue, too_large};
use super::view::View;
use leasehold_core::cell::Start;
use leasehold_core::clock::Moment;
use leasehold_core::item::name::{ItemName, LinePosition};
use leasehold_core::item::protocol::{Refusal, Request};
use leasehold_core::store::{Watch, Watching};
use leasehold_core::{Error, HolderId, Kind, Label, Nonce, Result, Ttl, format_duration};
use leasehold_system::undo::{Fix, is_disabled};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

/// How long a listing is used before the line is listed again: a more urgent item may have come.
const FRESH: Duration = Duration::from_secs(1);
/// How often an idle worker looks where the store cannot push, and where it can: hints may be lost.
const POLL: Duration = Duration::from_secs(1);
pub(super) const POLL_WITH_HINTS: Duration = Duration::from_secs(5);
/// How long an item with a damaged record is set aside, and one for which the store did not answer (doubled each time).
const DAMAGED: Duration = Duration::from_secs(60);
const TROUBLED: Duration = Duration::from_secs(1);
const MAX_DOUBLED: u32 = 5;
/// This many items in a row without an answer mean that the store is unreachable.
pub(super) const MAX_TROUBLED: usize = 4;
/// How many items are remembered for which a warning was given, so that none is repeated.
const MAX_NAMED: usize = 4096;
/// How often an idle worker checks that the queue was not moved to another store.
const BETWEEN_MIGRATION_CHECKS: Duration = Duration::from_secs(10);
/// The shortest time between two listings, however often the store hints.
const HINT_COOLDOWN: Duration = Duration::from_millis(20);

/// Claims items of one queue, one after the other.
#[derive(Debug)]
pub struct Claimer {
    pub(super) queue: Queue,
    /// As what items are claimed, each time with a new nonce; none is this process.
    holder: Option<HolderId>,
    label: Option<Label>,
    ttl: Ttl,
    pub(super) view: View,
    watch: Option<Watch>,
    pub(super) sweep: Sweep,
    /// When to check next whether the queue was moved.
    next_migration_check: Moment,
    /// Items for which the store did not answer.
    troubled: HashMap<LinePosition, Postponed>,
    /// Warnings about items that were set aside, not reported yet; and the items that were warned about.
    untold: Vec<Error>,
    named: HashSet<ItemName>,
}

/// An item for which the store did not answer.
#[derive(Debug)]
struct Postponed {
    /// Until when it is set aside.
    until: Moment,
    /// How often it was set aside.
    times: u32,
    /// The store's error.
    what: String,
}

/// The result of a look at the line.
#[derive(Debug)]
pub enum Claimed {
    /// An item was claimed.
    Item(Box<ItemGrant>),
    /// There is nothing to claim. Look again at this moment, or when the store hints.
    Nothing {
        /// The moment, by this machine's clock.
        look_again: Moment,
        /// Why a waiting item could not be claimed, if there is one: the line is not as empty as it looks.
        held_up: Option<Error>,
    },
}

impl Claimer {
    /// A claimer whose claims have this TTL and label.
    pub fn new(queue: Queue, label: Option<Label>, ttl: Ttl) -> Result<Self> {
        queue.check_ttl(ttl)?;
        Ok(Claimer {
            holder: None,
            label,
            ttl,
            view: View::new(queue.clock().now()),
            watch: None,
            sweep: Sweep::new(queue.clone()),
            next_migration_check: queue.clock().now(),
            troubled: HashMap::new(),
            untold: Vec::new(),
            named: HashSet::new(),
            queue,
        })
    }

    /// The same, in the name of another process: that of a client.
    #[must_use]
    pub fn for_holder(self, holder: HolderId) -> Self {
        Claimer { holder: Some(holder), ..self }
    }

    /// The queue that it claims from.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The errors of items that were set aside since the last call. Each item is reported once.
    pub fn troubles(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.untold)
    }

    /// Waits for an item. If the future is dropped while it waits, nothing is
    /// claimed; a claim in progress expires by itself.
    pub async fn next(&mut self) -> Result<ItemGrant> {
        loop {
            match self.claim().await? {
                Claimed::Item(grant) => return Ok(*grant),
                Claimed::Nothing { look_again, .. } => self.wait(look_again).await,
            }
        }
    }

    /// Waits for an item, for at most this long. An item that is already there is claimed however short the limit is,
    /// and a claim that was begun is finished. A store that becomes unreachable, or has no room for another client, is
    /// retried. A store that is unreachable at the first look is an error.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<ItemGrant>> {
        match self.next_unless(limit, std::pin::pin!(std::future::pending::<Infallible>())).await? {
            Ok(found) => Ok(found),
            Err(never) => match never {},
        }
    }

    /// The same, until `over` is: its outcome is returned then. A claim that was begun is finished before.
    pub async fn next_unless<T>(
        &mut self,
        limit: Duration,
        mut over: Pin<&mut impl Future<Output = T>>,
    ) -> Result<std::result::Result<Option<ItemGrant>, T>> {
        let clock = self.queue.clock().clone();
        let until = clock.now() + limit;
        let mut is_first = true;
        loop {
            let look_again = match self.claim().await {
                Ok(Claimed::Item(grant)) => return Ok(Ok(Some(*grant))),
                Ok(Claimed::Nothing { look_again, .. }) => look_again,
                Err(error) if clock.now() < until && retries(error.kind(), is_first) => {
                    // Even where a watch would have to be set up: that may have to wait for the store too.
                    tokio::select! {
                        () = clock.sleep_until((clock.now() + POLL).min(until)) => continue,
                        over = over.as_mut() => return Ok(Err(over)),
                    }
                }
                Err(error) => return Err(error),
            };
            is_first = false;
            if clock.now() >= until {
                return Ok(Ok(None));
            }
            tokio::select! {
                () = self.wait(look_again.min(until)) => {}
                over = over.as_mut() => return Ok(Err(over)),
            }
        }
    }

    /// Waits until this moment, or until the store hints.
    async fn wait(&mut self, look_again: Moment) {
        let clock = self.queue.clock().clone();
        let Some(watch) = &mut self.watch else {
            // Changes before the watch was in place gave no hint: look once more.
            self.watch = Some(self.queue.line.listen().await);
            return;
        };
        let cooled = clock.now() + HINT_COOLDOWN;
        tokio::select! {
            () = clock.sleep_until(look_again) => {}
            () = watch.hint() => clock.sleep_until(cooled).await,
        }
    }

    /// Looks at the line, and claims the first item that may be claimed. An
    /// error is the store's; an item's error only sets the item aside.
    pub async fn claim(&mut self) -> Result<Claimed> {
        let (mut has_looked, mut troubled) = (false, 0);
        loop {
            let now = self.queue.clock().now();
            let fresh = self.view.anchor.is_some_and(|anchor| now < anchor.asked + FRESH);
            let must_look = self.view.candidates.is_empty() || !fresh;
            if (must_look || (!has_looked && self.is_overtaken().await?))
                && let Some(due) = self.look().await?
            {
                return self.nothing(due).await;
            }
            has_looked = true;
            let Some(listed) = self.view.next(self.queue.line.is_one_step()) else { continue };
            let position = listed.position.clone();
            match self.try_claim(listed).await {
                Ok(Some(grant)) => {
                    self.troubled.remove(&position);
                    self.named.remove(&position.item);
                    self.tell();
                    return Ok(Claimed::Item(Box::new(grant)));
                }
                Ok(None) => troubled = 0,
                Err(error) if is_temporary(error.kind()) && troubled + 1 == MAX_TROUBLED => return Err(error),
                Err(error) if is_disabled(Fix::ItemErrorLeavesTheClaimer) => return Err(error),
                Err(error) => {
                    troubled += usize::from(is_temporary(error.kind()));
                    self.set_aside(position, error).await?;
                }
            }
        }
    }

    async fn nothing(&mut self, due: Moment) -> Result<Claimed> {
        self.check_not_moved().await?;
        self.sweep.idle().await;
        let poll = match self.queue.store().capabilities().watch {
            Watching::Hints => POLL_WITH_HINTS,
            Watching::None => POLL,
        };
        let now = self.queue.clock().now();
        self.troubled.retain(|_, trouble| trouble.until + DAMAGED > now);
        self.tell();
        let held_up = self.troubled.values().find(|trouble| trouble.until > now);
        let held_up = held_up.map(|trouble| Error::new(Kind::Unavailable, trouble.what.clone()));
        let expiry = self.view.busy.values().min().copied();
        let look_again = due.min(expiry.unwrap_or(due)).min(now + poll).max(now + HINT_COOLDOWN);
        Ok(Claimed::Nothing { look_again, held_up })
    }

    /// Sets an item aside for a while that could not be claimed, or put back in line, and continues with the others. An
    /// error that is not the item's own is returned.
    pub(super) async fn set_aside(&mut self, position: LinePosition, error: Error) -> Result<()> {
        let now = self.queue.clock().now();
        let times = self.troubled.get(&position).map_or(0, |trouble| trouble.times);
        let pause = match error.kind() {
            kind if is_temporary(kind) => TROUBLED * (1 << times.min(MAX_DOUBLED)),
            Kind::Moved => {
                self.queue.check_migration().await?;
                DAMAGED
            }
            // A record of a newer format concerns one item; a store that denies permission concerns them all.
            Kind::Unsupported if self.queue.look(&position.item).await.is_ok() => return Err(error),
            _ => DAMAGED,
        };
        let said = format_duration(pause);
        let what = format!("item `{}` is set aside for {said}, and the others are worked on: {error}", position.item);
        self.view.busy.insert(position.clone(), now + pause);
        if is_temporary(error.kind()) {
            // If it is the store's trouble after all, the next listing fails, and no item is blamed.
            self.view.candidates.clear();
            self.troubled.insert(position, Postponed { until: now + pause, times: times + 1, what });
        } else {
            self.name(position.item, error.kind(), what);
        }
        Ok(())
    }

    /// Warns about the items without an answer, now that the store has answered for others.
    fn tell(&mut self) {
        let told: Vec<_> = self.troubled.iter().map(|(position, t)| (position.item.clone(), t.what.clone())).collect();
        for (item, what) in told {
            self.name(item, Kind::Unavailable, what);
        }
    }

    fn name(&mut self, item: ItemName, kind: Kind, what: String) {
        if self.named.len() >= MAX_NAMED {
            self.named.clear();
        }
        if self.named.insert(item) {
            self.untold.push(Error::new(kind, what));
        }
    }

    /// Stops claiming if the queue was moved: an empty line does not say where its items are.
    async fn check_not_moved(&mut self) -> Result<()> {
        let now = self.queue.clock().now();
        if now < self.next_migration_check {
            return Ok(());
        }
        self.next_migration_check = now + BETWEEN_MIGRATION_CHECKS;
        self.queue.check_migration().await
    }

    /// Sets a stale entry aside for a while, where only the server can remove it from the line. Otherwise it would be
    /// tried again and again, and hide those behind it.
    fn skip(&mut self, position: &LinePosition) {
        if self.queue.line.is_served() {
            self.view.busy.insert(position.clone(), self.queue.clock().now() + TROUBLED);
        }
    }

    /// Who claims the next item: each claim has a nonce of its own.
    fn next_holder(&self) -> HolderId {
        match &self.holder {
            Some(holder) => holder.clone().with_nonce(Nonce::random()),
            None => HolderId::new(self.label.clone()),
        }
    }

    async fn try_claim(&mut self, listed: Listed) -> Result<Option<ItemGrant>> {
        let name = listed.position.item.clone();
        let holder = self.next_holder();
        let request = Request::Claim { holder: holder.clone(), ttl: self.ttl };
        let copy = if listed.is_suspect { None } else { self.view.anchor.zip(listed.copy()) };
        let copy = copy.map(|(anchor, (item, revision))| ItemSnapshot::new(item, Some(revision), anchor));
        // If the item has changed since, there are others.
        let start = copy.as_ref().map_or(Start::Read, Start::OnlyOn);
        let applied = self.queue.apply(&name, &request, start).await?;
        let is_one_step = self.queue.line.is_one_step();
        match applied {
            Applied::Yes { before, written } => {
                if before.record.tenure().is_some_and(|tenure| tenure.holder.nonce() != holder.nonce()) {
                    self.queue.tell_expired(&name, &before.record, &written.record);
                }
                self.view.claimed(is_one_step);
                self.sweep.put_off();
                // The entry where the item stands now, if it had stood there before.
                let entry = (written.record.position(&name) == listed.position).then(|| listed.tag().clone());
                if !is_one_step {
                    // Its entry stays in line while it is worked on.
                    self.view.busy.insert(listed.position, written.anchor.asked + self.ttl.get());
                }
                match self.queue.granted(name, &holder, self.ttl, *written, entry) {
                    // The exchange took longer than the claim lasts: the same as if another worker had claimed it.
                    Err(error) if error.kind() == Kind::Lost => Ok(None),
                    other => other.map(Some),
                }
            }
            Applied::Overtaken => {
                self.view.lost_race(listed.position, is_one_step);
                Ok(None)
            }
            Applied::No { refusal: Refusal::Busy { .. }, .. } if is_one_step && !listed.is_suspect => {
                self.view.lost_race(listed.position, is_one_step);
                Ok(None)
            }
            Applied::No { refusal: Refusal::Busy { until, .. }, seen } if !is_one_step => {
                let anchor = seen.anchor;
                self.view.busy.insert(listed.position, anchor.asked + until.saturating_since(anchor.now));
                Ok(None)
            }
            Applied::No { refusal: Refusal::NotDue { due }, seen }
                if seen.record.position(&name) == listed.position =>
            {
                // The store's clock was set back since the line was listed.
                let anchor = seen.anchor;
                self.view.busy.insert(listed.position, anchor.asked + due.saturating_since(anchor.now).min(POLL));
                Ok(None)
            }
            Applied::No { refusal: Refusal::Draining(drain), seen } => {
                // It is reserved for an operator, who takes it or lets the time pass.
                let left = drain.until().saturating_since(seen.anchor.now);
                self.view.busy.insert(listed.position, seen.anchor.asked + left.min(POLL));
                Ok(None)
            }
            Applied::No { refusal: Refusal::TooLarge { bytes, most }, .. } => Err(too_large(&name, bytes, most)),
            Applied::No { refusal: Refusal::OutOfEpochs, .. } => {
                Err(Error::new(Kind::Invalid, format!("item `{name}` has had its last epoch; add it again")))
            }
            Applied::No { refusal: Refusal::Exhausted, .. } => {
                self.queue.reap(&name).await?;
                Ok(None)
            }
            Applied::No { seen, .. } => {
                let tag = listed.tag().clone();
                self.skip(&listed.position);
                self.queue.repair_entry(&name, &seen, listed.position, Some(tag)).await?;
                Ok(None)
            }
            // Purged.
            Applied::Missing => {
                let tag = listed.tag().clone();
                self.skip(&listed.position);
                self.queue.line.leave(&listed.position, Some(tag)).await?;
                Ok(None)
            }
        }
    }
}

/// Whether a waiting worker tries again.
const fn retries(kind: Kind, is_first: bool) -> bool {
    match kind {
        Kind::Contended => true,
        Kind::Unavailable | Kind::Indeterminate => !is_first,
        _ => false,
    }
}

/// Whether the store may be the cause, so that retrying may help.
pub(super) const fn is_temporary(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate | Kind::Lost)
}
