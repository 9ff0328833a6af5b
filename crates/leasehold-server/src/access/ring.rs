//! The keys that a server has seen recently.
//!
//! Promise: what was read about a key is used for [`FRESH`] at most, and for less where the store hints at changes, so a revocation
//! takes effect within seconds on every server. If the store does not answer, nobody is let in. However many made-up keys are
//! tried, real keys are looked up without waiting for them. Non-promise: it makes no keys.

use super::caller::{Caller, Denied};
use super::keys::Keys;
use super::record::KeyRecord;
use super::secret::{KeyId, Secret};
use crate::discreet::Discreet;
use crate::lanes::Lanes;
use leasehold_core::clock::Moment;
use leasehold_core::hints::Hints;
use leasehold_core::{Anchor, Error, Result, Timestamp};
use leasehold_stores::CALLS_AT_ONCE;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

/// How long a key is not read again.
pub const FRESH: Duration = Duration::from_secs(2);
/// How many keys that exist in the store are remembered. Only those who make keys can raise their number.
const KNOWN: usize = 20_000;
/// The same for keys that do not exist, or were not read yet. Counted separately, so that they displace no real key.
const UNKNOWN: usize = 2_000;
/// How many keys that were never found are looked up at once, so that a client that tries one after another keeps nobody else
/// from the store; and how long one waits for its turn.
const STRANGERS: usize = 8;
const TURN: Duration = Duration::from_secs(5);
/// The least time between two listings of all keys for those who wait for a turn.
const LISTING_INTERVAL: Duration = Duration::from_secs(1);
/// How long the store's time is extrapolated from one answer.
const TIME_COUNTS: Duration = Duration::from_secs(60);
/// The least time between two recorded uses of a key.
const USE_INTERVAL: Duration = Duration::from_secs(60);

/// Why a request is not let in.
#[derive(Debug)]
pub enum Refused {
    /// Because of its key.
    Denied(Denied),
    /// The key could not be looked up.
    Store(Error),
    /// So many unknown keys are being tried that this one, also unknown, did not get its turn.
    Crowded,
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Refused::Denied(denied)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Store(error)
    }
}

/// The keys that a server has seen recently.
#[derive(Debug, Clone)]
pub struct KeyRing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keys: Keys,
    /// Another handle, for keys that are known, so that neither strangers nor those who list and make keys delay them.
    known: Keys,
    remembered: Mutex<Remembered>,
    /// Counts the store's hints: what was asked for before the last one is out of date.
    hints: AtomicU64,
    /// Turns at looking up keys that nobody knows yet.
    strangers: Semaphore,
    /// Notified when a request has to wait for such a turn.
    crowded: Notify,
    /// Counts the listings of keys that followed such a notification.
    listings: watch::Sender<u64>,
    /// The store's time, as it was last read.
    time: Mutex<Option<Anchor>>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// The keys that existed when the store was last asked.
    known: HashMap<KeyId, Arc<Slot>>,
    unknown: HashMap<KeyId, Arc<Slot>>,
}

impl Remembered {
    fn slot(&mut self, id: &KeyId) -> Arc<Slot> {
        if let Some(slot) = self.known.get(id) {
            return slot.clone();
        }
        if self.unknown.len() >= UNKNOWN && !self.unknown.contains_key(id) {
            // A client tries one key after another. Lookups under way keep their slots.
            self.unknown.clear();
        }
        self.unknown.entry(id.clone()).or_default().clone()
    }

    /// Notes that the store has this key.
    fn know(&mut self, id: &KeyId, slot: Arc<Slot>, is_fresh: impl Fn(&Slot) -> bool) {
        if self.known.len() >= KNOWN && !self.known.contains_key(id) {
            self.known.retain(|_, slot| is_fresh(slot));
            if self.known.len() >= KNOWN {
                self.known.clear();
            }
        }
        self.unknown.remove(id);
        self.known.insert(id.clone(), slot);
    }
}

/// What is remembered of one key.
#[derive(Debug, Default)]
struct Slot {
    seen: Mutex<Option<Look>>,
    /// Locked while the record is read, so that it is read once for all who wait for it.
    reading: tokio::sync::Mutex<()>,
    used: Mutex<Option<Moment>>,
}

/// What was read about a key.
#[derive(Debug, Clone)]
struct Look {
    record: Option<Arc<KeyRecord>>,
    anchor: Anchor,
    /// How many hints had come when it was read.
    hints: u64,
}

impl KeyRing {
    /// A ring of these keys. Error details of their store go to the log only.
    pub fn new(keys: Keys) -> Self {
        let lanes = Lanes::new(Arc::new(Discreet::new(keys.store().clone())), CALLS_AT_ONCE / 4 * 3);
        KeyRing(Arc::new(Shared {
            keys: keys.clone().on(lanes.others),
            known: keys.on(lanes.holders),
            remembered: Mutex::default(),
            hints: AtomicU64::new(0),
            strangers: Semaphore::new(STRANGERS),
            crowded: Notify::new(),
            listings: watch::Sender::new(0),
            time: Mutex::default(),
        }))
    }

    /// The records behind this ring.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The time of the keys' store, which all servers go by. It is read now and then, and extrapolated in between.
    pub async fn now(&self) -> Result<Timestamp> {
        let keys = &self.0.known;
        let known = *self.0.time.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = keys.clock().now();
        if let Some(anchor) = known.filter(|anchor| moment.saturating_since(anchor.asked) < TIME_COUNTS) {
            return Ok(anchor.at_latest(moment, keys.grain()));
        }
        let anchor = Anchor { asked: moment, now: keys.now().await? };
        *self.0.time.lock().unwrap_or_else(PoisonError::into_inner) = Some(anchor);
        Ok(anchor.now)
    }

    /// The caller with this key. `text` is what follows `Bearer`, or the field of the sign-in form; none if there is none.
    pub async fn caller(&self, text: Option<&str>) -> Result<Caller, Refused> {
        let secret = Secret::parse(text.ok_or(Denied::Missing)?).map_err(Denied::Malformed)?;
        let id = secret.id();
        let slot = self.remembered().slot(&id);
        let look = self.look(&id, &slot).await?;
        // Nothing is said about a key before its bearer has shown its whole text.
        let record = look.record.as_ref().filter(|record| record.hash == secret.hash()).ok_or(Denied::Unknown)?;
        let caller = self.judge(record, look.anchor)?;
        self.note_use(&id, &slot);
        Ok(caller)
    }

    /// The same caller by the key's present record: for requests that last longer than a moment.
    pub async fn again(&self, caller: &Caller) -> Result<Caller, Refused> {
        let slot = self.remembered().slot(&caller.key);
        let look = self.look(&caller.key, &slot).await?;
        let record = look.record.as_ref().ok_or(Denied::Unknown)?;
        Ok(self.judge(record, look.anchor)?)
    }

    /// Waits until the caller's key is no longer valid; returns why. A store that does not answer ends nothing by itself.
    pub async fn until_denied(&self, caller: &Caller) -> Denied {
        let clock = self.0.keys.clock();
        loop {
            if let Err(Refused::Denied(denied)) = self.again(caller).await {
                return denied;
            }
            clock.sleep_until(clock.now() + FRESH).await;
        }
    }

    /// Keeps up with the store while it is polled: at each hint of a change what was read is discarded, and when many unknown keys
    /// wait for a turn, all keys are listed to find the real ones among them.
    pub async fn follow(&self) {
        tokio::join!(self.follow_hints(), self.follow_crowds());
    }

    async fn follow_hints(&self) {
        let changed = Arc::new(Notify::new());
        let Ok(opening) = self.0.keys.watch() else { return };
        let _hints = Hints::pass_on(opening, changed.clone());
        loop {
            changed.notified().await;
            self.0.hints.fetch_add(1, Ordering::AcqRel);
        }
    }

    async fn follow_crowds(&self) {
        loop {
            self.0.crowded.notified().await;
            match self.0.keys.ids(KNOWN).await {
                Ok(ids) => {
                    let mut remembered = self.remembered();
                    for id in ids {
                        let slot = remembered.slot(&id);
                        remembered.know(&id, slot, |slot| self.fresh(slot).is_some());
                    }
                    drop(remembered);
                    self.0.listings.send_modify(|count| *count += 1);
                }
                Err(error) => tracing::debug!("the keys could not be listed: {error}"),
            }
            tokio::time::sleep(LISTING_INTERVAL).await;
        }
    }

    fn judge(&self, record: &KeyRecord, anchor: Anchor) -> Result<Caller, Denied> {
        let keys = &self.0.keys;
        Caller::of(record, anchor.at_latest(keys.clock().now(), keys.grain()))
    }

    async fn look(&self, id: &KeyId, slot: &Arc<Slot>) -> Result<Look, Refused> {
        if let Some(look) = self.fresh(slot) {
            return Ok(look);
        }
        let _reading = slot.reading.lock().await;
        if let Some(look) = self.fresh(slot) {
            return Ok(look);
        }
        let turn = self.turn(id).await?;
        let keys = if turn.is_some() { &self.0.keys } else { &self.0.known };
        let hints = self.0.hints.load(Ordering::Acquire);
        let seen = keys.look(id).await?;
        let look = Look { record: seen.record.map(Arc::new), anchor: seen.anchor, hints };
        *slot.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(look.clone());
        let mut remembered = self.remembered();
        match look.record {
            Some(_) => remembered.know(id, slot.clone(), |slot| self.fresh(slot).is_some()),
            None => drop(remembered.known.remove(id)),
        }
        Ok(look)
    }

    /// A turn to look up a key that is not known yet; none for a known key, which needs no turn.
    async fn turn(&self, id: &KeyId) -> Result<Option<SemaphorePermit<'_>>, Refused> {
        if self.remembered().known.contains_key(id) {
            return Ok(None);
        }
        if let Ok(turn) = self.0.strangers.try_acquire() {
            return Ok(Some(turn));
        }
        let mut listings = self.0.listings.subscribe();
        self.0.crowded.notify_one();
        let waiting = async {
            tokio::select! {
                turn = self.0.strangers.acquire() => turn.ok(),
                _ = listings.wait_for(|_| self.remembered().known.contains_key(id)) => None,
            }
        };
        tokio::time::timeout(TURN, waiting).await.map_err(|_| Refused::Crowded)
    }

    fn fresh(&self, slot: &Slot) -> Option<Look> {
        let (now, hints) = (self.0.keys.clock().now(), self.0.hints.load(Ordering::Acquire));
        let seen = slot.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |look: &&Look| look.hints == hints && now.saturating_since(look.anchor.asked) < FRESH;
        seen.as_ref().filter(is_fresh).cloned()
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the use in the background, now and then: nobody waits for it.
    fn note_use(&self, id: &KeyId, slot: &Slot) {
        let now = self.0.keys.clock().now();
        let mut used = slot.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.is_some_and(|last| now.saturating_since(last) < USE_INTERVAL) {
            return;
        }
        *used = Some(now);
        let (keys, id) = (self.0.keys.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(error) = keys.record_use(&id).await {
                tracing::debug!(key = id.as_str(), "the use of a key was not recorded: {error}");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NewKey, Scope, VerbSet};
    use super::*;
    use leasehold_core::{Label, MemoryStore, Who};

    /// A ring whose turns for strangers are all taken, by some who never come to an end.
    struct Besieged {
        ring: KeyRing,
        following: tokio::task::JoinHandle<()>,
    }

    impl Besieged {
        async fn begin(ring: KeyRing) -> Self {
            ring.0.strangers.acquire_many(STRANGERS as u32).await.unwrap().forget();
            let follower = ring.clone();
            let following = tokio::spawn(async move { follower.follow().await });
            Besieged { ring, following }
        }

        async fn lets_in(&self, secret: &Secret) -> Result<Caller, Refused> {
            self.ring.caller(Some(secret.reveal())).await
        }
    }

    impl Drop for Besieged {
        fn drop(&mut self) {
            self.following.abort();
        }
    }

    async fn key(keys: &Keys) -> Secret {
        let (label, by) = (Label::new("tests").unwrap(), Who::new("ann").unwrap());
        keys.create(NewKey { label, scope: Scope::everything().unwrap(), lasts: None, not_after: None, by })
            .await
            .unwrap()
            .0
    }

    #[tokio::test]
    async fn whoever_tries_keys_delays_neither_a_known_key_nor_one_on_its_first_use() {
        let keys = Keys::new(Arc::new(MemoryStore::default()));
        let ring = KeyRing::new(keys.clone());
        let known = key(&keys).await;
        assert!(ring.caller(Some(known.reveal())).await.is_ok());
        let besieged = Besieged::begin(ring).await;
        // A change of any key makes all of them be read again.
        let first_used = key(&keys).await;
        assert!(besieged.lets_in(&known).await.is_ok(), "it was known before");
        // More made-up keys than are remembered.
        for _ in 0..=UNKNOWN {
            besieged.ring.remembered().slot(&Secret::random(VerbSet::ALL).id());
        }
        assert!(besieged.ring.remembered().unknown.len() <= UNKNOWN);
        besieged.ring.0.hints.fetch_add(1, Ordering::AcqRel);
        assert!(besieged.lets_in(&known).await.is_ok(), "it is still known");
        assert!(besieged.lets_in(&first_used).await.is_ok(), "the store lists it");
        let late = key(&keys).await;
        assert!(besieged.lets_in(&late).await.is_ok(), "and this one, when it is listed again");
    }

    #[tokio::test]
    async fn a_stranger_without_a_turn_is_told_that_there_are_too_many_and_not_that_the_store_is_away() {
        let besieged = Besieged::begin(KeyRing::new(Keys::new(Arc::new(MemoryStore::default())))).await;
        let refused = besieged.lets_in(&Secret::random(VerbSet::ALL)).await;
        assert!(matches!(refused, Err(Refused::Crowded)), "{refused:?}");
        let problem = crate::serve::Problem::from(Refused::Crowded);
        assert_eq!((problem.status().as_u16(), problem.kind()), (503, "overloaded"));
    }
}
